from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafage.core.request import FinishKind, Sequence
from leafage.engine.stop import StopMatcher, StopStringCheck, TextStream

LETTERS = st.text("ab", min_size=0, max_size=12)


class Letters:
    """Token ids are code points; flush gives what a broken character would."""

    def __init__(self, rest: str = "") -> None:
        self.rest = rest

    def push(self, token_id: int) -> str:
        return chr(token_id)

    def flush(self) -> str:
        return self.rest

    def copy(self) -> Letters:
        return self


class Pieces:
    """Token ids are positions in a list of texts."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    def push(self, token_id: int) -> str:
        return self.pieces[token_id]

    def flush(self) -> str:
        return ""

    def copy(self) -> Pieces:
        return self


def run(pieces: list[str], stops: list[str], **settings: Any) -> tuple[list[str], str | None]:
    """The texts taken after each token, and the stop string that ended it."""
    stream = TextStream(Pieces(pieces), stops, **settings)
    taken = []
    for token_id in range(len(pieces)):
        stop = stream.push(token_id)
        taken.append(stream.take())
        if stop is not None:
            stream.finish()
            assert stream.take() == ""
            return taken, stop
    stream.finish()
    taken.append(stream.take())
    return taken, None


def naive(text: str, stops: list[str], start: int = 0) -> tuple[str, str | None]:
    """Character by character: the first place where any stop string is complete, the longest there."""
    for end in range(start + 1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_stop_string_across_token_boundaries() -> None:
    taken, stop = run(["one ", "E", "N", "D two"], ["END"])
    assert stop == "END"
    assert taken == ["one ", "", "", ""]


def test_held_back_text_is_released_when_it_was_no_stop_string() -> None:
    taken, stop = run(["x", "EN", "Z", "E"], ["END"])
    assert stop is None
    assert taken == ["x", "", "ENZ", "", "E"]


def test_include_stop_str_keeps_it_and_drops_what_follows() -> None:
    taken, stop = run(["a\n", "\nb"], ["\n\n"], include_stop=True)
    assert (taken, stop) == (["a", "\n\n"], "\n\n")


def test_the_longest_of_stop_strings_that_end_together_wins() -> None:
    assert run(["xabc"], ["c", "abc", "bc"]) == (["x"], "abc")


def test_min_tokens_lets_early_stop_strings_pass() -> None:
    taken, stop = run(["END", "EN", "D", "END"], ["END"], min_tokens=2)
    assert stop == "END"
    assert "".join(taken) == "END"  # the second one counts: it ends with the third token


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert run(["a", "b"], []) == (["a", "b", ""], None)


def test_flush_comes_after_held_text() -> None:
    stream = TextStream(Letters(rest="\ufffd"), ["ab"])
    stream.push(ord("a"))
    stream.finish()
    assert stream.take() == "a\ufffd"


def test_the_token_that_ended_the_sequence_has_text_only_when_asked_for() -> None:
    for include, expected in ((False, "x"), (True, "xE")):
        stream = TextStream(Letters(), [], include_stop=include)
        stream.push(ord("x"))
        stream.finish(ord("E"))
        assert stream.take() == expected


@given(st.lists(LETTERS, max_size=8), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_any_cut_of_the_text_gives_the_naive_result(pieces: list[str], stops: list[str]) -> None:
    taken, stop = run(pieces, stops)
    assert ("".join(taken), stop) == naive("".join(pieces), stops)


@given(st.lists(LETTERS, max_size=8), st.text("ab", min_size=1, max_size=5))
def test_no_stream_ever_shows_part_of_a_stop_string(pieces: list[str], stop: str) -> None:
    """What was released before the end is never part of the stop string that is found later."""
    taken, found = run(pieces, [stop])
    final, _ = naive("".join(pieces), [stop])
    shown = ""
    for piece in taken:
        shown += piece
        assert final.startswith(shown)
    if found is not None:
        assert shown == final


def test_long_stop_strings_cost_linear_time() -> None:
    """A quadratic matcher would need 10^10 comparisons here."""
    matcher = StopMatcher(["a" * 100_000 + "b"])
    assert matcher.scan("a" * 99_999) is None
    assert matcher.scan("a" * 50_000) is None
    assert matcher.num_open == 100_000
    assert matcher.scan("b") == (1, "a" * 100_000 + "b")


def sequence(seq_id: int) -> Sequence:
    return Sequence(seq_id, 0, 0, [1], 1, request_id=str(seq_id))


def test_stop_check_answers_for_watched_sequences_only() -> None:
    check = StopStringCheck()
    check.watch("5", [TextStream(Letters(), ["b"])])
    assert check.finished(sequence(5), ord("a")) is None
    assert check.finished(sequence(6), ord("b")) is None
    reason = check.finished(sequence(5), ord("b"))
    assert reason is not None and (reason.kind, reason.stop_reason) == (FinishKind.STOP, "b")


def test_a_fault_in_the_stop_check_ends_that_sequence_only() -> None:
    check = StopStringCheck()
    check.watch("1", [TextStream(Pieces([]), ["b"])])
    check.watch("2", [TextStream(Letters(), ["b"])])
    reason = check.finished(sequence(1), 3)
    assert reason is not None and reason.kind is FinishKind.ERROR
    assert "IndexError" in str(reason.error)
    assert check.finished(sequence(2), ord("a")) is None


def test_candidates_of_beams_are_asked_about_without_being_taken() -> None:
    check = StopStringCheck()
    check.watch_beams("7", lambda: TextStream(Letters(), ["abc"], min_tokens=1))
    beam = sequence(7)
    assert check.finished(beam, ord("a")) is None
    beam.tokens += [ord("a"), ord("b")]
    reasons = [check.finished(beam, token_id) for token_id in b"ccxc"]
    assert [None if r is None else r.stop_reason for r in reasons] == ["abc", "abc", None, "abc"]
    heir = Sequence(8, 1, 0, [*beam.tokens, ord("c")], 1, request_id="7")
    assert check.finished(heir, ord("c")) is None
    check.forget("7")
    assert check.finished(beam, ord("c")) is None


def test_a_stop_string_of_a_beam_counts_only_beyond_min_tokens() -> None:
    check = StopStringCheck()
    check.watch_beams("7", lambda: TextStream(Letters(), ["a"], min_tokens=2))
    beam = sequence(7)
    stops = []
    for _ in range(3):
        stops.append(check.finished(beam, ord("a")) is not None)
        beam.tokens.append(ord("b"))
    assert stops == [False, False, True]


@pytest.mark.parametrize("stop", ["aa", "aba", "aab"])
def test_matches_that_overlap_themselves(stop: str) -> None:
    text = "abaabaaab"
    taken, found = run(list(text), [stop])
    assert ("".join(taken), found) == naive(text, [stop])
