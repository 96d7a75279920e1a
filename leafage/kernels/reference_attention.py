"""The paged K/V layout in NumPy, and attention over it in float64: the oracle of the native ops.

Layout of a block: all K heads, then all V heads. A head is a row of runs: tiles of 16 tokens when the block
size is a multiple of 16, else one run of the block's size.

bfloat16: K of a run is [head_dim / 2, tokens, 2] and V is [tokens / 2, head_dim, 2], or [tokens, head_dim]
when the run is odd. int8: a run begins with the float32 scales of its tokens; K is [head_dim, tokens]; V of a
tile is [8, head_dim / 16, 2, 16], of another run [tokens, head_dim]. K is rotated before it is quantized.
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


def quantize(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 [..., head_dim] to (q int8 [..., head_dim], scale float32 [...]), x close to scale * q.

    scale = max|x| / 127. Vectors that are not finite have q = 0 and scale NaN; those whose scale is no normal
    number are 0.
    """
    x = np.ascontiguousarray(x, np.float32)
    absmax = np.abs(x).max(axis=-1)
    finite = np.isfinite(absmax)
    scale = np.where(finite, absmax, np.float32(0)) / np.float32(127)
    scale = np.where(scale < np.finfo(np.float32).tiny, np.float32(0), scale)
    usable = scale > 0
    inverse = np.float32(1) / np.where(usable, scale, np.float32(1))
    q = np.rint(np.where(usable[..., None], x, np.float32(0)) * inverse[..., None]).astype(np.int8)
    return q, np.where(finite, scale, np.float32(np.nan))


def rotate(x: np.ndarray) -> np.ndarray:
    """The orthonormal Walsh-Hadamard transform of the last axis, in blocks of the largest power of two that
    divides its length; its own inverse. Sums and differences at distances 1, 2, 4, ..., one product."""
    head_dim = x.shape[-1]
    block = head_dim & -head_dim
    distance = 1
    with np.errstate(over="ignore", invalid="ignore"):  # the scale shows what is not finite
        while distance < block:
            pairs = x.reshape(-1, 2, distance)
            first, second = pairs[:, 0], pairs[:, 1]
            x = np.stack([first + second, first - second], axis=1).reshape(x.shape)
            distance *= 2
        rotated: np.ndarray = x * x.dtype.type(block**-0.5)
    return rotated


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """K and V of one layer: `pool` is uint8 [num_blocks, bytes of a block], in the layout of `dtype`
    ("bfloat16" or "int8"). Rows may lie apart, as the layers of a block do."""

    pool: np.ndarray
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: str = "bfloat16"


