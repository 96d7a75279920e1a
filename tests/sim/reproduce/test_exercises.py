"""Exercises 1, 2 and 4, number by number."""

from __future__ import annotations

import pytest

from tests.sim.reproduce.tools import assert_passed, run


@pytest.mark.parametrize(
    ("demo", "values"),
    [
        ("exercise-1", ["12.5", "11968", "748", "300", "234", "2.5", "5", "1548"]),
        ("exercise-4", ["89.4", "537", "21.5", "842.3", "1342", "53.7", "320", "9"]),
    ],
)
def test_e1_e4_every_number_to_the_printed_precision(demo: str, values: list[str]) -> None:
    outcome = run(demo)
    assert_passed(outcome)
    assert [check.value for check in outcome.checks] == values


def test_e2_blocks_with_and_without_sharing() -> None:
    outcome = run("exercise-2")
    assert_passed(outcome)
    [table] = outcome.tables
    assert [list(row[1::2]) for row in table.rows] == [
        [26, 19, 26.9, 30.4, 1],
        [52, 31, 40.4, 45.6, 3],
        [104, 55, 47.1, 53.2, 7],
    ]
