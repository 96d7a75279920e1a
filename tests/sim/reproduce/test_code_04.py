"""Code 04: restoring 512 tokens."""

from __future__ import annotations

from tests.sim.reproduce.tools import assert_passed, run


def test_r5_4_milliseconds_by_block_size() -> None:
    outcome = run("code04-1")
    assert_passed(outcome)
    [table] = outcome.tables
    shown = [[c.show(cell) for c, cell in zip(table.columns, row, strict=True)] for row in table.rows]
    assert [row[1] for row in shown] == ["43.8", "36.1", "34.8", "34.2", "33.9", "33.7", "33.6", "60.0"]
    assert [row[3] for row in shown] == ["12.9", "5.2", "4.0", "3.3", "3.0", "2.8", "2.7", "10.9"]
