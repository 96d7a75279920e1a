"""Checks and tables."""

from __future__ import annotations

import pytest

from leafage.sim.reproduce.demo import Check, Column, Demo, Kind, Outcome, Source, Table


def test_a_table_leaves_out_columns_that_nobody_fills() -> None:
    table = Table.compared("t", [("a", 1, 2, None), ("b", 3, None, None)])
    assert [column.source for column in table.columns] == [Source.NONE, Source.OURS, Source.LECTURE]
    assert [list(row) for row in table.rows] == [["a", 1, 2], ["b", 3, None]]
    assert len(Table.compared("t", [("a", 1, None, "5.2x")]).columns) == 3


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(AssertionError, match="has not 2 cells"):
        Table("t", [Column("a"), Column("b")], [[1]])


def test_numbers_are_shown_by_the_format_of_their_column() -> None:
    column = Column("share", Source.OURS, "{:.1%}")
    assert [column.show(cell) for cell in (0.1234, "n/a", None)] == ["12.3%", "n/a", ""]


def test_exact_means_equal() -> None:
    assert Check.exact("blocks", 748, 748).passed
    assert not Check.exact("blocks", 747, 748).passed


@pytest.mark.parametrize(("value", "passed"), [(3.99, False), (4.0, True), (6.0, True), (6.01, False)])
def test_a_band_includes_its_ends(value: float, passed: bool) -> None:
    check = Check.band("ratio", value, 4, 6, format="{:.2f}")
    assert (check.passed, check.kind, check.wanted) == (passed, Kind.BAND, "4.00 to 6.00")


def test_an_outcome_passes_when_all_its_checks_do() -> None:
    good, bad = Check.exact("x", 1, 1), Check.shape("y", "1", "less", False)
    assert Outcome(checks=[good]).passed
    assert not Outcome(checks=[good, bad]).passed


def test_a_demo_runs_or_says_why_not() -> None:
    with pytest.raises(AssertionError):
        Demo("x", (), "neither")
    with pytest.raises(AssertionError):
        Demo("x", (), "both", lambda tools: Outcome(), pending="later")
