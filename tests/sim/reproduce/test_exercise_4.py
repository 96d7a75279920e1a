"""Exercise 4, number by number."""

from __future__ import annotations

from tests.sim.reproduce.tools import assert_passed, run


def test_e4_every_number_to_the_printed_precision() -> None:
    outcome = run("exercise-4")
    assert_passed(outcome)
    assert [check.value for check in outcome.checks] == [
        "89.4", "537", "21.5", "842.3", "1342", "53.7", "320",
    ]  # fmt: skip
