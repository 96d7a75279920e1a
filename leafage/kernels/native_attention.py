"""The native attention ops on NumPy arrays, checked: for tests and benchmarks. A step of a model runs the same
kernels inside its program (`native.py`)."""

from __future__ import annotations

import numpy as np

from leafage.kernels import _native
from leafage.kernels.step_inputs import StepInputs

MAX_HEAD_DIM: int = _native.MAX_HEAD_DIM


def kv_write(
    pool: np.ndarray,
    x: np.ndarray,
    slots: np.ndarray,
    *,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    k_column: int,
    v_column: int,
    num_threads: int = 1,
    variant: str = "",
) -> None:
    """Store K and V of each row of `x` in its slot of one layer's pool, as bf16.

    Args:
        pool: uint16 [num_blocks, 2 * num_kv_heads * block_size * head_dim], laid out as in csrc/attention.h.
        x: float32 [rows, width]; K heads from `k_column` on, V heads from `v_column` on.
        slots: int32 [rows], block * block_size + offset; -1 stores nothing.
        variant: instruction set; "" is the chosen one.

    Raises:
        ValueError: an array has another dtype, shape or layout, or a slot is outside the pool.
    """
    _check_pool(pool, block_size, num_kv_heads, head_dim)
    _check_array("x", x, np.float32, 2)
    _check_array("slots", slots, np.int32, 1)
    if len(slots) != len(x):
        raise ValueError(f"expected {len(x)} slots, one per row, got {len(slots)}")
    for name, column in (("k_column", k_column), ("v_column", v_column)):
        if column < 0 or column + num_kv_heads * head_dim > x.shape[1]:
            raise ValueError(f"expected {name} with {num_kv_heads} heads inside {x.shape[1]} columns, got {column}")
    _check_range("slots", slots, -1, len(pool) * block_size)
    _check_threads(num_threads, variant)
    _native.kv_write(
        pool, block_size, num_kv_heads, head_dim, x, k_column, v_column, slots, num_threads, variant
    )


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
    num_threads: int = 1,
    variant: str = "",
    shared_bytes: int = 0,
) -> np.ndarray:
    """Causal attention of each item's rows over one layer's pool: float32 [rows, num_heads * head_dim].

    Args:
        q: float32 [rows, num_heads * head_dim].
        pool, block_size, num_kv_heads, head_dim, variant: as in `kv_write`.
        inputs: items and block tables of the step; the other arrays are not read.
        scale, window, softcap: as in `Builder.attention`.
        shared_bytes: memory for partial results of split contexts; 0 takes what the program takes. Less means
            more rounds, or no splitting; the result is the same.

    Raises:
        ValueError: an array has another dtype, shape or layout, or a block table does not cover its item.
    """
    out = np.zeros(q.shape, np.float32)
    time_attention(
        q, pool, inputs, out, block_size, num_kv_heads, head_dim, scale, window, softcap, num_threads, variant,
        shared_bytes, 1,
    )  # fmt: skip
    return out


def time_attention(
    q: np.ndarray,
    pool: np.ndarray,
    inputs: StepInputs,
    out: np.ndarray,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    scale: float,
    window: int,
    softcap: float,
    num_threads: int,
    variant: str,
    shared_bytes: int,
    repeat: int,
) -> float:
    """Run `attention` into `out` `repeat` times; the seconds of the fastest run."""
    _check_pool(pool, block_size, num_kv_heads, head_dim)
    _check_array("q", q, np.float32, 2)
    _check_array("out", out, np.float32, 2)
    if q.shape[1] % (num_kv_heads * head_dim) != 0 or q.shape[1] == 0:
        raise ValueError(f"expected q of a multiple of {num_kv_heads * head_dim} columns, got {q.shape[1]}")
    if out.shape != q.shape:
        raise ValueError(f"expected out of shape {q.shape}, got {out.shape}")
    if window < 0 or not softcap >= 0 or not np.isfinite([scale, softcap]).all():
        raise ValueError(f"expected finite scale, window >= 0, softcap >= 0, got {scale}, {window}, {softcap}")
    arrays = [inputs.item_rows, inputs.item_num_rows, inputs.item_starts, inputs.table_offsets, inputs.tables]
    names = ["item_rows", "item_num_rows", "item_starts", "table_offsets", "tables"]
    for name, array in zip(names, arrays, strict=True):
        _check_array(name, array, np.int32, 1)
    if len({len(a) for a in arrays[:4]}) != 1:
        raise ValueError(f"expected item arrays of one length, got {[len(a) for a in arrays[:4]]}")
    _check_range("tables", inputs.tables, 0, len(pool))
    _check_range("item_rows", inputs.item_rows, 0, len(q))
    _check_range("item_num_rows", inputs.item_num_rows, 1, len(q) + 1 - inputs.item_rows)
    _check_range("item_starts", inputs.item_starts, 0, 2**30)
    needed = -(-(inputs.item_starts + inputs.item_num_rows) // block_size)
    _check_range("table_offsets", inputs.table_offsets, 0, len(inputs.tables) + 1 - needed)
    _check_threads(num_threads, variant)
    return _native.attention(
        pool, block_size, num_kv_heads, head_dim, q, out, scale, softcap, window, *arrays, num_threads, variant,
        shared_bytes, repeat,
    )  # fmt: skip


def _check_array(name: str, array: np.ndarray, dtype: type, ndim: int) -> None:
    if array.dtype != dtype or array.ndim != ndim or not array.flags.c_contiguous:
        raise ValueError(
            f"expected {name} as contiguous {np.dtype(dtype)} of {ndim} dimensions, got {array.dtype} {array.shape}"
        )


def _check_pool(pool: np.ndarray, block_size: int, num_kv_heads: int, head_dim: int) -> None:
    if head_dim % 16 != 0 or not 16 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"expected head_dim as a multiple of 16 up to {MAX_HEAD_DIM}, got {head_dim}")
    if block_size < 1 or num_kv_heads < 1:
        raise ValueError(f"expected block_size and num_kv_heads >= 1, got {block_size}, {num_kv_heads}")
    _check_array("pool", pool, np.uint16, 2)
    values = 2 * num_kv_heads * block_size * head_dim
    if pool.shape[1] != values:
        raise ValueError(f"expected blocks of {values} values, got {pool.shape[1]}")


def _check_range(name: str, array: np.ndarray, low: int, high: int | np.ndarray) -> None:
    if len(array) and (int(array.min()) < low or np.any(array >= high)):
        raise ValueError(f"expected {name} in [{low}, {high}), got {array.min()} to {array.max()}")


def _check_threads(num_threads: int, variant: str) -> None:
    if num_threads < 1:
        raise ValueError(f"expected num_threads >= 1, got {num_threads}")
    if variant and variant not in _native.variants():
        raise ValueError(f"expected a variant of {_native.variants()}, got {variant!r}")
