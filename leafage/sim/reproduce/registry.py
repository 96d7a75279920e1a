"""All demos, in the order of the lecture."""

from __future__ import annotations

from leafage.sim.reproduce import cache_aware, exercise_4, exercise_9, sharing
from leafage.sim.reproduce.demo import Demo

_FSM = "follows with structured output: the compressed finite-state machine is not built yet"

DEMOS: tuple[Demo, ...] = (
    *exercise_4.DEMOS,
    *sharing.DEMOS,
    *cache_aware.DEMOS,
    *exercise_9.DEMOS,
    Demo("code06-1", ("R7-11",), "Code 06 demo 1: compressed FSM, 5 samples of a short record", pending=_FSM),
    Demo("code06-2", ("R7-12",), "Code 06 demo 2: compressed FSM, a record with longer keys", pending=_FSM),
    Demo("exercise-8", ("R7-13", "E8"), "Exercise 8: a format whose class and literal overlap", pending=_FSM),
)
