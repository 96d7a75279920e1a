"""What a bound on overtaking costs in prefix hits: no model, about two minutes.

    python benchmarks/ageing.py [--seeds N]

The few-shot workload: 8 tasks, a prompt is 100 common tokens, 500 of its task and 20 to 99 of its own
question; 400 requests in random order, of which 32 wait at any time, and one runs at a time. The cache is the
real KVManager with blocks of one token. For each order and capacity: hit rate, longest wait (in admissions)
and how often a request was passed at most, medians over the seeds.

`T` is the rule of `longest_prefix`: who was passed T times goes first. `alpha` is the other rule: a request's
score is its match plus alpha tokens for each time it was passed; it bounds nothing by itself.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence

from core_loop import CoreLoop

from leafage.core.policy import MAX_PASSES, LongestPrefix, PolicyMaker
from leafage.core.protocols import KV
from leafage.core.request import Request
from leafage.sim.reproduce.prefix_traces import best_hit_rate, few_shot

WINDOW = 32
CAPACITIES = (800, 2000, 4000)
UNBOUNDED = 10**9


def prompts_of(seed: int) -> list[list[int]]:
    """The prompts of the few-shot workload, in order of arrival."""
    return [list(request.prompt) for request in few_shot(seed)]


def with_alpha(alpha: float) -> PolicyMaker:
    """Longest prefix plus alpha tokens for each time a request was passed."""

    class Alpha(LongestPrefix):
        def order(self, waiting: Sequence[Request]) -> Iterator[Request]:
            self._watch.changed()
            scores = [(self.key(request) - alpha * request.passed, request.arrival) for request in waiting]
            by_arrival = {request.arrival: request for request in waiting}
            return (by_arrival[arrival] for _, arrival in sorted(scores))

    def make(kv: KV, max_passes: int) -> Alpha:
        return Alpha(kv, max_passes)

    return make


ORDERS: dict[str, tuple[str | PolicyMaker, int]] = {
    "fcfs": ("fcfs", UNBOUNDED),
    "depth_first, no bound": ("depth_first", UNBOUNDED),
    f"depth_first, T = {MAX_PASSES}": ("depth_first", MAX_PASSES),
    "longest_prefix, no bound": ("longest_prefix", UNBOUNDED),
    **{f"longest_prefix, T = {bound}": ("longest_prefix", bound) for bound in (64, 48, 40, 32, 16)},
    **{f"longest_prefix, alpha = {alpha}": (with_alpha(alpha), UNBOUNDED) for alpha in (10, 20, 50, 1000)},
}


def run(
    prompts: list[list[int]], capacity: int, policy: str | PolicyMaker, bound: int
) -> tuple[float, int, int]:
    """Hit rate, longest wait and most passes."""
    loop = CoreLoop(capacity, 1, policy=policy, max_passes=bound)
    waiting: dict[str, tuple[Request, int]] = {}
    longest = passes = 0
    arrivals = iter(prompts)
    for step in range(len(prompts)):
        while len(waiting) < WINDOW and (prompt := next(arrivals, None)) is not None:
            request = loop.add(prompt)
            waiting[request.request_id] = request, step
        (item,) = loop.step().items
        request, came = waiting.pop(item.request_id)
        longest = max(longest, step - came)
        passes = max(passes, request.passed)
    return loop.hit_rate, longest, passes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=4)
    arguments = parser.parse_args()
    workloads = [prompts_of(seed) for seed in range(arguments.seeds)]
    best = [best_hit_rate(few_shot(seed)) for seed in range(arguments.seeds)]
    print(f"the most that can be hit: {statistics.median(best):.1%}\n")
    print(f"{'order':28}" + "".join(f"{f'{capacity} tokens':>24}" for capacity in CAPACITIES))
    print(f"{'':28}" + "".join(f"{'hits  wait  passed':>24}" for _ in CAPACITIES))
    for name, (policy, bound) in ORDERS.items():
        line = f"{name:28}"
        for capacity in CAPACITIES:
            results = [run(prompts, capacity, policy, bound) for prompts in workloads]
            hits, wait, passed = (statistics.median(column) for column in zip(*results, strict=True))
            line += f"{f'{hits:.1%} {wait:5.0f} {passed:7.0f}':>24}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
