"""Demos that are made from simulations, on the first requests of their traces; `scripts/soak reproduce` runs
them whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leafage.sim.reproduce.demo import Demo, Kind, Outcome
from leafage.sim.reproduce.registry import DEMOS
from leafage.sim.reproduce.runner import run_demos
from leafage.sim.reproduce.scenarios import SCENARIO_A, SCENARIO_B, Scenario
from leafage.sim.result import SimResult
from leafage.sim.trace_file import TraceFile
from tests.sim.reproduce.tools import make_tools

SIMULATED = {
    "wastes": 10,
    "code02-1": 16,
    "code02-3": 4,
    "code02-4": 4,
    "code04-2": 6,
    "exercise-3": 5,
    "pitfall-8": 2,
}
"""Rows of each demo's first table."""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """Of all of them, with 25 requests that arrive twenty times as fast, so that memory is short."""
    trace = Scenario.trace

    def short(scenario: Scenario, rate: float) -> TraceFile:
        return replace(trace(scenario, 20 * rate), max_requests=25)

    demos = [demo for demo in DEMOS if demo.id in SIMULATED]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scenario, "trace", short)
        reports = run_demos(demos, make_tools())
    assert all(report.error is None for report in reports), [report.error for report in reports]
    return {report.demo.id: report.outcome for report in reports if report.outcome is not None}


@pytest.mark.parametrize("demo", SIMULATED)
def test_every_simulation_has_its_row(outcomes: dict[str, Outcome], demo: str) -> None:
    assert len(outcomes[demo].tables[0].rows) == SIMULATED[demo]


def test_what_holds_of_any_requests_holds_of_these(outcomes: dict[str, Outcome]) -> None:
    exact = [c for outcome in outcomes.values() for c in outcome.checks if c.kind is Kind.EXACT]
    assert len(exact) >= 3
    assert all(check.passed for check in exact), exact


def test_a_verdict_fails_when_the_numbers_are_others(outcomes: dict[str, Outcome]) -> None:
    """Of 25 requests no system reaches the lecture's throughput."""
    failed = {name for name, outcome in outcomes.items() if not outcome.passed}
    assert {"code02-1", "code02-4", "code04-2"} <= failed


def demo_of(demo_id: str) -> Demo:
    return next(demo for demo in DEMOS if demo.id == demo_id)


def test_demos_share_their_simulations() -> None:
    runs = [set(demo_of(name).parts) for name in ("code02-1", "code02-4", "code04-2", "exercise-3")]
    assert len(set.intersection(*runs)) == 1, "paged at rate 3 with blocks of 16 and a watermark of 1 %"


@pytest.mark.parametrize(
    ("changed", "attribute", "value"),
    [({}, "throughput", None), ({"kv": "reserved-max"}, "mean_batch", 5.0)],
)
def test_a_part_simulates_what_it_says(changed: dict[str, Any], attribute: str, value: float | None) -> None:
    part = SCENARIO_A.at(3.0, **changed)
    assert part == SCENARIO_A.at(3.0, **changed) and hash(part) == hash(SCENARIO_A.at(3.0, **changed))
    assert part != SCENARIO_A.at(4.0, **changed)
    simulation = part.scenario.simulation(make_tools(), **dict(part.changed))
    result: SimResult = simulation.run(replace(SCENARIO_A.trace(60.0), max_requests=40))
    found = getattr(result, attribute)
    assert found > 0 if value is None else found == pytest.approx(value, rel=0.2)


def test_r3_9_and_r0_5_the_kv_tokens_of_both_devices() -> None:
    slots = []
    for scenario in (SCENARIO_A, SCENARIO_B):
        kv = scenario.simulation(make_tools()).engine.scheduler.kv
        slots.append(kv.num_blocks * kv.block_size)
    assert slots == [11_968, 426_784]  # 426,788 tokens, in whole blocks
