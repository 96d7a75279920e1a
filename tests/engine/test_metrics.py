from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leafage.core.sampling_params import SamplingParams
from leafage.core.step_times import PARTS, StepTimes
from leafage.engine.engine_thread import EngineThread
from leafage.engine.metrics import MonotonicClock, RequestMetrics, engine_stats

MakeRig = Callable[..., Any]


def finished(rig: Any, request_id: str, **params: Any) -> RequestMetrics:
    seen: list[Any] = []
    request = rig.engine.add_request(request_id, [5, 6, 7], SamplingParams(max_tokens=20, **params))
    rig.outputs.add(request, None, seen.append, stream=False)
    rig.run()
    assert seen[0].metrics is not None
    return seen[0].metrics


def test_times_in_order(make_rig: MakeRig) -> None:
    """The clock moves one second at each look: at add, schedule and the end of each step."""
    m = finished(make_rig("hello"), "r")
    assert m.arrival_time == 1.0
    assert m.first_scheduled_time == 2.0
    assert m.first_token_time == 3.0
    assert m.last_token_time == m.finished_time == 13.0  # six steps of two looks
    assert m.num_generation_tokens == 6
    assert (m.queue_time, m.time_to_first_token, m.time_per_output_token, m.e2e_latency) == (1, 2, 2, 12)


def test_siblings_that_end_in_one_step_are_all_counted(make_rig: MakeRig) -> None:
    assert finished(make_rig("hello"), "r", n=3).num_generation_tokens == 3 * 6


def test_what_has_not_happened_is_none() -> None:
    m = RequestMetrics(1.0)
    assert (m.queue_time, m.time_to_first_token, m.time_per_output_token, m.e2e_latency) == (None,) * 4
    assert RequestMetrics(1.0, 2.0, 3.0, 3.0, 3.0, 1).time_per_output_token is None
    assert RequestMetrics(1.0, 2.0, 3.0, 3.0, 3.0, 9).time_per_output_token is None, "all at once: beams"


def test_nothing_is_kept_of_finished_requests(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    for i in range(3):
        finished(rig, str(i))
    rig.engine.add_request("aborted", [5], SamplingParams())
    rig.engine.abort("aborted")
    assert rig.metrics._live == {} and rig.metrics._unscheduled == set()


def test_p04_gauges_add_up_and_show_the_cache(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    finished(rig, "r")
    stats = engine_stats(rig.engine, rig.metrics)
    parts = [stats[f"kv_blocks_{name}"] for name in ("free", "cached", "active")]
    assert sum(parts) == stats["kv_blocks_total"] == 64
    assert stats["kv_blocks_cached"] > 0 and stats["kv_blocks_active"] == 0
    assert stats["generation_tokens"] == 6
    assert stats["request_success_stop"] == 1


@pytest.mark.parametrize("block_size", [4, 16])
def test_p01_hits_and_reasons_of_misses(make_rig: MakeRig, block_size: int) -> None:
    rig = make_rig("hello", block_size=block_size)
    finished(rig, "cold")
    finished(rig, "warm")
    stats = engine_stats(rig.engine, rig.metrics)
    assert stats["prefix_cache_queries"] == 6
    assert stats["prefix_cache_hits"] == 2
    misses = sum(v for k, v in stats.items() if k.startswith("prefix_cache_miss_"))
    assert misses == stats["prefix_cache_queries"] - stats["prefix_cache_hits"]


def test_r1_4_slots_are_weighed_by_the_time_of_steps(make_rig: MakeRig) -> None:
    """3 prompt tokens, blocks of 4, the clock moves a second a step: 3, 4, 5, 6, 7 and 8 slots are stored."""
    rig = make_rig("hello", num_blocks=64)
    finished(rig, "r")
    before = engine_stats(rig.engine, rig.metrics)
    assert before["kv_slot_seconds_stored"] == 3 + 4 + 5 + 6 + 7 + 8
    assert before["kv_slot_seconds_reservation"] == 1 + 0 + 3 + 2 + 1 + 0
    assert before["kv_slot_seconds_free"] == 2 * 252 + 4 * 248
    kinds = ("stored", "reservation", "internal", "external", "cached", "free")
    assert sum(before[f"kv_slot_seconds_{kind}"] for kind in kinds) == 256 * before["busy_seconds"]
    assert before["seq_seconds"] == before["busy_seconds"] == 6
    assert sum(before[f"kv_slots_{kind}"] for kind in kinds) == 256
    assert before["kv_slots_stored"] == 0 and before["kv_slots_cached"] == 8
    rig.metrics.clock.time += 1000  # idle time has no weight
    finished(rig, "again")
    after = engine_stats(rig.engine, rig.metrics)
    assert after["kv_slot_seconds_stored"] == 2 * before["kv_slot_seconds_stored"]


def test_the_real_clock_moves_forward() -> None:
    clock = MonotonicClock()
    assert clock.now() <= clock.now()


def test_idle_time_is_in_no_part_of_the_step_times(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    now = [0.0]
    rig.engine.times = StepTimes(lambda: now[0])
    thread = EngineThread(rig.engine, rig.outputs)
    try:
        thread.call(lambda: None).result()
        now[0] = 1000.0
        thread.call(lambda: None).result()
        stats = thread.call(lambda: engine_stats(rig.engine, rig.metrics)).result()
    finally:
        thread.close()
    assert [stats[f"{part}_seconds"] for part in PARTS] == [0.0] * len(PARTS)
    assert stats["native_seconds"] == 0


def test_a_listener_that_raises_is_counted_and_all_the_rest_goes_on(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    heard: list[str] = []

    def broken(request: Any, metrics: RequestMetrics) -> None:
        heard.append(request.request_id)
        raise RuntimeError("the dashboard is on fire")

    rig.metrics.on_finished = broken
    for i in range(3):
        rig.engine.add_request(str(i), [5], SamplingParams(max_tokens=20))
    rig.run()
    assert heard == ["0", "1", "2"] and rig.metrics._live == {}
    assert engine_stats(rig.engine, rig.metrics)["num_observer_errors"] == 3
