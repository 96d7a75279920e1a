"""What makes a simulation's numbers worth something: it always ends, and depends on nothing but its input."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest

from leafage.build import build_simulation
from leafage.config import EngineConfig
from leafage.core.scheduler import Scheduler
from leafage.engine.metrics import MonotonicClock
from leafage.sim.distributions import LogNormal
from leafage.sim.hardware import Hardware
from leafage.sim.independent import Independent
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.result import SimResult
from leafage.sim.simulation import Simulation
from leafage.sim.workload import SimRequest, Trace, Workload

HARDWARE, SPEC = Hardware.load("a100-40gb"), LLMSpec.load("opt-13b")
BLOCK_BYTES = 16 * SPEC.kv_bytes_per_token


def simulation(*, fast_forward: bool = True, **settings: Any) -> Simulation:
    defaults = {"prefix_index": "none", "max_model_len": 512, "kv_cache_tokens": 1024}
    config = EngineConfig(**{**defaults, **settings})
    return build_simulation(config, HARDWARE, SPEC, fast_forward=fast_forward)


def pressing(num_requests: int = 40, seed: int = 3) -> Workload:
    """More at once than 1,024 slots hold."""
    return Independent(
        num_requests=num_requests,
        rate=50.0,
        seed=seed,
        prompt_tokens=LogNormal(60, 0.8, 1, 300),
        output_tokens=LogNormal(80, 0.6, 1, 200),
        max_total_tokens=500,
    )


def frozen(result: SimResult) -> bytes:
    """All numbers of a result."""
    columns = [list(column) for column in vars(result.records).values() if hasattr(column, "append")]
    usage = (result.usage.seconds, result.usage.seq_seconds, result.usage.slot_seconds)
    return pickle.dumps((columns, result.seconds, usage, result.counters, result.kv_counters))


def watch_for_livelock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step computes, moves or copies something; and while requests wait preempted, one runs."""
    schedule = Scheduler.schedule

    def watched(self: Scheduler) -> Any:
        batch = schedule(self)
        assert batch.has_work, "requests wait and nothing happens"
        assert self.roster.running, "all wait for each other"
        return batch

    monkeypatch.setattr(Scheduler, "schedule", watched)


@pytest.mark.parametrize("fast_forward", [False, True])
@pytest.mark.parametrize("swap_blocks", [0, 3, 10, 1000])
@pytest.mark.parametrize("watermark", [0.0, 0.02])
def test_m3_somebody_always_progresses_whatever_the_swap_space(
    watermark: float, swap_blocks: int, fast_forward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch_for_livelock(monkeypatch)
    simulated = simulation(
        fast_forward=fast_forward,
        preemption="swap" if swap_blocks else "recompute",
        swap_bytes=swap_blocks * BLOCK_BYTES,
        watermark=watermark,
    )
    workload = pressing()
    result = simulated.run(workload)
    assert result.records.num_requests == 40 and not result.records.num_failed
    assert list(result.records.output_tokens).count(0) == 0
    assert result.counters.preemptions > 10, "no pressure, nothing is proven"
    assert (result.counters.swap_ins > 0) == (swap_blocks > 0)
    if swap_blocks == 3:
        assert simulated.engine.scheduler.kv.swap.counters.refused > 0, "the swap space was never full"


@pytest.mark.parametrize("swap_blocks", [0, 40])
def test_m6_two_that_come_back_into_memory_for_one_and_a_half(
    swap_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are preempted by urgent requests; their restoration asks for more than there is: one waits."""
    watch_for_livelock(monkeypatch)
    simulated = simulation(
        kv_cache_tokens=480,
        max_model_len=480,
        preemption="swap" if swap_blocks else "recompute",
        swap_bytes=swap_blocks * BLOCK_BYTES,
        watermark=0.0,
    )
    both = [SimRequest(name, 0.0, range(20), range(280), priority=1) for name in "ab"]
    urgent = [SimRequest(f"u{i}", 2.0 + i, range(100, 260), range(280), priority=0) for i in range(3)]
    result = simulated.run(Trace([*both, *urgent]))
    assert sorted(result.records.output_tokens) == [280] * 5
    assert result.counters.preemptions >= 2
    assert (result.counters.swap_ins > 0) == (swap_blocks > 0)


def test_the_time_of_the_machine_does_not_leak_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under clocks that jump by hours, and that fail when asked, every number is the same."""
    expected = frozen(simulation().run(pressing()))
    elapsed = [0.0]

    def hours() -> float:
        elapsed[0] += 3600.0
        return elapsed[0]

    def refuse(*_: object) -> float:
        raise AssertionError("a simulation asked for the time of the machine")

    names = ("time", "monotonic", "perf_counter", "process_time")
    for replacement in (hours, refuse):
        with monkeypatch.context() as patch:
            for name in names:
                patch.setattr(time, name, replacement)
            patch.setattr(MonotonicClock, "now", staticmethod(replacement))  # the engine's real one
            result = simulation().run(pressing())
        assert frozen(result) == expected


def test_a_slow_machine_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = frozen(simulation(fast_forward=False).run(pressing(10)))
    schedule = Scheduler.schedule

    def slow(self: Scheduler) -> Any:
        time.sleep(0.001)
        return schedule(self)

    monkeypatch.setattr(Scheduler, "schedule", slow)
    assert frozen(simulation(fast_forward=False).run(pressing(10))) == expected


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not() -> None:
    first, again, other = (frozen(simulation().run(pressing(seed=seed))) for seed in (3, 3, 4))
    assert first == again != other


def test_nothing_is_kept_of_requests_that_ended() -> None:
    simulated = simulation()
    simulated.run(pressing())
    scheduler, metrics = simulated.engine.scheduler, simulated.metrics
    assert not len(scheduler.roster) and not simulated._requests and not simulated._ended
    assert not metrics._live and not metrics._unscheduled
    assert not list(scheduler.kv.attached()) and scheduler.kv.num_free == scheduler.kv.num_blocks
    assert len(scheduler.admission.released) < 10
