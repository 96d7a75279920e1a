"""The native program against the reference interpreter, and its promise: the bits of a row are its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from leafage.kernels import _native
from leafage.kernels.native import NativeProgram, _plan_buffers
from leafage.kernels.native_linear import Linear
from leafage.kernels.native_sampling import NativeSampler
from leafage.kernels.program import MAX_LOGIT_ROWS, Builder, Kind, KVSpec, Program, Rope, Weight
from leafage.kernels.reference import ReferenceProgram
from leafage.kernels.reference_sampling import SamplingRow
from leafage.kernels.step_inputs import StepInputs
from tests.kernels.sampling_rows import plan_of, results_of, sample_natively
from tests.kernels.weight_blocks import random_raw

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 300, 64, 4, 2, 32, 96, 3
BLOCK = 16
NUM_BLOCKS = 64


@pytest.fixture(params=_native.variants())
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _native.variant()
    _native.set_variant(request.param)
    yield request.param
    _native.set_variant(before)


def make_program(rng: np.random.Generator) -> tuple[Program, dict[str, np.ndarray]]:
    """A small model that uses every op: norms of rows and heads, both ropes, bias, window, soft caps."""
    weights: dict[str, np.ndarray] = {}

    def weight(name: str, rows: int, cols: int) -> Weight:
        weights[name] = (rng.standard_normal((rows, cols)) / np.sqrt(cols)).astype(np.float32)
        return Weight(name, rows, cols)

    def norm(size: int) -> np.ndarray:
        return rng.uniform(0.5, 1.5, size).astype(np.float32)

    b = Builder(KVSpec(LAYERS, KV_HEADS, HEAD_DIM))
    k_column = HEADS * HEAD_DIM
    v_column = k_column + KV_HEADS * HEAD_DIM
    table = weight("embed", VOCAB, HIDDEN)
    x = b.embed(table, scale=3.0)
    for layer in range(LAYERS):
        y = b.rms_norm(x, norm(HIDDEN), 1e-5)
        widths = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
        parts = [weight(f"{layer}.{name}", width, HIDDEN) for name, width in widths.items()]
        bias = rng.standard_normal(sum(widths.values())).astype(np.float32)
        qkv = b.linear(y, *parts, bias=bias)
        b.head_norm(qkv, norm(HEAD_DIM), 1e-5, column=0, num_heads=HEADS)
        rope = Rope(tuple(1e4 ** -(np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))), interleaved=layer == 1)
        b.rope(qkv, rope, column=0, num_heads=HEADS, head_dim=HEAD_DIM)
        b.rope(qkv, rope, column=k_column, num_heads=KV_HEADS, head_dim=HEAD_DIM)
        b.kv_write(qkv, layer=layer, k_column=k_column, v_column=v_column)
        attended = b.attention(
            qkv,
            layer=layer,
            num_heads=HEADS,
            scale=HEAD_DIM**-0.5,
            window=40 if layer == 2 else 0,
            softcap=20.0 if layer == 1 else 0.0,
        )
        b.linear(attended, weight(f"{layer}.o", HIDDEN, HEADS * HEAD_DIM), add_to=x)
        y = b.rms_norm(x, norm(HIDDEN), 1e-5)
        pair = [weight(f"{layer}.{name}", FFN, HIDDEN) for name in ("gate", "up")]
        y = b.act_mul(b.linear(y, *pair), "silu" if layer else "gelu_tanh")
        y = b.linear(y, weight(f"{layer}.down", HIDDEN, FFN))
        b.add(x, b.rms_norm(y, norm(HIDDEN), 1e-5))
    y = b.rms_norm(b.select_logit_rows(x), norm(HIDDEN), 1e-5)
    logits = b.linear(y, table)
    b.softcap(logits, 30.0)
    return b.finish(logits), weights


@pytest.fixture(scope="module")
def model() -> tuple[Program, dict[str, np.ndarray]]:
    return make_program(np.random.default_rng(0))


def native(
    model: tuple[Program, dict[str, np.ndarray]], num_threads: int = 1, kv_dtype: str = "bfloat16"
) -> NativeProgram:
    program, weights = model
    packed = {
        name: _native.PackedWeight("F32", *w.shape, w.reshape(-1).view(np.uint8))
        for name, w in weights.items()
    }
    return NativeProgram(
        program,
        packed,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK,
        max_rows=256,
        max_position=512,
        num_threads=num_threads,
        kv_dtype=kv_dtype,
    )


def step(*items: tuple[list[int], int, list[int]], all_logits: bool = True) -> StepInputs:
    """Inputs of (token ids, start, block table) items."""
    rows = [len(tokens) for tokens, _, _ in items]
    firsts = np.cumsum([0, *rows])[:-1]
    positions = np.concatenate([np.arange(start, start + len(t)) for t, start, _ in items])
    blocks = np.concatenate([np.array(t)[np.arange(s, s + len(ids)) // BLOCK] for ids, s, t in items])
    logit_rows = np.arange(sum(rows)) if all_logits else firsts + np.array(rows) - 1
    arrays = (
        np.concatenate([t for t, _, _ in items]),
        positions,
        blocks * BLOCK + positions % BLOCK,
        firsts,
        rows,
        [start for _, start, _ in items],
        np.cumsum([0, *(len(t) for _, _, t in items)])[:-1],
        np.concatenate([t for _, _, t in items]),
        logit_rows,
    )
    return StepInputs.of(*(np.ascontiguousarray(a, dtype=np.int32) for a in arrays))


def logits(program: NativeProgram | ReferenceProgram, inputs: StepInputs) -> np.ndarray:
    return np.concatenate([part.copy() for _, part in program.forward(inputs)])


def tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def test_every_op_is_in_the_model(model):
    assert {op.kind for op in model[0].ops} == set(Kind)


def test_rotary_tables_grow_with_the_positions(model):
    """And the bits of a row do not know when its part of a table was made."""
    table = list(range(NUM_BLOCKS - 32, NUM_BLOCKS))
    whole = native(model, num_threads=3)
    empty = whole.num_bytes
    expected = np.concatenate(
        [logits(whole, step((tokens(4, 400)[start : start + 200], start, table))) for start in (0, 200)]
    )
    pieces = native(model)
    got = [
        logits(pieces, step((tokens(4, 400)[start : start + 25], start, table)))
        for start in range(0, 400, 25)
    ]
    np.testing.assert_array_equal(np.concatenate(got).view(np.uint32), expected.view(np.uint32))
    row = 2 * HEAD_DIM * 4  # both kinds of rope
    assert (empty - native(model).num_bytes, whole.num_bytes - empty) == (0, 512 * row)
    short = native(model)
    logits(short, step((tokens(4, 9), 0, table)))
    assert short.num_bytes - empty == 128 * row


def test_close_to_the_reference(model, variant):
    """F32 weights: what differs is the order of sums and K, V in bf16."""
    program, weights = model
    reference = ReferenceProgram(program, weights, num_blocks=NUM_BLOCKS, block_size=BLOCK)
    inputs = step((tokens(1, 100), 0, list(range(20, 27))), (tokens(2, 17), 0, [3, 1]))
    expected = logits(reference, inputs)
    got = logits(native(model), inputs)
    assert np.abs(got - expected).max() < 0.02 * np.abs(expected).max()
    assert np.corrcoef(got.ravel(), expected.ravel())[0, 1] > 0.9999


def test_close_to_the_reference_in_int8(model, variant):
    """An error of its own size: the option reaches the kernels, and costs little."""
    program, weights = model
    reference = ReferenceProgram(program, weights, num_blocks=NUM_BLOCKS, block_size=BLOCK)
    inputs = step((tokens(1, 100), 0, list(range(20, 27))), (tokens(2, 17), 0, [3, 1]))
    expected = logits(reference, inputs)
    errors = {
        dtype: (logits(native(model, kv_dtype=dtype), inputs) - expected).std() / expected.std()
        for dtype in ("bfloat16", "int8")
    }
    assert errors["bfloat16"] < errors["int8"] < 0.01


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_bits_do_not_depend_on_batch_chunks_or_threads(model, variant, num_threads, kv_dtype):
    prompt, table = tokens(1, 150), list(range(30, 40))
    alone = logits(native(model, kv_dtype=kv_dtype), step((prompt, 0, table)))
    program = native(model, num_threads, kv_dtype)
    others = [(tokens(9, 5), 0, [0]), (tokens(8, 33), 0, [5, 4, 3])]
    parts, start = [], 0
    for chunk, before in ((1, 0), (15, 1), (64, 2), (1, 1), (69, 0)):
        item = (prompt[start : start + chunk], start, table)
        batch = [*others[:before], item, *others[before:]]
        first = sum(len(t) for t, _, _ in batch[:before])
        parts.append(logits(program, step(*batch))[first : first + chunk])
        start += chunk
    np.testing.assert_array_equal(np.concatenate(parts).view(np.uint32), alone.view(np.uint32))


def test_head_runs_in_slices(model, variant):
    """More logit rows than fit at a time: each slice reads the right hidden rows."""
    prompt = tokens(4, 2 * MAX_LOGIT_ROWS + 3)
    program = native(model)
    whole = logits(program, step((prompt, 0, list(range(9)))))
    assert len(whole) == len(prompt)
    for row in (0, MAX_LOGIT_ROWS - 1, MAX_LOGIT_ROWS, len(prompt) - 1):
        part = logits(native(model), step((prompt[: row + 1], 0, list(range(9))), all_logits=False))
        np.testing.assert_array_equal(part[0], whole[row])


def test_a_step_without_logits_still_runs(model):
    prompt = tokens(5, 40)
    program = native(model)
    inputs = step((prompt[:32], 0, [1, 2, 3])).replace(logit_rows=np.empty(0, np.int32))
    assert list(program.forward(inputs)) == []
    rest = logits(program, step((prompt[32:], 32, [1, 2, 3])))
    whole = logits(native(model), step((prompt, 0, [1, 2, 3])))
    np.testing.assert_array_equal(rest, whole[32:])


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_copied_blocks_hold_the_same_prefix(model, kv_dtype):
    prompt = tokens(6, 40)
    program = native(model, kv_dtype=kv_dtype)
    logits(program, step((prompt[:32], 0, [1, 2, 3])))
    program.copy_blocks(np.array([(1, 10), (2, 11)], np.int32))
    via_copy = logits(program, step((prompt[32:], 32, [10, 11, 12])))
    direct = logits(program, step((prompt[32:], 32, [1, 2, 3])))
    np.testing.assert_array_equal(via_copy, direct)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_copies_are_of_whole_blocks_in_all_layers(model, num_threads):
    program = native(model, num_threads)
    pool = program.kv.array()
    pool[...] = np.random.default_rng(5).integers(0, 256, pool.shape)
    expected = pool.copy()
    expected[[8, 1, 3]] = expected[[0, 5, 0]]
    program.copy_blocks(np.array([(0, 8), (5, 1), (0, 3)], np.int32))
    np.testing.assert_array_equal(pool, expected)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(0, NUM_BLOCKS)], r"blocks in \[0, 64\), got 64"),
        ([(-1, 3)], "got -1"),
        ([(0, 1), (1, 2)], "block 1 again"),
        ([(0, 1), (2, 1)], "block 1 again"),
        ([0, 1], "contiguous int32"),
    ],
)
def test_bad_copies_are_refused_and_copy_nothing(model, pairs, message):
    program = native(model)
    before = program.kv.array().copy()
    with pytest.raises(ValueError, match=message):
        program.copy_blocks(np.array(pairs, np.int32))
    np.testing.assert_array_equal(program.kv.array(), before)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("token_ids", [VOCAB], r"token_ids in \[0, 300\)"),
        ("positions", [512], "positions"),
        ("slots", [NUM_BLOCKS * BLOCK], "slots"),
        ("tables", [-1], "tables"),
        ("logit_rows", [1], "logit_rows"),
        ("item_starts", [16], "block tables that cover"),
        ("item_num_rows", [0], "block tables"),
        ("item_rows", [1], "inside the step"),
    ],
)
def test_bad_inputs_are_refused_before_any_pointer_is_taken(model, name, value, message):
    inputs = step(([1], 0, [0])).replace(**{name: np.array(value, np.int32)})
    with pytest.raises(ValueError, match=message):
        next(native(model).forward(inputs))


def test_wrong_dtype_and_size_are_refused(model):
    inputs = step(([1], 0, [0]))
    with pytest.raises(ValueError, match="positions as int32"):
        inputs.replace(positions=inputs.positions.astype(np.int64))
    with pytest.raises(ValueError, match="one length"):
        inputs.replace(positions=np.zeros(2, np.int32))
    short = StepInputs(inputs.data, inputs.num_rows + 2, inputs.num_items, inputs.num_logit_rows)
    with pytest.raises(ValueError, match="at least 14 numbers for 3 rows and 1 items, got 9"):
        next(native(model).forward(short))
    with pytest.raises(ValueError, match="1 to 256 rows, got 257"):
        next(native(model).forward(step((tokens(0, 257), 0, list(range(17))))))


def test_the_pool_has_the_size_that_the_plan_counts(model):
    for dtype in ("bfloat16", "int8"):
        program = native(model, kv_dtype=dtype)
        assert program.kv.num_bytes == NUM_BLOCKS * BLOCK * model[0].kv.bytes_per_token(dtype)
        assert program.kv.array().nbytes == program.kv.num_bytes
    with pytest.raises(ValueError, match="bfloat16 or int8, got fp8"):
        native(model, kv_dtype="fp8")


def test_a_step_samples_what_its_plan_says(model):
    """More rows than a slice of the output head holds: the same as sampling the logits afterwards."""
    count = MAX_LOGIT_ROWS + 6
    inputs = step((tokens(3, count), 0, list(range(5))))
    rows = [SamplingRow([(i, 9)] * (i % 3), temperature=i % 2, top_k=40, num_top=i % 4) for i in range(count)]
    plan = plan_of(rows, VOCAB)
    program = native(model, num_threads=2)
    slices = [part.copy() for _, part in program.forward(inputs, NativeSampler(VOCAB, num_threads=2), plan)]
    assert results_of(plan, rows) == sample_natively(np.concatenate(slices), rows)
    np.testing.assert_array_equal(np.concatenate(slices), logits(native(model), inputs))
    with pytest.raises(ValueError, match=f"expected a plan of {count} rows"):
        next(program.forward(inputs, NativeSampler(VOCAB, num_threads=2), plan_of(rows[1:], VOCAB)))
    with pytest.raises(ValueError, match=r"columns on 1 threads, got 70, .* and 2"):
        next(program.forward(inputs, NativeSampler(VOCAB), plan))


def test_missing_and_misshaped_weights_are_named(model):
    program, weights = model
    packed = {
        n: _native.PackedWeight("F32", *w.shape, w.reshape(-1).view(np.uint8)) for n, w in weights.items()
    }
    settings = {"num_blocks": 1, "block_size": 16, "max_rows": 1, "max_position": 16, "num_threads": 1}
    with pytest.raises(ValueError, match=r"1\.gate"):
        NativeProgram(program, {n: w for n, w in packed.items() if n != "1.gate"}, **settings)
    with pytest.raises(ValueError, match=r"expected 1\.gate \[96, 64\], got \[300, 64\]"):
        NativeProgram(program, {**packed, "1.gate": packed["embed"]}, **settings)


def test_buffers_share_the_arena_only_when_their_lives_do_not_meet(model):
    program = model[0]
    buffers, slot_widths = _plan_buffers(program)
    owner: dict[int, int] = {}  # slot -> buffer that was written last
    for op in program.ops:
        for b in op.inputs:
            assert owner[buffers[b.id][0]] == b.id, "read after its slot was given away"
        if op.output is not None:
            owner[buffers[op.output.id][0]] = op.output.id
    assert len(slot_widths) < 16 < len(buffers)


@pytest.mark.parametrize("precise", [False, True])
def test_precise_reaches_the_kernels(variant: str, precise: bool) -> None:
    """The logits are those of `Linear` on the same rows of the embedding table."""
    rng = np.random.default_rng(21)
    table = rng.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
    b = Builder(KVSpec(1, 1, HEAD_DIM))
    x = b.embed(Weight("table", VOCAB, HIDDEN))
    b.attention(b.linear(x, Weight("q", HEAD_DIM, HIDDEN)), layer=0, num_heads=1, scale=1.0)
    program = b.finish(b.linear(b.select_logit_rows(x), Weight("head", VOCAB, HIDDEN), precise=precise))
    packed = {
        "table": _native.PackedWeight("F32", VOCAB, HIDDEN, table.view(np.uint8).ravel()),
        "q": _native.PackedWeight("F32", HEAD_DIM, HIDDEN, table[:HEAD_DIM].view(np.uint8).ravel()),
        "head": _native.PackedWeight("Q8_0", VOCAB, HIDDEN, random_raw("Q8_0", VOCAB, HIDDEN, rng)),
    }
    built = NativeProgram(
        program, packed, num_blocks=2, block_size=BLOCK, max_rows=16, max_position=32, num_threads=2
    )
    ids = tokens(22, 11)
    got = logits(built, step((ids, 0, [0])))
    expected = Linear(1).linear(table[ids], [packed["head"]], precise=precise)
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))
