"""Promise 1 for attention: the bits of a row depend on its position and the K and V it sees, nothing else."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafage.kernels import _native, native_attention
from leafage.kernels.reference_attention import PagedLayer, to_bf16
from tests.kernels.attention_cases import Sequences

VARIANTS = _native.attention_variants()
SHAPES = {
    "smollm2": (3, 9, 64, "bfloat16"),
    "gemma3": (1, 4, 256, "bfloat16"),
    "mha": (2, 2, 80, "bfloat16"),
    "smollm2-int8": (3, 9, 64, "int8"),
    "mha-int8": (2, 2, 80, "int8"),
    "gemma3-int8": (1, 4, 256, "int8"),
}
OPTIONS = {"full": {}, "window": {"window": 90}, "wide window": {"window": 300}, "softcap": {"softcap": 3.0}}


def make(shape: str, lengths: list[int], seed: int = 0) -> Sequences:
    num_kv_heads, num_heads, head_dim, dtype = SHAPES[shape]
    return Sequences.random(
        np.random.default_rng(seed),
        lengths,
        num_kv_heads=num_kv_heads,
        num_heads=num_heads,
        head_dim=head_dim,
        dtype=dtype,
    )


@lru_cache(maxsize=4)
def packed(
    sequences: Sequences, block_size: int, order_seed: int | None, garbage: float
) -> tuple[PagedLayer, list[np.ndarray]]:
    rng = None if order_seed is None else np.random.default_rng(order_seed)
    return sequences.paged(block_size, rng, garbage)


def rows(
    sequences: Sequences,
    pieces: list[tuple[int, int, int]],
    *,
    block_size: int = 16,
    order_seed: int | None = None,
    garbage: float = 0.0,
    **options: object,
) -> np.ndarray:
    """The output bits of the pieces' rows."""
    layer, tables = packed(sequences, block_size, order_seed, garbage)
    q, inputs = sequences.step(tables, pieces)
    scale = sequences.head_dim**-0.5
    return native_attention.attention(q, layer, inputs, scale=scale, **options).view(np.uint32)


def cut(length: int, sizes: list[int]) -> list[tuple[int, int]]:
    """(start, end) pieces of the sizes in turn, covering 0 .. length."""
    pieces, start, i = [], 0, 0
    while start < length:
        end = min(length, start + sizes[i % len(sizes)])
        pieces.append((start, end))
        start, i = end, i + 1
    return pieces


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_prefill_decode_and_any_chunking_agree(variant: str, shape: str, options: dict[str, float]) -> None:
    length = 530
    sequences = make(shape, [length])
    whole = rows(sequences, [(0, 0, length)], variant=variant, **options)
    for sizes in ([1], [7], [16], [100, 3, 1], [256], [257], [511, 1, 18]):
        for num_threads in (1, 2):
            for start, end in cut(length, sizes):
                if sizes == [1] and start not in (0, 1, 15, 16, 254, 255, 256, 257, 511, 512, 513, 529):
                    continue
                got = rows(sequences, [(0, start, end)], variant=variant, num_threads=num_threads, **options)
                np.testing.assert_array_equal(got, whole[start:end], f"{sizes} {start} {num_threads}")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_block_size_order_and_threads_change_no_bit(
    variant: str, shape: str, options: dict[str, float]
) -> None:
    sequences = make(shape, [700, 20, 257])
    pieces = [(0, 600, 700), (1, 19, 20), (2, 250, 257), (0, 511, 512)]
    expected = rows(sequences, pieces, variant=variant, **options)
    for block_size in (1, 2, 3, 8, 16, 24, 32, 64, 128):
        for num_threads in (1, 2, 5):
            got = rows(
                sequences,
                pieces,
                block_size=block_size,
                order_seed=block_size,
                num_threads=num_threads,
                variant=variant,
                **options,
            )
            np.testing.assert_array_equal(got, expected, f"block {block_size}, {num_threads} threads")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("batch", [1, 2, 7, 32])
