"""A model's forward pass as a flat list of ops. Models write it once; every executor runs the same list.

`Builder` methods append one op each and return the buffer the op fills. A buffer is a float32 matrix
[rows, width]; rows are the tokens of the step, or, behind `select_logit_rows`, the rows that need logits.
`native.py` compiles the list for the C++ runtime, `reference.py` interprets it in NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

MAX_LOGIT_ROWS = 64
"""Rows of logits in memory at a time; a step that needs more runs its output head in slices."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A float32 activation matrix [rows, width]."""

    id: int
    width: int


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix [rows, cols] of the model file: `rows` outputs, `cols` inputs. `name` as in GGUF."""

    name: str
    rows: int
    cols: int


class Kind(Enum):
    EMBED = "embed"
    RMS_NORM = "rms_norm"
    HEAD_NORM = "head_norm"
    LINEAR = "linear"
    ADD = "add"
    ROPE = "rope"
    KV_WRITE = "kv_write"
    ATTENTION = "attention"
    ACT_MUL = "act_mul"
    SELECT_LOGIT_ROWS = "select_logit_rows"
    SOFTCAP = "softcap"


@dataclass(frozen=True, slots=True)
class Op:
    """One op: buffers in, buffer out (one of the inputs when in place), weights, scalars, vectors."""

    kind: Kind
    inputs: tuple[Buffer, ...]
    output: Buffer | None
    weights: tuple[Weight, ...] = ()
    vectors: tuple[np.ndarray, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)


def kv_head_bytes(dtype: str, head_dim: int) -> int:
    """Bytes of one token's K (or V) of one head: "int8" has a float32 scale beside the values."""
    return {"float32": 4 * head_dim, "bfloat16": 2 * head_dim, "int8": head_dim + 4}[dtype]


@dataclass(frozen=True, slots=True)
class KVSpec:
    """K/V of one token of one layer: `num_kv_heads` heads of `head_dim` values, for K and for V."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    def bytes_per_token(self, dtype: str) -> int:
        """Bytes of a token in the KV cache, all layers; dtype: "float32", "bfloat16" or "int8"."""
        return 2 * self.num_layers * self.num_kv_heads * kv_head_bytes(dtype, self.head_dim)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: `inv_freq[i]` turns pair i by position * inv_freq[i]; cos and sin are scaled by
    `scale` (YaRN's attention factor). `interleaved` pairs (2i, 2i+1), otherwise (i, i + rotary_dim/2)."""

    inv_freq: tuple[float, ...]
    interleaved: bool
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Program:
    """A complete forward pass. `head_start` is the index of the first op that works on logit rows."""

    ops: tuple[Op, ...]
    buffers: tuple[Buffer, ...]
    kv: KVSpec
    ropes: tuple[Rope, ...]
    logits: Buffer
    head_start: int
    vocab_size: int


