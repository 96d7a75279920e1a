"""The paged bf16 K/V layout in NumPy, and attention over it in exact arithmetic: the oracle of the native ops.

Layout of a block: all K heads, then all V heads. In a tile of `tile` tokens K is [head_dim / 2, tile, 2] and V is
[tile / 2, head_dim, 2]. Block sizes that are multiples of 16 hold tiles of 16 tokens; any other block is one tile
of its own size, and its V is [block_size, head_dim] when the size is odd.
"""

from __future__ import annotations

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


def block_values(block_size: int, num_kv_heads: int, head_dim: int) -> int:
    """16-bit values of one block of one layer."""
    return 2 * num_kv_heads * block_size * head_dim


def pack(k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """K and V as bf16 bits [num_blocks, block_size, num_kv_heads, head_dim] to the pool [num_blocks, values]."""
    num_blocks, block_size, num_kv_heads, head_dim = k.shape
    tile = TILE if block_size % TILE == 0 else block_size
    shape = (num_blocks, block_size // tile, tile, num_kv_heads, head_dim)
    k = k.reshape(*shape[:4], head_dim // 2, 2).transpose(0, 3, 1, 4, 2, 5)
    if tile % 2 == 0:
        v = v.reshape(*shape[:2], tile // 2, 2, num_kv_heads, head_dim).transpose(0, 4, 1, 2, 5, 3)
    else:
        v = v.reshape(shape).transpose(0, 3, 1, 2, 4)
    both = [a.reshape(num_blocks, -1) for a in (k, v)]
    return np.ascontiguousarray(np.concatenate(both, axis=1), np.uint16)


def unpack(
    pool: np.ndarray, block_size: int, num_kv_heads: int, head_dim: int
) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of `pack`: (k, v) as bf16 bits [num_blocks, block_size, num_kv_heads, head_dim]."""
    num_blocks = len(pool)
    tile = TILE if block_size % TILE == 0 else block_size
    tiles = block_size // tile
    k, v = np.split(pool, 2, axis=1)
    k = k.reshape(num_blocks, num_kv_heads, tiles, head_dim // 2, tile, 2).transpose(0, 2, 4, 1, 3, 5)
    if tile % 2 == 0:
        v = v.reshape(num_blocks, num_kv_heads, tiles, tile // 2, head_dim, 2).transpose(0, 2, 3, 5, 1, 4)
    else:
        v = v.reshape(num_blocks, num_kv_heads, tiles, tile, head_dim).transpose(0, 2, 3, 1, 4)
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    return np.ascontiguousarray(k).reshape(shape), np.ascontiguousarray(v).reshape(shape)


def attention(
    q: np.ndarray,
    pool: np.ndarray,
    inputs: StepInputs,
    *,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> np.ndarray:
    """Causal attention in float64 over the K/V bits that the pool holds: [rows, num_heads * head_dim].

    q: float32 [rows, num_heads * head_dim]. score(p, j) = scale * q_p . k_j for max(0, p - window + 1) <= j <= p,
    capped to softcap * tanh(score / softcap) when softcap > 0; out = softmax(score) @ V.
    """
    num_heads = q.shape[1] // head_dim
    group = num_heads // num_kv_heads
    k_blocks, v_blocks = unpack(pool, block_size, num_kv_heads, head_dim)
    out = np.zeros(q.shape, np.float64)
    for i in range(len(inputs.item_rows)):
        row, num_rows, start = (int(a[i]) for a in (inputs.item_rows, inputs.item_num_rows, inputs.item_starts))
        end = start + num_rows
        used = -(-end // block_size)
        table = inputs.tables[inputs.table_offsets[i] :][:used]
        k, v = (
            from_bf16(b[table].reshape(-1, num_kv_heads, head_dim)[:end]).astype(np.float64)
            for b in (k_blocks, v_blocks)
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
