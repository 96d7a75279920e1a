"""Conversations (W5): which turn is due, what its whole prompt is, and when its tokens came.

The same bookkeeping for every engine, so that all are timed alike. Only the standard library, as protocol.py.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable
from typing import Any


class Chat:
    """The conversations of a request. A turn is known by its number among the prompts.

    Different conversations may be moved on by different threads.

    Args:
        prompts, output_lengths, turns: as protocol.Request has them.

    Attributes:
        tokens: the answer to each turn, so far.
    """

    def __init__(self, prompts: list[list[int]], output_lengths: list[int], turns: int) -> None:
        self._new = prompts
        self._lengths = output_lengths
        self._turns = turns
        self.tokens: list[list[int]] = [[] for _ in prompts]
        self._prompts: dict[int, list[int]] = {}
        self._times: dict[int, list[float]] = {}  # when a turn was sent and when its tokens came

    def first(self) -> range:
        """The turns that are sent at once: the first of each conversation."""
        return range(0, len(self._new), self._turns)

    def send(self, number: int) -> list[int]:
        """The whole prompt of a turn, which leaves now."""
        before: list[int] = []
        if number % self._turns:
            before = self._prompts.pop(number - 1) + self.tokens[number - 1]
        prompt = self._prompts[number] = before + self._new[number]
        self._times[number] = [time.perf_counter()]
        return prompt

    def length(self, number: int) -> int:
        """Tokens that are wanted of a turn."""
        return self._lengths[number]

    def receive(self, number: int, tokens: Iterable[int]) -> bool:
        """Tokens of a turn came now. Whether they were its last."""
        now = time.perf_counter()
        for token in tokens:
            self.tokens[number].append(token)
            self._times[number].append(now)
        return len(self.tokens[number]) >= self.length(number)

    def next(self, number: int) -> int | None:
        """The turn that leaves when this one has ended, None after a conversation's last."""
        return number + 1 if (number + 1) % self._turns else None

    def figures(self) -> dict[str, Any]:
        """The fields of an Answer that tell of times and tokens.

        Raises ValueError where a turn got no token.
        """
        silent = [i for i, tokens in enumerate(self.tokens) if not tokens]
        if silent:
            raise ValueError(f"no token came in {len(silent)} of {len(self.tokens)} turns")
        began = min(times[0] for times in self._times.values())
        firsts = [times[1] for times in self._times.values()]
        waits = [times[1] - times[0] for times in self._times.values()]
        gaps = sorted(
            later - earlier
            for times in self._times.values()
            for earlier, later in itertools.pairwise(times[1:])
        )
        return {
            "wall": max(times[-1] for times in self._times.values()) - began,
            "output_tokens": [len(tokens) for tokens in self.tokens],
            "first_token": min(firsts) - began,
            "mean_first_token": sum(waits) / len(waits),
            "p99_inter_token": gaps[math.ceil(0.99 * len(gaps)) - 1] if gaps else None,
        }
