"""Demos side by side: selection, verdicts, order and errors."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from leafage.cli.sim_reproduce import make_tools
from leafage.errors import InvalidParameterError
from leafage.sim.reproduce.demo import Check, Demo, Outcome, Results, Tools
from leafage.sim.reproduce.runner import Report, run_demos, select


def good(tools: Tools) -> Outcome:
    return Outcome(checks=[Check.exact("pid", os.getpid() > 0, True)], notes=[str(os.getpid())])


def bad(tools: Tools) -> Outcome:
    return Outcome(checks=[Check.exact("one", 2, 1)])


def broken(tools: Tools) -> Outcome:
    raise ValueError("no luck")


@dataclass(frozen=True)
class Times:
    """A part: a number times two, or an error at 13."""

    number: int

    def __call__(self, tools: Tools) -> tuple[int, int]:
        if self.number == 13:
            raise ValueError("unlucky")
        return 2 * self.number, os.getpid()


def three_and_four(results: Results) -> Outcome:
    sum_ = results[Times(3)][0] + results[Times(4)][0]
    return Outcome(checks=[Check.exact("sum", sum_, 14)], notes=[str(results[Times(3)][1])])


DEMOS = [
    Demo("good", ("R1", "P2"), "good", good, seconds=1),
    Demo("bad", ("R2",), "bad", bad, seconds=3),
    Demo("later", ("R3",), "later", pending="it is not built"),
    Demo("broken", ("R1",), "broken", broken, seconds=2),
]


@pytest.mark.parametrize("processes", [1, 2])
def test_each_gets_its_verdict_in_the_order_given(processes: int) -> None:
    seen: list[Report] = []
    reports = run_demos(DEMOS, make_tools(), processes=processes, on_report=seen.append)
    assert [report.verdict for report in reports] == ["passed", "failed", "pending", "error"]
    assert [report.is_bad for report in reports] == [False, True, False, True]
    assert sorted(report.demo.id for report in seen) == sorted(demo.id for demo in DEMOS)
    assert reports[3].error is not None and "no luck" in reports[3].error
    assert reports[0].outcome is not None
    assert (reports[0].outcome.notes == [str(os.getpid())]) == (processes == 1)


def test_a_demo_without_checks_proves_nothing() -> None:
    report = Report(DEMOS[0], Outcome(notes=["the paper says so"]))
    assert (report.verdict, report.is_bad) == ("quoted", False)


def test_long_ones_start_first() -> None:
    seen: list[str] = []
    run_demos(DEMOS, make_tools(), on_report=lambda report: seen.append(report.demo.id))
    assert seen == ["later", "bad", "broken", "good"]


def test_demos_are_chosen_by_id_and_by_requirement() -> None:
    assert select(DEMOS, []) == DEMOS
    assert [demo.id for demo in select(DEMOS, ["r1"])] == ["good", "broken"]
    assert [demo.id for demo in select(DEMOS, ["later", "P2"])] == ["good", "later"]


def test_an_unknown_id_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="no demo has this id; got 'R9'"):
        select(DEMOS, ["R9"])


def of_parts(demo_id: str, *numbers: int) -> Demo:
    parts = tuple(Times(number) for number in numbers)
    return Demo(demo_id, ("R4",), demo_id, parts=parts, combine=three_and_four)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_demo_is_combined_from_its_parts(processes: int) -> None:
    demos = [of_parts("a", 3, 4), of_parts("b", 4, 3, 13), of_parts("c", 3, 4, 5)]
    reports = run_demos(demos, make_tools(), processes=processes)
    assert [report.verdict for report in reports] == ["passed", "error", "passed"]
    assert reports[1].error is not None and "unlucky" in reports[1].error


def test_parts_that_demos_share_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    call = Times.__call__
    monkeypatch.setattr(
        Times, "__call__", lambda part, tools: computed.append(part.number) or call(part, tools)
    )
    run_demos([of_parts("a", 3, 4), of_parts("b", 4, 3)], make_tools())
    assert computed == [3, 4]
