"""Writes inputs and expected outputs of every op for the kernel driver.

`python -m tests.kernels.driver.dump FILE`. Expected values come from the NumPy oracles (`reference*.py`).
A file is the line MAGIC and then cases: name, number of arrays, arrays. A name is a 32-bit length and its
bytes; an array is a name, a NumPy type letter, the number of dimensions, 64-bit sizes and the values.
Little-endian; `vectors.cpp` reads it.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from leafage.kernels import reference, reference_attention, reference_linear, reference_sampling
from leafage.kernels.program import Rope
from leafage.kernels.reference_attention import to_bf16
from leafage.kernels.reference_sampling import SamplingRow
from tests.kernels.attention_cases import Sequences, error_bound
from tests.kernels.weight_blocks import BLOCKS, DTYPES, FLOATS, random_raw

MAGIC = b"leafage kernel vectors 1\n"


def rope_table(rope: Rope, positions: int) -> np.ndarray:
    """As RopeArgs.table: cosines, then sines, of each position; the angle is a float32 product."""
    frequencies = np.asarray(rope.inv_freq, np.float32)
    angles = (np.arange(positions, dtype=np.float32)[:, None] * frequencies).astype(np.float64)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * rope.scale
    return np.ascontiguousarray(table, np.float32)


class Vectors:
    """Cases of one file. The first word of a case's name is its op."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        file.write(MAGIC)

    def case(self, name: str, **arrays: Any) -> None:
        """Numbers become arrays of one value, float64 or int64; lists int32."""
        self._text(name)
        self._file.write(struct.pack("<I", len(arrays)))
        for key, value in arrays.items():
            array = np.array(value, np.int32) if isinstance(value, list) else np.asarray(value)
            self._text(key)
            self._file.write(struct.pack("<cI", array.dtype.char.replace("l", "q").encode(), array.ndim))
            self._file.write(struct.pack(f"<{array.ndim}Q", *array.shape))
            self._file.write(np.ascontiguousarray(array).tobytes())

    def _text(self, text: str) -> None:
        self._file.write(struct.pack("<I", len(text)) + text.encode())


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def weight(dtype: str, rows: int, cols: int, rng: np.random.Generator) -> tuple[str, int, np.ndarray]:
    return dtype, rows, random_raw(dtype, rows, cols, rng)


def linear_case(
    out: Vectors,
    name: str,
    x: np.ndarray,
    weights: list[tuple[str, int, np.ndarray]],
    bias: np.ndarray | None = None,
    before: np.ndarray | None = None,
    precise: bool = False,
) -> None:
    """Both roundings of the products: the instruction sets', fused, and plain C++'s."""
    arrays: dict[str, Any] = {"x": x, "dtypes": [DTYPES_OF_CPP.index(d) for d, _, _ in weights]}
    arrays["rows"] = [rows for _, rows, _ in weights]
    arrays["precise"] = int(precise)
    arrays.update({f"weight{i}": raw for i, (_, _, raw) in enumerate(weights)})
    if bias is not None:
        arrays["bias"] = bias
    if before is not None:
        arrays["before"] = before
    for key, fused in (("fused", True), ("rounded", False)):
        arrays[key] = reference_linear.linear(x, weights, bias=bias, out=before, fused=fused, precise=precise)
    out.case(f"linear {name}", **arrays)


# In the order of `enum class Dtype`.
DTYPES_OF_CPP = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
)  # fmt: skip


