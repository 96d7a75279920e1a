"""Conversations: which turn is due, its whole prompt, and the times of its tokens."""

from __future__ import annotations

import pytest
from peers import chat
from peers.chat import Chat


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which stands until it is set."""
    now = [10.0]
    monkeypatch.setattr(chat.time, "perf_counter", lambda: now[0])
    return now


def test_a_turn_brings_all_that_was_said_before() -> None:
    talk = Chat([[1, 2], [3], [4], [7, 8], [9], [10]], [2, 2, 1, 2, 2, 1], turns=3)
    assert list(talk.first()) == [0, 3]
    assert talk.send(0) == [1, 2] and talk.send(3) == [7, 8]
    assert not talk.receive(0, [50]) and talk.receive(0, [51])
    assert talk.next(0) == 1
    assert talk.send(1) == [1, 2, 50, 51, 3]
    assert talk.receive(3, [70, 71]), "several at once"
    assert talk.send(4) == [7, 8, 70, 71, 9]
    assert talk.receive(1, [52, 53])
    assert talk.send(2) == [1, 2, 50, 51, 3, 52, 53, 4]
    assert talk.next(2) is None and talk.next(5) is None
    assert talk.tokens == [[50, 51], [52, 53], [], [70, 71], [], []]


def test_times(clock: list[float]) -> None:
    talk = Chat([[1], [2]], [3, 2], turns=2)
    talk.send(0)
    for clock[0] in (10.5, 10.6, 11.0):
        talk.receive(0, [5])
    clock[0] = 11.25
    talk.send(1)
    for clock[0] in (11.5, 11.7):
        talk.receive(1, [5])
    figures = talk.figures()
    assert figures["output_tokens"] == [3, 2]
    assert figures["wall"] == pytest.approx(1.7), "from the first turn sent to the last token"
    assert figures["first_token"] == pytest.approx(0.5)
    assert figures["mean_first_token"] == pytest.approx((0.5 + 0.25) / 2)
    assert figures["p99_inter_token"] == pytest.approx(0.4), "the wait between two turns is not one"


def test_p99_leaves_out_one_in_a_hundred(clock: list[float]) -> None:
    talk = Chat([[1]], [201], turns=1)
    talk.send(0)
    for i in range(201):
        clock[0] += {50: 9.0, 100: 8.0, 150: 7.0}.get(i, 0.1)
        talk.receive(0, [5])
    assert talk.figures()["p99_inter_token"] == pytest.approx(7.0)


def test_a_turn_without_an_answer_is_an_error() -> None:
    talk = Chat([[1], [2]], [1, 1], turns=1)
    talk.send(0)
    talk.send(1)
    talk.receive(0, [5])
    with pytest.raises(ValueError, match="no token came in 1 of 2 turns"):
        talk.figures()
