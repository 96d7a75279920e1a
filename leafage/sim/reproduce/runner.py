"""Runs demos side by side in processes. A demo that raises has failed; the others go on."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from leafage.errors import InvalidParameterError
from leafage.sim.reproduce.demo import Demo, Outcome, Tools


@dataclass(slots=True)
class Report:
    """A demo and what came of it.

    Attributes:
        outcome: None when it is pending or failed to run.
        error: the traceback, when it failed to run.
        seconds: it took.
    """

    demo: Demo
    outcome: Outcome | None = None
    error: str | None = None
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """`passed`, `failed`, `error` or `pending`."""
        if self.error is not None:
            return "error"
        if self.outcome is None:
            return "pending"
        return "passed" if self.outcome.passed else "failed"

    @property
    def is_bad(self) -> bool:
        return self.verdict in ("failed", "error")


def select(demos: Sequence[Demo], wanted: Sequence[str]) -> list[Demo]:
    """Those with one of the ids, or that cover one of them; all when none is named.

    Raises:
        InvalidParameterError: nothing has that id.
    """
    known = {name.lower() for demo in demos for name in (demo.id, *demo.covers)}
    for name in wanted:
        if name.lower() not in known:
            raise InvalidParameterError(
                "no demo has this id",
                value=name,
                limit=", ".join(demo.id for demo in demos),
                remedy="see `leafage sim reproduce --list`",
            )
    names = {name.lower() for name in wanted}
    return [d for d in demos if not names or names & {name.lower() for name in (d.id, *d.covers)}]


def run_demos(
    demos: Sequence[Demo],
    tools: Tools,
    *,
    processes: int = 1,
    on_report: Callable[[Report], None] | None = None,
) -> list[Report]:
    """Run them; reports come back in the order of `demos`.

    Args:
        processes: that run demos side by side; 1 runs them all in this one.
        on_report: told of each as it ends.
    """
    reports = {demo.id: Report(demo) for demo in demos}
    assert len(reports) == len(demos), "two demos have one id"
    todo = sorted((demo for demo in demos if demo.run is not None), key=lambda demo: -demo.seconds)

    def ended(report: Report) -> None:
        reports[report.demo.id] = report
        if on_report is not None:
            on_report(report)

    for demo in demos:
        if demo.run is None:
            ended(Report(demo))
    if processes <= 1 or len(todo) <= 1:
        for demo in todo:
            ended(_run(demo, tools))
    else:
        spawn = multiprocessing.get_context("spawn")  # forks of a process with threads may hang
        with ProcessPoolExecutor(min(processes, len(todo)), mp_context=spawn) as pool:
            for done in as_completed([pool.submit(_run, demo, tools) for demo in todo]):
                ended(done.result())
    return [reports[demo.id] for demo in demos]


def _run(demo: Demo, tools: Tools) -> Report:
    assert demo.run is not None
    start = time.perf_counter()
    try:
        outcome = demo.run(tools)
    except Exception:
        return Report(demo, error=traceback.format_exc(), seconds=time.perf_counter() - start)
    return Report(demo, outcome, seconds=time.perf_counter() - start)
