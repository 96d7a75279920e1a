"""The native attention ops on NumPy arrays, checked: for tests and benchmarks.

A step of a model runs the same kernels inside its program (`native.py`).
"""

from __future__ import annotations

import numpy as np

from leafage.kernels import _native
from leafage.kernels.native import check_head_dim
from leafage.kernels.program import kv_head_bytes
from leafage.kernels.reference_attention import PagedLayer
from leafage.kernels.step_inputs import StepInputs


def kv_write(
    x: np.ndarray,
    layer: PagedLayer,
    slots: np.ndarray,
    *,
    k_column: int,
    v_column: int,
    num_threads: int = 1,
    variant: str = "",
) -> None:
    """Store K and V of each row of `x` in its slot of the layer, rounded as its dtype says.

    Args:
        x: float32 [rows, width]; K heads from `k_column` on, V heads from `v_column` on.
        layer: its pool is written.
        slots: int32 [rows], block * block_size + offset; -1 stores nothing.
        variant: instruction set; "" is the chosen one.

    Raises:
        ValueError: an array has another dtype, shape or layout, or a slot is outside the pool.
    """
    _check_layer(layer)
    _check_array("x", x, np.float32, 2)
    _check_array("slots", slots, np.int32, 1)
    if len(slots) != len(x):
        raise ValueError(f"expected {len(x)} slots, one per row, got {len(slots)}")
    width = layer.num_kv_heads * layer.head_dim
    _check_range("k_column", np.array([k_column]), 0, x.shape[1] - width + 1)
    _check_range("v_column", np.array([v_column]), 0, x.shape[1] - width + 1)
    _check_range("slots", slots, -1, len(layer.pool) * layer.block_size)
    _check_threads(num_threads, variant)
    _native.kv_write(
        layer.pool,
        layer.dtype,
        layer.block_size,
        layer.num_kv_heads,
        layer.head_dim,
        x,
        k_column,
        v_column,
        slots,
        num_threads,
        variant,
    )


def attention(
    q: np.ndarray,
    layer: PagedLayer,
    inputs: StepInputs,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    num_threads: int = 1,
    variant: str = "",
    shared_bytes: int = 0,
) -> np.ndarray:
    """Causal attention of each item's rows over the layer: float32 [rows, num_heads * head_dim].

    Args:
        q: float32 [rows, num_heads * head_dim].
        inputs: items and block tables of the step; the other arrays are not read. Rows of no item give 0.
        scale, window, softcap: as in `Builder.attention`.
        variant: instruction set; "" is the chosen one.
        shared_bytes: memory for partial results of split contexts; 0 takes what a program takes. Less means
            more rounds, or no splitting; the result is the same.

    Raises:
        ValueError: an array has another dtype, shape or layout, or a block table does not cover its item.
    """
    out = np.zeros(q.shape, np.float32)
    time_attention(
        q,
        layer,
        inputs,
        out,
        scale=scale,
        window=window,
        softcap=softcap,
        num_threads=num_threads,
        variant=variant,
        shared_bytes=shared_bytes,
    )
    return out


def time_attention(
    q: np.ndarray,
    layer: PagedLayer,
    inputs: StepInputs,
    out: np.ndarray,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    num_threads: int = 1,
    variant: str = "",
    shared_bytes: int = 0,
    repeat: int = 1,
) -> float:
    """`attention` into `out`, `repeat` times; the seconds of the fastest run. Raises as `attention`."""
    _check_layer(layer)
    _check_array("q", q, np.float32, 2)
    _check_array("out", out, np.float32, 2)
    width = layer.num_kv_heads * layer.head_dim
    if q.shape[1] % width != 0 or q.shape[1] == 0:
        raise ValueError(f"expected q of a multiple of {width} columns, got {q.shape[1]}")
    if out.shape != q.shape:
        raise ValueError(f"expected out of shape {q.shape}, got {out.shape}")
    if not np.isfinite([scale, softcap]).all() or window < 0 or softcap < 0:
        raise ValueError(f"expected finite scale, window and softcap >= 0, got {scale}, {window}, {softcap}")
    _check_items(inputs, len(q), layer)
    _check_threads(num_threads, variant)
    seconds: float = _native.attention(
        layer.pool,
        layer.dtype,
        layer.block_size,
        layer.num_kv_heads,
        layer.head_dim,
        q,
        out,
        scale,
        softcap,
        window,
        inputs.item_rows,
        inputs.item_num_rows,
        inputs.item_starts,
        inputs.table_offsets,
        inputs.tables,
        num_threads,
        variant,
        shared_bytes,
        repeat,
    )
    return seconds


