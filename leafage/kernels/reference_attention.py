"""The paged bf16 K/V layout in NumPy, and attention over it in float64: the oracle of the native ops.

Layout of a block: all K heads, then all V heads. In a tile of `tile` tokens K is [head_dim / 2, tile, 2] and
V is [tile / 2, head_dim, 2]. Block sizes that are multiples of 16 hold tiles of 16 tokens; any other block is
one tile of its own size, and its V is [block_size, head_dim] when the size is odd.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leafage.kernels.step_inputs import StepInputs

TILE = 16


def to_bf16(x: np.ndarray) -> np.ndarray:
    """float32 to bf16 bits (uint16), rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, (bits >> 16) | 64, rounded).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """bf16 bits (uint16) to float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """K and V of one layer: `pool` is uint8 [num_blocks, 2 * num_kv_heads * block_size * head_dim * 2], the
    bytes of the layout; rows may lie apart, as the layers of a block do."""

    pool: np.ndarray
    block_size: int
    num_kv_heads: int
    head_dim: int


def pack(k: np.ndarray, v: np.ndarray) -> PagedLayer:
    """The pool of K and V given as bf16 bits [num_blocks, block_size, num_kv_heads, head_dim]."""
    num_blocks, block_size, num_kv_heads, head_dim = k.shape
    tile = TILE if block_size % TILE == 0 else block_size
    shape = (num_blocks, block_size // tile, tile, num_kv_heads, head_dim)
    k = k.reshape(*shape[:4], head_dim // 2, 2).transpose(0, 3, 1, 4, 2, 5)
    if tile % 2 == 0:
        v = v.reshape(*shape[:2], tile // 2, 2, num_kv_heads, head_dim).transpose(0, 4, 1, 2, 5, 3)
    else:
        v = v.reshape(shape).transpose(0, 3, 1, 2, 4)
    both = [a.reshape(num_blocks, -1) for a in (k, v)]
    pool = np.ascontiguousarray(np.concatenate(both, axis=1), np.uint16)
    return PagedLayer(pool.view(np.uint8), block_size, num_kv_heads, head_dim)


def unpack(layer: PagedLayer) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of `pack`: (k, v) as bf16 bits [num_blocks, block_size, num_kv_heads, head_dim]."""
    block_size, heads, head_dim = layer.block_size, layer.num_kv_heads, layer.head_dim
    tile = TILE if block_size % TILE == 0 else block_size
    blocks, tiles = len(layer.pool), block_size // tile
    k, v = np.split(np.ascontiguousarray(layer.pool).view(np.uint16), 2, axis=1)
    k = k.reshape(blocks, heads, tiles, head_dim // 2, tile, 2).transpose(0, 2, 4, 1, 3, 5)
    if tile % 2 == 0:
        v = v.reshape(blocks, heads, tiles, tile // 2, head_dim, 2).transpose(0, 2, 3, 5, 1, 4)
    else:
        v = v.reshape(blocks, heads, tiles, tile, head_dim).transpose(0, 2, 3, 1, 4)
    shape = (blocks, block_size, heads, head_dim)
    return np.ascontiguousarray(k).reshape(shape), np.ascontiguousarray(v).reshape(shape)


def attention(
    q: np.ndarray,
    layer: PagedLayer,
    inputs: StepInputs,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> np.ndarray:
    """Causal attention in float64 over the bits that the layer holds: [rows, num_heads * head_dim].

    q: float32 [rows, num_heads * head_dim]. score(p, j) = scale * q_p . k_j for the j that p sees, which are
    max(0, p - window + 1) <= j <= p (window 0: all), capped to softcap * tanh(score / softcap) when
    softcap > 0; out = softmax(score) @ V. Query head h reads K/V head h // (num_heads / num_kv_heads).
    """
    block_size, head_dim = layer.block_size, layer.head_dim
    num_heads = q.shape[1] // head_dim
    group = num_heads // layer.num_kv_heads
    k_blocks, v_blocks = unpack(layer)
    out = np.zeros(q.shape, np.float64)
    for i in range(len(inputs.item_rows)):
        row, num_rows = int(inputs.item_rows[i]), int(inputs.item_num_rows[i])
        start = int(inputs.item_starts[i])
        end = start + num_rows
        table = inputs.tables[inputs.table_offsets[i] :][: -(-end // block_size)]
        k, v = (
            from_bf16(blocks[table].reshape(-1, layer.num_kv_heads, head_dim)[:end]).astype(np.float64)
            for blocks in (k_blocks, v_blocks)
        )
        positions = np.arange(start, end)[:, None]
        keys = np.arange(end)[None, :]
        seen = (keys <= positions) & ((window == 0) | (keys > positions - window))
        for head in range(num_heads):
            columns = slice(head * head_dim, (head + 1) * head_dim)
            scores = scale * (q[row : row + num_rows, columns].astype(np.float64) @ k[:, head // group].T)
            if softcap > 0:
                scores = softcap * np.tanh(scores / softcap)
            scores = np.where(seen, scores, -np.inf)
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[row : row + num_rows, columns] = p @ v[:, head // group] / p.sum(axis=1, keepdims=True)
    return out
