"""The same function of many things, in parallel processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

_Task = TypeVar("_Task")
_Outcome = TypeVar("_Outcome")

Progress = Callable[[int, int], None]
"""Told (done, in all)."""


def in_parallel(
    function: Callable[[_Task], _Outcome],
    tasks: Sequence[_Task],
    *,
    processes: int = 1,
    on_progress: Progress | None = None,
) -> list[_Outcome]:
    """The function of each task, in their order; in this process when one is enough. Both must pickle."""
    outcomes: dict[int, _Outcome] = {}

    def tell() -> None:
        if on_progress is not None:
            on_progress(len(outcomes), len(tasks))

    tell()
    if min(processes, len(tasks)) <= 1:
        for index, task in enumerate(tasks):
            outcomes[index] = function(task)
            tell()
        return list(outcomes.values())
    with _pool(min(processes, len(tasks))) as pool:
        pending: dict[Future[_Outcome], int] = {
            pool.submit(function, task): index for index, task in enumerate(tasks)
        }
        while pending:
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                outcomes[pending.pop(future)] = future.result()
                tell()
    return [outcomes[index] for index in range(len(tasks))]


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes, so that no thread of this one is copied half way. An error or Ctrl-C here ends them at
    once."""
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("spawn"), initializer=_leave_interrupts
    )
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    pool.shutdown()


def _leave_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal; the first one ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
