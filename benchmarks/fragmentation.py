"""What contiguous KV memory wastes, counted with the allocators of the engine: no model, about 30 s.

    python benchmarks/fragmentation.py [--json docs/performance/fragmentation.json]

Three tables. What is left unused at the end of a request, by what was reserved for it (internal
fragmentation); how many allocations fail in a 32,768-token arena though enough of it is free, because it lies
in pieces (external fragmentation), beside the paged pool on the same stream of events; and where the slots of
the KV cache are, as means over time, while the engine's scheduler serves requests with nothing in common, and
few-shot ones, on a GPU that is only a cost (leafage.sim: OPT-13B on one A100-40GB).
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comparison.spread import Spread

from leafage.build import build_simulation
from leafage.config import EngineConfig
from leafage.core.usage import KINDS
from leafage.sim.fragmentation import MEMORIES, Failures, end_of_request, fragmentation
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.reproduce.prefix_traces import few_shot
from leafage.sim.workload import SimRequest, Trace

MAX_MODEL_LEN = 2048
NUM_REQUESTS = 600
PAGED_BLOCKS = (16, 256)
ARENA_TOKENS = 32_768
NUM_EVENTS = 20_000
MEANS = (512, 2048, 4096)
SIGMA = 0.95  # of the log of the sizes
SEEDS = (0, 1, 2)
SERVED_REQUESTS = 400
SCENARIO_A, FEW_SHOT = WORKLOADS = "nothing in common", "few-shot"
RATES = {SCENARIO_A: 4.0, FEW_SHOT: 5.0}  # requests a second: more than any system can take
SYSTEMS: dict[str, dict[str, Any]] = {
    "Max": {"kv": "reserved-max"},
    "Pow2, buddy": {"kv": "reserved-pow2-buddy"},
    "Pow2": {"kv": "reserved-pow2"},
    "Oracle": {"kv": "reserved-oracle"},
    "paged, not shared": {"prefix_index": "none"},
    "paged": {},
}
"""Where sequences put their K and V."""


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


def failures(system: str, mean: int, seed: int) -> Failures:
    """Failed allocations of one system on the stream of events."""
    return fragmentation(
        MEMORIES[system],
        num_tokens=ARENA_TOKENS,
        num_events=NUM_EVENTS,
        mean=mean,
        sigma=SIGMA,
        seed=seed,
    )


def trace(workload: str, count: int) -> Trace:
    """Requests in order of arrival, the same for all systems; the outputs are those of `lengths`."""
    drawn = lengths(0, count)
    prompts: list[Sequence[int]] = [
        range(4096 * number, 4096 * number + prompt) for number, (prompt, _) in enumerate(drawn)
    ]
    if workload == FEW_SHOT:
        prompts = [request.prompt for request in few_shot(0, count)]
    rng = random.Random(0)
    requests, now = [], 0.0
    for number, (prompt, (_, output)) in enumerate(zip(prompts, drawn, strict=True)):
        now += rng.expovariate(RATES[workload])
        requests.append(SimRequest(str(number), now, prompt, range(min(output, MAX_MODEL_LEN - len(prompt)))))
    return Trace(requests)


def over_time(workload: str, system: str, count: int) -> dict[str, Any]:
    """Shares of the KV cache by kind (`leafage.core.usage`), weighed by the time of steps."""
    config = EngineConfig(
        max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=4096, preemption="recompute", **SYSTEMS[system]
    )
    simulation = build_simulation(config, Hardware.load("a100-40gb"), LLMSpec.load("opt-13b"))
    result = simulation.run(trace(workload, count))
    return {
        "workload": workload,
        "system": system,
        "shares": {kind: result.share(kind) for kind in KINDS},
        "mean_batch": result.mean_batch,
        "preemptions": result.counters.preemptions,
        "seconds": result.seconds,
    }


def measure(num_served: int = SERVED_REQUESTS) -> dict[str, Any]:
    """All tables; those of one request and of events over all seeds, that over time with so many requests."""
    ends: dict[str, list[float]] = {}
    unused: dict[str, list[float]] = {}
    for seed in SEEDS:
        rows = end_of_request(lengths(seed), max_model_len=MAX_MODEL_LEN, block_sizes=PAGED_BLOCKS)
        for row in rows:
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
                "runs": [asdict(failures(system, mean, seed)) for seed in SEEDS],
            }
            for mean in MEANS
            for system in MEMORIES
        ],
        "requests": num_served,
        "over_time": [
            over_time(workload, system, num_served) for workload in WORKLOADS for system in SYSTEMS
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
    kinds = [kind for kind in KINDS if kind != "pinned"]
    for workload in WORKLOADS:
        lines += [
            "",
            f"Slots over time, %, {measured['requests']} requests, {workload}:",
            f"{'':18}" + "".join(f"{kind:>12}" for kind in kinds) + f"{'mean batch':>12}{'preempted':>12}",
        ]
        for row in measured["over_time"]:
            if row["workload"] == workload:
                shares = "".join(f"{100 * row['shares'][kind]:12.1f}" for kind in kinds)
                lines.append(f"{row['system']:18}{shares}{row['mean_batch']:12.1f}{row['preemptions']:12}")
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
