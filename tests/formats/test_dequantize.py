"""Dequantization against the `gguf` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from leafage.errors import ModelFileError, UnsupportedError
from leafage.formats.dequantize import BLOCKS, LAYOUTS, dequantize, num_bytes

DTYPES = list(BLOCKS)


def random_blocks(
    dtype: str, num_blocks: int, rng: np.random.Generator, scales: str = "normal"
) -> np.ndarray:
    """Blocks with random bits in every field; float fields hold what `scales` says, never NaN.

    'normal': the size of real scales; 'any': any bit pattern but NaN, so subnormal, negative, zero and
    infinite scales too. NaN is left out because payloads may differ, and means nothing in a scale.
    """
    layout = LAYOUTS[dtype][1]
    blocks = np.frombuffer(rng.bytes(num_blocks * layout.itemsize), dtype=layout).copy()
    for field in layout.names:
        kind = layout[field]
        if kind.kind != "f":
            continue
        if scales == "normal":
            blocks[field] = rng.standard_normal(num_blocks) * 0.02
        else:
            finite = blocks[field]
            blocks[field] = np.where(np.isnan(finite), kind.type(-1.5), finite)
    if dtype == "BF16":
        bits = blocks["x"]
        blocks["x"] = np.where((bits & 0x7FFF) > 0x7F80, 0x8000, bits)
    return blocks.view(np.uint8)


def oracle(dtype, data, shape):
    weights, size = BLOCKS[dtype]
    rows = data.reshape(*shape[:-1], shape[-1] // weights * size)
    with np.errstate(all="ignore"):
        return gguf.dequantize(rows, gguf.GGMLQuantizationType[dtype])


@pytest.mark.parametrize("scales", ["normal", "any"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_the_gguf_package_bit_for_bit(dtype, scales):
    rng = np.random.default_rng(DTYPES.index(dtype))
    per_row = 3
    shape = (1031, per_row * BLOCKS[dtype][0])
    data = random_blocks(dtype, shape[0] * per_row, rng, scales)
    got = dequantize(dtype, data, shape)
    assert got.dtype == np.float32 and got.shape == shape and got.flags.c_contiguous
    np.testing.assert_array_equal(got.view(np.uint32), oracle(dtype, data, shape).view(np.uint32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_table_equals_the_gguf_package(dtype):
    assert BLOCKS[dtype] == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_unaligned_read_only_bytes_and_more_axes(dtype):
    rng = np.random.default_rng(7)
    weights = BLOCKS[dtype][0]
    shape = (2, 3, 5 * weights)
    data = random_blocks(dtype, 30, rng)
    moved = np.frombuffer(b"\0" + data.tobytes(), dtype=np.uint8)[1:]
    assert not moved.flags.writeable
    np.testing.assert_array_equal(
        dequantize(dtype, moved, shape), dequantize(dtype, data, (30 * weights,)).reshape(shape)
    )


def test_every_mxfp4_exponent():
    data = np.zeros((256, 17), dtype=np.uint8)
    data[:, 0] = np.arange(256)
    data[:, 1:] = 0xF7
    got = dequantize("MXFP4", data.reshape(-1), (256, 32))
    np.testing.assert_array_equal(got.view(np.uint32), oracle("MXFP4", data, (256, 32)).view(np.uint32))


def test_more_blocks_than_one_chunk():
    rng = np.random.default_rng(1)
    data = random_blocks("Q4_K", 2049, rng)
    whole = dequantize("Q4_K", data, (2049, 256))
    for row in (0, 255, 256, 1023, 2048):
        alone = dequantize("Q4_K", data[row * 144 : (row + 1) * 144], (256,))
        np.testing.assert_array_equal(whole[row], alone)


def test_empty_tensor():
    assert dequantize("F16", np.zeros(0, np.uint8), (0, 4)).shape == (0, 4)


@pytest.mark.parametrize("dtype", ["IQ2_XXS", "TQ1_0", "I32", "Q9_Z"])
def test_other_types_are_refused_by_name(dtype):
    with pytest.raises(UnsupportedError, match=dtype):
        dequantize(dtype, np.zeros(0, np.uint8), (0,))


def test_wrong_sizes_are_refused():
    with pytest.raises(ModelFileError, match="got 17; limit: 18"):
        dequantize("Q4_0", np.zeros(17, np.uint8), (32,))
    with pytest.raises(ModelFileError, match="limit: multiples of 256"):
        num_bytes("Q4_K", (4, 288))
