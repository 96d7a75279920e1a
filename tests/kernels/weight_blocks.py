"""Random file bytes of every weight type."""

from __future__ import annotations

import numpy as np

# type: (inputs per block, bytes per block, offsets of the half-precision scales)
BLOCKS = {
    "Q4_0": (32, 18, (0,)),
    "Q4_1": (32, 20, (0, 2)),
    "Q5_0": (32, 22, (0,)),
    "Q5_1": (32, 24, (0, 2)),
    "Q8_0": (32, 34, (0,)),
    "Q2_K": (256, 84, (80, 82)),
    "Q3_K": (256, 110, (108,)),
    "Q4_K": (256, 144, (0, 2)),
    "Q5_K": (256, 176, (0, 2)),
    "Q6_K": (256, 210, (208,)),
    "IQ4_NL": (32, 18, (0,)),
    "IQ4_XS": (256, 136, (0,)),
    "MXFP4": (32, 17, ()),
}
FLOATS = ("F32", "F16", "BF16")
DTYPES = (*FLOATS, *BLOCKS)


def random_raw(dtype: str, rows: int, cols: int, rng: np.random.Generator) -> np.ndarray:
    """uint8 [bytes]: every code and sub-scale occurs, the scales are ordinary numbers of both signs."""
    if dtype in FLOATS:
        values = rng.standard_normal((rows, cols)).astype(np.float32)
        if dtype == "F32":
            return values.view(np.uint8).ravel()
        if dtype == "F16":
            return values.astype(np.float16).view(np.uint8).ravel()
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).ravel()
    block, size, halves = BLOCKS[dtype]
    raw = rng.integers(0, 256, (rows * cols // block, size), dtype=np.uint8)
    for at in halves:
        scale = (rng.standard_normal(len(raw)) * 0.01).astype(np.float16)
        raw[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    if dtype == "MXFP4":
        raw[:, 0] = rng.integers(110, 130, len(raw))
    return raw.ravel()
