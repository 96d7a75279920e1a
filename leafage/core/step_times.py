"""Where the time of steps goes, part by part."""

from __future__ import annotations

from collections.abc import Callable

PARTS = ("accept", "schedule", "inputs", "forward", "sample", "update", "detokenize", "deliver")


class StepTimes:
    """Plain counters of seconds. The core knows no clock, so whoever measures gives one.

    The loop calls `lap` at the end of each part: `accept` (new requests and aborts), `schedule`, `inputs` (a
    step's arrays), `forward`, `sample`, `update`, `detokenize` (text and outputs), `deliver` (to who waits).

    Args:
        now: seconds; without one all times stay 0.

    Attributes:
        outside: seconds by part, without what native calls took.
        native: seconds inside native calls, by the part that called.
        last: the time up to which all that was not idle is counted.
    """

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self._now = now
        self.last = now()
        self.outside = dict.fromkeys(PARTS, 0.0)
        self.native = dict.fromkeys(PARTS, 0.0)

    def start(self) -> None:
        """Time until now was idle: it belongs to no part."""
        self.last = self._now()

    def lap(self, part: str, native: float = 0.0) -> None:
        """The time since the last lap belongs to `part`; native calls took `native` seconds of it."""
        now = self._now()
        self.outside[part] += now - self.last - native
        self.native[part] += native
        self.last = now
