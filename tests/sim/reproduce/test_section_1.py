"""Section 1: the device's memory, and copies."""

from __future__ import annotations

from tests.sim.reproduce.tools import assert_passed, run


def test_r1_2_weights_and_kv_cache_of_a_13b_model() -> None:
    outcome = run("memory")
    assert_passed(outcome)
    assert [check.value for check in outcome.checks] == ["26.2", "65.5", "24.5"]


def test_r1_7_contiguous_memory_holds_copies() -> None:
    outcome = run("copies")
    assert_passed(outcome)
    [table] = outcome.tables
    rows = {(row[0], row[1]): list(row[2:]) for row in table.rows}
    assert rows["parallel, n = 4", "contiguous"] == [52, 168, 24]  # 3 copies of the 8 blocks of the prompt
    assert rows["parallel, n = 4", "paged"] == [31, 0, 3]
    assert rows["beam search, width 4", "contiguous"][0] == 52
