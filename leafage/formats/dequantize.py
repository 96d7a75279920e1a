"""The block formats that weights are stored in, and how to turn them back into float32.

A tensor is rows of weights; a row is cut into blocks of a fixed number of weights, and every block is one
record of `LAYOUTS`. The layouts are those of ggml; the arithmetic is float32 in the order of its reference,
so results agree bit for bit (NaN payloads aside).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from leafage.errors import ModelFileError, UnsupportedError

F32Array = NDArray[np.float32]
U8Array = NDArray[np.uint8]

# dtype -> (weights per block, the record of one block). d, dmin and m are float16 scales and offsets,
# qs or ql the low bits of the weights, qh or hmask the high bits.
LAYOUTS: dict[str, tuple[int, np.dtype]] = {
    "F32": (1, np.dtype([("x", "<f4")])),
    "F16": (1, np.dtype([("x", "<f2")])),
    "BF16": (1, np.dtype([("x", "<u2")])),
    "Q4_0": (32, np.dtype([("d", "<f2"), ("qs", "u1", 16)])),
    "Q4_1": (32, np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])),
    "Q5_0": (32, np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])),
    "Q5_1": (32, np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])),
    "Q8_0": (32, np.dtype([("d", "<f2"), ("qs", "i1", 32)])),
    "Q2_K": (256, np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])),
    "Q3_K": (256, np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])),
    "Q4_K": (256, np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])),
    "Q5_K": (
        256,
        np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]),
    ),
    "Q6_K": (256, np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])),
    "IQ4_NL": (32, np.dtype([("d", "<f2"), ("qs", "u1", 16)])),
    "IQ4_XS": (
        256,
        np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)]),
    ),
    "MXFP4": (32, np.dtype([("e", "u1"), ("qs", "u1", 16)])),
}

# dtype -> (weights per block, bytes per block).
BLOCKS: dict[str, tuple[int, int]] = {name: (n, layout.itemsize) for name, (n, layout) in LAYOUTS.items()}

# The 16 levels of IQ4_NL and IQ4_XS.
IQ4_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.int8
)
# The 16 values of FP4 E2M1, doubled so that they are integers (OCP Microscaling Formats v1.0, section 5.3.3).
FP4_LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.int8)

# Weights decoded at a time: temporaries stay in the cache.
_CHUNK = 1 << 16


def dequantize(dtype: str, data: U8Array, shape: Sequence[int]) -> F32Array:
    """Weights as float32.

    Args:
        dtype: a name in `BLOCKS`.
        data: the bytes of the tensor, uint8, contiguous, any alignment.
        shape: in NumPy order, outermost first; the last axis must be whole blocks.

    Returns:
        A new contiguous float32 array of that shape.

    Raises:
        UnsupportedError: the dtype is not in `BLOCKS`.
        ModelFileError: the bytes do not fit the shape.
    """
    if dtype not in LAYOUTS:
        raise unsupported_dtype(dtype)
    weights, layout = LAYOUTS[dtype]
    data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    expected = num_bytes(dtype, shape)
    if data.size != expected:
        raise ModelFileError(
            f"bytes of {dtype} data of shape {tuple(shape)}", value=data.size, limit=expected
        )
    blocks = data.view(layout)
    out = np.empty((len(blocks), weights), dtype=np.float32)
    decode = _DECODERS[dtype]
    step = _CHUNK // weights
    with np.errstate(invalid="ignore", over="ignore"):  # infinite scales are the file's business
        for start in range(0, len(blocks), step):
            part = blocks[start : start + step]
            out[start : start + step] = decode(part).reshape(len(part), weights)
    return out.reshape(tuple(shape))


def num_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes that a tensor of this shape takes.

    Raises:
        UnsupportedError: the dtype is not in `BLOCKS`.
        ModelFileError: the last axis is not whole blocks.
    """
    if dtype not in BLOCKS:
        raise unsupported_dtype(dtype)
    weights, size = BLOCKS[dtype]
    count = 1
    for dim in shape:
        count *= int(dim)
    if weights > 1 and (not shape or int(shape[-1]) % weights):
        raise ModelFileError(
            f"row length of {dtype} weights of shape {tuple(shape)}",
            value=int(shape[-1]) if shape else None,
            limit=f"multiples of {weights}",
        )
    return count // weights * size


