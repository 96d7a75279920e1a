"""What is simulated: requests with their arrivals, prompts and answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class SimRequest:
    """A request whose answer is known.

    Attributes:
        arrival: seconds since the start of the simulation.
        prompt: token ids; equal ids at the head of prompts mean a common prefix. A `range` where nothing is
            shared.
        output: token ids of the answer; its length is what the request generates.
        n: sequences drawn from the prompt, each as long as `output`.
        beam_width: searched with so many beams instead; None: drawn.
    """

    request_id: str
    arrival: float
    prompt: Sequence[int]
    output: Sequence[int]
    n: int = 1
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
        arrives before `time`."""
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
