"""Runs demos side by side in processes. A demo that raises has failed; the others go on."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from leafage.errors import InvalidParameterError
from leafage.sim.reproduce.demo import Demo, Outcome, Part, Tools


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
        """`passed`, `failed`, `error`, `pending`, or `quoted`: only what papers report, nothing to check."""
        if self.error is not None:
            return "error"
        if self.outcome is None:
            return "pending"
        if not self.outcome.checks:
            return "quoted"
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
        processes: that run demos, and parts of demos, side by side; 1 runs them all in this one.
        on_report: told of each as it ends.
    """
    reports = {demo.id: Report(demo) for demo in demos}
    assert len(reports) == len(demos), "two demos have one id"
    results: dict[Part, _Result] = {}

    def ended(report: Report) -> None:
        reports[report.demo.id] = report
        if on_report is not None:
            on_report(report)

    def part_ended(part: Part, result: _Result) -> None:
        results[part] = result
        for demo in waiting.pop(part):
            if all(needed in results for needed in demo.parts):
                ended(_combine(demo, results))

    waiting: dict[Part, list[Demo]] = {}
    seconds: dict[Part, float] = {}
    for demo in demos:
        if demo.pending is not None:
            ended(Report(demo))
        for part in dict.fromkeys(demo.parts):
            waiting.setdefault(part, []).append(demo)
            seconds[part] = max(seconds.get(part, 0.0), demo.seconds)
    tasks: list[tuple[float, _Task]] = [(demo.seconds, demo) for demo in demos if demo.run is not None]
    tasks += [(estimate, part) for part, estimate in seconds.items()]
    tasks.sort(key=lambda task: -task[0])
    in_this_process = processes <= 1 or len(tasks) <= 1
    for task, result in _serial(tasks, tools) if in_this_process else _parallel(tasks, tools, processes):
        if isinstance(task, Demo):
            ended(Report(task, result.value, result.error, result.seconds))
        else:
            part_ended(task, result)
    return [reports[demo.id] for demo in demos]


_Task = Demo | Part


@dataclass(slots=True)
class _Result:
    """What a part, or a demo that has none, gave; or the traceback of what it raised."""

    value: Any
    error: str | None
    seconds: float


def _serial(tasks: Sequence[tuple[float, _Task]], tools: Tools) -> Iterator[tuple[_Task, _Result]]:
    for _, task in tasks:
        yield task, _compute(task, tools)


def _parallel(
    tasks: Sequence[tuple[float, _Task]], tools: Tools, processes: int
) -> Iterator[tuple[_Task, _Result]]:
    spawn = multiprocessing.get_context("spawn")  # forks of a process with threads may hang
    with ProcessPoolExecutor(min(processes, len(tasks)), mp_context=spawn) as pool:
        futures = {pool.submit(_compute, task, tools): task for _, task in tasks}
        for done in as_completed(futures):
            yield futures[done], done.result()


def _compute(task: _Task, tools: Tools) -> _Result:
    function = task.run if isinstance(task, Demo) else task
    assert function is not None
    return _timed(lambda: function(tools))


def _combine(demo: Demo, results: Mapping[Part, _Result]) -> Report:
    """A demo from its parts. When one of them failed, so did the demo."""
    combine = demo.combine
    assert combine is not None
    needed = [results[part] for part in dict.fromkeys(demo.parts)]
    seconds = sum(result.seconds for result in needed)
    for result in needed:
        if result.error is not None:
            return Report(demo, error=result.error, seconds=seconds)
    made = _timed(lambda: combine({part: results[part].value for part in demo.parts}))
    return Report(demo, made.value, made.error, seconds + made.seconds)


def _timed(function: Callable[[], Any]) -> _Result:
    start = time.perf_counter()
    try:
        value, error = function(), None
    except Exception:
        value, error = None, traceback.format_exc()
    return _Result(value, error, time.perf_counter() - start)