def _check_items(inputs: StepInputs, num_rows: int, layer: PagedLayer) -> None:
    rows, counts, starts, offsets = (
        inputs.item_rows,
        inputs.item_num_rows,
        inputs.item_starts,
        inputs.table_offsets,
    )
    for name, array in (
        ("item_rows", rows),
        ("item_num_rows", counts),
        ("item_starts", starts),
        ("table_offsets", offsets),
        ("tables", inputs.tables),
    ):
        _check_array(name, array, np.int32, 1)
    if not len(rows) == len(counts) == len(starts) == len(offsets):
        lengths = [len(a) for a in (rows, counts, starts, offsets)]
        raise ValueError(f"expected item arrays of one length, got {lengths}")
    _check_range("tables", inputs.tables, 0, len(layer.pool))
    _check_range("item_rows", rows, 0, num_rows)
    _check_range("item_num_rows", counts, 1, num_rows + 1 - rows)
    _check_range("item_starts", starts, 0, 2**30)
    needed = -(-(starts + counts) // layer.block_size)
    _check_range("table_offsets", offsets, 0, len(inputs.tables) + 1 - needed)


def _check_array(name: str, array: np.ndarray, dtype: type, ndim: int) -> None:
    if array.dtype != dtype or array.ndim != ndim or not array.flags.c_contiguous:
        expected = f"contiguous {np.dtype(dtype)} of {ndim} dimensions"
        raise ValueError(f"expected {name} as {expected}, got {array.dtype} {array.shape}")


def _check_layer(layer: PagedLayer) -> None:
    check_head_dim(layer.head_dim)
    if layer.block_size < 1 or layer.num_kv_heads < 1:
        raise ValueError(f"expected sizes >= 1, got {layer.block_size} tokens, {layer.num_kv_heads} heads")
    if layer.dtype not in ("bfloat16", "int8"):
        raise ValueError(f"expected a layer of bfloat16 or int8, got {layer.dtype!r}")
    pool = layer.pool
    if pool.dtype != np.uint8 or pool.ndim != 2 or pool.strides[1] != 1 or pool.strides[0] < pool.shape[1]:
        raise ValueError(f"expected pool as rows of uint8, got {pool.dtype} {pool.shape} {pool.strides}")
    num_bytes = 2 * layer.num_kv_heads * layer.block_size * kv_head_bytes(layer.dtype, layer.head_dim)
    if pool.shape[1] != num_bytes:
        raise ValueError(f"expected blocks of {num_bytes} bytes, got {pool.shape[1]}")


def _check_range(name: str, array: np.ndarray, low: int, high: int | np.ndarray) -> None:
    if len(array) and (int(array.min()) < low or np.any(array >= high)):
        raise ValueError(f"expected {name} in [{low}, {high}), got {array.min()} to {array.max()}")


def _check_threads(num_threads: int, variant: str) -> None:
    if num_threads < 1:
        raise ValueError(f"expected num_threads >= 1, got {num_threads}")
    known = [*_native.variants(), *_native.attention_variants()]
    if variant and variant not in known:
        raise ValueError(f"expected a variant of {known}, got {variant!r}")
