"""Quantize float32 weights on load (`--quantize q8|q4` of safetensors folders)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leafage.errors import ModelFileError, UnsupportedError
from leafage.formats.dequantize import LAYOUTS


def quantize(array: np.ndarray, dtype: str) -> NDArray[np.uint8]:
    """Bytes of the block format. `array` is float32, its last axis a multiple of 32.

    Raises:
        UnsupportedError: the format is none of Q8_0, Q4_0, Q4_1.
        ModelFileError: rows that are not whole blocks, or weights that are not finite.
    """
    if dtype not in _ENCODERS:
        raise UnsupportedError(f"cannot quantize to {dtype}", limit=", ".join(_ENCODERS))
    weights, layout = LAYOUTS[dtype]
    array = np.ascontiguousarray(array, dtype=np.float32)
    if array.ndim == 0 or array.shape[-1] % weights:
        raise ModelFileError(f"row length for {dtype}", value=array.shape, limit=f"a multiple of {weights}")
    if not np.isfinite(array).all():
        raise ModelFileError("weights that are not finite cannot be quantized")
    x = array.reshape(-1, weights)
    blocks = np.empty(len(x), dtype=layout)
    step = max(1, (1 << 16) // weights)
    for start in range(0, len(x), step):
        _ENCODERS[dtype](x[start : start + step], blocks[start : start + step])
    return blocks.view(np.uint8)


def _inverse(scale: np.ndarray) -> np.ndarray:
    """1 / scale, 0 where the scale is 0."""
    out: np.ndarray = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    return out


def _nibbles(q: np.ndarray) -> np.ndarray:
    half = q.shape[1] // 2
    out: np.ndarray = q[:, :half] | q[:, half:] << 4
    return out


def _encode_q8_0(x: np.ndarray, out: np.ndarray) -> None:
    scale = np.abs(x).max(axis=1) / np.float32(127)
    scaled = x * _inverse(scale)[:, None]
    out["d"] = scale
    out["qs"] = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled)


def _encode_q4_0(x: np.ndarray, out: np.ndarray) -> None:
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]
    scale = extreme / np.float32(-8)
    q = np.clip(np.floor(x * _inverse(scale)[:, None] + np.float32(8.5)), 0, 15).astype(np.uint8)
    out["d"], out["qs"] = scale, _nibbles(q)


def _encode_q4_1(x: np.ndarray, out: np.ndarray) -> None:
    low = x.min(axis=1)
    scale = (x.max(axis=1) - low) / np.float32(15)
    q = np.clip(np.floor((x - low[:, None]) * _inverse(scale)[:, None] + np.float32(0.5)), 0, 15).astype(
        np.uint8
    )
    out["d"], out["m"], out["qs"] = scale, low, _nibbles(q)


_ENCODERS = {"Q8_0": _encode_q8_0, "Q4_0": _encode_q4_0, "Q4_1": _encode_q4_1}
