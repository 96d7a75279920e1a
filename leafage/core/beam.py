"""Beam search: which continuations of a gang's beams go on, and which are answers.

The rules are those of Hugging Face transformers 5.24 (`GenerationMixin._beam_search`), with which its users
compare: float32 sums, candidates in the order of their score, ties by lower beam and lower token id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from struct import pack, unpack

from leafage.core.batch import SampledToken
from leafage.core.request import FinishReason
from leafage.core.sampling_params import SamplingParams

Ends = Callable[[int, int], FinishReason | None]
"""(beam, token id) -> why the beam ends with that token, None if it goes on."""


@dataclass(frozen=True, slots=True)
class Path:
    """The tokens of a beam, the last one first: beams with a common past share it."""

    token: SampledToken
    before: Path | None

    def tokens(self) -> list[SampledToken]:
        """From the first to the last."""
        tokens = []
        path: Path | None = self
        while path is not None:
            tokens.append(path.token)
            path = path.before
        return tokens[::-1]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished beam, an answer.

    Attributes:
        score: sum of the log-probabilities over length ** length_penalty.
        path: its tokens, the one that ended it included.
        finish: why it ended.
    """

    score: float
    path: Path
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class Beam:
    """A running beam: it continues beam `parent` of the step before. `score` sums its log-probabilities."""

    parent: int
    path: Path
    score: float


class BeamSearch:
    """State of one request's search.

    Args:
        params: beam_width, length_penalty and early_stopping count.
        max_tokens: output tokens at most.
        num_stop_ids: ids that end a beam; for each of them `beam_width` more candidates are looked at.
    """

    __slots__ = (
        "_early_stopping", "_length", "_length_penalty", "_max_tokens", "_width", "finished",
        "num_candidates", "running",
    )  # fmt: skip

    def __init__(self, params: SamplingParams, max_tokens: int, num_stop_ids: int) -> None:
        assert params.beam_width is not None
        self._width = params.beam_width
        self._length_penalty = params.length_penalty
        self._early_stopping = params.early_stopping
        self._max_tokens = max_tokens
        self._length = 0
        self.num_candidates = max(2, 1 + num_stop_ids) * self._width
        """Continuations that a step looks at; so many of each beam must be known."""
        self.running: list[Beam] = []
        """Best first; empty before the first step and after the last."""
        self.finished: list[Hypothesis] = []
        """At most `beam_width`, best first."""

    def advance(self, rows: Sequence[SampledToken], ends: Ends) -> list[Beam]:
        """One step: choose the best continuations of all running beams.

        Args:
            rows: what each of them gave, in their order; `top` has the `num_candidates` most likely tokens.
            ends: asked once for each candidate.

        Returns:
            `running`. When it is empty, `finished` has the answers.
        """
        self._length += 1
        running: list[Beam] = []
        ended: list[Hypothesis] = []
        for place, (negated, parent, token_id, rank, logprob) in enumerate(self._candidates(rows)):
            score = -negated
            token = SampledToken(token_id, logprob, rank, rows[parent].top)
            path = Path(token, self.running[parent].path if self.running else None)
            finish = ends(parent, token_id)
            if finish is None and len(running) < self._width:
                running.append(Beam(parent, path, score))
            elif finish is not None and place < self._width:
                ended.append(Hypothesis(_float32(score / self._discount(self._length)), path, finish))
        self._keep(ended)
        self.running = running if self._can_improve(running) else []
        return self.running

    def _candidates(self, rows: Sequence[SampledToken]) -> list[tuple[float, int, int, int, float]]:
        """(-score, beam, token id, rank in its row, log-probability) of the best, in order.

        A row is sorted, so what follows a candidate that is not among the best so far is not either.
        """
        count = self.num_candidates
        found: list[tuple[float, int, int, int, float]] = []
        for parent, row in enumerate(rows):
            base = self.running[parent].score if self.running else 0.0
            worst = found[-1][0] if len(found) == count else inf
            for rank, (token_id, logprob) in enumerate(row.top[:count], start=1):
                negated = -_float32(base + _float32(logprob))
                if negated > worst or logprob == -inf:  # -inf: banned
                    break
                found.append((negated, parent, token_id, rank, logprob))
            found.sort()
            del found[count:]
        return found

    def _keep(self, new: list[Hypothesis]) -> None:
        """Merge new hypotheses into the best `beam_width`; of equal ones the earlier stays ahead."""
        if self._early_stopping is True and len(self.finished) == self._width:
            return
        self.finished = sorted([*self.finished, *new], key=lambda h: -h.score)[: self._width]

    def _can_improve(self, running: list[Beam]) -> bool:
        """Whether the best running beam may still beat the worst answer, as far as the heuristic tells."""
        if not running or len(self.finished) < self._width:
            return bool(running)
        if self._early_stopping is True:
            return False
        longest = self._early_stopping == "never" and self._length_penalty > 0.0
        length = self._max_tokens if longest else self._length
        return _float32(running[0].score / self._discount(length)) > self.finished[-1].score

    def _discount(self, length: int) -> float:
        return _float32(float(length) ** self._length_penalty)


def _float32(value: float) -> float:
    """The nearest float32."""
    return float(unpack("f", pack("f", value))[0])
