"""Every op of `program.py` in NumPy, under the same name: the specification of the native kernels, their
oracle in the tests, and the engine's `compute="float32"`.

All activations are float32 [rows, width]. A row's result is the same bits whatever else is in the batch and
however its sequence was cut into steps: matrix products always have `tile_rows` rows (padded), attention
walks partitions of 256 keys at absolute positions and merges them in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from leafage.kernels.program import MAX_LOGIT_ROWS, Kind, Op, Program, Rope
from leafage.kernels.step_inputs import StepInputs

if TYPE_CHECKING:
    from leafage.kernels.native_sampling import NativeSampler, SamplingPlan

PARTITION = 256
"""Keys of one attention partition; partition i holds the positions from i * PARTITION on."""


MAX_ATTENTION_TILE = 4
"""Most rows of attention's products: a decode step has one per query head of a group, the rest is padding."""


@lru_cache(maxsize=2)
def tile_rows(most: int = 32) -> int:
    """Rows of every matrix product: the largest number, up to `most`, at which this BLAS gives a row the same
    bits wherever it stands in the tile. BLAS uses other code, with other rounding, for other numbers of rows,
    and some libraries do so for the rows at the end of one product too; so this is tried, once per process.
    Another number of BLAS threads may give other bits (OpenBLAS: with its AVX2 kernels, not with AVX-512
    ones)."""
    rng = np.random.default_rng(0)
    for rows in (32, 8, 4):
        same = rows <= most
        for width, cols in ((256, 64), (64, 256), (37, 91), (576, 640)):
            x = rng.standard_normal((1, cols), np.float32).repeat(rows, axis=0)
            out = np.matmul(x, rng.standard_normal((width, cols), np.float32).T)
            same &= bool((out == out[0]).all())
        if same:
            return rows
    return 1


