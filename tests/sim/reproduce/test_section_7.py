"""Section 7's tables that only quote."""

from __future__ import annotations

from tests.sim.reproduce.tools import run


def test_r7_16_the_card_says_what_the_paper_reports() -> None:
    [table] = run("card-sglang").tables
    text = " ".join(str(cell) for row in table.rows for cell in row)
    for fact in ("6.4x", "3.7x", "50 to 99 %", "96 %", "52.4 %", "74.1 %", "1.7x"):
        assert fact in text
    assert not run("card-sglang").checks


def test_r7_17_both_ways_beside_ours() -> None:
    [table] = run("prefixes").tables
    assert [column.name for column in table.columns] == ["prefixes", "vLLM", "SGLang", "Leafage"]
