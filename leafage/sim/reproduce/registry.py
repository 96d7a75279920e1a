"""All demos, in the order of the lecture."""

from __future__ import annotations

from leafage.sim.reproduce import (
    code_01,
    code_02,
    code_03,
    code_04,
    code_05,
    code_05_tree,
    exercise_6,
    exercise_7,
    exercise_9,
    exercises,
    pitfalls,
    section_1,
    section_2,
    section_6,
    section_7,
    sharing_gains,
)
from leafage.sim.reproduce.demo import Demo

_FSM = "follows with structured output: the compressed finite-state machine is not built yet"

DEMOS: tuple[Demo, ...] = (
    *section_1.DEMOS,
    *section_2.DEMOS,
    *code_01.DEMOS,
    *code_02.DEMOS,
    *code_03.DEMOS,
    *sharing_gains.DEMOS,
    *code_04.DEMOS,
    *section_6.DEMOS,
    *code_05_tree.DEMOS,
    *code_05.DEMOS,
    Demo("code06-1", ("R7-11",), "Code 06 demo 1: compressed FSM, 5 samples of a short record", pending=_FSM),
    Demo("code06-2", ("R7-12",), "Code 06 demo 2: compressed FSM, a record with longer keys", pending=_FSM),
    *section_7.DEMOS,
    *pitfalls.DEMOS,
    Demo("pitfall-7", ("P7",), "Pitfall 7: a format is no quality", pending=_FSM),
    *exercises.DEMOS,
    *code_05.EXERCISES,
    *exercise_6.DEMOS,
    *exercise_7.DEMOS,
    Demo("exercise-8", ("R7-13", "E8"), "Exercise 8: a format whose class and literal overlap", pending=_FSM),
    *exercise_9.DEMOS,
)
