"""kv_write and attention against the float64 oracle, on every instruction set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafage.kernels import _native, native_attention, reference_attention
from leafage.kernels.reference_attention import (
    PagedLayer,
    from_bf16,
    pack_int8,
    rotate,
    to_bf16,
    unpack,
    unpack_int8,
    values,
)
from tests.kernels.attention_cases import Sequences, error_bound, int32

VARIANTS = _native.attention_variants()
# Every block of the rotation of K and q in int8, alone and several in a head.
HEAD_DIMS = [16, 32, 48, 64, 80, 96, 128, 192, 256]


def check_against_oracle(
    sequences: Sequences,
    pieces: list[tuple[int, int, int]],
    block_size: int,
    rng: np.random.Generator,
    *,
    scale: float | None = None,
    window: int = 0,
    softcap: float = 0.0,
    variants: list[str] = VARIANTS,
    num_threads: int = 2,
) -> None:
    scale = sequences.head_dim**-0.5 if scale is None else scale
    options = {"scale": scale, "window": window, "softcap": softcap}
    for dtype in ("bfloat16", "int8"):
        sequences = replace(sequences, dtype=dtype)
        layer, tables = sequences.paged(block_size, rng)
        q, inputs = sequences.step(tables, pieces)
        k, v = values(layer)
        expected = reference_attention.attention_over(q, k, v, inputs, **options)
        magnitude = reference_attention.attention_over(q, k, np.abs(v), inputs, **options)
        for variant in variants:
            got = native_attention.attention(
                q, layer, inputs, **options, num_threads=num_threads, variant=variant
            )
            bound = error_bound(q, sequences, pieces, scale, variant in ("avx512-dot", "avx512-amx"))
            allowed = magnitude * np.repeat(bound, sequences.head_dim, axis=1)
            excess = np.max(np.abs(got - expected) - allowed)
            assert excess <= 0.0, f"{dtype}, {variant}: {excess} beyond the bound"


@pytest.mark.parametrize("block_size", [1, 2, 3, 8, 16, 24, 32, 64])
def test_pack_and_unpack_are_inverse(block_size: int) -> None:
    rng = np.random.default_rng(0)
    k, v = (rng.integers(0, 2**16, (5, block_size, 3, 32)).astype(np.uint16) for _ in range(2))
    layer = reference_attention.pack(k, v)
    assert layer.pool.shape == (5, 2 * 3 * block_size * 32 * 2)
    for packed, plain in zip(unpack(layer), (k, v), strict=True):
        np.testing.assert_array_equal(packed, plain)


@pytest.mark.parametrize("block_size", [1, 2, 3, 8, 16, 24, 32, 64])
def test_pack_and_unpack_are_inverse_in_int8(block_size: int) -> None:
    rng = np.random.default_rng(0)
    k, v = (rng.standard_normal((5, block_size, 3, 32)).astype(np.float32) for _ in range(2))
    layer = pack_int8(k, v)
    assert layer.pool.shape == (5, 2 * 3 * block_size * (32 + 4))
    for x, (q, scale) in zip((rotate(k), v), unpack_int8(layer), strict=True):
        for got, expected in zip((q, scale), reference_attention.quantize(x), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_quantize_rounds_to_the_nearest_of_255_values() -> None:
    x = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32)
    q, scale = reference_attention.quantize(x)
    assert (np.abs(q.astype(int)).max(axis=1) == 127).all()
    assert (np.abs(q * scale[:, None] - x) <= scale[:, None] * 0.50001).all()
    # Nothing to scale, too little for a normal scale, not finite.
    edges = np.zeros((5, 32), np.float32)
    edges[1], edges[2, 3], edges[3, 3], edges[4] = 1e-40, np.nan, -np.inf, 3e38
    q, scale = reference_attention.quantize(edges)
    np.testing.assert_array_equal(q[:4], 0)
    np.testing.assert_array_equal(scale[:4], np.array([0, 0, np.nan, np.nan], np.float32))
    assert (q[4] == 127).all() and np.isfinite(scale[4])


def test_layout_of_a_tile_in_int8() -> None:
    k = np.arange(1, 16 * 32 + 1, dtype=np.float32).reshape(1, 16, 1, 32)
    (kq, k_scale), (vq, v_scale) = (tuple(a[0, :, 0] for a in part) for part in unpack_int8(pack_int8(k, -k)))
    pool = pack_int8(k, -k).pool[0].view(np.int8)
    run = 16 * (4 + 32)
    for start, scale in ((0, k_scale), (run, v_scale)):
        np.testing.assert_array_equal(pool[start : start + 64].view(np.float32), scale)
    assert pool[64 + 5 * 16 + 2] == kq[2, 5]  # K: a row of 16 tokens for each dimension
    # V: token 5 is the second of token pair 2; dimension 20 is in the second half of the head.
    assert pool[run + 64 + 2 * 64 + 32 + 16 + 4] == vq[5, 20]


def test_layout_of_a_tile() -> None:
    k = np.arange(16 * 32, dtype=np.uint16).reshape(1, 16, 1, 32)
    pool = reference_attention.pack(k, k + 1000).pool.view(np.uint16)
    # K: pair 1 of token 2 is behind 16 tokens of pair 0; V: token 5 is the second of token pair 2.
    assert list(pool[0, (16 + 2) * 2 :][:2]) == [2 * 32 + 2, 2 * 32 + 3]
    assert pool[0, 16 * 32 + (2 * 32 + 7) * 2 + 1] == 1000 + 5 * 32 + 7


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("block_size", [1, 2, 3, 8, 16, 24, 32, 64])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_kv_write_stores_rounded_values_in_their_slots_only(
    variant: str, block_size: int, num_threads: int
) -> None:
    rng = np.random.default_rng(block_size)
    heads, head_dim, num_blocks = 3, 48, 150 // block_size + 2
    k, v = (rng.integers(0, 2**15, (num_blocks, block_size, heads, head_dim)).astype(np.uint16) for _ in "kv")
    layer = reference_attention.pack(k, v)
    x = (rng.standard_normal((100, 500)) * 10.0 ** rng.integers(-30, 30, (100, 1))).astype(np.float32)
    x[3, 200:203] = [np.nan, np.inf, -np.inf]
    slots = int32(rng.permutation(num_blocks * block_size)[:100])
    slots[7] = slots[50] = -1
    native_attention.kv_write(
        x, layer, slots, k_column=200, v_column=350, num_threads=num_threads, variant=variant
    )
    for target, column in ((k, 200), (v, 350)):
        rows = slots >= 0
        values = to_bf16(x[rows, column : column + heads * head_dim]).reshape(-1, heads, head_dim)
        target.reshape(-1, heads, head_dim)[slots[rows]] = values
    for got, expected in zip(unpack(layer), (k, v), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("block_size", [1, 2, 3, 8, 16, 24, 32, 64])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_kv_write_stores_quantized_values_in_their_slots_only(
    variant: str, block_size: int, num_threads: int
) -> None:
    rng = np.random.default_rng(block_size)
    heads, head_dim, num_blocks = 3, 48, 150 // block_size + 2
    k, v = (rng.standard_normal((num_blocks, block_size, heads, head_dim)).astype(np.float32) for _ in "kv")
    layer = pack_int8(k, v)
    x = (rng.standard_normal((100, 500)) * 10.0 ** rng.integers(-40, 30, (100, 1))).astype(np.float32)
    x[3, 200:203] = [np.nan, np.inf, -np.inf]
    x[4] = 0
    x[5] = 3e38
    slots = int32(rng.permutation(num_blocks * block_size)[:100])
    slots[7] = slots[50] = -1
    native_attention.kv_write(
        x, layer, slots, k_column=200, v_column=350, num_threads=num_threads, variant=variant
    )
    rows = slots >= 0
    for target, column in ((k, 200), (v, 350)):
        heads_of_rows = x[rows, column : column + heads * head_dim].reshape(-1, heads, head_dim)
        target.reshape(-1, heads, head_dim)[slots[rows]] = heads_of_rows
    np.testing.assert_array_equal(layer.pool, pack_int8(k, v).pool)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_rotate_is_a_hadamard_matrix_and_its_own_inverse(head_dim: int) -> None:
    block, matrix = head_dim & -head_dim, np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    x = np.random.default_rng(head_dim).standard_normal((7, 3, head_dim))
    expected = (x.reshape(-1, block) @ matrix / block**0.5).reshape(x.shape)
    np.testing.assert_allclose(rotate(x), expected, atol=1e-14)
    np.testing.assert_allclose(rotate(rotate(x)), x, atol=1e-14)
    np.testing.assert_allclose(rotate(x.astype(np.float32)), expected, atol=2e-6)
    # What a block holds stays in it.
    x[..., :block] = 0
    np.testing.assert_array_equal(rotate(x)[..., :block], 0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_kv_write_rotates_k_of_int8_as_the_oracle_does(variant: str, head_dim: int) -> None:
    rng = np.random.default_rng(head_dim)
    k, v = (rng.standard_normal((4, 16, 2, head_dim)).astype(np.float32) for _ in "kv")
    k[..., 5] *= 20
    x = np.concatenate([a.reshape(64, -1) for a in (k, v)], axis=1)
    layer = pack_int8(np.zeros_like(k), v[::-1])
    width = 2 * head_dim
    native_attention.kv_write(x, layer, int32(range(64)), k_column=0, v_column=width, variant=variant)
    np.testing.assert_array_equal(layer.pool, pack_int8(k, v).pool)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("head_dim", [48, 64, 80, 96, 256])
def test_a_large_dimension_of_k_costs_the_others_less_of_their_precision(variant: str, head_dim: int) -> None:
    """Against exact K: an error at least 2.5 times as small as with K quantized as it comes."""
    rng = np.random.default_rng(head_dim)
    sequences = Sequences.random(rng, [300], num_kv_heads=1, num_heads=4, head_dim=head_dim, dtype="int8")
    k = rng.standard_normal((19, 16, 1, head_dim)).astype(np.float32)
    k[..., 5] *= 40
    v = rng.standard_normal(k.shape).astype(np.float32)
    _, tables = sequences.paged(16)
    q, inputs = sequences.step(tables, [(0, 100, 300)])
    q.reshape(200, 4, head_dim)[..., 5] = 0  # scores are made by the other dimensions
    layer = pack_int8(np.zeros_like(k), v)
    x = np.concatenate([a.reshape(-1, head_dim) for a in (k, v)], axis=1)
    native_attention.kv_write(x, layer, int32(range(len(x))), k_column=0, v_column=head_dim, variant=variant)
    options = {"scale": head_dim**-0.5}
    got = native_attention.attention(q, layer, inputs, variant=variant, **options)
    plain_q, plain_scale = reference_attention.quantize(k)
    stored_v = values(layer)[1]

    def error(out: np.ndarray) -> float:
        exact = reference_attention.attention_over(q, k.astype(np.float64), stored_v, inputs, **options)
        return float(np.sqrt(np.mean((out - exact) ** 2)))

    plain = plain_q.astype(np.float64) * plain_scale[..., None]
    unrotated = error(reference_attention.attention_over(q, plain, stored_v, inputs, **options))
    assert 2.5 * error(got) < unrotated


@pytest.mark.parametrize("block_size", [1, 8, 16, 24, 64])
@pytest.mark.parametrize(
    ("num_kv_heads", "num_heads", "head_dim"),
    [(3, 9, 64), (1, 4, 256), (8, 32, 128), (2, 2, 80), (4, 8, 32), (1, 3, 96), (1, 71, 16), (2, 12, 112)],
)
def test_mixed_batch(block_size: int, num_kv_heads: int, num_heads: int, head_dim: int) -> None:
    rng = np.random.default_rng(1)
    sequences = Sequences.random(
        rng, [300, 17, 1, 130], num_kv_heads=num_kv_heads, num_heads=num_heads, head_dim=head_dim
    )
    pieces = [(0, 180, 300), (1, 16, 17), (2, 0, 1), (3, 100, 110)]
    check_against_oracle(sequences, pieces, block_size, rng)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 255, 256, 257, 511, 512, 513, 1025])
def test_one_row_at_tile_and_partition_boundaries(length: int) -> None:
    rng = np.random.default_rng(length)
    sequences = Sequences.random(rng, [length], num_kv_heads=3, num_heads=9, head_dim=64)
    check_against_oracle(sequences, [(0, length - 1, length)], 16, rng)


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 100, 256, 257, 512, 5000])
@pytest.mark.parametrize("softcap", [0.0, 2.0, 50.0])
def test_window_and_softcap(window: int, softcap: float) -> None:
    rng = np.random.default_rng(window)
    sequences = Sequences.random(rng, [700, 40], num_kv_heads=2, num_heads=4, head_dim=32, spread=2.0)
    check_against_oracle(
        sequences, [(0, 480, 560), (1, 0, 40), (0, 699, 700)], 16, rng, window=window, softcap=softcap
    )


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 3.0])
def test_tiny_and_large_scores(scale: float) -> None:
    rng = np.random.default_rng(3)
    sequences = Sequences.random(rng, [600], num_kv_heads=2, num_heads=6, head_dim=32)
    check_against_oracle(sequences, [(0, 500, 530), (0, 599, 600)], 16, rng, scale=scale)


@pytest.mark.parametrize("variant", VARIANTS)
def test_huge_scores_pick_one_token(variant: str) -> None:
    rng = np.random.default_rng(4)
    sequences = Sequences.random(rng, [600], num_kv_heads=1, num_heads=1, head_dim=32, spread=1e18)
    layer, tables = sequences.paged(16)
    sequences.q[0] *= np.float32(1e18)
    q, inputs = sequences.step(tables, [(0, 400, 600)])
    got = native_attention.attention(q, layer, inputs, scale=1.0, num_threads=2, variant=variant)
    scores = to_f64(q) @ from_bf16(sequences.k[0][:, 0]).astype(np.float64).T
    scores[np.arange(600)[None] > np.arange(400, 600)[:, None]] = -np.inf
    # A bf16 query may move the winner only where two scores are within its rounding.
    top = np.sort(scores, axis=1)
    clear = top[:, -1] - top[:, -2] > 0.02 * np.abs(scores[np.isfinite(scores)]).max()
    assert clear.sum() > 50
    winners = from_bf16(sequences.v[0][:, 0])[scores.argmax(axis=1)]
    np.testing.assert_array_equal(got[clear], winners[clear])


def to_f64(q: np.ndarray) -> np.ndarray:
    return from_bf16(to_bf16(q)).astype(np.float64)


@settings(max_examples=40)
@given(st.data())
def test_any_shape(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    num_kv_heads = data.draw(st.integers(1, 4))
    sequences = Sequences.random(
        rng,
        data.draw(st.lists(st.integers(1, 330), min_size=1, max_size=5)),
        num_kv_heads=num_kv_heads,
        num_heads=num_kv_heads * data.draw(st.integers(1, 9)),
        head_dim=16 * data.draw(st.integers(1, 16)),
        spread=data.draw(st.sampled_from([0.1, 1.0, 4.0])),
    )
    pieces = []
    for s, k in enumerate(sequences.k):
        start = data.draw(st.integers(0, len(k) - 1))
        pieces.append((s, start, data.draw(st.integers(start + 1, min(len(k), start + 70)))))
    check_against_oracle(
        sequences,
        pieces,
        data.draw(st.sampled_from([1, 2, 3, 4, 5, 8, 16, 20, 32, 48, 64])),
        rng,
        window=data.draw(st.sampled_from([0, 0, 1, 7, 16, 100, 256])),
        softcap=data.draw(st.sampled_from([0.0, 0.0, 3.0])),
        num_threads=data.draw(st.integers(1, 3)),
    )


def test_wrong_arguments_are_refused() -> None:
    rng = np.random.default_rng(6)
    sequences = Sequences.random(rng, [40], num_kv_heads=2, num_heads=4, head_dim=32)
    layer, tables = sequences.paged(16)
    q, inputs = sequences.step(tables, [(0, 0, 40)])
    run = native_attention.attention
    with pytest.raises(ValueError, match="expected q as contiguous float32"):
        run(q.astype(np.float64), layer, inputs, scale=1.0)
    with pytest.raises(ValueError, match="expected a variant of"):
        run(q, layer, inputs, scale=1.0, variant="mmx")
    with pytest.raises(ValueError, match="multiple of 16 up to 256, got 24"):
        run(q, PagedLayer(layer.pool, 16, 2, 24), inputs, scale=1.0)
    with pytest.raises(ValueError, match="expected blocks of 2304 bytes, got 4096"):
        run(q, replace(layer, dtype="int8"), inputs, scale=1.0)
    with pytest.raises(ValueError, match="expected a layer of bfloat16 or int8, got 'fp8'"):
        run(q, replace(layer, dtype="fp8"), inputs, scale=1.0)
    with pytest.raises(ValueError, match="expected blocks of"):
        run(q, PagedLayer(layer.pool, 16, 1, 32), inputs, scale=1.0)
    beyond = inputs.tables.copy()
    beyond[1] = len(layer.pool)
    with pytest.raises(ValueError, match="expected tables in"):
        run(q, layer, inputs.replace(tables=beyond), scale=1.0)
    inputs = inputs.replace(tables=inputs.tables[:1])
    with pytest.raises(ValueError, match="expected table_offsets in"):
        run(q, layer, inputs, scale=1.0)
    x = np.zeros((2, 128), np.float32)
    with pytest.raises(ValueError, match="expected slots in"):
        native_attention.kv_write(x, layer, int32([0, 16 * len(layer.pool)]), k_column=0, v_column=64)
    with pytest.raises(ValueError, match="expected v_column in"):
        native_attention.kv_write(x, layer, int32([0, 1]), k_column=0, v_column=65)
