"""Quantization on load."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from leafage.errors import InvalidParameterError, ModelFileError, UnsupportedError
from leafage.formats import Tensor
from leafage.formats.dequantize import BLOCKS, dequantize
from leafage.formats.quantize import MODES, quantize, quantize_tensor


def weights(rows=64, cols=256, seed=0):
    return (np.random.default_rng(seed).standard_normal((rows, cols)) * 0.02).astype(np.float32)


def relative_error(x, data, dtype):
    error = x - dequantize(dtype, data, x.shape)
    return float(np.sqrt((error**2).mean() / (x**2).mean()))


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_0"])
def test_equals_the_gguf_package_bit_for_bit(dtype):
    x = weights(3000, 96)
    x[7, :32] = 0  # a block of zeros
    x[8, :32] = -0.0
    x[9, :32] *= 1e-7  # a scale that is subnormal, or nothing, in float16
    x[10] *= 1e3
    expected = gguf.quantize(x, gguf.GGMLQuantizationType[dtype])
    np.testing.assert_array_equal(quantize(x, dtype), expected.reshape(-1))


def test_q4_1_is_better_than_plain_rounding():
    x = weights(256, 512)
    plain = gguf.quantize(x, gguf.GGMLQuantizationType.Q4_1).reshape(-1)
    ours, theirs = (relative_error(x, q, "Q4_1") for q in (quantize(x, "Q4_1"), plain))
    assert ours < 0.94 * theirs


def test_q4_is_the_better_of_the_two_4_bit_formats():
    x = weights(256, 512)
    assert MODES["q4"] == "Q4_1"
    assert relative_error(x, quantize(x, "Q4_1"), "Q4_1") < relative_error(x, quantize(x, "Q4_0"), "Q4_0")


@pytest.mark.parametrize("dtype, limit", [("Q8_0", 0.006), ("Q4_0", 0.09), ("Q4_1", 0.075)])
def test_error_on_gaussian_weights(dtype, limit):
    x = weights()
    data = quantize(x, dtype)
    n, size = BLOCKS[dtype]
    assert data.dtype == np.uint8 and data.shape == (x.size // n * size,)
    assert relative_error(x, data, dtype) < limit


_FLOATS = st.floats(-1000, 1000, width=32)


@given(arrays(np.float32, (3, 32), elements=_FLOATS), st.sampled_from(["Q8_0", "Q4_1"]))
def test_every_weight_stays_within_the_range_of_its_block(x, dtype):
    got = dequantize(dtype, quantize(x, dtype), x.shape)
    span = x.max(axis=1) - x.min(axis=1) if dtype == "Q4_1" else 2 * np.abs(x).max(axis=1)
    # one step of the grid, half a unit of float16 in scale and minimum, and what float16 cannot hold at all
    step = span / (15 if dtype == "Q4_1" else 254)
    slack = np.abs(x).max(axis=1) * 2e-3 + 1e-5
    assert (np.abs(got - x).max(axis=1) <= 4 * step + slack).all()


def test_exactly_representable_weights_are_kept():
    q = np.random.default_rng(0).integers(0, 16, (50, 32))
    q[:, 0], q[:, 1] = 0, 15
    x = (q * np.float32(0.125) - np.float32(0.5)).astype(np.float32)
    np.testing.assert_array_equal(dequantize("Q4_1", quantize(x, "Q4_1"), x.shape), x)


def test_constant_blocks_are_kept():
    x = np.repeat(np.float32([0, 1.5, -3]), 32).reshape(3, 32)
    np.testing.assert_array_equal(dequantize("Q4_1", quantize(x, "Q4_1"), x.shape), x)


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("tiny", [1e-45, 1e-40, 1e-38, 1e-31, 1e-29, 1e-9])
def test_weights_below_float16_become_zero(dtype, tiny):
    x = np.full((2, 32), tiny, np.float32)
    x[0, ::2] = 0
    np.testing.assert_array_equal(dequantize(dtype, quantize(x, dtype), x.shape), 0)


def test_more_than_one_chunk():
    x = weights(513, 256)
    for dtype in ("Q8_0", "Q4_0", "Q4_1"):
        whole = quantize(x, dtype).reshape(513, -1)
        for row in (0, 255, 256, 512):
            np.testing.assert_array_equal(whole[row], quantize(x[row], dtype))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_0", "Q4_1"])
def test_weights_that_do_not_fit_are_refused(bad, dtype):
    x = weights(2, 64)
    x[1, 5] = bad
    with pytest.raises(ModelFileError, match="cannot hold"):
        quantize(x, dtype)


def test_refusals():
    with pytest.raises(UnsupportedError, match="cannot quantize to Q4_K"):
        quantize(weights(), "Q4_K")
    with pytest.raises(ModelFileError, match=r"got \(2, 48\); limit: rows of n x 32"):
        quantize(np.zeros((2, 48), np.float32), "Q8_0")


def tensor(name, x, dtype="F32"):
    if dtype == "BF16":
        raw = (x.view(np.uint32) >> 16).astype(np.uint16)
    else:
        raw = x.astype({"F32": np.float32, "F16": np.float16}[dtype])
    return Tensor(name, x.shape, dtype, raw.reshape(-1).view(np.uint8))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("mode", ["q8", "q4"])
def test_quantize_tensor(dtype, mode):
    x = weights(300, 320)
    source = tensor("model.layers.0.mlp.up_proj.weight", x, dtype)
    got = quantize_tensor(source, mode)
    assert (got.name, got.shape, got.dtype) == (source.name, source.shape, MODES[mode])
    expected = quantize(dequantize(dtype, source.data, x.shape), MODES[mode])
    np.testing.assert_array_equal(got.data, expected)


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("model.embed_tokens.weight", "Q8_0"),
        ("lm_head.weight", "Q8_0"),
        ("token_embd.weight", "Q8_0"),
        ("output.weight", "Q8_0"),
        ("blk.0.attn_output.weight", "Q4_1"),
        ("model.layers.0.self_attn.o_proj.weight", "Q4_1"),
    ],
)
def test_vocabulary_matrices_keep_8_bits(name, dtype):
    assert quantize_tensor(tensor(name, weights(2, 32)), "q4").dtype == dtype


def test_what_is_not_a_float_matrix_comes_back_as_it_is():
    norm = tensor("model.norm.weight", weights(1, 32).reshape(32))
    odd = tensor("odd.weight", weights(2, 40))
    done = Tensor("w", (1, 32), "Q4_0", quantize(weights(1, 32), "Q4_0"))
    for t in (norm, odd, done):
        assert quantize_tensor(t, "q8") is t
    with pytest.raises(InvalidParameterError, match="'q5'"):
        quantize_tensor(norm, "q5")