def test_batch_composition_changes_no_bit(variant: str, batch: int) -> None:
    rng = np.random.default_rng(batch)
    lengths = [int(n) for n in rng.integers(1, 900, batch)]
    sequences = make("smollm2", lengths)
    pieces = [(s, max(0, n - int(rng.integers(1, 40))), n) for s, n in enumerate(lengths)]
    alone = [rows(sequences, [piece], variant=variant) for piece in pieces]
    for num_threads in (1, 2):
        for order in (np.arange(batch), rng.permutation(batch)):
            got = rows(sequences, [pieces[i] for i in order], variant=variant, num_threads=num_threads)
            np.testing.assert_array_equal(got, np.concatenate([alone[i] for i in order]))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("num_threads", [2, 4, 7])
@pytest.mark.parametrize("shape", ["smollm2", "smollm2-int8"])
def test_long_context_is_split_and_merged_to_the_same_bits(
    variant: str, num_threads: int, shape: str
) -> None:
    sequences = make(shape, [5000, 2100])
    pieces = [(0, 4999, 5000), (1, 2090, 2100)]
    expected = rows(sequences, pieces, variant=variant)
    # 0: all in one round; little memory: many rounds; 64 bytes: no room, nothing is split.
    record = (64 + 16) * 4
    for shared_bytes in (0, 99 * record * 2, 99 * record * 4, 64):
        got = rows(sequences, pieces, variant=variant, num_threads=num_threads, shared_bytes=shared_bytes)
        np.testing.assert_array_equal(got, expected, f"{shared_bytes} bytes")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("block_size", [8, 16, 64])
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -3e38])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("shape", ["smollm2", "smollm2-int8"])
def test_slots_behind_the_sequence_do_not_matter(
    variant: str, block_size: int, garbage: float, options: dict[str, float], shape: str
) -> None:
    sequences = make(shape, [519, 3, 65])
    pieces = [(0, 500, 519), (1, 0, 3), (2, 64, 65)]
    expected = rows(sequences, pieces, variant=variant, **options)
    got = rows(sequences, pieces, block_size=block_size, garbage=garbage, variant=variant, **options)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("shape", ["gemma3", "smollm2-int8"])
def test_poisoned_positions_touch_only_rows_that_see_them(variant: str, poison: float, shape: str) -> None:
    sequences = make(shape, [400, 50])
    window = 60
    pieces = [(0, 200, 400), (1, 0, 50)]
    clean = rows(sequences, pieces, variant=variant, window=window).view(np.float32)
    packed.cache_clear()
    for values in (sequences.k[0], sequences.v[0]):
        values[[230, 300]] = to_bf16(np.float32(poison))
    sequences.q[0][350] = poison
    for num_threads in (1, 2):
        bits = rows(sequences, pieces, variant=variant, window=window, num_threads=num_threads)
        got = bits.view(np.float32)
        touched = np.zeros(250, bool)
        for position in (230, 300):
            touched[position - 200 : position - 200 + window] = True
        touched[350 - 200] = True
        np.testing.assert_array_equal(bits[~touched], clean[~touched].view(np.uint32))
        assert not np.isfinite(got[touched]).all(axis=1).any()
        for start, end in cut(200, [7, 1, 30]):
            part = rows(sequences, [(0, 200 + start, 200 + end)], variant=variant, window=window)
            np.testing.assert_array_equal(part.view(np.float32), got[start:end])