def linear(out: Vectors) -> None:
    rng = np.random.default_rng(1)
    for dtype in DTYPES:
        if dtype in FLOATS:
            shapes = [(33, 37), (16, 1), (5, 300)]
        else:
            shapes = [(33, 256), (7, 768)] if BLOCKS[dtype][0] == 256 else [(33, 32), (7, 96), (17, 1056)]
        for rows, k in shapes:
            x = normal(rng, 37, k) * np.exp(normal(rng, 37, 1))
            x[:, rng.integers(0, k, 2)] *= 30
            one = [weight(dtype, rows, k, rng)]
            linear_case(out, f"{dtype} [{rows}, {k}]", x, one)
            if dtype not in FLOATS:
                linear_case(out, f"{dtype} [{rows}, {k}], precise", x, one, precise=True)
    parts = [("Q4_K", 33), ("Q6_K", 5), ("F16", 16), ("Q8_0", 1), ("Q2_K", 30)]
    weights = [weight(dtype, rows, 512, rng) for dtype, rows in parts]
    x, bias, before = normal(rng, 19, 512), normal(rng, 85), normal(rng, 19, 85)
    linear_case(out, "several weights", x, weights)
    linear_case(out, "bias", x, weights, bias=bias)
    linear_case(out, "bias and accumulation", x, weights, bias=bias, before=before)
    linear_case(out, "bias and accumulation, precise", x, weights, bias=bias, before=before, precise=True)
    # More rows than a block of row tiles, more panels than a run.
    linear_case(out, "many rows", normal(rng, 290, 64), [weight("Q4_0", 150, 64, rng)])
    for dtype, (block, size, halves) in BLOCKS.items():
        for fill in (0, 255, 0x80, 0x7F):  # the largest codes against +-127: nothing saturates
            raw = np.full((16 * 256 // block, size), fill, np.uint8)
            for at in halves:
                raw[:, at : at + 2] = np.array([0x3C00], np.uint16).view(np.uint8)
            if dtype == "MXFP4":
                raw[:, 0] = 127
            x = np.ones((5, 256), np.float32)
            x[1] = -1
            x[3, ::2] = -1
            linear_case(out, f"{dtype} filled with {fill}", x, [(dtype, 16, raw.ravel())])
            x[:, 4::32] *= 2  # two int8 of 127
            linear_case(
                out, f"{dtype} filled with {fill}, precise", x, [(dtype, 16, raw.ravel())], precise=True
            )
    for dtype in ("Q4_1", "Q8_0", "Q6_K"):
        x = normal(rng, 9, 512)
        x[1, 100], x[2, 511] = np.nan, -np.inf
        x[3], x[4, :64], x[5, ::3] = 0, 1e-38, -0.0
        one = [weight(dtype, 20, 512, rng)]
        linear_case(out, f"{dtype} of special activations", x, one)
        linear_case(out, f"{dtype} of special activations, precise", x, one, precise=True)


def embed(out: Vectors) -> None:
    rng = np.random.default_rng(2)
    for dtype in DTYPES:
        _, rows, raw = weight(dtype, 21, 256, rng)
        if dtype in FLOATS:
            table = reference_linear.float_weights(dtype, rows, raw)
        else:
            q, d, minimum = reference_linear.integers(dtype, rows, raw)
            table = q.reshape(*d.shape, -1).astype(np.float32) * d[..., None]
            if minimum is not None:
                table += minimum[..., None]
            table = table.reshape(rows, -1)
        ids = [0, 20, 16, 15, 3, 3]
        for scale in (1.0, 16.25):
            expected = reference.embed(table, np.array(ids), scale)
            out.case(
                f"embed {dtype} times {scale}", dtype=DTYPES_OF_CPP.index(dtype), rows=rows, raw=raw,
                ids=ids, scale=scale, expected=expected,
            )  # fmt: skip


def elementwise(out: Vectors) -> None:
    rng = np.random.default_rng(3)
    for width in (1, 15, 16, 33, 64, 577):
        x, w = normal(rng, 7, width) * 3, normal(rng, width)
        x[2] = 0
        expected = reference.rms_norm(x, w, 1e-5)
        limit = 2e-6 * np.abs(expected)
        out.case(f"rms_norm {width}", x=x, weight=w, eps=1e-5, expected=expected, limit=limit)
        both = normal(rng, 7, 2 * width) * 4
        both[:, 0] = [-200, -88, -20, 0, 20, 88, 200]
        for number, name in enumerate(("silu", "gelu_tanh")):
            expected = reference.act_mul(both, name)
            limit = 2e-6 * np.abs(expected) + 1e-6 * np.abs(both[:, width:])
            out.case(f"act_mul {name} {width}", x=both, activation=number, expected=expected, limit=limit)
        y = normal(rng, 7, width)
        out.case(f"add {width}", x=x, y=y, expected=x + y)
        expected = both.copy()
        reference.softcap(expected, 30.0)
        out.case(f"softcap {width}", x=both, cap=30.0, expected=expected, limit=np.full_like(expected, 1e-5))
    for head_dim, rotary, interleaved in ((64, 64, False), (64, 64, True), (80, 48, False), (32, 10, True)):
        pairs = rotary // 2
        rope = Rope(tuple(1e4 ** (-np.arange(pairs) / pairs)), interleaved=interleaved)
        x = normal(rng, 5, 3 * head_dim + 11)
        positions = [0, 1, 17, 300, 499]
        expected = x.copy()
        arguments = {"column": 7, "num_heads": 3, "head_dim": head_dim}
        reference.rope(expected, np.array(positions), rope, **arguments)
        out.case(
            f"rope {head_dim} {rotary} interleaved {interleaved}", x=x, positions=positions,
            table=rope_table(rope, 500), interleaved=int(interleaved), **arguments, expected=expected,
            limit=np.full_like(expected, 1e-6),
        )  # fmt: skip
    for num_heads, width in ((3, 64), (2, 40)):
        x, w = normal(rng, 6, num_heads * width + 20), normal(rng, width)
        expected = x.copy()
        reference.head_norm(expected, w, 1e-6, column=9, num_heads=num_heads)
        out.case(
            f"head_norm {num_heads} x {width}", x=x, weight=w, eps=1e-6, column=9, num_heads=num_heads,
            expected=expected, limit=2e-6 * np.abs(expected),
        )  # fmt: skip
    table, ids, rows = normal(rng, 30, 24), [3, 29, 0, 7, 7, 1, 12], [0, 2, 6]
    selected = reference.select_logit_rows(reference.embed(table, np.array(ids)), np.array(rows))
    out.case("select_logit_rows", table=table, ids=ids, logit_rows=rows, expected=selected)


def kv_write(out: Vectors) -> None:
    rng = np.random.default_rng(4)
    shapes = [(size, 48) for size in (1, 3, 8, 16, 24, 32)] + [(16, dim) for dim in (16, 32, 64, 128, 256)]
    for block_size, head_dim in shapes:
        heads, num_blocks = 3, 60 // block_size + 2
        width = heads * head_dim
        columns = {"k_column": 10, "v_column": width + 26}
        shape = (num_blocks, block_size, heads, head_dim)
        k, v = (rng.integers(0, 2**15, shape).astype(np.uint16) for _ in "kv")
        before = reference_attention.pack(k, v).pool.copy()
        x = (normal(rng, 40, 2 * width + 32) * 10.0 ** rng.integers(-30, 30, (40, 1))).astype(np.float32)
        x[3, 10:13] = [np.nan, np.inf, -np.inf]
        slots = rng.permutation(num_blocks * block_size)[:40].astype(np.int32)
        slots[7] = slots[30] = -1
        kept = slots >= 0
        for target, column in ((k, 10), (v, width + 26)):
            values = to_bf16(x[kept, column : column + width]).reshape(-1, heads, head_dim)
            target.reshape(-1, heads, head_dim)[slots[kept]] = values
        out.case(
            f"kv_write block size {block_size}, heads of {head_dim}", pool=before,
            block_size=block_size, num_kv_heads=heads, head_dim=head_dim, x=x, **columns, slots=slots, int8=0,
            expected=reference_attention.pack(k, v).pool,
        )  # fmt: skip
        k, v = normal(rng, *shape), normal(rng, *shape)
        before = reference_attention.pack_int8(k, v).pool.copy()
        x[4], x[5] = 0, 3e38
        for target, column in ((k, 10), (v, width + 26)):
            values = x[kept, column : column + width].reshape(-1, heads, head_dim)
            target.reshape(-1, heads, head_dim)[slots[kept]] = values
        out.case(
            f"kv_write int8, block size {block_size}, heads of {head_dim}", pool=before,
            block_size=block_size, num_kv_heads=heads, head_dim=head_dim, x=x, **columns, slots=slots, int8=1,
            expected=reference_attention.pack_int8(k, v).pool,
        )  # fmt: skip
    pool = rng.integers(0, 256, (9, 200), dtype=np.uint8)
    src, dst = [0, 5, 0], [8, 1, 3]
    expected = pool.copy()
    expected[dst] = expected[src]
    out.case("copy_blocks", pool=pool, src=src, dst=dst, expected=expected)


def attention_case(
    out: Vectors,
    name: str,
    sequences: Sequences,
    pieces: list[tuple[int, int, int]],
    rng: np.random.Generator,
    block_sizes: tuple[int, ...] = (16, 8, 5),
    *,
    scale: float | None = None,
    window: int = 0,
    softcap: float = 0.0,
) -> None:
    """The same K and V in blocks of several sizes. Limits: float operands, bf16 operands."""
    scale = sequences.head_dim**-0.5 if scale is None else scale
    options = {"scale": scale, "window": window, "softcap": softcap}
    arrays: dict[str, Any] = {"block_sizes": list(block_sizes), **options}
    arrays |= {"num_kv_heads": sequences.num_kv_heads, "head_dim": sequences.head_dim}
    arrays["int8"] = int(sequences.dtype == "int8")
    for i, block_size in enumerate(block_sizes):
        layer, tables = sequences.paged(block_size, rng, garbage=np.nan)
        q, inputs = sequences.step(tables, pieces)
        arrays |= {f"pool{i}": layer.pool, f"tables{i}": inputs.tables, f"offsets{i}": inputs.table_offsets}
    finite, tables = sequences.paged(16)
    q, inputs = sequences.step(tables, pieces)
    arrays |= {"q": q, "rows": inputs.item_rows, "num_rows": inputs.item_num_rows}
    arrays["starts"] = inputs.item_starts
    k, v = reference_attention.values(finite)
    arrays["expected"] = reference_attention.attention_over(q, k, v, inputs, **options)
    magnitude = reference_attention.attention_over(q, k, np.abs(v), inputs, **options)
    for key, bf16 in (("limit", False), ("limit_bf16", True)):
        bound = error_bound(q, sequences, pieces, scale, bf16)
        arrays[key] = magnitude * np.repeat(bound, sequences.head_dim, axis=1)
    # Another specification of the same op, with K and V as float32: the two must agree.
    k, v = (a.astype(np.float32) for a in (k, v))
    again = reference.attention(q, k, v, inputs, num_heads=q.shape[1] // sequences.head_dim, **options)
    np.testing.assert_allclose(again, arrays["expected"], atol=1e-4)
    out.case(f"attention {name}", **arrays)


def attention(out: Vectors) -> None:
    rng = np.random.default_rng(5)

    def make(
        lengths: list[int], num_kv_heads: int, num_heads: int, head_dim: int, dtype: str = "bfloat16"
    ) -> Sequences:
        return Sequences.random(
            rng, lengths, num_kv_heads=num_kv_heads, num_heads=num_heads, head_dim=head_dim, dtype=dtype
        )

    for heads in ((3, 9, 64), (1, 4, 256), (4, 8, 32), (2, 2, 80), (1, 26, 16)):
        pieces = [(0, 280, 300), (1, 16, 17), (2, 0, 1), (3, 100, 110)]
        name = f"mixed, {heads[0]} K/V heads, {heads[1]} heads of {heads[2]}"
        attention_case(out, name, make([300, 17, 1, 130], *heads), pieces, rng)
        attention_case(out, f"int8, {name}", make([300, 17, 1, 130], *heads, "int8"), pieces, rng)
    prompt = make([100], 2, 6, 32)
    attention_case(out, "prefill", prompt, [(0, 0, 100)], rng, (16, 32, 3, 1))
    for length in (1, 16, 17, 256, 257, 513):
        attention_case(out, f"decode at {length}", make([length], 1, 3, 64), [(0, length - 1, length)], rng)
    for dtype in ("bfloat16", "int8"):  # rows of one table share what lies before them
        rows = [(0, p, p + 1) for p in (520, 599, 530, 512, 545)]
        attention_case(out, f"shared prefix, {dtype}", make([600], 3, 9, 64, dtype), rows, rng)
    long = make([700, 40], 2, 4, 32)
    pieces = [(0, 660, 680), (1, 0, 40), (0, 699, 700)]
    for window in (1, 16, 100, 256):
        attention_case(out, f"window {window}", long, pieces, rng, (16, 8), window=window)
    in_int8 = replace(long, dtype="int8")
    attention_case(out, "int8, window and soft cap", in_int8, pieces, rng, (16, 8), softcap=5.0, window=77)
    attention_case(out, "soft cap", long, pieces, rng, (16, 8), softcap=20.0)
    attention_case(out, "soft cap and window", long, pieces, rng, (16, 8), softcap=5.0, window=77)


def sample_case(out: Vectors, name: str, logits: np.ndarray, rows: list[SamplingRow]) -> None:
    num_draws = [len(row.draws) + len(row.targets) for row in rows]
    draws = [draw for row in rows for draw in (*row.draws, *((0, 0) for _ in row.targets))]
    offsets = np.cumsum([0, *num_draws])
    max_top = max((row.num_top or 0) for row in rows)
    arrays: dict[str, np.ndarray] = {
        "logits": logits,
        "params": np.array([
            (r.temperature, r.top_p, r.min_p, r.repetition_penalty, r.presence_penalty, r.frequency_penalty)
            for r in rows
        ]),
        "limits": np.array([(r.top_k, -1 if r.num_top is None else r.num_top) for r in rows], np.int32),
        "seen_offsets": np.cumsum([0, *(len(r.seen) for r in rows)]).astype(np.int32),
        "seen_ids": np.array([i for r in rows for i in r.seen], np.int32),
        "seen_counts": np.array([n for r in rows for n in r.seen.values()], np.int32),
        "bias_offsets": np.cumsum([0, *(len(r.bias) for r in rows)]).astype(np.int32),
        "bias_ids": np.array([i for r in rows for i in r.bias], np.int32),
        "bias_values": np.array([x for r in rows for x in r.bias.values()], np.float32),
        "draw_offsets": offsets.astype(np.int32),
        "seeds": np.array([seed for seed, _ in draws], np.uint64),
        "positions": np.array([position for _, position in draws], np.int64),
        "targets": np.array([t for r in rows for t in (*(-1 for _ in r.draws), *r.targets)], np.int32),
    }  # fmt: skip
    expected: dict[str, np.ndarray] = {
        "tokens": np.zeros(len(draws), np.int32), "ranks": np.zeros(len(draws), np.int32),
        "logprobs": np.zeros(len(draws)), "top_ids": np.zeros((len(rows), max_top), np.int32),
        "top_logprobs": np.zeros((len(rows), max_top)), "usable": np.zeros(len(rows), np.uint8),
    }  # fmt: skip
    for i, one in enumerate(reference_sampling.sample(logits, rows)):
        expected["usable"][i] = one.usable
        for key in ("tokens", "ranks", "logprobs"):
            values = getattr(one, key)
            expected[key][offsets[i] : offsets[i] + len(values)] = values
        for j, (token, logprob) in enumerate(one.top):
            expected["top_ids"][i, j], expected["top_logprobs"][i, j] = token, logprob
    out.case(f"sample {name}", **arrays, **{f"expected_{k}": v for k, v in expected.items()})


def sample(out: Vectors) -> None:
    rng = np.random.default_rng(6)
    for vocab in (1, 2, 17, 256, 1000, 5003):
        draws = [(s, 7) for s in range(6)]
        rows = [
            SamplingRow(draws, temperature=t, top_k=k, top_p=p, min_p=m, num_top=min(3, vocab))
            for t, k, p, m in (
                (1.0, 0, 1.0, 0.0), (0.7, 40, 1.0, 0.0), (1.3, 0, 0.9, 0.0), (1.0, 0, 1.0, 0.05),
                (0.8, 50, 0.95, 0.02), (100.0, 0, 0.999, 0.0), (1e-5, 0, 1.0, 0.0), (2.0, 5000, 0.5, 0.0),
                (1.0, 0, 1e-9, 0.0), (0.0, 0, 1.0, 0.0),
            )
        ]  # fmt: skip
        sample_case(out, f"truncations of {vocab}", normal(rng, len(rows), vocab) * 3, rows)
    logits = normal(rng, 9, 1003) * 3
    logits[:, [31, 900, 1002]] = 50.0
    logits[4, 5] = 60.0
    logits[5], logits[6, 77], logits[7, 3] = -np.inf, np.nan, np.inf
    logits[8, :] = -np.inf
    logits[8, 1001] = -1e30
    logits[3] = -1.0
    logits[3, [200, 700]] = [-0.0, 0.0]
    sample_case(out, "greedy, special logits", logits, [SamplingRow([(0, 0)], num_top=2)] * 9)
    sample_case(out, "special logits", logits, [SamplingRow([(0, 0)], temperature=0.8)] * 9)
    rows = [
        SamplingRow(
            [(2**63 + s, 2**40 + s)], targets=[s, 299 - s], temperature=0.3 * (s % 4), top_p=0.9,
            repetition_penalty=(1.0, 1.3, 0.5)[s % 3], presence_penalty=0.5 * (s % 2),
            frequency_penalty=-0.25, seen={s: 0, s + 1: 2, s + 100: 1},
            bias={s + 3: 100.0 if s % 5 == 0 else -np.inf, 250: 1.5},
            num_top=5,
        )
        for s in range(20)
    ]  # fmt: skip
    sample_case(out, "penalties, bias and targets", normal(rng, 20, 300) * 3, rows)


def dump(path: Path) -> None:
    with path.open("wb") as file:
        out = Vectors(file)
        for part in (linear, embed, elementwise, kv_write, attention, sample):
            part(out)


if __name__ == "__main__":
    dump(Path(sys.argv[1]))
