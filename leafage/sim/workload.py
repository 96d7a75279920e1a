"""What is simulated: requests with their arrivals, prompts and answers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import eq
from typing import Protocol, overload


@dataclass(slots=True)
class SimRequest:
    """A request whose answer is known.

    Attributes:
        arrival: seconds since the start of the simulation.
        prompt: token ids; equal ids at the head of prompts mean a common prefix. A `range` where nothing is
            shared.
        output: token ids of the answer; its length is what the request generates.
        n: sequences drawn from the prompt, each as long as `output`.
        siblings: answers of the sequences 1, 2, ... where they are known; else tokens that no other has.
        beam_width: searched with so many beams instead; None: drawn.
    """

    request_id: str
    arrival: float
    prompt: Sequence[int]
    output: Sequence[int]
    n: int = 1
    siblings: Sequence[Sequence[int]] = ()
    beam_width: int | None = None
    priority: int = 0
    tenant: str | None = None
    cache_salt: str = ""


class Workload(Protocol):
    """Requests in the order of their arrivals, made as they are needed: long traces take no memory."""

    def __iter__(self) -> Iterator[SimRequest]:
        """The requests whose arrivals are known from the start, sorted by arrival."""
        ...

    def finished(self, request: SimRequest, time: float) -> Iterable[SimRequest]:
        """What follows the end of a request at `time`, such as the next turn of its conversation. None of it
        arrives before `time`. `request` is the very object that the workload gave."""
        ...


class Trace:
    """A workload from a list of requests; nothing follows them."""

    def __init__(self, requests: Iterable[SimRequest]) -> None:
        self._requests = sorted(requests, key=lambda request: request.arrival)

    def __iter__(self) -> Iterator[SimRequest]:
        return iter(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def finished(self, request: SimRequest, time: float) -> Iterable[SimRequest]:
        return ()


class TokenRuns(Sequence[int]):
    """Token ids as runs of consecutive ones, put together: a long prompt takes the memory of its parts.

    Args:
        parts: ranges, or what was made of ranges.
    """

    __slots__ = ("_ends", "runs")

    def __init__(self, *parts: range | TokenRuns) -> None:
        runs: list[range] = []
        for part in parts:
            if isinstance(part, TokenRuns):
                runs.extend(part.runs)
            elif part:
                runs.append(part)
        self.runs: tuple[range, ...] = tuple(runs)
        self._ends = list(accumulate(len(run) for run in runs))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.runs)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return list(self)[index]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"token {index} of {len(self)}")
        number = bisect_right(self._ends, index)
        return self.runs[number][index - self._ends[number]]  # from the run's end, hence negative

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"TokenRuns{self.runs}"


class FreshTokens:
    """Gives out token ids that nobody else has: what is made of them shares nothing by chance."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> range:
        """So many."""
        first = self._next
        self._next += count
        return range(first, self._next)
