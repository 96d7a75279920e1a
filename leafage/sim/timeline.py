"""A simulation over time, in a bounded number of points however long it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from leafage.core.usage import KINDS

if TYPE_CHECKING:
    from leafage.core.counters import SchedulerCounters
    from leafage.core.usage import UsageSeconds

Floats = NDArray[np.float64]

HELD = ("stored", "reservation", "internal", "duplicates")
"""Kinds of slots that running requests hold: none while nobody runs."""


class Timeline:
    """Totals of a run, read now and then. All of them only grow, so the means between two points are exact
    and every second point can be dropped when there are too many; then the interval doubles.

    Args:
        max_points: most points that are kept.
        interval: seconds between the first of them.

    Attributes:
        next_time: when the next point is due. A loop compares it with its clock once a turn.
    """

    def __init__(self, max_points: int = 600, interval: float = 0.05) -> None:
        assert max_points >= 2, f"{max_points} points are no line"
        self._max_points = max_points
        self._interval = interval
        self._points: list[tuple[float, ...]] = [(0.0,) * len(_COLUMNS)]
        self.next_time = interval

    def take(self, now: float, usage: UsageSeconds, counters: SchedulerCounters, *, num_waiting: int) -> None:
        """Read the totals at `now`."""
        point = (
            now,
            usage.seconds,
            usage.seq_seconds,
            *usage.slot_seconds,
            num_waiting,
            counters.generated_tokens,
            counters.prompt_tokens,
            counters.preemptions,
            counters.prefix_hits,
            counters.prefix_queries,
        )
        if now <= self._points[-1][0]:
            self._points[-1] = point
            return
        self._points.append(point)
        if len(self._points) > self._max_points:
            del self._points[1:-1:2]
            self._interval *= 2
        self.next_time = (now // self._interval + 1) * self._interval

    def __len__(self) -> int:
        return len(self._points) - 1

    @property
    def edges(self) -> Floats:
        """Borders of the windows between points, in seconds: one more than there are windows."""
        return self._column("time")

    @property
    def batch(self) -> Floats:
        """Mean running sequences in each window."""
        return _ratio(self._growth("seq_seconds"), self._growth("time"))

    @property
    def waiting(self) -> Floats:
        """Waiting requests at the end of each window."""
        return self._column("waiting")[1:]

    def slots(self, kind: str) -> Floats:
        """Mean slots of a kind of `core.usage.Usage` in each window; what requests hold over all of its
        time, the others over the time of its steps."""
        span = "time" if kind in HELD else "seconds"
        return _ratio(self._growth(kind), self._growth(span))

    def rate(self, total: str) -> Floats:
        """What a total grew by in a second of each window: `generated_tokens`, `prompt_tokens` or
        `preemptions`."""
        return _ratio(self._growth(total), self._growth("time"))

    @property
    def hit_rate(self) -> Floats:
        """Share of the prompt tokens looked up in each window that were cached; NaN where none were."""
        queries = self._growth("prefix_queries")
        with np.errstate(invalid="ignore", divide="ignore"):
            rate: Floats = self._growth("prefix_hits") / queries
        return rate

    def _column(self, name: str) -> Floats:
        index = _COLUMNS.index(name)
        return np.array([point[index] for point in self._points])

    def _growth(self, name: str) -> Floats:
        return np.diff(self._column(name))


_COLUMNS = (
    "time",
    "seconds",
    "seq_seconds",
    *KINDS,
    "waiting",
    "generated_tokens",
    "prompt_tokens",
    "preemptions",
    "prefix_hits",
    "prefix_queries",
)


def _ratio(growth: Floats, span: Floats) -> Floats:
    """0 where nothing ran."""
    return np.divide(growth, span, out=np.zeros_like(growth), where=span > 0)
