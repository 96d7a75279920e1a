"""Quantize float weights on load (`--quantize q8|q4` of safetensors folders).

q8 is Q8_0. q4 is Q4_1, of the 4-bit affine formats the one that keeps weights best. RMS error, in percent of
the weights' RMS, with scales refined by least squares in each; real: attn_v of layer 4 of Gemma 3 270M:

    format   bits a weight   Gaussian   real
    Q4_0     4.5             8.3        8.8
    Q4_K     4.5             7.5        7.8   rows of a multiple of 256 only
    Q4_1     5.0             7.3        7.7
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leafage.errors import InvalidParameterError, ModelFileError, UnsupportedError
from leafage.formats.dequantize import BLOCKS, LAYOUTS, dequantize
from leafage.formats.model_file import Tensor

MODES = {"q8": "Q8_0", "q4": "Q4_1"}

# Weights encoded at a time: temporaries stay in the cache.
_CHUNK = 1 << 16
# Rounds of least squares for Q4_1. None leaves 7.82 % RMS error on Gaussian weights; 1, 2, 3 and 4 rounds
# leave 7.49, 7.35, 7.28 and 7.25 %. Each takes 2 ns a weight.
_ROUNDS = 3


def quantize_tensor(tensor: Tensor, mode: Literal["q8", "q4"]) -> Tensor:
    """The tensor in the block format of the mode, in memory of its own.

    Vectors (norms, biases), rows that are not a multiple of 32, and tensors that are quantized already come
    back as they are. The embedding and the output head get 8 bits in mode q4 too: their error goes to the
    logits undiluted.

    Raises:
        InvalidParameterError: unknown mode.
        ModelFileError: weights that are not finite, or too large for a float16 scale.
    """
    if mode not in MODES:
        raise InvalidParameterError("quantize", value=mode, limit=", ".join(MODES))
    if len(tensor.shape) < 2 or tensor.shape[-1] % 32 or tensor.dtype not in ("F32", "F16", "BF16"):
        return tensor
    dtype = MODES["q8"] if _is_vocabulary(tensor.name) else MODES[mode]
    weights, layout = LAYOUTS[dtype]
    row = weights * BLOCKS[tensor.dtype][1]  # bytes that become one block
    blocks = np.empty(len(tensor.data) // row, dtype=layout)
    step = _CHUNK // weights
    for start in range(0, len(blocks), step):  # never the whole tensor in float32
        out = blocks[start : start + step]
        part = tensor.data[start * row : (start + len(out)) * row]
        _encode(dequantize(tensor.dtype, part, (len(out), weights)), dtype, out, tensor.name)
    return Tensor(tensor.name, tensor.shape, dtype, blocks.view(np.uint8))


def quantize(array: np.ndarray, dtype: str) -> NDArray[np.uint8]:
    """float32 weights as the bytes of a block format; the last axis must be a multiple of 32.

    Q8_0 and Q4_0 are rounded as ggml does, bit for bit; Q4_1 refines scale and minimum by least squares.

    Raises:
        UnsupportedError: the format is none of these three.
        ModelFileError: rows that are not whole blocks; weights that are not finite, or too large for a
            float16 scale.
    """
    if dtype not in _ENCODERS:
        raise UnsupportedError(f"cannot quantize to {dtype}", limit=", ".join(_ENCODERS))
    weights, layout = LAYOUTS[dtype]
    array = np.ascontiguousarray(array, dtype=np.float32)
    if array.ndim == 0 or array.shape[-1] % weights:
        raise ModelFileError(
            f"shape of weights for {dtype}", value=array.shape, limit=f"rows of n x {weights}"
        )
    x = array.reshape(-1, weights)
    blocks = np.empty(len(x), dtype=layout)
    step = _CHUNK // weights
    for start in range(0, len(x), step):
        _encode(x[start : start + step], dtype, blocks[start : start + step], "the array")
    return blocks.view(np.uint8)


def _is_vocabulary(name: str) -> bool:
    return name in ("token_embd.weight", "output.weight") or name.endswith(
        ("embed_tokens.weight", "lm_head.weight")
    )


def _encode(x: np.ndarray, dtype: str, out: np.ndarray, name: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        _ENCODERS[dtype](np.ascontiguousarray(x.T), out)
    offsets = out["m"] if dtype == "Q4_1" else out["d"]
    if not (np.isfinite(out["d"]).all() and np.isfinite(offsets).all()):
        raise ModelFileError(
            f"weights of {name} that {dtype} cannot hold",
            value=float(np.abs(x).max()),
            limit="finite, with a scale in float16",
            remedy="load the model without --quantize",
        )


def _inverse(scale: np.ndarray) -> np.ndarray:
    """1 / scale, 0 where the scale is nothing in float16 by far, and where the division might overflow."""
    used = np.abs(scale) > np.float32(1e-30)
    out: np.ndarray = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=used)
    return out


def _nibbles(q: np.ndarray) -> np.ndarray:
    q = q.astype(np.uint8)
    out: np.ndarray = (q[:16] | q[16:] << 4).T
    return out


def _encode_q8_0(x: np.ndarray, out: np.ndarray) -> None:
    scale = np.abs(x).max(axis=0) / np.float32(127)
    scaled = x * _inverse(scale)
    out["d"] = scale
    out["qs"] = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled).T


def _encode_q4_0(x: np.ndarray, out: np.ndarray) -> None:
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    scale = extreme / np.float32(-8)
    out["d"] = scale
    out["qs"] = _nibbles(np.clip(np.floor(x * _inverse(scale) + np.float32(8.5)), 0, 15))


def _encode_q4_1(x: np.ndarray, out: np.ndarray) -> None:
    """Lloyd's iteration: levels by the nearest point of the grid, then the best grid for these levels."""
    minimum = x.min(axis=0)
    scale = (x.max(axis=0) - minimum) / np.float32(15)
    num = np.float32(len(x))
    sum_x = x.sum(axis=0)
    q = np.empty_like(x)
    for _ in range(_ROUNDS):
        _nearest(x, scale, minimum, q)
        sum_q = q.sum(axis=0)
        sum_qq = np.einsum("ij,ij->j", q, q)
        sum_xq = np.einsum("ij,ij->j", x, q)
        scale = (num * sum_xq - sum_q * sum_x) * _inverse(num * sum_qq - sum_q * sum_q)
        minimum = (sum_x - scale * sum_q) / num
    out["d"], out["m"] = scale, minimum
    _nearest(x, out["d"].astype(np.float32), out["m"].astype(np.float32), q)
    out["qs"] = _nibbles(q)


def _nearest(x: np.ndarray, scale: np.ndarray, minimum: np.ndarray, q: np.ndarray) -> None:
    """Fill q with the level 0 .. 15 whose scale * level + minimum is nearest to x."""
    np.subtract(x, minimum, out=q)
    np.multiply(q, _inverse(scale), out=q)
    np.rint(q, out=q)
    np.clip(q, 0, 15, out=q)


# x comes as [32, blocks], so that every operation runs along contiguous blocks.
_ENCODERS = {"Q8_0": _encode_q8_0, "Q4_0": _encode_q4_0, "Q4_1": _encode_q4_1}