def embed(table: np.ndarray, token_ids: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Rows of `table` [vocab, width] by token id, times scale."""
    rows: np.ndarray = table[token_ids]
    return rows if scale == 1.0 else rows * np.float32(scale)


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich 2019, arXiv 1910.07467).

    The mean is taken in float64, as befits an oracle; the rest is float32.
    """
    mean = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
    normed: np.ndarray = x * (1.0 / np.sqrt(mean + eps)).astype(np.float32) * weight
    return normed


def head_norm(x: np.ndarray, weight: np.ndarray, eps: float, *, column: int, num_heads: int) -> None:
    """RMS norm, in place, of `num_heads` slices of len(weight) columns from `column` on."""
    heads = _heads(x, column, num_heads, len(weight))
    heads[...] = rms_norm(heads, weight, eps)


def linear(
    x: np.ndarray,
    weights: Sequence[np.ndarray],
    bias: np.ndarray | None = None,
    add_to: np.ndarray | None = None,
) -> np.ndarray:
    """x @ W.T for each W [rows, cols], side by side, plus bias; added to `add_to` in place when given."""
    rows, cols = x.shape
    tile = tile_rows()
    tiles = -(-rows // tile)
    padded = np.zeros((tiles, tile, cols), np.float32)
    padded.reshape(-1, cols)[:rows] = x
    out = np.empty((tiles, tile, sum(len(w) for w in weights)), np.float32)
    column = 0
    for w in weights:
        np.matmul(padded, w.T, out=out[:, :, column : column + len(w)])
        column += len(w)
    result = out.reshape(tiles * tile, column)[:rows]
    if bias is not None:
        result += bias
    if add_to is None:
        return result
    add(add_to, result)
    return add_to


def add(x: np.ndarray, y: np.ndarray) -> None:
    """x += y."""
    x += y


def rope(
    x: np.ndarray, positions: np.ndarray, rope: Rope, *, column: int, num_heads: int, head_dim: int
) -> None:
    """Rotate pairs of columns of each head, in place (Su et al. 2021, arXiv 2104.09864).

    Pair i turns by positions * inv_freq[i]; the angle is a float32 product, as in the implementations that
    the models were trained with, and its cos and sin are taken in float64 and rounded.
    Columns of a head past 2 * len(inv_freq) stay as they are.
    """
    num_pairs = len(rope.inv_freq)
    angle = positions[:, None].astype(np.float32) * np.asarray(rope.inv_freq, np.float32)
    angle = angle.astype(np.float64)
    cos = (np.cos(angle) * rope.scale).astype(np.float32)[:, None, :]
    sin = (np.sin(angle) * rope.scale).astype(np.float32)[:, None, :]
    rotary = _heads(x, column, num_heads, head_dim)[:, :, : 2 * num_pairs]
    if rope.interleaved:
        first, second = rotary[:, :, 0::2], rotary[:, :, 1::2]
    else:
        first, second = rotary[:, :, :num_pairs], rotary[:, :, num_pairs:]
    rotated = first * cos - second * sin
    second[...] = second * cos + first * sin
    first[...] = rotated


def kv_write(
    x: np.ndarray,
    k_cache: np.ndarray,
    v_cache: np.ndarray,
    slots: np.ndarray,
    *,
    k_column: int,
    v_column: int,
) -> None:
    """Store K and V of each row in its slot of one layer's cache [num_blocks, block_size, heads, head_dim];
    slot -1 stores nothing."""
    num_heads, head_dim = k_cache.shape[2:]
    written = slots >= 0
    for cache, column in ((k_cache, k_column), (v_cache, v_column)):
        heads = _heads(x, column, num_heads, head_dim)
        cache.reshape(-1, num_heads, head_dim)[slots[written]] = heads[written]


def attention(
    x: np.ndarray,
    k_cache: np.ndarray,
    v_cache: np.ndarray,
    inputs: StepInputs,
    *,
    num_heads: int,
    scale: float,
    q_column: int = 0,
    window: int = 0,
    softcap: float = 0.0,
) -> np.ndarray:
    """Causal attention of each item's rows over its block table, one layer; [rows, num_heads * head_dim].

    score(p, j) = scale * q_p . k_j for j <= p (and j > p - window when window > 0), capped to
    softcap * tanh(score / softcap) when softcap > 0; the output is softmax(score) @ V. Query head h reads
    K/V head h // (num_heads / num_kv_heads).
    """
    head_dim = k_cache.shape[3]
    out = np.empty((len(x), num_heads * head_dim), np.float32)
    for item in range(len(inputs.item_rows)):
        row, num_rows = int(inputs.item_rows[item]), int(inputs.item_num_rows[item])
        table = inputs.tables[inputs.table_offsets[item] :]
        heads = _heads(x[row : row + num_rows], q_column, num_heads, head_dim)
        out[row : row + num_rows] = _attention_of_item(
            heads, int(inputs.item_starts[item]), table, k_cache, v_cache, scale, window, softcap
        )
    return out


def _attention_of_item(
    q: np.ndarray,
    start: int,
    table: np.ndarray,
    k_cache: np.ndarray,
    v_cache: np.ndarray,
    scale: float,
    window: int,
    softcap: float,
) -> np.ndarray:
    """Attention of one sequence's q [rows, num_heads, head_dim] at positions start, start + 1, ..."""
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[2]
    group = num_heads // num_kv_heads
    end = start + num_rows
    # Rows of one K/V head: all query heads of its group for the first position, then for the next one, ...
    tile = tile_rows(MAX_ATTENTION_TILE)
    tiles = -(-num_rows * group // tile)
    queries = np.zeros((num_kv_heads, tiles * tile, head_dim), np.float32)
    queries[:, : num_rows * group].reshape(num_kv_heads, num_rows, group, head_dim)[...] = q.reshape(
        num_rows, num_kv_heads, group, head_dim
    ).transpose(1, 0, 2, 3)
    queries = queries.reshape(num_kv_heads, tiles, tile, head_dim)
    positions = start + np.minimum(np.arange(tiles * tile) // group, num_rows - 1).reshape(tiles, tile, 1)

    best = np.full((num_kv_heads, tiles, tile, 1), -np.inf, np.float32)
    total = np.zeros_like(best)
    result = np.zeros_like(queries)
    first = max(0, start - window + 1) // PARTITION if window else 0
    for key_start in range(first * PARTITION, end, PARTITION):
        # Tiles that see nothing here would add exact zeros: skipping them changes no bit.
        seen = positions[:, -1, 0] >= key_start
        if window:
            seen &= positions[:, 0, 0] - window < key_start + PARTITION - 1
        (which,) = np.nonzero(seen)
        if not len(which):
            continue
        rows = slice(which[0], which[-1] + 1)
        k = _gather(k_cache, table, key_start, end)
        v = _gather(v_cache, table, key_start, end)
        scores = np.matmul(queries[:, rows], k.transpose(1, 2, 0)[:, None]) * np.float32(scale)
        if softcap:
            _softcap(scores, softcap)
        keys = np.arange(key_start, key_start + PARTITION)
        visible = keys <= positions[rows]
        if window:
            visible &= keys > positions[rows] - window
        scores[:, ~visible] = -np.inf
        new_best = np.maximum(best[:, rows], scores.max(axis=-1, keepdims=True))
        shift = np.where(np.isneginf(new_best), np.float32(0), new_best)
        weights = np.exp(scores - shift)
        keep = np.exp(best[:, rows] - shift)
        total[:, rows] = total[:, rows] * keep + weights.sum(axis=-1, keepdims=True)
        result[:, rows] = result[:, rows] * keep + np.matmul(weights, v.transpose(1, 0, 2)[:, None])
        best[:, rows] = new_best
    result /= total
    by_head = result.reshape(num_kv_heads, tiles * tile, head_dim)[:, : num_rows * group]
    by_row = by_head.reshape(num_kv_heads, num_rows, group, head_dim).transpose(1, 0, 2, 3)
    attended: np.ndarray = by_row.reshape(num_rows, num_heads * head_dim)
    return attended


def _gather(cache: np.ndarray, table: np.ndarray, key_start: int, end: int) -> np.ndarray:
    """[PARTITION, kv_heads, head_dim] of one sequence from position `key_start` on; zeros from `end` on,
    where free slots may hold anything (0 * NaN is NaN)."""
    _, block_size, num_heads, head_dim = cache.shape
    keys = np.zeros((PARTITION, num_heads, head_dim), np.float32)
    count = min(PARTITION, end - key_start)
    first_block = key_start // block_size
    last_block = (key_start + count - 1) // block_size
    blocks = cache[table[first_block : last_block + 1]].reshape(-1, num_heads, head_dim)
    offset = key_start - first_block * block_size
    keys[:count] = blocks[offset : offset + count]
    return keys


def act_mul(x: np.ndarray, activation: str) -> np.ndarray:
    """activation(left half) * right half; 'silu' or 'gelu_tanh' (Shazeer 2020, arXiv 2002.05202)."""
    width = x.shape[1] // 2
    gate, up = np.ascontiguousarray(x[:, :width]), x[:, width:]
    activated: np.ndarray
    if activation == "silu":
        with np.errstate(over="ignore"):  # exp(-gate) = inf gives the right limit, 0
            activated = gate / (1 + np.exp(-gate))
    else:
        assert activation == "gelu_tanh", activation
        inner = np.float32(np.sqrt(2 / np.pi)) * (gate + np.float32(0.044715) * gate * gate * gate)
        activated = np.float32(0.5) * gate * (1 + np.tanh(inner))
    activated *= up
    return activated


def select_logit_rows(x: np.ndarray, logit_rows: np.ndarray) -> np.ndarray:
    """Only the rows that need logits."""
    selected: np.ndarray = x[logit_rows]
    return selected


def softcap(x: np.ndarray, cap: float) -> None:
    """x = cap * tanh(x / cap), in place."""
    np.divide(x, np.float32(cap), out=x)
    np.tanh(x, out=x)
    np.multiply(x, np.float32(cap), out=x)


_softcap = softcap  # `attention` has a parameter of that name


def _heads(x: np.ndarray, column: int, num_heads: int, head_dim: int) -> np.ndarray:
    """View [rows, num_heads, head_dim] of the columns from `column` on."""
    view = x[:, column : column + num_heads * head_dim]
    return np.lib.stride_tricks.as_strided(
        view, (len(x), num_heads, head_dim), (x.strides[0], head_dim * x.strides[1], x.strides[1])
    )


class ReferenceProgram:
    """Runs a program in float32 over its own paged float32 KV cache.

    Args:
        program: what a model's `build` returned.
        weights: by name, float32 [rows, cols], C-contiguous.
        num_blocks: blocks of the KV cache.
        block_size: tokens per block.

    Attributes:
        k_cache, v_cache: float32 [layers, num_blocks, block_size, kv_heads, head_dim].
    """

    native_seconds = 0.0  # what NativeProgram counts; nothing here is native
    num_threads = 1

    def __init__(
        self, program: Program, weights: Mapping[str, np.ndarray], *, num_blocks: int, block_size: int
    ) -> None:
        self.program = program
        self.block_size = block_size
        self.weights: dict[str, np.ndarray] = {}
        for op in program.ops:
            for weight in op.weights:
                array = weights[weight.name]
                expected = (weight.rows, weight.cols)
                if array.dtype != np.float32 or array.shape != expected or not array.flags.c_contiguous:
                    raise ValueError(
                        f"weight {weight.name}: expected C-contiguous float32 {expected}, "
                        f"got {array.dtype} {array.shape}"
                    )
                self.weights[weight.name] = array
        kv = program.kv
        shape = (kv.num_layers, num_blocks, block_size, kv.num_kv_heads, kv.head_dim)
        self.k_cache = np.zeros(shape, np.float32)
        self.v_cache = np.zeros(shape, np.float32)
        # Activations are dropped after their last use: a long prompt would otherwise keep every layer's.
        self._dead_after: list[list[int]] = [[] for _ in program.ops]
        last_use = {program.logits.id: len(program.ops)}
        for index in range(len(program.ops) - 1, -1, -1):
            op = program.ops[index]
            for buffer in (*op.inputs, *([op.output] if op.output else [])):
                if last_use.setdefault(buffer.id, index) == index:
                    self._dead_after[index].append(buffer.id)

    def run(self, inputs: StepInputs) -> np.ndarray:
        """One step: writes K/V of its rows and returns the logits [L, vocab] of `inputs.logit_rows`."""
        slices = [logits for _, logits in self.forward(inputs)]
        return np.concatenate(slices) if slices else np.empty((0, self.program.vocab_size), np.float32)

    def forward(
        self, inputs: StepInputs, sampler: NativeSampler | None = None, plan: SamplingPlan | None = None
    ) -> Iterator[tuple[int, np.ndarray]]:
        """One step in slices, as `NativeProgram.forward`: (first, logits [<= 64, vocab]) of the rows from
        `first` on; the first `next()` runs all but the output head."""
        head_start = self.program.head_start
        hidden = self.program.ops[head_start].inputs[0].id
        buffers: dict[int, np.ndarray] = {}
        self._run_ops(0, head_start, buffers, inputs)
        for first in range(0, len(inputs.logit_rows), MAX_LOGIT_ROWS):
            rows = inputs.logit_rows[first : first + MAX_LOGIT_ROWS]
            head_buffers = {hidden: buffers[hidden]}
            self._run_ops(head_start, len(self.program.ops), head_buffers, inputs.replace(logit_rows=rows))
            logits = head_buffers[self.program.logits.id]
            if sampler is not None and plan is not None:
                sampler.run(plan, logits, first)
            yield first, logits

    def _run_ops(self, begin: int, end: int, buffers: dict[int, np.ndarray], inputs: StepInputs) -> None:
        for op, dead in zip(self.program.ops[begin:end], self._dead_after[begin:end], strict=True):
            out = self._run_op(op, [buffers[b.id] for b in op.inputs], buffers, inputs)
            if op.output is not None and out is not None:
                buffers[op.output.id] = out
            for buffer_id in dict.fromkeys(dead):
                buffers.pop(buffer_id, None)

    @property
    def block_bytes(self) -> int:
        """Bytes of K and V of one block, all layers."""
        return self.k_cache[:, 0].nbytes + self.v_cache[:, 0].nbytes

    def get_block(self, block: int) -> np.ndarray:
        """K and V of one block as uint8 [block_bytes]."""
        both = np.concatenate([self.k_cache[:, block].ravel(), self.v_cache[:, block].ravel()])
        return both.view(np.uint8)

    def set_block(self, block: int, data: np.ndarray) -> None:
        """Put back what `get_block` gave."""
        k, v = np.split(data.view(np.float32), 2)
        self.k_cache[:, block] = k.reshape(self.k_cache[:, block].shape)
        self.v_cache[:, block] = v.reshape(self.v_cache[:, block].shape)

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy block `src` to block `dst` in all layers, for each (src, dst)."""
        for src, dst in pairs:
            self.k_cache[:, dst] = self.k_cache[:, src]
            self.v_cache[:, dst] = self.v_cache[:, src]

    def _run_op(
        self, op: Op, args: list[np.ndarray], buffers: dict[int, np.ndarray], inputs: StepInputs
    ) -> np.ndarray | None:
        """The op's output, or None when it worked in place."""
        p = op.params
        weights = [self.weights[w.name] for w in op.weights]
        match op.kind:
            case Kind.EMBED:
                return embed(weights[0], inputs.token_ids, p["scale"])
            case Kind.RMS_NORM:
                return rms_norm(args[0], op.vectors[0], p["eps"])
            case Kind.HEAD_NORM:
                head_norm(args[0], op.vectors[0], p["eps"], column=p["column"], num_heads=p["num_heads"])
            case Kind.LINEAR:
                assert op.output is not None
                bias = op.vectors[0] if op.vectors else None
                return linear(args[0], weights, bias, buffers[op.output.id] if p["accumulate"] else None)
            case Kind.ADD:
                add(args[0], args[1])
            case Kind.ROPE:
                rope(
                    args[0],
                    inputs.positions,
                    self.program.ropes[p["rope"]],
                    column=p["column"],
                    num_heads=p["num_heads"],
                    head_dim=p["head_dim"],
                )
            case Kind.KV_WRITE:
                k, v = self.k_cache[p["layer"]], self.v_cache[p["layer"]]
                kv_write(args[0], k, v, inputs.slots, k_column=p["k_column"], v_column=p["v_column"])
            case Kind.ATTENTION:
                return attention(
                    args[0],
                    self.k_cache[p["layer"]],
                    self.v_cache[p["layer"]],
                    inputs,
                    num_heads=p["num_heads"],
                    scale=p["scale"],
                    q_column=p["q_column"],
                    window=p["window"],
                    softcap=p["softcap"],
                )
            case Kind.ACT_MUL:
                return act_mul(args[0], p["activation"])
            case Kind.SELECT_LOGIT_ROWS:
                return select_logit_rows(args[0], inputs.logit_rows)
            case Kind.SOFTCAP:
                softcap(args[0], p["cap"])
        return None
