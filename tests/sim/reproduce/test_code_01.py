"""Code 01: block tables, equal tokens, wastes."""

from __future__ import annotations

import pytest

from leafage.core.kv_manager import KVManager
from leafage.sim.reproduce import code_01
from leafage.sim.reproduce.demo import Outcome
from tests.sim.reproduce.tools import assert_passed, run


def test_r3_2_the_tables_of_two_growing_requests() -> None:
    outcome = run("code01-1")
    assert_passed(outcome)
    assert outcome.tables[0].rows[-1][1::2] == [
        "32 tok [8, 11, 4, 9] 8/8",
        "36 tok [7, 5, 0, 1, 2] 4/8",
        3,
    ]


def test_r3_2_another_order_of_the_pool_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class InOrder(KVManager):
        def __init__(self, *args: object, block_order: list[int], **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(code_01, "KVManager", InOrder)
    assert not run("code01-1").passed


def test_r3_4_scattered_blocks_of_any_size_give_the_same_tokens() -> None:
    assert_passed(run("code01-2"))


def test_r3_4_another_token_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = code_01._answers

    def wrong(*args: object, together: bool, **options: object) -> list[list[int]]:
        found = answers(*args, together=together, **options)  # type: ignore[arg-type]
        found[3][-1] += together
        return found

    monkeypatch.setattr(code_01, "_answers", wrong)
    outcome: Outcome = run("code01-2")
    assert [check.value for check in outcome.checks] == ["5"] * 6


def test_r1_5_what_is_wasted_at_the_end_of_a_request() -> None:
    assert_passed(run("code01-3"))
