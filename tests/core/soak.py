"""A long random run of the core: `python -m tests.core.soak --steps 1000000`."""

from __future__ import annotations

import argparse
import random
import time

from leafage.core.arena import ARENAS
from leafage.core.reserved import RESERVATIONS
from tests.core.world import World

RESERVED = [{"reservation": kind, "allocator": arena} for kind in RESERVATIONS for arena in ARENAS]
"""A quarter of the worlds reserve their memory."""


def soak(num_steps: int, seed: int, *, steps_per_world: int = 250) -> dict[str, int]:
    """Worlds of random shape, one after the other; every invariant is checked after every half step."""
    rng = random.Random(seed)
    totals = {
        "steps": 0,
        "worlds": 0,
        "answers": 0,
        "preemptions": 0,
        "prefix_hits": 0,
        "copies": 0,
        "evictions": 0,
        "swaps": 0,
        "reserved": 0,
        "pins": 0,
    }
    while totals["steps"] < num_steps:
        world_seed = rng.getrandbits(64)
        options = RESERVED[world_seed % 24] if world_seed % 24 < len(RESERVED) else {}
        world = World(random.Random(world_seed), **options)
        try:
            world.run(min(steps_per_world, num_steps - totals["steps"]))
        except BaseException:
            print(f"World(random.Random({world_seed}), **{options}).run({steps_per_world}) failed")
            raise
        counters = world.loop.scheduler.counters
        totals["steps"] += counters.steps
        totals["worlds"] += 1
        totals["answers"] += world.num_done
        totals["preemptions"] += counters.preemptions
        totals["prefix_hits"] += counters.prefix_hits
        totals["copies"] += world.loop.kv.counters.copied_blocks
        totals["evictions"] += world.loop.kv.counters.evicted_blocks
        totals["swaps"] += counters.swap_ins
        totals["reserved"] += world.num_done if options else 0
        totals["pins"] += world.num_pinned
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    start = time.perf_counter()
    totals = soak(arguments.steps, arguments.seed)
    print(
        f"{time.perf_counter() - start:.1f} s:",
        ", ".join(f"{name} {value}" for name, value in totals.items()),
    )


if __name__ == "__main__":
    main()
