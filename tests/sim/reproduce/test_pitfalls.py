"""Pitfalls 1 and 2, from given times of kernels."""

from __future__ import annotations

from dataclasses import replace

from leafage.sim.reproduce.demo import Outcome
from leafage.sim.reproduce.registry import DEMOS
from leafage.sim.reproduce.runner import run_demos
from tests.sim.reproduce.tools import assert_passed, make_tools


def outcomes(*curve: tuple[int, float, float]) -> dict[str, Outcome]:
    demos = [demo for demo in DEMOS if demo.id in ("pitfall-1", "pitfall-2")]
    reports = run_demos(demos, replace(make_tools(), block_efficiency=lambda: curve))
    return {report.demo.id: report.outcome for report in reports if report.outcome is not None}


def test_p1_p2_small_blocks_cost_kernels_and_swaps() -> None:
    found = outcomes((1, 0.1, 0.2), (8, 0.5, 0.8), (16, 0.8, 0.9))
    for outcome in found.values():
        assert_passed(outcome)
    assert found["pitfall-1"].tables[0].rows[2][1] == "25%"
    assert [row[0] for row in found["pitfall-2"].tables[0].rows] == [1, 8, 16]


def test_p1_p2_kernels_that_do_not_mind_are_noticed() -> None:
    found = outcomes((1, 1.0, 1.0), (8, 1.0, 1.0), (16, 1.0, 1.0))
    assert [check.passed for check in found["pitfall-1"].checks] == [False]
    assert [check.passed for check in found["pitfall-2"].checks] == [False, True]
