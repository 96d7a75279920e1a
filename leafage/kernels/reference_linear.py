"""The arithmetic of the native `linear`, bit for bit, in NumPy: the oracle of its tests.

Per row and output, over groups of 32 inputs in ascending order: an exact integer dot product of the
weight's integers with activations quantized to int8 per group, scaled by d * dx and added with one rounding
(fused) or two (`fused=False`, the plain variant). Types with a minimum add min * dx * sum(xq). `precise`
gives the widest quad of a group two int8. Float weights keep two chains, of even and odd inputs. The
contract in full: csrc/linear_layout.h.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

GROUP = 32
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int32)
MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int32)


def quantize_activations(x: np.ndarray, precise: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """x float32 [rows, k] to (xq int32 [rows, groups, 32] in [-127, 127], dx float32 [rows, groups]);
    precise: the quad of a group with its largest value in [-254, 254]."""
    groups = np.ascontiguousarray(x, np.float32).reshape(x.shape[0], -1, GROUP)
    absmax = np.abs(groups).max(axis=-1)  # NaN wins
    bad, tiny = ~np.isfinite(absmax), absmax < np.float32(1e-30)
    scale = absmax
    if precise:
        others = np.sort(np.abs(groups).reshape(*groups.shape[:2], -1, 4).max(axis=-1), axis=-1)[..., -2]
        scale = np.maximum(others, absmax * np.float32(0.5))
    with np.errstate(all="ignore"):
        dx = scale / np.float32(127)
        inverse = np.float32(127) / scale
        dx[tiny], inverse[tiny | bad] = 0, 0
        dx[bad] = np.nan
        q = np.rint(groups * inverse[..., None])
    q[bad] = 0
    return q.astype(np.int32), dx


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """float32 a * b + c with one rounding. The product is exact in float64; the sum is rounded to odd there,
    so that the final rounding to float32 is the only one that counts."""
    with np.errstate(all="ignore"):
        p = a.astype(np.float64) * b.astype(np.float64)
        c = c.astype(np.float64)
        s = p + c
        t = s - p
        error = (p - (s - t)) + (c - t)
        bits = s.view(np.int64)
        odd = (error != 0) & ((bits & 1) == 0) & np.isfinite(s)
        bits = np.where(odd, np.where((error > 0) == (s > 0), bits + 1, bits - 1), bits)
        return cast(np.ndarray, bits.view(np.float64).astype(np.float32))


def mul_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """float32 a * b + c with two roundings."""
    with np.errstate(all="ignore"):
        return cast(np.ndarray, a * b + c)


def linear(
    x: np.ndarray,
    weights: Sequence[tuple[str, int, np.ndarray]],
    *,
    bias: np.ndarray | None = None,
    out: np.ndarray | None = None,
    fused: bool = True,
    precise: bool = False,
) -> np.ndarray:
    """x float32 [rows, k] times each weight (dtype, rows, file bytes), side by side: [rows, sum of rows].

    `out`: what the result is added to (it is not changed).
    """
    add = fma if fused else mul_add
    parts = [_one(x, dtype, rows, raw, add, precise) for dtype, rows, raw in weights]
    result = np.concatenate(parts, axis=1)
    if bias is not None:
        result = result + bias
    return result if out is None else out + result


def _one(
    x: np.ndarray, dtype: str, rows: int, raw: np.ndarray, add: Callable[..., np.ndarray], precise: bool
) -> np.ndarray:
    if dtype in ("F32", "F16", "BF16"):
        return _float_linear(x, float_weights(dtype, rows, raw), add)
    q, d, minimum = integers(dtype, rows, raw)
    subgroups = d.shape[1] // (x.shape[1] // GROUP)
    xq, dx = quantize_activations(x, precise)
    xq = xq.reshape(x.shape[0], d.shape[1], -1)
    dx = np.repeat(dx, subgroups, axis=1)
    q = q.reshape(rows, d.shape[1], -1)
    acc = np.zeros((x.shape[0], rows), np.float32)
    with np.errstate(all="ignore"):
        for g in range(d.shape[1]):
            dot = (xq[:, g] @ q[:, g].T).astype(np.float32)
            acc = add(dot, d[:, g] * dx[:, g, None], acc)
            if minimum is not None:
                total = dx[:, g] * xq[:, g].sum(axis=1).astype(np.float32)
                acc = add(np.broadcast_to(minimum[:, g], acc.shape), total[:, None], acc)
    return acc


def _float_linear(x: np.ndarray, w: np.ndarray, add: Callable[..., np.ndarray]) -> np.ndarray:
    acc = [np.zeros((x.shape[0], w.shape[0]), np.float32) for _ in range(2)]
    for k in range(x.shape[1]):
        acc[k % 2] = add(w[:, k][None, :], x[:, k][:, None], acc[k % 2])
    return acc[0] + acc[1]


def float_weights(dtype: str, rows: int, raw: np.ndarray) -> np.ndarray:
    """File bytes of F32, F16 or BF16 as float32 [rows, k]."""
    raw = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    if dtype == "BF16":
        return _rows((raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32), rows)
    return _rows(raw.view(np.float32 if dtype == "F32" else np.float16), rows)


def _rows(values: np.ndarray, rows: int) -> np.ndarray:
    return values.astype(np.float32).reshape(rows, -1)


def integers(dtype: str, rows: int, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """File bytes as (q int32 [rows, k], d float32 [rows, subgroups], min float32 [rows, subgroups] or None):
    weight = d * q + min, over k / subgroups inputs each."""
    blocks = np.ascontiguousarray(raw).reshape(-1).view(np.uint8).reshape(-1, _BLOCK_BYTES[dtype])
    with np.errstate(all="ignore"):
        q, d, minimum = _DECODE[dtype](blocks)
    q = q.astype(np.int32).reshape(rows, -1)
    return q, _rows(d, rows), None if minimum is None else _rows(minimum, rows)


_Decoded = tuple[np.ndarray, np.ndarray, "np.ndarray | None"]


def _half(b: np.ndarray, at: int) -> np.ndarray:
    return np.ascontiguousarray(b[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(b: np.ndarray, at: int) -> np.ndarray:
    """16 bytes a group: inputs 0-15 low, 16-31 high."""
    p = b[:, at:].reshape(len(b), -1, 16)
    return np.concatenate([p & 15, p >> 4], axis=-1).reshape(len(b), -1).astype(np.int32)


def _fifth_bits(b: np.ndarray, at: int) -> np.ndarray:
    return np.unpackbits(b[:, at : at + 4], axis=1, bitorder="little").astype(np.int32) << 4


def _planes(b: np.ndarray, at: int, length: int, shifts: Sequence[int], mask: int) -> np.ndarray:
    """Runs of `length` bytes; each shift in turn gives `length` inputs."""
    p = b[:, at : at + 256 // len(shifts)].reshape(len(b), -1, 1, length)
    return (p >> np.array(shifts, np.uint8)[None, None, :, None] & mask).reshape(len(b), 256).astype(np.int32)


def _six_bits(b: np.ndarray, at: int) -> tuple[np.ndarray, np.ndarray]:
    a, m, both = b[:, at : at + 4], b[:, at + 4 : at + 8], b[:, at + 8 : at + 12]
    scale = np.concatenate([a & 63, both & 15 | a >> 6 << 4], axis=1)
    minimum = np.concatenate([m & 63, both >> 4 | m >> 6 << 4], axis=1)
    return scale.astype(np.float32), minimum.astype(np.float32)


def _q4_0(b: np.ndarray) -> _Decoded:
    return _nibbles(b, 2) - 8, _half(b, 0), None


def _q4_1(b: np.ndarray) -> _Decoded:
    return _nibbles(b, 4), _half(b, 0), _half(b, 2)


def _q5_0(b: np.ndarray) -> _Decoded:
    return (_nibbles(b, 6) | _fifth_bits(b, 2)) - 16, _half(b, 0), None


def _q5_1(b: np.ndarray) -> _Decoded:
    return _nibbles(b, 8) | _fifth_bits(b, 4), _half(b, 0), _half(b, 2)


def _q8_0(b: np.ndarray) -> _Decoded:
    return b[:, 2:].view(np.int8).astype(np.int32), _half(b, 0), None


def _q2_k(b: np.ndarray) -> _Decoded:
    scale, minimum = (b[:, :16] & 15).astype(np.float32), (b[:, :16] >> 4).astype(np.float32)
    return _planes(b, 16, 32, (0, 2, 4, 6), 3), _half(b, 80) * scale, -(_half(b, 82) * minimum)


def _q3_k(b: np.ndarray) -> _Decoded:
    low, high = b[:, 96:104], b[:, 104:108]
    low = np.concatenate([low & 15, low >> 4], axis=1)
    high = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    scale = (low | high << 4).astype(np.int32) - 32
    q = _planes(b, 32, 32, (0, 2, 4, 6), 3) + 4 * _planes(b, 0, 32, tuple(range(8)), 1) - 4
    return q, _half(b, 108) * scale.astype(np.float32), None


def _q4_k(b: np.ndarray) -> _Decoded:
    scale, minimum = _six_bits(b, 4)
    return _planes(b, 16, 32, (0, 4), 15), _half(b, 0) * scale, -(_half(b, 2) * minimum)


def _q5_k(b: np.ndarray) -> _Decoded:
    scale, minimum = _six_bits(b, 4)
    q = _planes(b, 48, 32, (0, 4), 15) | _planes(b, 16, 32, tuple(range(8)), 1) << 4
    return q, _half(b, 0) * scale, -(_half(b, 2) * minimum)


def _q6_k(b: np.ndarray) -> _Decoded:
    q = _planes(b, 0, 64, (0, 4), 15) | _planes(b, 128, 32, (0, 2, 4, 6), 3) << 4
    return q - 32, _half(b, 208) * b[:, 192:208].view(np.int8).astype(np.float32), None


def _iq4_nl(b: np.ndarray) -> _Decoded:
    return IQ4_VALUES[_nibbles(b, 2)], _half(b, 0), None


def _iq4_xs(b: np.ndarray) -> _Decoded:
    high = np.ascontiguousarray(b[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], axis=-1).reshape(len(b), 8)
    scale = (low | high << 4).astype(np.int32) - 32
    return IQ4_VALUES[_nibbles(b, 8)], _half(b, 0) * scale.astype(np.float32), None


def _mxfp4(b: np.ndarray) -> _Decoded:
    d = np.ldexp(np.float32(0.5), b[:, :1].astype(np.int32) - 127).astype(np.float32)
    return MXFP4_VALUES[_nibbles(b, 1)], d, None


_DECODE: dict[str, Callable[[np.ndarray], _Decoded]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q2_K": _q2_k, "Q3_K": _q3_k,
    "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4,
}  # fmt: skip
_BLOCK_BYTES = {
    "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q2_K": 84, "Q3_K": 110,
    "Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "IQ4_NL": 18, "IQ4_XS": 136, "MXFP4": 17,
}  # fmt: skip
