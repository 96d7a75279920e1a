"""Paged attention problems for the tests of the attention ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leafage.kernels.reference_attention import (
    PagedLayer,
    from_bf16,
    pack,
    pack_int8,
    quantize,
    rotate,
    to_bf16,
)
from leafage.kernels.step_inputs import StepInputs


def int32(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.array(values, dtype=np.int32)


@dataclass(eq=False)
class Sequences:
    """K, V (bf16 bits [length, num_kv_heads, head_dim]) and queries (float32 [length, num_heads * head_dim])
    of all positions of some sequences. dtype: of the layer; int8 quantizes K and V."""

    k: list[np.ndarray]
    v: list[np.ndarray]
    q: list[np.ndarray]
    num_kv_heads: int
    head_dim: int
    dtype: str = "bfloat16"

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        lengths: Sequence[int],
        *,
        num_kv_heads: int,
        num_heads: int,
        head_dim: int,
        spread: float = 1.0,
        dtype: str = "bfloat16",
    ) -> Sequences:
        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape, dtype=np.float32)

        def kv(length: int, spread: float) -> np.ndarray:
            return to_bf16(normal(length, num_kv_heads, head_dim) * np.float32(spread))

        return cls(
            [kv(n, spread) for n in lengths],
            [kv(n, 1.0) for n in lengths],
            [normal(n, num_heads * head_dim) for n in lengths],
            num_kv_heads,
            head_dim,
            dtype,
        )

    def paged(
        self, block_size: int, rng: np.random.Generator | None = None, garbage: float = 0.0
    ) -> tuple[PagedLayer, list[np.ndarray]]:
        """The layer and each sequence's block table. `rng` shuffles the blocks; `garbage` fills every slot
        that belongs to no position."""
        counts = [-(-len(k) // block_size) for k in self.k]
        num_blocks = sum(counts) + 2
        order = np.arange(num_blocks) if rng is None else rng.permutation(num_blocks)
        shape = (num_blocks, block_size, self.num_kv_heads, self.head_dim)
        blocks = [np.full(shape, to_bf16(np.float32(garbage)), np.uint16) for _ in range(2)]
        tables, used = [], 0
        for k, v, count in zip(self.k, self.v, counts, strict=True):
            table = int32(order[used : used + count])
            used += count
            tables.append(table)
            positions = np.arange(len(k))
            for target, values in zip(blocks, (k, v), strict=True):
                target[table[positions // block_size], positions % block_size] = values
        if self.dtype == "int8":
            return pack_int8(*map(from_bf16, blocks)), tables
        return pack(*blocks), tables

    def step(
        self, tables: list[np.ndarray], pieces: Sequence[tuple[int, int, int]]
    ) -> tuple[np.ndarray, StepInputs]:
        """Queries and inputs of a step. pieces: (sequence, start, end) per item."""
        q = np.concatenate([self.q[s][start:end] for s, start, end in pieces])
        counts = [end - start for _, start, end in pieces]
        sizes = [len(tables[s]) for s, _, _ in pieces]
        none = int32([])
        return q, StepInputs.of(
            token_ids=none,
            positions=none,
            slots=none,
            item_rows=int32(np.cumsum([0, *counts])[:-1]),
            item_num_rows=int32(counts),
            item_starts=int32([start for _, start, _ in pieces]),
            table_offsets=int32(np.cumsum([0, *sizes])[:-1]),
            tables=int32(np.concatenate([tables[s] for s, _, _ in pieces])),
            logit_rows=none,
        )


def error_bound(
    q: np.ndarray, sequences: Sequences, pieces: Sequence[tuple[int, int, int]], scale: float, bf16: bool
) -> np.ndarray:
    """Largest relative error of sum(p * |v|) that the arithmetic allows, per row: [rows, num_heads].

    Rounding the query to bf16 (2^-9 relative) moves a score by at most d = 2^-9 * scale * sum |q||k|, which
    moves normalized weights by e^(2d); weights themselves are rounded to bf16 once more. Float variants only
    round in float32 (2^-24 per operation, head_dim of them per score, one more for the scales of int8).
    Of int8, q and k are rotated; each sum of that rotation is rounded, relative to the sum of all |q| in it.
    """
    head_dim = sequences.head_dim
    num_heads = q.shape[1] // head_dim
    group = num_heads // sequences.num_kv_heads
    step = 2.0**-9 if bf16 else 2.0**-24 * (head_dim / 2 + 5)
    block = head_dim & -head_dim
    rows = []
    for s, start, end in pieces:
        k = from_bf16(sequences.k[s][:end])
        if sequences.dtype == "int8":
            values, scales = quantize(rotate(k))
            k = values * scales[..., None]
        k = np.abs(k)
        for position in range(start, end):
            heads = sequences.q[s][position].reshape(num_heads, head_dim)
            moved = step * np.abs(heads)
            if sequences.dtype == "int8":
                sums = np.abs(heads).reshape(-1, block).sum(axis=1).repeat(block).reshape(heads.shape)
                moved = step * np.abs(rotate(heads)) + 2.0**-24 * np.log2(2 * block) * block**-0.5 * sums
            reach = [(k[:, h // group] @ moved[h]).max() for h in range(num_heads)]
            rows.append(np.expm1(2 * scale * np.array(reach)) + step + 1e-6)
    return np.array(rows)
