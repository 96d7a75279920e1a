"""The native sampler: tokens of many rows of logits, without the GIL; inside a program's step, or by itself.

Semantics and oracle: `reference_sampling.py`, which gives the same tokens bit for bit.
"""

from __future__ import annotations

import numpy as np

from leafage.kernels import _native
from leafage.kernels._native import SamplingPlan, SamplingState

__all__ = ["NativeSampler", "SamplingPlan", "SamplingState"]


class NativeSampler:
    """Working memory of a sampler.

    A `SamplingState` holds the parameters of one sequence and the tokens that its penalties count; a
    `SamplingPlan` says what to draw from each row of logits of one step, and takes the results.

    Args:
        vocab_size: length of a row.
        num_threads: threads that work on different rows: as many as the program has whose steps sample.
    """

    def __init__(self, vocab_size: int, *, num_threads: int = 1) -> None:
        if vocab_size < 1 or num_threads < 1:
            raise ValueError(f"expected vocab_size and num_threads >= 1, got {vocab_size}, {num_threads}")
        self.vocab_size = vocab_size
        self.native = _native.Sampler(vocab_size, num_threads)

    def run(self, plan: SamplingPlan, logits: np.ndarray, first: int = 0) -> None:
        """Sample the rows of `plan` from `first` on.

        Args:
            logits: float32 [rows, vocab_size], C-contiguous and writable: a row is edited while it is worked
                on and then restored.

        Raises:
            ValueError: logits have another dtype, shape or layout, or rows that the plan does not have.
        """
        if logits.dtype != np.float32 or logits.ndim != 2 or not logits.flags.c_contiguous:
            raise ValueError(
                f"expected logits as contiguous float32 [rows, vocab], got {logits.dtype} {logits.shape}"
            )
        if logits.shape[1] != self.vocab_size or not logits.flags.writeable:
            raise ValueError(f"expected writable logits of {self.vocab_size} columns, got {logits.shape}")
        self.native.run(plan, logits, first)
