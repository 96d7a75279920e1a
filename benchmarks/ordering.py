"""What the order of admission costs a step: no model, under a minute.

    python benchmarks/ordering.py [--waiting N] [--tokens N] [--steps N]

A queue of N requests waits behind 64 running ones. In every step one ends, one is admitted and one arrives;
the prompts are those of 50 groups with a common first half, and the pool evicts all the time. Timed are the
calls that an order needs: at arrival (with the first match of a prompt), and in a step. Milliseconds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from core_loop import CoreLoop

from leafage.core.policy import POLICIES, KeyOrder, LongestPrefix

NUM_RUNNING, NUM_GROUPS, BLOCK = 64, 50, 16


class Stopwatch:
    """Adds up the time inside wrapped functions."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            self._depth += 1
            try:
                return function(*args)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.perf_counter() - began

        return timed

    def lap(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return 1000 * seconds


def measure(policy: str, num_waiting: int, num_tokens: int, num_steps: int) -> dict[str, list[float]]:
    """Milliseconds by step: `arrival`, `order`, and `schedule`, the whole of the scheduler's part."""
    rng = random.Random(0)
    pool = (NUM_RUNNING + 40) * (num_tokens + 2 * NUM_RUNNING) // BLOCK
    loop = CoreLoop(
        pool, BLOCK, policy=policy, max_num_seqs=NUM_RUNNING, max_num_batched_tokens=num_tokens + NUM_RUNNING
    )
    groups = [[rng.randint(0, 50_000) for _ in range(num_tokens // 2)] for _ in range(NUM_GROUPS)]

    def arrive() -> None:
        own = [rng.randint(0, 50_000) for _ in range(num_tokens - num_tokens // 2)]
        loop.add([*rng.choice(groups), *own], max_tokens=NUM_RUNNING)

    for _ in range(NUM_RUNNING):  # one a step, so that later one ends in each
        arrive()
        loop.step()
    for _ in range(num_waiting):
        arrive()
    roster = loop.scheduler.roster
    watch, inner = Stopwatch(), roster.policy
    roster.start = watch.around(roster.start)  # type: ignore[method-assign]
    order = inner.order
    if isinstance(inner, KeyOrder):
        inner.remove = watch.around(inner.remove)  # type: ignore[method-assign]
    inner.order = watch.around(lambda waiting: iter([next(iter(order(waiting)))]))  # type: ignore[method-assign]
    if isinstance(inner, LongestPrefix):
        index = loop.kv.index
        assert index.watch is not None
        index.watch.inserted = watch.around(index.watch.inserted)  # type: ignore[method-assign]
        index.watch.detached = watch.around(index.watch.detached)  # type: ignore[method-assign]
    add = watch.around(inner.add)
    inner.add = add  # type: ignore[method-assign]
    times: dict[str, list[float]] = {"arrival": [], "order": [], "schedule": []}
    for _ in range(num_steps):
        watch.lap()
        arrive()
        times["arrival"].append(watch.lap())
        scheduled = Stopwatch()
        loop.step(scheduled.around(loop.scheduler.schedule))
        times["order"].append(watch.lap())
        times["schedule"].append(scheduled.lap())
        assert loop.scheduler.num_waiting >= num_waiting - 2, "the queue keeps its length"
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    print(f"{arguments.waiting} waiting requests of {arguments.tokens} tokens; ms, median (95 %, most)")
    print(f"{'policy':18}{'arrival':>24}{'order, a step':>24}{'schedule() in all':>24}")
    for policy in POLICIES:
        times = measure(policy, arguments.waiting, arguments.tokens, arguments.steps)
        line = f"{policy:18}"
        for values in times.values():
            median, high = statistics.median(values), statistics.quantiles(values, n=20)[-1]
            line += f"{f'{median:.3f} ({high:.3f}, {max(values):.3f})':>24}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