@settings(max_examples=40)
@given(st.data())
def test_any_cut_of_any_batch(data: st.DataObject) -> None:
    variant = data.draw(st.sampled_from(VARIANTS))
    shape = data.draw(st.sampled_from(list(SHAPES)))
    options = data.draw(st.sampled_from(list(OPTIONS.values())))
    lengths = data.draw(st.lists(st.integers(1, 600), min_size=1, max_size=4))
    sequences = make(shape, lengths, seed=data.draw(st.integers(0, 99)))
    whole = [rows(sequences, [(s, 0, n)], variant=variant, **options) for s, n in enumerate(lengths)]
    pieces = []
    for _ in range(data.draw(st.integers(1, 8))):
        s = data.draw(st.integers(0, len(lengths) - 1))
        start = data.draw(st.integers(0, lengths[s] - 1))
        pieces.append((s, start, data.draw(st.integers(start + 1, min(lengths[s], start + 60)))))
    got = rows(
        sequences,
        pieces,
        block_size=data.draw(st.sampled_from([1, 4, 8, 16, 32, 64])),
        order_seed=data.draw(st.integers(0, 99)),
        num_threads=data.draw(st.integers(1, 4)),
        variant=variant,
        **options,
    )
    np.testing.assert_array_equal(got, np.concatenate([whole[s][start:end] for s, start, end in pieces]))


# Items, and how many tokens of each other's prefix they have: (item, prefix of which, tokens).
GRAFTS = {
    "all of one": [(i, 0, 512) for i in range(1, 12)],
    "two levels": [(i, 0, 256) for i in range(1, 6)] + [(i, 6, 768) for i in range(7, 12)] + [(6, 0, 256)],
    "more than a task takes": [(i, 0, 768) for i in range(1, 40)],
    "less than a partition": [(1, 0, 240)],
}


@lru_cache(maxsize=1)  # all variants in turn are asked for the same
def grafted(
    shape: str, grafts: tuple[tuple[int, int, int], ...]
) -> tuple[Sequences, PagedLayer, list[np.ndarray]]:
    count = max(item for item, _, _ in grafts) + 2
    sequences = make(shape, [770 + 37 * i % 300 for i in range(count)])
    layer, tables = sequences.paged(16, None, 0.0)
    for item, source, tokens in sorted(grafts, key=lambda graft: graft[0] in {6}, reverse=True):
        tables[item] = np.concatenate([tables[source][: tokens // 16], tables[item][tokens // 16 :]])
    return sequences, layer, tables


def check_grafted(
    variant: str, shape: str, grafts: list[tuple[int, int, int]], threads: list[int], shared_bytes: int = 0
) -> None:
    """Decode rows of all sequences and a few rows of a prompt: the same bits together and alone."""
    sequences, layer, tables = grafted(shape, tuple(grafts))
    pieces = [(i, len(q) - 1, len(q)) for i, q in enumerate(sequences.q)]
    pieces.insert(3, (0, 700, 720))  # rows of a prompt take no part

    def run(some: list[tuple[int, int, int]], **options: int) -> np.ndarray:
        q, inputs = sequences.step(tables, some)
        scale = sequences.head_dim**-0.5
        out = native_attention.attention(q, layer, inputs, scale=scale, variant=variant, **options)
        return out.view(np.uint32)

    alone = np.concatenate([run([piece]) for piece in pieces])
    for num_threads in threads:
        together = run(pieces, num_threads=num_threads, shared_bytes=shared_bytes)
        np.testing.assert_array_equal(together, alone, f"{num_threads} threads")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("grafts", GRAFTS.values(), ids=GRAFTS.keys())
def test_rows_that_share_a_prefix_have_the_bits_of_rows_alone(
    variant: str, shape: str, grafts: list[tuple[int, int, int]]
) -> None:
    check_grafted(variant, shape, grafts, [1, 2, 3])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", ["smollm2", "mha", "mha-int8"])
@pytest.mark.parametrize("states", [0, 1, 2, 4, 7, 9, 30])
def test_a_prefix_without_room_for_all_its_rows_changes_no_bit(variant: str, shape: str, states: int) -> None:
    """Three prefixes of 6, 6 and 2 rows, and memory for the states of so many rows."""
    grafts = [(i, 0, 512) for i in range(1, 6)] + [(i, 7, 256) for i in range(8, 13)] + [(14, 13, 768)]
    _, num_heads, head_dim, _ = SHAPES[shape]
    state = num_heads * (head_dim + 16) * 4
    # States take half of the memory. On 8 threads sharing by two rows does not pay: no fewer rounds of tasks.
    check_grafted(variant, shape, grafts, [1, 2, 8], 2 * states * state + 64)
