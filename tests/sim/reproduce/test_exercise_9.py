"""Exercise 9: rules between hits and fairness."""

from __future__ import annotations

import pytest

from leafage.cli.sim_reproduce import make_tools
from leafage.sim.reproduce import exercise_9
from leafage.sim.reproduce.prefix_queue import simulate
from leafage.sim.reproduce.prefix_traces import few_shot
from leafage.sim.workload import Trace
from tests.sim.reproduce.tools import assert_passed, run


@pytest.mark.parametrize(
    ("rule", "hits", "wait"),
    [
        ("LSPF + 20 tokens a step", 76.7, 49),
        ("LSPF, 48 steps at most", 79.1, 51),
        ("LSPF + 1000 tokens a step", 45.0, 31),
    ],
)
def test_e9_ageing_and_a_bound_trade_hits_for_waits(rule: str, hits: float, wait: int) -> None:
    result = simulate(Trace(few_shot(0)), 2000, exercise_9.RULES[rule])
    assert 100 * result.hit_rate == pytest.approx(hits, abs=3)
    assert result.max_wait == pytest.approx(wait, rel=0.15)


def test_e9_the_engine_bounds_the_wait_and_keeps_the_hits() -> None:
    hits, wait = exercise_9.by_scheduler(make_tools(), "longest_prefix", 2000)
    first_hits, first_wait = exercise_9.by_scheduler(make_tools(), "fcfs", 2000)
    assert hits > 78 > 50 > first_hits
    assert first_wait == 31 < wait <= 79


@pytest.mark.soak
def test_all_verdicts() -> None:
    assert_passed(run("exercise-9"))