class Builder:
    """Collects ops. Every method names the op it appends; shapes are checked as it goes."""

    def __init__(self, kv: KVSpec) -> None:
        self.kv = kv
        self._ops: list[Op] = []
        self._buffers: list[Buffer] = []
        self._ropes: list[Rope] = []
        self._head_start: int | None = None

    def _buffer(self, width: int) -> Buffer:
        buffer = Buffer(len(self._buffers), width)
        self._buffers.append(buffer)
        return buffer

    def _append(self, op: Op) -> None:
        self._ops.append(op)

    def embed(self, table: Weight, *, scale: float = 1.0) -> Buffer:
        """Rows of the embedding table by token id, dequantized, times scale."""
        out = self._buffer(table.cols)
        self._append(Op(Kind.EMBED, (), out, (table,), params={"scale": scale}))
        return out

    def rms_norm(self, x: Buffer, weight: np.ndarray, eps: float) -> Buffer:
        """x / sqrt(mean(x^2) + eps) * weight."""
        assert weight.shape == (x.width,), (weight.shape, x.width)
        out = self._buffer(x.width)
        self._append(Op(Kind.RMS_NORM, (x,), out, vectors=(_f32(weight),), params={"eps": eps}))
        return out

    def head_norm(self, x: Buffer, weight: np.ndarray, eps: float, *, column: int, num_heads: int) -> None:
        """RMS norm in place of `num_heads` slices of len(weight) columns, from `column` on."""
        assert column + num_heads * len(weight) <= x.width
        params = {"eps": eps, "column": column, "num_heads": num_heads, "head_dim": len(weight)}
        self._append(Op(Kind.HEAD_NORM, (x,), x, vectors=(_f32(weight),), params=params))

    def linear(
        self,
        x: Buffer,
        *weights: Weight,
        bias: np.ndarray | None = None,
        add_to: Buffer | None = None,
        precise: bool = False,
    ) -> Buffer:
        """x @ W.T for each weight, side by side in one buffer; plus bias; `add_to` accumulates in place.
        `precise`: where activations are quantized, an outlier reaches twice as far, for 9 dot products
        instead of 8 (csrc/linear_layout.h)."""
        assert all(w.cols == x.width for w in weights), ([w.cols for w in weights], x.width)
        width = sum(w.rows for w in weights)
        assert bias is None or bias.shape == (width,)
        assert add_to is None or add_to.width == width
        out = add_to if add_to is not None else self._buffer(width)
        vectors = (_f32(bias),) if bias is not None else ()
        params = {"accumulate": add_to is not None, "precise": precise}
        self._append(Op(Kind.LINEAR, (x,), out, weights, vectors, params))
        return out

    def add(self, x: Buffer, y: Buffer) -> None:
        """x += y."""
        assert x.width == y.width
        self._append(Op(Kind.ADD, (x, y), x))

    def rope(self, x: Buffer, rope: Rope, *, column: int, num_heads: int, head_dim: int) -> None:
        """Rotate, in place, the first 2 * len(inv_freq) columns of `num_heads` heads from `column` on."""
        assert column + num_heads * head_dim <= x.width and 2 * len(rope.inv_freq) <= head_dim
        if rope not in self._ropes:
            self._ropes.append(rope)
        params = {
            "rope": self._ropes.index(rope),
            "column": column,
            "num_heads": num_heads,
            "head_dim": head_dim,
        }
        self._append(Op(Kind.ROPE, (x,), x, params=params))

    def kv_write(self, x: Buffer, *, layer: int, k_column: int, v_column: int) -> None:
        """Store K and V of the step's tokens in their slots of the paged cache."""
        params = {"layer": layer, "k_column": k_column, "v_column": v_column}
        self._append(Op(Kind.KV_WRITE, (x,), None, params=params))

    def attention(
        self,
        x: Buffer,
        *,
        layer: int,
        num_heads: int,
        scale: float,
        q_column: int = 0,
        window: int = 0,
        softcap: float = 0.0,
    ) -> Buffer:
        """Causal attention of the step's queries over the paged cache. `window` > 0: a token sees itself and
        the window - 1 tokens before it. `softcap` > 0: scores become cap * tanh(score / cap)."""
        assert num_heads % self.kv.num_kv_heads == 0
        out = self._buffer(num_heads * self.kv.head_dim)
        params = {
            "layer": layer,
            "num_heads": num_heads,
            "scale": scale,
            "q_column": q_column,
            "window": window,
            "softcap": softcap,
        }
        self._append(Op(Kind.ATTENTION, (x,), out, params=params))
        return out

    def act_mul(self, x: Buffer, activation: str) -> Buffer:
        """activation(left half) * right half; activation: 'silu' or 'gelu_tanh'."""
        assert activation in ("silu", "gelu_tanh") and x.width % 2 == 0
        out = self._buffer(x.width // 2)
        self._append(Op(Kind.ACT_MUL, (x,), out, params={"activation": activation}))
        return out

    def select_logit_rows(self, x: Buffer) -> Buffer:
        """Keep only the rows that need logits; all later buffers have those rows."""
        assert self._head_start is None
        self._head_start = len(self._ops)
        out = self._buffer(x.width)
        self._append(Op(Kind.SELECT_LOGIT_ROWS, (x,), out))
        return out

    def softcap(self, x: Buffer, cap: float) -> None:
        """x = cap * tanh(x / cap), in place."""
        self._append(Op(Kind.SOFTCAP, (x,), x, params={"cap": cap}))

    def finish(self, logits: Buffer) -> Program:
        assert self._head_start is not None, "select_logit_rows must come before the output head"
        return Program(
            tuple(self._ops),
            tuple(self._buffers),
            self.kv,
            tuple(self._ropes),
            logits,
            self._head_start,
            logits.width,
        )


def _f32(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, dtype=np.float32)
