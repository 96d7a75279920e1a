"""Packed weights: sizes, exact values, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf import dequantize as gguf_dequantize

from leafage.kernels import _native
from leafage.kernels.native_linear import Linear
from leafage.kernels.reference_linear import float_weights, integers
from tests.kernels.weight_blocks import BLOCKS, DTYPES, FLOATS, random_raw


def oracle(dtype: str, rows: int, raw: np.ndarray) -> np.ndarray:
    if dtype == "BF16":
        return gguf_dequantize(raw.reshape(rows, -1), GGMLQuantizationType.BF16)
    with np.errstate(over="ignore"):
        return gguf_dequantize(raw.reshape(rows, -1).copy(), GGMLQuantizationType[dtype])


def shapes(dtype: str) -> list[tuple[int, int]]:
    if dtype in FLOATS:
        return [(16, 64), (1, 1), (33, 37), (5, 576)]
    block = BLOCKS[dtype][0]
    return [(16, block), (1, block), (33, 3 * block), (100, 8 * block)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantize_equals_gguf(dtype: str) -> None:
    rng = np.random.default_rng(1)
    for rows, cols in shapes(dtype):
        raw = random_raw(dtype, rows, cols, rng)
        weight = _native.PackedWeight(dtype, rows, cols, raw)
        assert (weight.dtype, weight.rows, weight.cols) == (dtype, rows, cols)
        expected = oracle(dtype, rows, raw)
        np.testing.assert_array_equal(weight.dequantize().view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("num_threads", [1, 3])
def test_many_in_one_call_are_the_same(num_threads: int) -> None:
    """Matrices of every type and of few and many panels, whose panels the threads share out."""
    rng = np.random.default_rng(8)
    raw = [
        (dtype, rows, cols, random_raw(dtype, rows, cols, rng))
        for dtype in DTYPES
        for rows, cols in [*shapes(dtype), (400, 256)]
    ]
    packed = _native.pack_weights(raw, num_threads)
    for weight, (dtype, rows, cols, data) in zip(packed, raw, strict=True):
        assert (weight.dtype, weight.rows, weight.cols) == (dtype, rows, cols)
        expected = oracle(dtype, rows, data)
        np.testing.assert_array_equal(weight.dequantize().view(np.uint32), expected.view(np.uint32))
    assert _native.pack_weights([], num_threads) == []
    with pytest.raises(ValueError, match="expected 18 bytes of Q4_0"):
        _native.pack_weights([raw[0], ("Q4_0", 1, 32, np.zeros(17, np.uint8))], num_threads)


@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_scales(dtype: str) -> None:
    """Subnormal and largest half-precision scales, zero and largest exponents."""
    rng = np.random.default_rng(2)
    rows, cols = 16, 512
    raw = random_raw(dtype, rows, cols, rng)
    if dtype in ("F16", "BF16"):
        values = [0, 1, 0x3FF, 0x7BFF, 0x8001, 0x0400, 0x7F7F if dtype == "BF16" else 0x7BFF]
        raw = np.resize(np.array(values, np.uint16), rows * cols).view(np.uint8).copy()
    elif dtype in BLOCKS:
        _, size, halves = BLOCKS[dtype]
        blocks = raw.reshape(-1, size)
        for at in halves:
            extreme = np.array([0, 1, 0x3FF, 0x7BFF, 0x8001, 0xFBFF, 0x0400], np.uint16)
            blocks[:, at : at + 2] = np.resize(extreme, len(blocks)).view(np.uint8).reshape(-1, 2)
        if dtype == "MXFP4":
            blocks[:, 0] = np.resize([0, 1, 2, 3, 127, 254, 255], len(blocks))
    weight = _native.PackedWeight(dtype, rows, cols, raw)
    expected = oracle(dtype, rows, raw)
    np.testing.assert_array_equal(weight.dequantize().view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_oracle_integers_equal_gguf(dtype: str) -> None:
    """The oracle of test_linear reads the file by itself: it must agree with gguf too."""
    rng = np.random.default_rng(3)
    raw = random_raw(dtype, 8, 512, rng)
    if dtype in FLOATS:
        values = float_weights(dtype, 8, raw)
    else:
        q, d, minimum = integers(dtype, 8, raw)
        parts = d[..., None] * q.reshape(8, d.shape[1], -1).astype(np.float32)
        values = (parts if minimum is None else parts + minimum[..., None]).reshape(8, -1)
    np.testing.assert_array_equal(values, oracle(dtype, 8, raw))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_larger_than_the_file(dtype: str) -> None:
    rows, cols = 96, 768
    raw = np.zeros(len(random_raw(dtype, rows, cols, np.random.default_rng(0))), np.uint8)
    assert _native.PackedWeight(dtype, rows, cols, raw).nbytes <= 1.06 * raw.nbytes


def test_threads_pack_the_same() -> None:
    rng = np.random.default_rng(4)
    raw = random_raw("Q5_K", 200, 1024, rng)
    one = _native.PackedWeight("Q5_K", 200, 1024, raw).dequantize()
    three = _native.PackedWeight("Q5_K", 200, 1024, raw, num_threads=3).dequantize()
    np.testing.assert_array_equal(one, three)


def test_memory_outlives_its_neighbours() -> None:
    """Small weights share a chunk of memory: freeing one leaves the others alone."""
    rng = np.random.default_rng(5)
    raws = [random_raw("Q4_0", 64, 256, rng) for _ in range(50)]
    weights = [_native.PackedWeight("Q4_0", 64, 256, raw) for raw in raws]
    del weights[::2]
    more = [_native.PackedWeight("Q8_0", 64, 256, random_raw("Q8_0", 64, 256, rng)) for _ in range(50)]
    for weight, raw in zip(weights, raws[1::2], strict=True):
        np.testing.assert_array_equal(weight.dequantize(), oracle("Q4_0", 64, raw))
    assert len(more) == 50


def test_embed() -> None:
    rng = np.random.default_rng(6)
    for dtype in ("Q8_0", "Q4_1", "Q6_K", "F16"):
        raw = random_raw(dtype, 50, 256, rng)
        ids = np.array([49, 0, 17, 17, 3], np.int32)
        table = _native.PackedWeight(dtype, 50, 256, raw)
        expected = oracle(dtype, 50, raw)[ids]
        np.testing.assert_array_equal(Linear(2).embed(table, ids), expected)
        np.testing.assert_array_equal(Linear().embed(table, ids, scale=2.5), expected * np.float32(2.5))
    with pytest.raises(ValueError, match=r"expected token ids in \[0, 50\), got 3 to 50"):
        Linear().embed(table, np.array([3, 50], np.int32))


def test_refusals() -> None:
    raw = np.zeros(18, np.uint8)
    with pytest.raises(ValueError, match="unknown weight type: Q9_Z"):
        _native.PackedWeight("Q9_Z", 1, 32, raw)
    with pytest.raises(ValueError, match="multiple of 32, got 33"):
        _native.PackedWeight("Q4_0", 1, 33, raw)
    with pytest.raises(ValueError, match=r"expected 36 bytes of Q4_0 \[2, 32\], got 18"):
        _native.PackedWeight("Q4_0", 2, 32, raw)
    with pytest.raises(ValueError, match="at least one row"):
        _native.PackedWeight("Q4_0", 0, 32, raw)