def unsupported_dtype(dtype: str, where: str = "") -> UnsupportedError:
    return UnsupportedError(
        f"weights of type {dtype} are not supported{where}",
        limit=", ".join(BLOCKS),
        remedy="use a file with one of these types",
    )


def _f32(x: np.ndarray) -> F32Array:
    out: F32Array = x.astype(np.float32)
    return out


def _column(x: np.ndarray) -> F32Array:
    """One float16 per block, as a float32 column."""
    return _f32(x).reshape(-1, 1)


def _bits(packed: np.ndarray, run: int, bits: int) -> U8Array:
    """Small unsigned integers [blocks, num]: a run of bytes holds its first `run` weights in the lowest bits,
    its next `run` weights in the bits above those, and so on."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = packed.reshape(len(packed), -1, 1, run) >> shifts.reshape(-1, 1)
    out: U8Array = (parts & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)
    return out


def _bit_string(packed: np.ndarray) -> U8Array:
    """Bits [blocks, 8 * bytes], lowest first."""
    out: U8Array = np.unpackbits(packed, axis=-1, bitorder="little")
    return out


def _groups(x: np.ndarray, num_groups: int) -> F32Array:
    return _f32(x).reshape(len(x), num_groups, -1)


def _per_group(x: F32Array) -> F32Array:
    return x.reshape(*x.shape, 1)


def scales_k4(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The eight 6-bit scales and eight 6-bit mins of a Q4_K or Q5_K block: [n, 12] uint8 -> two [n, 8] uint8.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 mins 0-3 in their low 6 bits; bytes 8-11 hold the low nibbles of
    scales 4-7 (low) and mins 4-7 (high), whose upper 2 bits sit on top of bytes 0-3 and 4-7.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    mins = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return scales, mins


def scales_k3(packed: np.ndarray) -> np.ndarray:
    """The sixteen 6-bit scales of a Q3_K block, minus 32: [n, 12] uint8 -> [n, 16] int8.

    Bytes 0-7 hold the low nibbles (0-7 low, 8-15 high), bytes 8-11 the upper 2 bits, four to a byte.
    """
    low = _bits(packed[:, :8], 8, 4)
    high = _bits(packed[:, 8:], 4, 2)
    out: np.ndarray = (low | high << 4).view(np.int8) - np.int8(32)
    return out


def scales_iq4_xs(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The eight 6-bit scales of an IQ4_XS block, minus 32: [n, 4] uint8 and [n] uint16 -> [n, 8] int8."""
    nibbles = _bits(low, 1, 4)
    upper = (high[:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    out: np.ndarray = (nibbles | upper << 4).view(np.int8) - np.int8(32)
    return out


def scale_mxfp4(exponent: np.ndarray) -> F32Array:
    """Half of 2 ** (e - 127) for a byte e: E8M0 scale for doubled FP4 values. e < 2 gives a subnormal."""
    e = exponent.astype(np.uint32)
    normal = (np.maximum(e, 1) - 1) << np.uint32(23)
    subnormal = np.uint32(1 << 21) << np.minimum(e, 1)
    bits: NDArray[np.uint32] = np.where(e < 2, subnormal, normal).astype(np.uint32)
    return bits.view(np.float32)


def _decode_plain(b: np.ndarray) -> F32Array:
    return _f32(b["x"])


def _decode_bf16(b: np.ndarray) -> F32Array:
    bits: NDArray[np.uint32] = b["x"].astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32)


def _decode_q4_0(b: np.ndarray) -> F32Array:
    return _column(b["d"]) * _f32(_bits(b["qs"], 16, 4).astype(np.int8) - np.int8(8))


def _decode_q4_1(b: np.ndarray) -> F32Array:
    return _column(b["d"]) * _f32(_bits(b["qs"], 16, 4)) + _column(b["m"])


def _decode_q5_0(b: np.ndarray) -> F32Array:
    q = _bits(b["qs"], 16, 4) | _bit_string(b["qh"]) << 4
    return _column(b["d"]) * _f32(q.astype(np.int8) - np.int8(16))


def _decode_q5_1(b: np.ndarray) -> F32Array:
    q = _bits(b["qs"], 16, 4) | _bit_string(b["qh"]) << 4
    return _column(b["d"]) * _f32(q) + _column(b["m"])


def _decode_q8_0(b: np.ndarray) -> F32Array:
    return _f32(b["qs"]) * _column(b["d"])


def _decode_q2_k(b: np.ndarray) -> F32Array:
    scale = _column(b["d"]) * _f32(b["scales"] & 15)
    offset = _column(b["dmin"]) * _f32(b["scales"] >> 4)
    q = _groups(_bits(b["qs"], 32, 2), 16)
    return _per_group(scale) * q - _per_group(offset)


def _decode_q3_k(b: np.ndarray) -> F32Array:
    scale = _column(b["d"]) * _f32(scales_k3(b["scales"]))
    high = _bits(b["hmask"], 32, 1)  # set: the weight is not lowered by 4
    q = _bits(b["qs"], 32, 2).astype(np.int8) - ((1 - high) << 2).astype(np.int8)
    return _per_group(scale) * _groups(q, 16)


def _decode_q4_k(b: np.ndarray) -> F32Array:
    return _affine_k(b, _bits(b["qs"], 32, 4))


def _decode_q5_k(b: np.ndarray) -> F32Array:
    return _affine_k(b, _bits(b["qs"], 32, 4) | _bits(b["qh"], 32, 1) << 4)


def _affine_k(b: np.ndarray, q: np.ndarray) -> F32Array:
    scales, mins = scales_k4(b["scales"])
    scale = _column(b["d"]) * _f32(scales)
    offset = _column(b["dmin"]) * _f32(mins)
    return _per_group(scale) * _groups(q, 8) - _per_group(offset)


def _decode_q6_k(b: np.ndarray) -> F32Array:
    scale = _column(b["d"]) * _f32(b["scales"])
    q = (_bits(b["ql"], 64, 4) | _bits(b["qh"], 32, 2) << 4).astype(np.int8) - np.int8(32)
    return _per_group(scale) * _groups(q, 16)


def _decode_iq4_nl(b: np.ndarray) -> F32Array:
    return _column(b["d"]) * _f32(IQ4_LEVELS[_bits(b["qs"], 16, 4)])


def _decode_iq4_xs(b: np.ndarray) -> F32Array:
    scale = _column(b["d"]) * _f32(scales_iq4_xs(b["scales_l"], b["scales_h"]))
    return _per_group(scale) * _groups(IQ4_LEVELS[_bits(b["qs"], 16, 4)], 8)


def _decode_mxfp4(b: np.ndarray) -> F32Array:
    return scale_mxfp4(b["e"]).reshape(-1, 1) * _f32(FP4_LEVELS[_bits(b["qs"], 16, 4)])


_DECODERS: dict[str, Callable[[np.ndarray], F32Array]] = {
    "F32": _decode_plain,
    "F16": _decode_plain,
    "BF16": _decode_bf16,
    "Q4_0": _decode_q4_0,
    "Q4_1": _decode_q4_1,
    "Q5_0": _decode_q5_0,
    "Q5_1": _decode_q5_1,
    "Q8_0": _decode_q8_0,
    "Q2_K": _decode_q2_k,
    "Q3_K": _decode_q3_k,
    "Q4_K": _decode_q4_k,
    "Q5_K": _decode_q5_k,
    "Q6_K": _decode_q6_k,
    "IQ4_NL": _decode_iq4_nl,
    "IQ4_XS": _decode_iq4_xs,
    "MXFP4": _decode_mxfp4,
}
assert _DECODERS.keys() == LAYOUTS.keys()
