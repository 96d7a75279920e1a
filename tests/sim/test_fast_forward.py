"""A fast-forward changes nothing but the time it takes: with it and without it every number is the same."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from leafage.build import build_simulation
from leafage.config import EngineConfig
from leafage.core.admission import Admission
from leafage.core.fast_forward import FastForward
from leafage.core.kv_manager import KVManager
from leafage.core.policy import POLICIES
from leafage.core.prefix_index import NodeIndex
from leafage.core.request import Request, Sequence
from leafage.core.usage import Usage
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.simulation import Simulation
from leafage.sim.workload import SimRequest, Trace

HARDWARE, SPEC = Hardware.load("a100-40gb"), LLMSpec.load("opt-13b")
KINDS = ("paged", "paged", "paged", "reserved-max", "reserved-pow2", "reserved-oracle-buddy")


def random_config(rng: random.Random, **settings: Any) -> EngineConfig:
    kv = settings.get("kv", rng.choice(KINDS))
    paged = kv == "paged"
    prefix_index = rng.choice(
        ["none", "none", "none", "radix", "radix-node", "hash_chain"] if paged else ["none"]
    )
    block_size = rng.choice([1, 2, 4, 4, 16])
    swap_blocks = rng.choice([0, 4, 100]) if paged else 0
    num_seqs = rng.choice([4, 8, 100])
    policies = [name for name in POLICIES if name != "longest_prefix" or prefix_index != "none"]
    return EngineConfig(
        **{
            "kv": kv,
            "block_size": block_size,
            "prefix_index": prefix_index,
            "kv_cache_tokens": rng.choice([100, 200, 400]) // block_size * block_size,
            "max_model_len": rng.choice([48, 96]),
            "max_num_batched_tokens": rng.choice([num_seqs, 128, 1 << 20]),
            "max_num_seqs": num_seqs,
            "watermark": rng.choice([0.0, 0.02, 0.1]),
            "preemption": rng.choice(["auto", "swap" if swap_blocks else "recompute"]),
            "swap_bytes": swap_blocks * block_size * SPEC.kv_bytes_per_token,
            "policy": rng.choice(["fcfs", "fcfs", *policies]),
            **settings,
        }
    )


def random_trace(rng: random.Random, num_requests: int) -> Trace:
    """Requests that share heads of prompts, and now and then the whole of prompt and answer."""
    heads = [[rng.randint(0, 3) for _ in range(rng.randint(1, 40))] for _ in range(3)]
    answer = [rng.randint(0, 1) for _ in range(60)]
    rate = rng.choice([3.0, 10.0, 30.0, math.inf])
    shared, wide, urgent = rng.random() < 0.7, rng.random() < 0.4, rng.random() < 0.4
    requests: list[SimRequest] = []
    time = 0.0
    for i in range(num_requests):
        time += rng.expovariate(rate) if rate < math.inf else 0.0
        prompt = rng.choice(heads)[: rng.randint(1, 40)] if shared else []
        prompt = prompt + [rng.randint(0, 3) for _ in range(rng.randint(0 if prompt else 1, 12))]
        length = rng.choice([1, rng.randint(1, 60), rng.randint(20, 60)])
        output = answer[:length] if rng.random() < 0.5 else [100 * i + k for k in range(length)]
        if requests and rng.random() < 0.2:  # the next turn of somebody who may be running still
            other = rng.choice(requests)
            prompt = [*other.prompt, *other.output][: rng.randint(1, 60)]
        requests.append(
            SimRequest(
                str(i),
                time,
                prompt,
                output,
                n=rng.choice([1, 2, 3]) if wide else 1,
                priority=rng.choice([0, 0, 1, -1]) if urgent else 0,
                tenant=rng.choice("ab"),
                cache_salt=rng.choice(["", "", "", "other"]),
            )
        )
    return Trace(requests)


def state(simulation: Simulation) -> dict[str, Any]:
    """All that a scheduler, its KV manager and the metrics know, in plain numbers."""
    scheduler, metrics = simulation.engine.scheduler, simulation.metrics
    kv: Any = scheduler.kv
    found: dict[str, Any] = {
        "step": scheduler.step,
        "counters": dataclasses.asdict(scheduler.counters),
        "kv_counters": dataclasses.asdict(kv.counters),
        "swap_counters": dataclasses.asdict(kv.swap.counters),
        "running": [request_state(request) for request in scheduler.roster.running],
        "waiting": [request_state(request) for request in scheduler.roster.waiting],
        "num_seqs": scheduler.roster.num_seqs,
        "released": len(scheduler.admission.released) > 0,
        "usage": dataclasses.asdict(kv.usage(scheduler.roster.running)),
        "times": {name: dataclasses.asdict(times) for name, (_, times) in metrics._live.items()},
        "busy": (metrics.busy_seconds, metrics.last_step_time),
        "duplicates": [] if kv_duplicates(kv) is None else duplicates_state(kv),
    }
    if hasattr(kv, "store"):
        pool = kv.store.pool
        found["pool"] = (pool._free, pool.ref_count, kv.store._step)
    else:
        found["arena"] = vars(kv._arena)
    index = kv.index
    if isinstance(index, NodeIndex):
        found["nodes"] = [
            (n.number, n.key, n.block, n.stamp, n.publisher, n.parent and n.parent.number, n.pending)
            for n in index.nodes()
        ]
        found["lru"] = (index._heap, list(index._evicted))
    return found


def request_state(request: Request) -> Any:
    names = ("num_computed", "num_planned", "num_published", "num_offered", "num_lost", "write_from")
    lists = ("tokens", "block_table", "swap_slots")
    members = [[getattr(seq, name) for name in names + lists] for seq in request.sequences]
    return (
        request.request_id,
        members,
        request.passed,
        request.num_preemptions,
        request.num_cached,
        request.visited,
        request.prefilling,
    )


def kv_duplicates(kv: Any) -> Any:
    return kv.duplicates if hasattr(kv, "duplicates") else kv._duplicates


def duplicates_state(kv: Any) -> Any:
    found = kv_duplicates(kv)
    return found.num_blocks, {
        seq_id: [(node.number, block) for node, block in path] for seq_id, path in found._paths.items()
    }


def outcome(
    config: EngineConfig, trace: Trace, until: float, *, fast_forward: bool
) -> tuple[Simulation, dict[str, Any]]:
    """What is left after a run, and what came of it."""
    simulation = build_simulation(config, HARDWARE, SPEC, fast_forward=fast_forward)
    result = simulation.run(trace, until=until)
    simulation.engine.scheduler.check()
    columns = vars(result.records).items()
    records = {name: list(column) for name, column in columns if hasattr(column, "append")}
    assert {"arrival", "last_token", "output_tokens"} <= records.keys()
    return simulation, {
        **state(simulation),
        "records": records,
        "refused": result.records.num_refused,
        "seconds": result.seconds,
        "slot_seconds": (result.usage.slot_seconds, result.usage.seq_seconds, result.usage.seconds),
        "timeline": result.timeline._points,
    }


def compare(seed: int, seen: Counter[str] | None = None, **settings: Any) -> None:
    """One random world, with and without; to the end, or to some moment before."""
    rng = random.Random(seed)
    config, trace = random_config(rng, **settings), random_trace(rng, rng.randint(3, 25))
    until = rng.choice([math.inf, rng.uniform(0.1, 4.0)])
    _, without = outcome(config, trace, until, fast_forward=False)
    simulation, with_it = outcome(config, trace, until, fast_forward=True)
    for name, value in without.items():
        assert with_it[name] == value, f"{name} differs in world {seed}: {config}"
    if seen is not None:
        counters = simulation.engine.scheduler.counters
        kv = simulation.engine.scheduler.kv
        seen["steps"] += counters.steps
        seen["preemptions"] += counters.preemptions
        seen["swaps"] += counters.swap_ins
        seen["evictions"] += kv.counters.evicted_blocks
        seen["merges"] += kv.counters.merged_blocks
        seen["copies"] += kv.counters.copied_blocks
        seen["unfinished"] += simulation.engine.has_unfinished


NUM_WORLDS = 120
SHARING = {"prefix_index": "radix", "kv": "paged", "policy": "fcfs", "watermark": 0.0}
"""Worlds in which what one publishes may let another in."""


def test_with_and_without_every_number_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    end = FastForward.end

    def counted(self: FastForward) -> list[tuple[Request, int]]:
        scheduler = self._scheduler
        indexed = isinstance(scheduler.kv.index, NodeIndex)
        seen["quiet"] += self.num_steps
        seen["quiet gangs"] += self.num_steps * (self.num_seqs > len(scheduler.roster.running))
        seen["quiet while others wait"] += self.num_steps * bool(scheduler.roster.waiting)
        seen["quiet with an index while others wait"] += self.num_steps * bool(self._waiting) * indexed
        return end(self)

    monkeypatch.setattr(FastForward, "end", counted)
    for seed in range(NUM_WORLDS):
        compare(seed, seen)
    for seed in range(20):
        compare(seed, seen, **SHARING)
    assert seen["quiet"] > 0.4 * seen["steps"], "too little was taken together to prove anything"
    for event in ("preemptions", "swaps", "evictions", "merges", "copies", "unfinished", *list(seen)):
        assert seen[event] > 20, f"the worlds saw {seen[event]} {event}: too few to prove anything"


# -- bugs planted on purpose -----------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def after_init(change: Callable[[FastForward], None]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        init = FastForward.__init__

        def bad(self: FastForward, *args: Any) -> None:
            init(self, *args)
            change(self)

        patch.setattr(FastForward, "__init__", bad)

    return plant


def late_boundaries(self: FastForward) -> None:
    """Off by one: blocks are filled and asked for a step late."""
    self._boundaries = self._boundaries[-1:] + self._boundaries[:-1]


def one_step_too_many(self: FastForward) -> None:
    """It goes on where a sequence ends."""
    self._max_steps += 1


def other_order(self: FastForward) -> None:
    """The latest gang is given its block first."""
    for gangs in self._boundaries:
        gangs.reverse()


def nobody_watched(self: FastForward) -> None:
    """What is published may let somebody in."""
    self._waiting = []


def forgets_arrivals(patch: pytest.MonkeyPatch) -> None:
    forward = Simulation._forward
    patch.setattr(Simulation, "_forward", lambda self, until: forward(self, math.inf))


def memory_never_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FastForward, "_is_quiet", lambda self, members: True)


def waiting_is_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "all_wait", lambda self: True)


def refusals_are_remembered(patch: pytest.MonkeyPatch) -> None:
    """Who was refused is not tried again when somebody has left."""
    leave = Admission.leave

    def bad(self: Admission, seq: Sequence, *, keep_tail: bool) -> None:
        refused = self.refused
        leave(self, seq, keep_tail=keep_tail)
        self.refused = refused

    patch.setattr(Admission, "leave", bad)


def growth_is_free(patch: pytest.MonkeyPatch) -> None:
    """Blocks that are given out do not show in the usage."""
    advance = KVManager.advance_usage

    def bad(self: KVManager, usage: Usage, num_written: int, grown: list[tuple[Request, Sequence]]) -> None:
        advance(self, usage, num_written, [])

    patch.setattr(KVManager, "advance_usage", bad)


PLANTS: dict[str, Plant] = {
    "late_boundaries": after_init(late_boundaries),
    "one_step_too_many": after_init(one_step_too_many),
    "other_order": after_init(other_order),
    "nobody_watched": after_init(nobody_watched),
    "forgets_arrivals": forgets_arrivals,
    "memory_never_ends": memory_never_ends,
    "waiting_is_for_ever": waiting_is_for_ever,
    "refusals_are_remembered": refusals_are_remembered,
    "growth_is_free": growth_is_free,
}


@pytest.mark.parametrize("name", PLANTS)
def test_planted_bugs_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[name](monkeypatch)
    settings = SHARING if name == "nobody_watched" else {}
    with pytest.raises((AssertionError, IndexError, KeyError)):
        for seed in range(NUM_WORLDS):
            compare(seed, **settings)
