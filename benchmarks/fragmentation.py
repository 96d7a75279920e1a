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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comparison.spread import Spread

from leafage.sim.fragmentation import MEMORIES, Failures, end_of_request, fragmentation

MAX_MODEL_LEN = 2048
NUM_REQUESTS = 600
PAGED_BLOCKS = (16, 256)
ARENA_TOKENS = 32_768
NUM_EVENTS = 20_000
MEANS = (512, 2048, 4096)
SIGMA = 0.95  # of the log of the sizes
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


def measure() -> dict[str, Any]:
    """Both tables, over all seeds."""
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
