"""What is kept of conversations, and for how long."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from leafage.core.sampling_params import SamplingParams
from leafage.engine.output import CompletionOutput
from leafage.server.sessions import (
    BoundedStore,
    Conversation,
    Turn,
    continued,
    digests_of,
    next_digest,
)
from tests.server.scripted import END, byte_tokenizer

TOKENIZER = byte_tokenizer()
EACH = 1000
"""Bytes that a store counts for every entry."""


def test_a_store_keeps_what_was_used_last() -> None:
    store: BoundedStore[str, int] = BoundedStore(3, 10**6)
    for key in "abc":
        store.put(key, ord(key), 10)
    assert store.get("a") == ord("a")
    store.put("d", ord("d"), 10)
    assert [store.get(key) for key in "abcd"] == [97, None, 99, 100]


def test_a_store_is_bounded_in_bytes() -> None:
    store: BoundedStore[str, str] = BoundedStore(100, 5 * EACH)
    store.put("a", "x", 1000)
    store.put("b", "x", 1000)
    assert store.num_bytes == 4 * EACH
    store.put("a", "y", 2000)  # its old value is counted no more
    assert (store.num_bytes, store.get("a"), store.get("b")) == (5 * EACH, "y", "x")
    store.put("c", "x", 0)
    assert (store.get("a"), store.get("b"), len(store)) == (None, "x", 2)
    store.put("d", "too large", 5 * EACH)
    assert store.get("d") is None and store.get("b") == "x"


def test_a_store_forgets_what_is_old() -> None:
    now = 0.0
    store: BoundedStore[str, int] = BoundedStore(9, 10**6, 60, clock=lambda: now)
    store.put("a", 1, 0)
    now = 60.0
    assert store.get("a") == 1
    now = 60.1
    assert store.get("a") is None and store.num_bytes == 0
    assert store.remove("a") is False


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3000), st.booleans()), max_size=40))
def test_a_store_counts_its_bytes(moves: list[tuple[str, int, bool]]) -> None:
    store: BoundedStore[str, int] = BoundedStore(4, 8000)
    kept: dict[str, int] = {}
    for key, size, puts in moves:
        if puts:
            store.put(key, size, size)
            kept[key] = size
        else:
            store.remove(key)
        values = [value for name in "abcdef" if (value := store.get(name)) is not None]
        assert len(values) == len(store) <= 4
        assert sum(values) + EACH * len(values) == store.num_bytes <= 8000


def test_digests_tell_conversations_apart() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    digests = digests_of(messages, {})
    assert len(digests) == 3
    assert next_digest(digests[1], messages[1]) == digests[2]
    assert digests_of([{"role": "system", "content": "a"}], {})[1] != digests[1]
    assert digests_of(messages, {"tools": []})[0] != digests[0]
    moved = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": ""}]
    assert digests_of(moved, {})[2] != digests[2]


def test_an_answer_that_a_client_sends_back_is_the_same() -> None:
    start = digests_of([], {})[0]
    answer = next_digest(start, {"role": "assistant", "content": "b", "reasoning_content": "so"})
    for same in (
        {"role": "assistant", "content": " b\n"},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}], "tool_calls": []},
    ):
        assert next_digest(start, same) == answer
    for other in (
        {"role": "assistant", "content": "B"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "b", "tool_calls": [{"id": "1"}]},
    ):
        assert next_digest(start, other) != answer
    assert next_digest(start, {"role": "user", "content": "b "}) != next_digest(
        start, {"role": "user", "content": "b"}
    )


def kept(
    text: str, ids: list[int], reason: str, stop: str | int | None, **params: object
) -> tuple[list[int], str]:
    """Ids of an answer that are kept behind the prompt [1, 2], and the text that they lack."""
    answer = CompletionOutput(0, text, ids, finish_reason=reason, stop_reason=stop)
    found = continued(None, None, [1, 2], answer, [b"", b"x"], TOKENIZER, SamplingParams(**params))  # type: ignore
    [turn] = found.turns
    assert found.up_to(turn)[:2] == [1, 2] and turn.num_messages == 1
    return found.up_to(turn)[2:], turn.rest


def test_what_is_kept_of_an_answer() -> None:
    """Not what ended it: the template writes the end of a turn itself."""
    abc = list(b"abc")
    assert kept("abc", [*abc, END], "stop", None) == (abc, "")
    assert kept("abc", abc, "length", None) == (abc, "")
    assert kept("ab", abc, "stop", ord("c")) == (list(b"ab"), "")
    assert kept("abc", abc, "stop", ord("c"), include_stop_str_in_output=True) == (abc, "")
    assert kept("a", abc, "stop", "bc") == (list(b"a"), "")
    assert kept("", abc, "stop", "abc") == ([], "")
    emoji = list("a😊b".encode())
    assert kept("a", emoji, "stop", "😊b") == (list(b"a"), "")


def test_a_stop_string_inside_a_token_leaves_text_to_write() -> None:
    think = 259  # "<think>" is one token
    assert kept("a<thi", [*b"a", think], "stop", "nk") == (list(b"a"), "<thi")


def test_turns_after_the_one_that_goes_on_are_dropped() -> None:
    def answered(before: Conversation | None, turn: Turn | None, number: int) -> Conversation:
        answer = CompletionOutput(0, "x", [7], finish_reason="length")
        digests = [bytes([i]) for i in range(2 * number + 1)]
        return continued(before, turn, list(range(number)), answer, digests, TOKENIZER, SamplingParams())

    first = answered(None, None, 1)
    second = answered(first, first.turns[0], 2)
    assert [turn.num_messages for turn in second.turns] == [2, 4]
    again = answered(second, second.turns[0], 2)
    assert [turn.num_messages for turn in again.turns] == [2, 4]
    anew = answered(second, None, 3)
    assert [turn.num_messages for turn in anew.turns] == [6]
    assert anew.num_bytes == 4 * 4 + 200
    assert Conversation(array("i"), ()).latest_turn([b"x"]) is None
