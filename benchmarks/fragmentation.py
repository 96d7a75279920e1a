"""What contiguous KV memory wastes, counted with the allocators of the engine: no model, about 10 s.

    python benchmarks/fragmentation.py [--json FILE]

Two tables. What is left unused at the end of a request, by what was reserved for it (internal fragmentation);
and how many allocations fail in a 32,768-token arena though enough of it is free, because it lies in pieces
(external fragmentation), beside the paged pool on the same stream of events.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from comparison.spread import Spread

from leafage.core.arena import Buddy, FirstFit
from leafage.core.block_pool import BlockPool
from leafage.core.reserved import RESERVATIONS

MAX_MODEL_LEN = 2048
NUM_REQUESTS = 600
PAGED_BLOCKS = (16, 256)
ARENA_TOKENS = 32_768
NUM_EVENTS = 20_000
MEANS = (512, 2048, 4096)
SIGMA = 0.95  # of the log of the sizes
BLOCK = 16
SEEDS = (0, 1, 2)


def lengths(seed: int, count: int = NUM_REQUESTS) -> list[tuple[int, int]]:
    """(prompt, output) tokens: log-normal, medians 150 and 220, sigmas 1.0 and 0.8, together at most 2,048.

    These are the lengths of scenario A: OPT-13B-shaped, fitted to what is known of its results.
    """
    rng = random.Random(seed)
    drawn = []
    for _ in range(count):
        prompt = min(max(round(rng.lognormvariate(math.log(150), 1.0)), 1), MAX_MODEL_LEN - 8)
        output = min(max(round(rng.lognormvariate(math.log(220), 0.8)), 1), MAX_MODEL_LEN - prompt)
        drawn.append((prompt, output))
    return drawn


@dataclass(slots=True)
class EndOfRequest:
    """Slots at the end of requests: held and written, means per request; `utilisation` is their ratio."""

    system: str
    held: float
    written: float

    @property
    def utilisation(self) -> float:
        return self.written / self.held


def end_of_request(requests: list[tuple[int, int]]) -> list[EndOfRequest]:
    """What each way to give out memory holds at the end of the requests, and what of it is written.

    The K/V of a request's last token is never computed, so p + o - 1 slots are written.
    """
    written = statistics.mean(prompt + output - 1 for prompt, output in requests)
    rows = []
    for name, reserve in RESERVATIONS.items():
        held = statistics.mean(reserve(prompt, output, MAX_MODEL_LEN) for prompt, output in requests)
        rows.append(EndOfRequest(f"reserved-{name}", held, written))
    for block in PAGED_BLOCKS:
        held = statistics.mean(-(-(prompt + output - 1) // block) * block for prompt, output in requests)
        rows.append(EndOfRequest(f"paged, block {block}", held, written))
    return rows


class Memory(Protocol):
    """Pieces of a pool, in tokens."""

    num_free: int

    def allocate(self, length: int) -> Any: ...
    def free(self, piece: Any) -> None: ...


class Paged:
    """The engine's block pool, by the same calls."""

    def __init__(self, num_tokens: int) -> None:
        self.pool = BlockPool(num_tokens // BLOCK)

    @property
    def num_free(self) -> int:
        return self.pool.num_free * BLOCK

    def allocate(self, length: int) -> list[int] | None:
        count = -(-length // BLOCK)
        if count > self.pool.num_free:
            return None
        return [self.pool.take() for _ in range(count)]

    def free(self, piece: list[int]) -> None:
        for block in piece:
            self.pool.drop(block)


@dataclass(slots=True)
class Events:
    """Failed allocations on a stream, those with enough free space in all, and the mean share in use."""

    failures: int
    enough_free: int
    used: float


def events(memory: Memory, mean: int, seed: int) -> Events:
    """A coin says allocate or free a random piece; sizes are log-normal with this mean, at most the arena."""
    rng = random.Random(seed)
    mu = math.log(mean) - SIGMA**2 / 2
    live: list[Any] = []
    failures = enough_free = 0
    free = 0
    for _ in range(NUM_EVENTS):
        allocates = rng.random() < 0.5
        size = min(max(round(rng.lognormvariate(mu, SIGMA)), 1), ARENA_TOKENS)
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
    return Events(failures, enough_free, 1 - free / NUM_EVENTS / ARENA_TOKENS)


SYSTEMS: dict[str, Callable[[int], Memory]] = {"first-fit": FirstFit, "buddy": Buddy, "paged": Paged}


def measure() -> dict[str, Any]:
    """Both tables, over all seeds."""
    ends: dict[str, list[float]] = {}
    unused: dict[str, list[float]] = {}
    for seed in SEEDS:
        for row in end_of_request(lengths(seed)):
            ends.setdefault(row.system, []).append(row.utilisation)
            unused.setdefault(row.system, []).append(row.held - row.written)
    return {
        "end_of_request": [
            {"system": system, "utilisation": values, "unused_slots": unused[system]}
            for system, values in ends.items()
        ],
        "events": [
            {
                "mean": mean,
                "system": system,
                "runs": [asdict(events(make(ARENA_TOKENS), mean, seed)) for seed in SEEDS],
            }
            for mean in MEANS
            for system, make in SYSTEMS.items()
        ],
    }


def report(measured: dict[str, Any]) -> str:
    """The tables, medians and ranges over the seeds."""
    lines = [
        f"At the end of a request ({NUM_REQUESTS} requests, {len(SEEDS)} seeds):",
        f"{'':18}{'used %':>24}{'unused slots':>24}",
    ]
    for row in measured["end_of_request"]:
        used = Spread.of([100 * value for value in row["utilisation"]]).show()
        lines.append(f"{row['system']:18}{used:>24}{Spread.of(row['unused_slots']).show():>24}")
    lines += [
        "",
        f"{NUM_EVENTS:,} events in an arena of {ARENA_TOKENS:,} tokens:",
        f"{'mean size':>9}  {'':10}{'failures':>24}{'with enough free, %':>26}{'mean use, %':>22}",
    ]
    for row in measured["events"]:
        runs = row["runs"]
        failures = Spread.of([run["failures"] for run in runs]).show()
        share = [100 * run["enough_free"] / run["failures"] for run in runs if run["failures"]]
        enough = Spread.of(share).show() if share else "-"
        used = Spread.of([100 * run["used"] for run in runs]).show()
        lines.append(f"{row['mean']:9}  {row['system']:10}{failures:>24}{enough:>26}{used:>22}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    measured = measure()
    print(report(measured))
    if args.json is not None:
        args.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
