"""The native sampler: tokens of many rows of logits in one call, without the GIL.

Semantics and oracle: `reference_sampling.py`, which gives the same tokens bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from leafage.kernels import _native
from leafage.kernels.reference_sampling import SampledRow, SamplingRow

_NONE_I = np.zeros(0, np.int32)
_NONE_F = np.zeros(0, np.float32)


class NativeSampler:
    """Samples rows of logits [rows, vocab_size].

    Args:
        vocab_size: length of a row.
        num_threads: threads that work on different rows; with a `program`, as many as it has.
        program: the compiled program whose threads do the work; None takes threads of its own.
    """

    def __init__(
        self, vocab_size: int, *, num_threads: int = 1, program: _native.Program | None = None
    ) -> None:
        if vocab_size < 1 or num_threads < 1:
            raise ValueError(f"expected vocab_size and num_threads >= 1, got {vocab_size}, {num_threads}")
        if program is not None:
            num_threads = program.num_threads
        self.vocab_size = vocab_size
        self._program = program
        self._native = _native.Sampler(vocab_size, num_threads)

    def greedy(self, logits: np.ndarray) -> np.ndarray:
        """The best token of each row, the lowest id of equal ones: int32 [rows]; -1 where a logit is NaN or
        the largest is not finite."""
        rows = len(logits)
        params = np.zeros((rows, 6))
        limits = np.full((rows, 2), -1, np.int32)
        draws = np.arange(rows + 1, dtype=np.int32)
        none = np.zeros(rows + 1, np.int32)
        tokens, usable, *_ = self._run(
            logits,
            params,
            limits,
            (none, _NONE_I, _NONE_I),
            (none, _NONE_I, _NONE_F),
            (draws, np.zeros(rows, np.uint64), np.zeros(rows, np.int64), np.full(rows, -1, np.int32)),
            0,
        )
        tokens[usable == 0] = -1
        return tokens

    def sample(self, logits: np.ndarray, rows: Sequence[SamplingRow]) -> list[SampledRow]:
        """One result per row.

        Args:
            logits: float32 [len(rows), vocab_size], C-contiguous and writable: a row is edited while it is
                worked on and then restored.
            rows: parameters and draws; ranges are those of `SamplingParams`.

        Raises:
            ValueError: logits have another dtype, shape or layout, or an id is outside the vocabulary.
        """
        if len(rows) != len(logits):
            raise ValueError(f"expected {len(logits)} rows of parameters, got {len(rows)}")
        params = np.array(
            [
                (
                    r.temperature,
                    r.top_p,
                    r.min_p,
                    r.repetition_penalty,
                    r.presence_penalty,
                    r.frequency_penalty,
                )
                for r in rows
            ],
            np.float64,
        ).reshape(len(rows), 6)
        vocab = self.vocab_size
        tops = [-1 if r.num_top is None else min(r.num_top, vocab) for r in rows]
        limits = np.array([(min(r.top_k, vocab), top) for r, top in zip(rows, tops, strict=True)], np.int32)
        draws = [d for r in rows for d in (*r.draws, *(None for _ in r.targets))]
        targets = [t for r in rows for t in (*(-1 for _ in r.draws), *r.targets)]
        _check_ids("targets", targets, -1, vocab)
        offsets = _offsets([len(r.draws) + len(r.targets) for r in rows])
        tokens, usable, logprobs, ranks, top_ids, top_logprobs = self._run(
            logits,
            params,
            limits.reshape(len(rows), 2),
            self._pairs("seen", [r.seen for r in rows], np.int32),
            self._pairs("bias", [r.bias for r in rows], np.float32),
            (
                offsets,
                np.array([0 if d is None else d[0] for d in draws], np.uint64),
                np.array([0 if d is None else d[1] for d in draws], np.int64),
                np.array(targets, np.int32),
            ),
            max([0, *tops]),
        )
        results = []
        for i, row in enumerate(rows):
            begin, end = int(offsets[i]), int(offsets[i + 1])
            if not usable[i]:
                results.append(SampledRow(False))
                continue
            result = SampledRow(True, tokens[begin:end].tolist())
            if row.num_top is not None and end > begin:
                result.logprobs = logprobs[begin:end].tolist()
                result.ranks = ranks[begin:end].tolist()
                top = tops[i]
                result.top = list(zip(top_ids[i, :top].tolist(), top_logprobs[i, :top].tolist(), strict=True))
            results.append(result)
        return results

    def _pairs(
        self, name: str, maps: Sequence[Mapping[int, float]], dtype: type
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Offsets, ids and values of one mapping per row."""
        ids = [i for m in maps for i in m]
        _check_ids(name, ids, 0, self.vocab_size)
        values = [v for m in maps for v in m.values()]
        return _offsets([len(m) for m in maps]), np.array(ids, np.int32), np.array(values, dtype)

    def _run(
        self,
        logits: np.ndarray,
        params: np.ndarray,
        limits: np.ndarray,
        seen: tuple[np.ndarray, ...],
        bias: tuple[np.ndarray, ...],
        draws: tuple[np.ndarray, ...],
        max_top: int,
    ) -> tuple[np.ndarray, ...]:
        if logits.dtype != np.float32 or logits.ndim != 2 or not logits.flags.c_contiguous:
            raise ValueError(
                f"expected logits as contiguous float32 [rows, vocab], got {logits.dtype} {logits.shape}"
            )
        if logits.shape[1] != self.vocab_size or not logits.flags.writeable:
            raise ValueError(f"expected writable logits of {self.vocab_size} columns, got {logits.shape}")
        num_draws, rows = len(draws[1]), len(logits)
        tokens, ranks = np.zeros(num_draws, np.int32), np.zeros(num_draws, np.int32)
        logprobs = np.zeros(num_draws)
        top_ids, top_logprobs = np.zeros((rows, max_top), np.int32), np.zeros((rows, max_top))
        usable = np.zeros(rows, np.uint8)
        self._native.run(
            logits, params, limits, *seen, *bias, *draws,
            tokens, logprobs, ranks, top_ids, top_logprobs, usable, self._program,
        )  # fmt: skip
        return tokens, usable, logprobs, ranks, top_ids, top_logprobs


def _offsets(lengths: Sequence[int]) -> np.ndarray:
    return np.array([0, *accumulate(lengths)], np.int32)


def _check_ids(name: str, ids: Sequence[int], low: int, vocab: int) -> None:
    if ids and (min(ids) < low or max(ids) >= vocab):
        raise ValueError(f"expected {name} in [{low}, {vocab}), got {min(ids)} to {max(ids)}")
