"""The reference ops against plain float64 loops, and the promise that a row's bits depend on nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leafage.kernels import reference
from leafage.kernels.program import Buffer, Builder, KVSpec, Program, Rope, Weight
from leafage.kernels.step_inputs import StepInputs

RNG_SEED = 7


def random(*shape: int, seed: int = RNG_SEED) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def step(*items: tuple[list[int], int, list[int]], block_size: int, logits: str = "all") -> StepInputs:
    """StepInputs of items (token_ids, start, block_table)."""
    tokens, positions, slots, rows, counts, starts, offsets, tables = ([] for _ in range(8))
    for token_ids, start, table in items:
        rows.append(len(tokens))
        counts.append(len(token_ids))
        starts.append(start)
        offsets.append(len(tables))
        tables += table
        for i, token in enumerate(token_ids):
            position = start + i
            tokens.append(token)
            positions.append(position)
            slots.append(table[position // block_size] * block_size + position % block_size)
    last = [row + count - 1 for row, count in zip(rows, counts, strict=True)]
    logit_rows = {"all": list(range(len(tokens))), "last": last, "none": []}[logits]
    fields = (tokens, positions, slots, rows, counts, starts, offsets, tables, logit_rows)
    return StepInputs.of(*(np.array(field, np.int32) for field in fields))


def test_embed_takes_rows_and_scales() -> None:
    table = random(10, 4)
    got = reference.embed(table, np.array([3, 3, 9], np.int32), 2.5)
    np.testing.assert_array_equal(got, table[[3, 3, 9]] * np.float32(2.5))


def test_rms_norm() -> None:
    x, weight = random(5, 48), random(48, seed=1)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(reference.rms_norm(x, weight, 1e-5), expected, rtol=1e-6)


def test_head_norm_touches_its_columns_only() -> None:
    x, weight = random(3, 40), random(8, seed=1)
    before = x.copy()
    reference.head_norm(x, weight, 1e-6, column=8, num_heads=2)
    for head in (8, 16):
        expected = reference.rms_norm(before[:, head : head + 8], weight, 1e-6)
        np.testing.assert_allclose(x[:, head : head + 8], expected, rtol=1e-6)
    np.testing.assert_array_equal(x[:, :8], before[:, :8])
    np.testing.assert_array_equal(x[:, 24:], before[:, 24:])


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 50])
def test_linear_puts_weights_side_by_side(rows: int) -> None:
    x, first, second, bias = (
        random(rows, 24),
        random(7, 24, seed=1),
        random(5, 24, seed=2),
        random(12, seed=3),
    )
    expected = x.astype(np.float64) @ np.concatenate([first, second]).T.astype(np.float64) + bias
    np.testing.assert_allclose(reference.linear(x, [first, second], bias), expected, atol=1e-5)
    out = random(rows, 12, seed=4)
    expected += out
    assert reference.linear(x, [first, second], bias, add_to=out) is out
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_turns_pairs(interleaved: bool) -> None:
    x = random(3, 30)
    before = x.copy()
    inv_freq = (1.0, 0.1, 0.01)
    positions = np.array([0, 5, 1000], np.int32)
    reference.rope(x, positions, Rope(inv_freq, interleaved, 1.5), column=2, num_heads=2, head_dim=10)
    expected = before.astype(np.float64)
    for row, position in enumerate(positions):
        for head in (2, 12):
            for i, freq in enumerate(inv_freq):
                a, b = (head + 2 * i, head + 2 * i + 1) if interleaved else (head + i, head + 3 + i)
                turned = complex(before[row, a], before[row, b]) * 1.5
                turned *= complex(math.cos(position * freq), math.sin(position * freq))
                expected[row, a], expected[row, b] = turned.real, turned.imag
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)


def test_kv_write_stores_in_slots_and_skips_minus_one() -> None:
    k, v = np.zeros((3, 4, 2, 5), np.float32), np.zeros((3, 4, 2, 5), np.float32)
    x = random(3, 25)
    reference.kv_write(x, k, v, np.array([9, -1, 2], np.int32), k_column=0, v_column=15)
    np.testing.assert_array_equal(k[2, 1], x[0, :10].reshape(2, 5))
    np.testing.assert_array_equal(v[0, 2], x[2, 15:].reshape(2, 5))
    assert np.count_nonzero(k) == np.count_nonzero(v) == 20


@pytest.mark.parametrize("window", [0, 1, 7, 16, 300])
@pytest.mark.parametrize("cap", [0.0, 2.0])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("start", "rows"), [(0, 1), (0, 40), (250, 20), (600, 1), (511, 2)])
def test_attention(window: int, cap: float, kv_heads: int, start: int, rows: int) -> None:
    heads, dim, block_size = 4, 8, 16
    end = start + rows
    k_all, v_all = random(end, kv_heads, dim, seed=1), random(end, kv_heads, dim, seed=2)
    num_blocks = -(-end // block_size)
    table = np.random.default_rng(3).permutation(num_blocks + 2)[:num_blocks].tolist()
    # Free slots hold garbage: it must not be seen.
    k = np.full((num_blocks + 2, block_size, kv_heads, dim), np.nan, np.float32)
    v = k.copy()
    for position in range(end):
        k[table[position // block_size], position % block_size] = k_all[position]
        v[table[position // block_size], position % block_size] = v_all[position]
    x = random(rows, 3 + heads * dim)
    inputs = step(([0] * rows, start, table), block_size=block_size)
    got = reference.attention(
        x, k, v, inputs, num_heads=heads, scale=0.3, q_column=3, window=window, softcap=cap
    )
    for row in range(rows):
        position = start + row
        first = max(0, position - window + 1) if window else 0
        for head in range(heads):
            q = x[row, 3 + head * dim : 3 + (head + 1) * dim].astype(np.float64)
            kv = head // (heads // kv_heads)
            scores = 0.3 * k_all[first : position + 1, kv].astype(np.float64) @ q
            if cap:
                scores = cap * np.tanh(scores / cap)
            weights = np.exp(scores - scores.max())
            expected = weights @ v_all[first : position + 1, kv] / weights.sum()
            np.testing.assert_allclose(got[row, head * dim : (head + 1) * dim], expected, atol=2e-6)


def test_act_mul() -> None:
    x = random(4, 18) * 30
    gate, up = x[:, :9].astype(np.float64), x[:, 9:]
    np.testing.assert_allclose(reference.act_mul(x, "silu"), gate / (1 + np.exp(-gate)) * up, rtol=1e-5)
    gelu = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    np.testing.assert_allclose(reference.act_mul(x, "gelu_tanh"), gelu * up, rtol=1e-4, atol=1e-5)
    with np.errstate(over="raise", invalid="raise"):
        extreme = np.array([[-1e4, 1.0], [1e4, 1.0]], np.float32)
        np.testing.assert_array_equal(reference.act_mul(extreme, "silu"), [[0.0], [1e4]])


def test_softcap_bounds_in_place() -> None:
    x = random(3, 9) * 100
    expected = 30 * np.tanh(x.astype(np.float64) / 30)
    reference.softcap(x, 30.0)
    np.testing.assert_allclose(x, expected, rtol=1e-5)


VOCAB, HIDDEN, HEADS, KV_HEADS, DIM, LAYERS, INNER = 50, 48, 6, 2, 16, 2, 80


def small_program(window: int = 40) -> tuple[Program, dict[str, np.ndarray]]:
    """Two layers with every op."""
    weights: dict[str, np.ndarray] = {}

    def weight(rows: int, cols: int) -> Weight:
        name = f"w{len(weights)}"
        weights[name] = random(rows, cols, seed=100 + len(weights)) / np.float32(math.sqrt(cols))
        return Weight(name, rows, cols)

    def norm(x: Buffer) -> Buffer:
        return builder.rms_norm(x, np.ones(x.width), 1e-5)

    builder = Builder(KVSpec(LAYERS, KV_HEADS, DIM))
    table = weight(VOCAB, HIDDEN)
    rope = Rope(tuple(10000 ** (-i / 8) for i in range(8)), False)
    x = builder.embed(table, scale=3.0)
    for layer in range(LAYERS):
        k, v = HEADS * DIM, (HEADS + KV_HEADS) * DIM
        qkv = builder.linear(norm(x), weight(k, HIDDEN), weight(v - k, HIDDEN), weight(v - k, HIDDEN))
        builder.head_norm(qkv, np.ones(DIM), 1e-5, column=0, num_heads=HEADS + KV_HEADS)
        builder.rope(qkv, rope, column=0, num_heads=HEADS + KV_HEADS, head_dim=DIM)
        builder.kv_write(qkv, layer=layer, k_column=k, v_column=v)
        attended = builder.attention(
            qkv, layer=layer, num_heads=HEADS, scale=0.25, window=window if layer else 0
        )
        builder.add(x, norm(builder.linear(attended, weight(HIDDEN, HEADS * DIM))))
        gated = builder.act_mul(builder.linear(norm(x), weight(INNER, HIDDEN), weight(INNER, HIDDEN)), "silu")
        builder.linear(gated, weight(HIDDEN, INNER), add_to=x)
    logits = builder.linear(norm(builder.select_logit_rows(x)), table)
    builder.softcap(logits, 20.0)
    return builder.finish(logits), weights


def run_in_steps(chunks: list[int], tokens: list[int], block_size: int, seed: int) -> np.ndarray:
    """Logits of all rows of one sequence computed in `chunks`, among other sequences, in shuffled blocks."""
    program, weights = small_program()
    rng = np.random.default_rng(seed)
    blocks_each = -(-len(tokens) // block_size)
    runner = reference.ReferenceProgram(program, weights, num_blocks=3 * blocks_each, block_size=block_size)
    order = rng.permutation(3 * blocks_each).tolist()
    table, other = order[:blocks_each], order[blocks_each : 2 * blocks_each]
    rows = []
    start = 0
    for number, chunk in enumerate(chunks):
        items = [(tokens[start : start + chunk], start, table)]
        neighbour = (rng.integers(0, VOCAB, 5).tolist(), 0, other)
        mine = 0
        if seed and number % 3 == 1:
            items, mine = [neighbour, *items], 5
        elif seed and number % 3 == 2:
            items.append(neighbour)
        logits = runner.run(step(*items, block_size=block_size))
        rows.append(logits[mine : mine + chunk])
        start += chunk
    assert start == len(tokens)
    return np.concatenate(rows)


def test_rows_have_the_same_bits_in_any_chunking_and_company() -> None:
    tokens = np.random.default_rng(5).integers(0, VOCAB, 530).tolist()
    whole = run_in_steps([530], tokens, 16, seed=0)
    assert np.isfinite(whole).all() and np.ptp(whole) > 1
    for block_size, chunks in ((16, [1] * 20 + [7, 130, 255, 2, 116]), (32, [256, 256, 18]), (8, [513, 17])):
        got = run_in_steps(chunks, tokens, block_size, seed=1)
        np.testing.assert_array_equal(got, whole)


def test_logit_rows_select_and_may_be_empty() -> None:
    program, weights = small_program()
    runner = reference.ReferenceProgram(program, weights, num_blocks=4, block_size=16)
    items = (([1, 2, 3], 0, [0]), ([4, 5], 0, [1]))
    every = runner.run(step(*items, block_size=16))
    last = runner.run(step(*items, block_size=16, logits="last"))
    np.testing.assert_array_equal(last, every[[2, 4]])
    assert runner.run(step(*items, block_size=16, logits="none")).shape == (0, VOCAB)


def test_a_copied_block_reads_like_its_source() -> None:
    program, weights = small_program()
    runner = reference.ReferenceProgram(program, weights, num_blocks=4, block_size=16)
    tokens = list(range(20))
    whole = runner.run(step((tokens, 0, [0, 1]), block_size=16))
    runner.copy_blocks([(0, 3)])
    again = runner.run(step((tokens[16:], 16, [3, 2]), block_size=16))
    np.testing.assert_array_equal(again, whole[16:])


def test_wrong_weights_are_refused_by_name() -> None:
    program, weights = small_program()
    weights["w2"] = weights["w2"].astype(np.float64)
    with pytest.raises(ValueError, match=r"w2: expected .* got float64"):
        reference.ReferenceProgram(program, weights, num_blocks=1, block_size=16)
