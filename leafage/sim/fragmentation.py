"""What contiguous KV memory wastes, counted with the allocators of the engine: no model, no time.

`end_of_request`: what is left unused at the end of a request, by what was reserved for it (internal
fragmentation). `fragmentation`: how many allocations fail though enough memory is free, because it lies in
pieces (external fragmentation).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from leafage.core.arena import Buddy, FirstFit
from leafage.core.block_pool import BlockPool
from leafage.core.reserved import RESERVATIONS


@dataclass(slots=True)
class EndOfRequest:
    """Slots at the end of requests: held and written, means per request; `utilisation` is their ratio."""

    system: str
    held: float
    written: float

    @property
    def utilisation(self) -> float:
        return self.written / self.held


def end_of_request(
    requests: Sequence[tuple[int, int]], *, max_model_len: int, block_sizes: Sequence[int]
) -> list[EndOfRequest]:
    """What each way to give out memory holds at the end of requests, and what of it is written.

    Args:
        requests: (prompt, output) tokens. The K/V of a request's last token is never computed, so
            p + o - 1 slots are written.
        block_sizes: of paged memory.
    """
    written = statistics.mean(prompt + output - 1 for prompt, output in requests)
    rows = []
    for name, reserve in RESERVATIONS.items():
        held = statistics.mean(reserve(prompt, output, max_model_len) for prompt, output in requests)
        rows.append(EndOfRequest(f"reserved-{name}", held, written))
    for block in block_sizes:
        held = statistics.mean(-(-(prompt + output - 1) // block) * block for prompt, output in requests)
        rows.append(EndOfRequest(f"paged, block {block}", held, written))
    return rows


class Memory(Protocol):
    """Pieces of a pool, in tokens."""

    @property
    def num_free(self) -> int: ...
    def allocate(self, length: int) -> Any: ...
    def free(self, run: Any) -> None: ...


class Paged:
    """The engine's block pool, by the same calls."""

    def __init__(self, num_tokens: int, block_size: int = 16) -> None:
        self.pool = BlockPool(num_tokens // block_size)
        self.block_size = block_size

    @property
    def num_free(self) -> int:
        return self.pool.num_free * self.block_size

    def allocate(self, length: int) -> list[int] | None:
        count = -(-length // self.block_size)
        if count > self.pool.num_free:
            return None
        return [self.pool.take() for _ in range(count)]

    def free(self, run: list[int]) -> None:
        for block in run:
            self.pool.drop(block)


MEMORIES: dict[str, Callable[[int], Memory]] = {"first-fit": FirstFit, "buddy": Buddy, "paged": Paged}
"""Makers of a pool of so many tokens, by name."""


@dataclass(slots=True)
class Failures:
    """Failed allocations on a stream of events, those with enough free space in all, and the mean share in
    use."""

    failures: int
    enough_free: int
    used: float


def fragmentation(
    make: Callable[[int], Memory], *, num_tokens: int, num_events: int, mean: float, sigma: float, seed: int
) -> Failures:
    """A coin says allocate, or free a random piece.

    Args:
        make: the memory, of `num_tokens`.
        mean, sigma: sizes are log-normal with this mean and standard deviation of the log, at most
            `num_tokens`.
    """
    memory = make(num_tokens)
    rng = random.Random(seed)
    mu = math.log(mean) - sigma**2 / 2
    live: list[Any] = []
    failures = enough_free = free = 0
    for _ in range(num_events):
        allocates = rng.random() < 0.5
        size = min(max(round(rng.lognormvariate(mu, sigma)), 1), num_tokens)
        which = rng.random()
        if allocates:
            piece = memory.allocate(size)
            if piece is None:
                failures += 1
                enough_free += memory.num_free >= size
            else:
                live.append(piece)
        elif live:
            memory.free(live.pop(int(which * len(live))))
        free += memory.num_free
    return Failures(failures, enough_free, 1 - free / num_events / num_tokens)