def pack(k: np.ndarray, v: np.ndarray) -> PagedLayer:
    """The pool of K and V given as bf16 bits [num_blocks, block_size, num_kv_heads, head_dim]."""
    num_blocks, block_size, num_kv_heads, head_dim = k.shape
    k, v = _runs_of(k), _runs_of(v)  # [blocks, heads, runs, tokens, head_dim]
    tokens = k.shape[3]
    k = k.reshape(*k.shape[:4], head_dim // 2, 2).swapaxes(3, 4)
    if tokens % 2 == 0:
        v = v.reshape(*v.shape[:3], tokens // 2, 2, head_dim).swapaxes(4, 5)
    both = [a.reshape(num_blocks, -1) for a in (k, v)]
    pool = np.ascontiguousarray(np.concatenate(both, axis=1), np.uint16)
    return PagedLayer(pool.view(np.uint8), block_size, num_kv_heads, head_dim)


def pack_int8(k: np.ndarray, v: np.ndarray) -> PagedLayer:
    """The pool of K and V given as float32 [num_blocks, block_size, num_kv_heads, head_dim], K rotated, both
    quantized."""
    num_blocks, block_size, num_kv_heads, head_dim = k.shape
    parts = []
    for x, is_v in ((k, False), (v, True)):
        q, scale = quantize(x if is_v else rotate(x))
        runs = _runs_of(q)
        shape, tokens = runs.shape[:3], runs.shape[3]
        if not is_v:
            runs = runs.swapaxes(3, 4)
        elif tokens == TILE:
            runs = runs.reshape(*shape, 8, 2, head_dim // 16, 16).swapaxes(4, 5)
        scales = np.ascontiguousarray(_runs_of(scale[..., None]).reshape(*shape, tokens))
        values = np.ascontiguousarray(runs).reshape(*shape, -1).view(np.uint8)
        parts.append(np.concatenate([scales.view(np.uint8), values], axis=-1).reshape(num_blocks, -1))
    return PagedLayer(np.concatenate(parts, axis=1), block_size, num_kv_heads, head_dim, "int8")


def _runs_of(x: np.ndarray) -> np.ndarray:
    """[blocks, block_size, heads, n] to [blocks, heads, runs, tokens, n]."""
    blocks, block_size, heads, n = x.shape
    tokens = TILE if block_size % TILE == 0 else block_size
    runs: np.ndarray = x.reshape(blocks, -1, tokens, heads, n).transpose(0, 3, 1, 2, 4)
    return runs


def unpack(layer: PagedLayer) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of `pack`: (k, v) as bf16 bits [num_blocks, block_size, num_kv_heads, head_dim]."""
    assert layer.dtype == "bfloat16"
    runs, tokens, head_dim = _runs_in(layer)
    k, v = (x.view(np.uint16) for x in runs)
    k = k.reshape(*k.shape[:3], head_dim // 2, tokens, 2).swapaxes(3, 4)
    if tokens % 2 == 0:
        v = v.reshape(*v.shape[:3], tokens // 2, head_dim, 2).swapaxes(4, 5)
    return _tokens_of(k, layer), _tokens_of(v, layer)


def unpack_int8(layer: PagedLayer) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The inverse of `pack_int8`: K, still rotated, and V, as (q int8 [num_blocks, block_size, num_kv_heads,
    head_dim], scale float32 [num_blocks, block_size, num_kv_heads])."""
    assert layer.dtype == "int8"
    runs, tokens, head_dim = _runs_in(layer)
    found = []
    for x, is_v in zip(runs, (False, True), strict=True):
        scale = np.ascontiguousarray(x[..., : 4 * tokens]).view(np.float32)[..., None]
        q = np.ascontiguousarray(x[..., 4 * tokens :]).view(np.int8)
        if not is_v:
            q = q.reshape(*q.shape[:3], head_dim, tokens).swapaxes(3, 4)
        elif tokens == TILE:
            q = q.reshape(*q.shape[:3], 8, head_dim // 16, 2, 16).swapaxes(4, 5)
        found.append((_tokens_of(q, layer), _tokens_of(scale, layer)[..., 0]))
    return found[0], found[1]


def _runs_in(layer: PagedLayer) -> tuple[tuple[np.ndarray, np.ndarray], int, int]:
    """(K, V) as uint8 [blocks, heads, runs, bytes], tokens of a run, head_dim."""
    tokens = TILE if layer.block_size % TILE == 0 else layer.block_size
    shape = (len(layer.pool), 2, layer.num_kv_heads, layer.block_size // tokens, -1)
    both = np.ascontiguousarray(layer.pool).reshape(shape)
    return (np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])), tokens, layer.head_dim


def _tokens_of(runs: np.ndarray, layer: PagedLayer) -> np.ndarray:
    """[blocks, heads, runs, tokens ..., n] to [blocks, block_size, heads, n]."""
    blocks, heads = len(layer.pool), layer.num_kv_heads
    x = runs.reshape(blocks, heads, layer.block_size, -1)
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3))


def values(layer: PagedLayer) -> tuple[np.ndarray, np.ndarray]:
    """(k, v) as they are read: float64 [num_blocks, block_size, num_kv_heads, head_dim]. K of int8 is rotated
    back; all others are exact."""
    if layer.dtype == "bfloat16":
        k, v = (from_bf16(bits).astype(np.float64) for bits in unpack(layer))
    else:
        k, v = (q.astype(np.float64) * scale[..., None] for q, scale in unpack_int8(layer))
        k = rotate(k)
    return k, v


def attention(
    q: np.ndarray,
    layer: PagedLayer,
    inputs: StepInputs,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> np.ndarray:
    """Causal attention in float64 over the values that the layer holds: [rows, num_heads * head_dim].

    q: float32 [rows, num_heads * head_dim]. score(p, j) = scale * q_p . k_j for the j that p sees, which are
    max(0, p - window + 1) <= j <= p (window 0: all), capped to softcap * tanh(score / softcap) when
    softcap > 0; out = softmax(score) @ V. Query head h reads K/V head h // (num_heads / num_kv_heads).
    """
    return attention_over(q, *values(layer), inputs, scale=scale, window=window, softcap=softcap)


def attention_over(
    q: np.ndarray,
    k_blocks: np.ndarray,
    v_blocks: np.ndarray,
    inputs: StepInputs,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> np.ndarray:
    """`attention` over float64 values [num_blocks, block_size, num_kv_heads, head_dim]."""
    _, block_size, num_kv_heads, head_dim = k_blocks.shape
    num_heads = q.shape[1] // head_dim
    group = num_heads // num_kv_heads
    out = np.zeros(q.shape, np.float64)
    for i in range(len(inputs.item_rows)):
        row, num_rows = int(inputs.item_rows[i]), int(inputs.item_num_rows[i])
        start = int(inputs.item_starts[i])
        end = start + num_rows
        table = inputs.tables[inputs.table_offsets[i] :][: -(-end // block_size)]
        k, v = (blocks[table].reshape(-1, num_kv_heads, head_dim)[:end] for blocks in (k_blocks, v_blocks))
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
