"""`linear` on every instruction set: the NumPy oracle's bits, at every batch and thread count."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from leafage.kernels import _native
from leafage.kernels.native_linear import Linear
from leafage.kernels.reference_linear import fma, linear, quantize_activations
from tests.kernels.weight_blocks import BLOCKS, DTYPES, FLOATS, random_raw

BATCHES = (1, 2, 3, 4, 5, 7, 9, 11, 13, 16, 17, 33, 64)


AMX = "avx512" in _native.variants() and _native.use_amx(True)


@pytest.fixture(params=[*_native.variants(), *(["avx512 without amx"] if AMX else [])])
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _native.variant()
    name = request.param.split()[0]
    _native.set_variant(name)
    _native.use_amx(name == request.param)
    yield name
    _native.use_amx(True)
    _native.set_variant(before)


def activations(rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of very different size, with outliers."""
    x = rng.standard_normal((rows, k)) * np.exp(rng.standard_normal((rows, 1)))
    x[:, rng.integers(0, k, 2)] *= 30
    return x.astype(np.float32)


def shapes(dtype: str) -> list[tuple[int, int]]:
    if dtype in FLOATS:
        return [(33, 37), (16, 1), (40, 2048)]
    if BLOCKS[dtype][0] == 256:
        return [(33, 256), (16, 2048), (7, 768)]
    return [(33, 32), (16, 2048), (7, 96), (20, 1056)]


