from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from leafage.build import build_simulation
from leafage.config import EngineConfig
from leafage.sim.hardware import Hardware
from leafage.sim.replicas import Router, serve
from leafage.sim.result import SimResult
from leafage.sim.simulation import Simulation
from leafage.sim.step_costs import StepCosts
from leafage.sim.summary import summarize
from leafage.sim.workload import SimRequest, Trace, Workload
from tests.sim.scenarios import small_scenario
from tests.sim.test_step_costs import SPEC

SECOND = StepCosts(spec=SPEC, block_size=16, tokens=((0, 1.0), (1, 1.0)), rows=((0, 0.0), (1, 0.0)))


def replica() -> Simulation:
    """An engine of two sequences at once, whose every step takes a second."""
    hardware = Hardware(
        name="slow", flops=1e12, bandwidth=1e10, memory_bytes=1e9, host_bandwidth=1e9, steps=SECOND
    )
    config = EngineConfig(kv_cache_tokens=4096, max_model_len=1024, max_num_seqs=2)
    return build_simulation(config, hardware, SPEC)


def request(name: str, arrival: float, num_steps: int) -> SimRequest:
    return SimRequest(name, arrival, range(5), range(num_steps))


def served(router: Router, workload: Workload, count: int) -> list[SimResult]:
    return serve([replica() for _ in range(count)], workload, router)


def arrivals(results: list[SimResult]) -> list[list[float]]:
    """Of each replica's requests, to hundredths of seconds (copying a block takes some microseconds)."""
    return [sorted(round(arrival, 2) for arrival in result.records.arrival) for result in results]


def test_replicas_take_turns() -> None:
    requests = [request(str(n), float(n), 3) for n in range(7)]
    results = served("round_robin", Trace(requests), 3)
    assert arrivals(results) == [[0, 3, 6], [1, 4], [2, 5]]
    assert [result.seconds for result in results] == pytest.approx([9, 7, 8], abs=1e-3)


def test_a_request_goes_where_the_fewest_wait_or_run() -> None:
    """The long one keeps the first replica busy; among equals it goes on in turn."""
    requests = [request("long", 0.0, 50), *(request(str(n), 0.5 + 4 * n, 2) for n in range(4))]
    assert arrivals(served("round_robin", Trace(requests), 2)) == [[0, 4.5, 12.5], [0.5, 8.5]]
    assert arrivals(served("least_loaded", Trace(requests), 2)) == [[0], [0.5, 4.5, 8.5, 12.5]]
    idle = [request(str(n), 10.0 * n, 2) for n in range(4)]
    assert arrivals(served("least_loaded", Trace(idle), 2)) == [[0, 20], [10, 30]]


def test_requests_that_arrive_at_once_are_spread() -> None:
    requests = [request(str(n), 1.0, 5) for n in range(9)]
    assert [len(each) for each in arrivals(served("least_loaded", Trace(requests), 3))] == [3, 3, 3]


class Dialogue:
    """Two conversations of three turns; the next one comes two seconds after the answer."""

    def __iter__(self) -> Iterator[SimRequest]:
        yield request("a1", 0.0, 4)
        yield request("b1", 0.25, 2)

    def finished(self, request_: SimRequest, time: float) -> Iterable[SimRequest]:
        name, turn = request_.request_id
        return [request(f"{name}{int(turn) + 1}", time + 2, len(request_.output))] if turn < "3" else []


@pytest.mark.parametrize("router", ["round_robin", "least_loaded"])
def test_what_follows_a_request_goes_where_that_went(router: Router) -> None:
    results = served(router, Dialogue(), 2)
    assert arrivals(results) == [[0, 6, 12], [0.25, 4.25, 8.25]]
    assert [result.seconds for result in results] == pytest.approx([16, 10.25], abs=1e-3)


def test_one_replica_is_the_simulation_alone() -> None:
    """To the last bit: chats, whose next turns compete with arrivals that are known."""
    chats = {"num_sessions": 12, "rate": 30, "think_seconds": 0.1}
    scenario = replace(small_scenario(), workload="multi-turn", workload_settings=chats)
    alone = scenario.run()
    engines = [build_simulation(scenario.config, scenario.hardware, scenario.spec)]
    (beside,) = serve(engines, scenario.make_workload(), "least_loaded")
    assert summarize(beside) == summarize(alone)
    assert list(beside.records.last_token) == list(alone.records.last_token)


def test_a_least_loaded_router_helps_where_turns_are_uneven() -> None:
    """Every other answer is long, so taking turns sends all long ones to the same replica."""
    requests = Trace(request(str(n), 5.0 * n, 30 if n % 2 else 2) for n in range(20))
    taken = [
        sum(sum(result.e2e) for result in served(router, requests, 2))
        for router in ("round_robin", "least_loaded")
    ]
    assert taken[1] < 0.8 * taken[0]


def test_progress_counts_all_replicas() -> None:
    scenario = small_scenario(rate=1000).with_setting("replicas", 3).with_setting("router", "least_loaded")
    ended: list[int] = []
    scenario.run(on_progress=lambda done, _: ended.append(done))
    assert ended == sorted(ended) and ended[-1] == 30