def assert_same_bits(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_oracle_bit_for_bit(variant: str, dtype: str, precise: bool) -> None:
    rng = np.random.default_rng(7)
    for rows, k in shapes(dtype):
        raw = random_raw(dtype, rows, k, rng)
        weight = _native.PackedWeight(dtype, rows, k, raw)
        for batch in (2, 21):
            x = activations(batch, k, rng)
            got = Linear().linear(x, [weight], precise=precise)
            expected = linear(x, [(dtype, rows, raw)], fused=variant != "plain", precise=precise)
            assert_same_bits(got, expected)


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_do_not_depend_on_batch_or_threads(variant: str, dtype: str, precise: bool) -> None:
    rng = np.random.default_rng(8)
    lines = {n: Linear(n) for n in (1, 2, 3)}
    for rows, k in shapes(dtype):
        weight = _native.PackedWeight(dtype, rows, k, random_raw(dtype, rows, k, rng))
        x = activations(max(BATCHES), k, rng)
        alone = np.concatenate(
            [lines[1].linear(x[i : i + 1], [weight], precise=precise) for i in range(len(x))]
        )
        for batch in BATCHES:
            for line in lines.values():
                start = (batch * 5) % (len(x) - batch + 1)
                part = np.ascontiguousarray(x[start : start + batch])
                got = line.linear(part, [weight], precise=precise)
                assert_same_bits(got, alone[start : start + batch])


def test_many_row_blocks(variant: str) -> None:
    """More rows than one block of row tiles, more panels than one run."""
    rng = np.random.default_rng(9)
    for dtype in ("Q4_1", "Q6_K", "BF16"):
        weight = _native.PackedWeight(dtype, 150, 256, random_raw(dtype, 150, 256, rng))
        x = activations(531, 256, rng)
        alone = np.concatenate([Linear().linear(x[i : i + 1], [weight]) for i in range(0, 531, 10)])
        for threads in (1, 2):
            assert_same_bits(Linear(threads).linear(x, [weight])[::10], alone)


def test_every_panel_is_computed_once(variant: str) -> None:
    """Long runs of panels are taken in parts, and by whoever has none left: outputs count how often."""
    ones = [np.ones((rows, 1), np.float32) for rows in (16 * 300 - 3, 16 * 211)]
    weights = [_native.PackedWeight("F32", len(one), 1, one.view(np.uint8).ravel()) for one in ones]
    for threads in (1, 2, 3, 5):
        line = Linear(threads)
        for batch in (1, 6):
            counts = np.zeros((batch, sum(map(len, ones))), np.float32)
            for _ in range(100):
                line.linear(np.ones((batch, 1), np.float32), weights, add_to=counts)
            assert (counts == 100).all(), (threads, batch, np.unique(counts))


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("batch", [1, 3, 20])
def test_several_weights_bias_and_accumulation(variant: str, batch: int, precise: bool) -> None:
    rng = np.random.default_rng(10)
    parts = [("Q4_K", 33), ("Q6_K", 5), ("F16", 16), ("Q8_0", 1), ("Q2_K", 30)]
    raws = [(dtype, rows, random_raw(dtype, rows, 512, rng)) for dtype, rows in parts]
    weights = [_native.PackedWeight(dtype, rows, 512, raw) for dtype, rows, raw in raws]
    x = activations(batch, 512, rng)
    bias = rng.standard_normal(85).astype(np.float32)
    before = rng.standard_normal((batch, 85)).astype(np.float32)
    oracle = partial(linear, x, raws, fused=variant != "plain", precise=precise)
    run = partial(Linear(2).linear, x, weights, precise=precise)
    assert_same_bits(run(), oracle())
    assert_same_bits(run(bias=bias), oracle(bias=bias))
    assert_same_bits(run(bias=bias, add_to=before.copy()), oracle(bias=bias, out=before))


@pytest.mark.parametrize("dtype", DTYPES)
def test_close_to_the_exact_product(variant: str, dtype: str) -> None:
    """Against float64 on the dequantized weights: only the activations' 8 bits separate the two."""
    rng = np.random.default_rng(11)
    weight = _native.PackedWeight(dtype, 64, 2048, random_raw(dtype, 64, 2048, rng))
    x = rng.standard_normal((8, 2048)).astype(np.float32)
    got = Linear().linear(x, [weight])
    exact = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
    error = np.abs(got - exact).max() / exact.std()
    assert error < (1e-5 if dtype in FLOATS else 0.04)


@pytest.mark.parametrize("dtype", ["Q4_1", "Q8_0", "Q6_K", "IQ4_NL"])
def test_precise_is_closer_to_the_exact_product(variant: str, dtype: str) -> None:
    """With an outlier in every group: half the error at most, since its range doubles."""
    rng = np.random.default_rng(14)
    weight = _native.PackedWeight(dtype, 64, 2048, random_raw(dtype, 64, 2048, rng))
    x = rng.standard_normal((8, 64, 32)).astype(np.float32)
    x[:, np.arange(64), rng.integers(0, 32, 64)] = 8
    x = x.reshape(8, 2048)
    exact = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
    errors = [(Linear().linear(x, [weight], precise=precise) - exact).std() for precise in (False, True)]
    assert errors[1] < 0.55 * errors[0]


def test_integer_extremes(variant: str) -> None:
    """Largest codes against +-127 everywhere: nothing saturates."""
    for dtype, (block, size, halves) in BLOCKS.items():
        for fill in (0, 255, 0x80, 0x7F):
            raw = np.full((16 * 512 // block, size), fill, np.uint8)
            for at in halves:
                raw[:, at : at + 2] = np.array([0x3C00], np.uint16).view(np.uint8)
            if dtype == "MXFP4":
                raw[:, 0] = 127
            raw = raw.ravel()
            weight = _native.PackedWeight(dtype, 16, 512, raw)
            for sign in (1, -1):
                x = np.full((5, 512), sign, np.float32)
                x[3, ::2] *= -1
                expected = linear(x, [(dtype, 16, raw)], fused=variant != "plain")
                assert_same_bits(Linear().linear(x, [weight]), expected)
                assert_same_bits(Linear().linear(x[3:4], [weight]), expected[3:4])
                x[:, 4::32] *= 2  # two int8 of 127
                x[1, 5::32] *= 1.5
                expected = linear(x, [(dtype, 16, raw)], fused=variant != "plain", precise=True)
                assert_same_bits(Linear().linear(x, [weight], precise=True), expected)
                assert_same_bits(Linear().linear(x[3:4], [weight], precise=True), expected[3:4])


@pytest.mark.parametrize("precise", [False, True])
def test_special_activations(variant: str, precise: bool) -> None:
    """A NaN or infinity spoils its row, and only that; tiny groups count as zero."""
    rng = np.random.default_rng(12)
    for dtype in ("Q4_1", "Q8_0", "Q6_K"):
        raw = random_raw(dtype, 20, 512, rng)
        weight = _native.PackedWeight(dtype, 20, 512, raw)
        x = activations(9, 512, rng)
        x[1, 100] = np.nan
        x[2, 511] = -np.inf
        x[3] = 0
        x[4, :64] = 1e-38
        x[5, ::3] = -0.0
        x[6, 64:96] = 0
        x[6, 70] = 3  # nothing beside it
        expected = linear(x, [(dtype, 20, raw)], fused=variant != "plain", precise=precise)
        for rows in (x, x[:3]):
            got = Linear().linear(np.ascontiguousarray(rows), [weight], precise=precise)
            assert np.isnan(got[1:3]).all() and not np.isnan(np.delete(got, [1, 2], axis=0)).any()
            finite = [r for r in range(len(rows)) if r not in (1, 2)]
            assert_same_bits(got[finite], expected[finite])
        assert not got[3:4].any()


def test_rounding_of_activations(variant: str) -> None:
    """Ties go to even: an identity matrix shows the quantized activations."""
    raw = np.zeros((32, 34), np.uint8)
    raw[:, :2] = np.array([0x3C00], np.uint16).view(np.uint8)
    raw[np.arange(32), 2 + np.arange(32)] = 1
    weight = _native.PackedWeight("Q8_0", 32, 32, raw.ravel())
    x = np.arange(32, dtype=np.float32)[None] - 15.5
    x[0, 31] = 127
    got = Linear().linear(x, [weight])
    q, dx = quantize_activations(x)
    assert dx[0, 0] == 1
    np.testing.assert_array_equal(got[0], q[0, 0])
    assert got[0, :4].tolist() == [-16, -14, -14, -12]
    x[0, 24:28] = [-254, 254, -128.5, 0.5]
    got = Linear().linear(x, [weight], precise=True)
    q, dx = quantize_activations(x, precise=True)
    assert dx[0, 0] == 1
    np.testing.assert_array_equal(got[0], q[0, 0])
    assert got[0, 24:28].tolist() == [-254, 254, -128, 0] and got[0, 31] == 127


def test_oracle_fma() -> None:
    """The oracle's fma: one rounding, where two give another number."""
    from fractions import Fraction

    rng = np.random.default_rng(13)
    a, b, c = (rng.standard_normal(2000).astype(np.float32) for _ in range(3))
    c *= np.float32(2.0) ** rng.integers(-40, 40, 2000)
    got = fma(a, b, c)
    low, high = np.nextafter(got, np.float32(-np.inf)), np.nextafter(got, np.float32(np.inf))
    for i in range(2000):
        exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        error, below, above = (abs(Fraction(float(v)) - exact) for v in (got[i], low[i], high[i]))
        assert error <= below and error <= above
    assert (got != a * b + c).any()


def test_refusals() -> None:
    weight = _native.PackedWeight("F32", 4, 8, np.zeros(128, np.uint8))
    line = Linear()
    with pytest.raises(ValueError, match=r"x as float32 \[\*, 8\], C-contiguous, got float64 \[1, 8\]"):
        line.linear(np.zeros((1, 8)), [weight])
    with pytest.raises(ValueError, match=r"got float32 \[8, 8\], not C-contiguous"):
        line.linear(np.zeros((8, 8), np.float32).T, [weight])
    with pytest.raises(ValueError, match=r"expected bias as float32 \[4\]"):
        line.linear(np.zeros((1, 8), np.float32), [weight], bias=np.zeros(5, np.float32))
    with pytest.raises(ValueError, match="at least one weight"):
        line.linear(np.zeros((1, 8), np.float32), [])
    with pytest.raises(ValueError, match="num_threads >= 1, got 0"):
        Linear(0)
    assert line.linear(np.zeros((0, 8), np.float32), [weight]).shape == (0, 4)
