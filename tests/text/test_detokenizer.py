"""Incremental decoding: never half a character, and the same text as decoding at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafage.text.detokenizer import Detokenizer, PieceTable

FAMILY = "👨\u200d👩\u200d👧\u200d👦"  # four people joined by zero-width joiners
SAMPLES = ["삼겹살", "😊", "🇰🇷🇫🇷", FAMILY, "naïve café", "日本語", "e\u0301", "a\u0000b"]


def byte_pieces() -> PieceTable:
    """Ids 0 to 255 are single bytes, the hardest case; 256 is a word with a space, 257 is empty."""
    return PieceTable(258, lambda i: bytes([i]) if i < 256 else b" word" if i == 256 else b"")


@pytest.mark.parametrize("text", SAMPLES)
def test_s06_no_half_characters(text: str) -> None:
    stream = Detokenizer(byte_pieces(), frozenset())
    pushed = [stream.push(byte) for byte in text.encode()]
    assert "".join(pushed) + stream.flush() == text
    assert "\ufffd" not in "".join(pushed)
    # every push ends on a character, and each character appears as soon as its last byte is there
    assert [p for p in pushed if p] == list(text)


@given(st.lists(st.integers(0, 260), max_size=60), st.booleans())
def test_stream_equals_decoding_at_once(ids: list[int], strip: bool) -> None:
    pieces = byte_pieces()
    data = b"".join(pieces.bytes_of(i) for i in ids if i != 65)
    if strip and data[:1] == b" ":
        data = data[1:]
    stream = Detokenizer(pieces, frozenset([65]), strip_space=strip)
    assert stream.push_all(ids) + stream.flush() == data.decode(errors="replace")


@given(st.binary(max_size=40), st.integers(0, 40))
def test_copy_goes_on_alone(data: bytes, at: int) -> None:
    stream = Detokenizer(byte_pieces(), frozenset())
    start = stream.push_all(list(data[:at]))
    twin = stream.copy()
    stream.push_all(list("другое".encode()))
    assert start + twin.push_all(list(data[at:])) + twin.flush() == data.decode(errors="replace")


def test_a_character_that_never_completes_is_replaced_when_its_end_is_known() -> None:
    stream = Detokenizer(byte_pieces(), frozenset())
    assert [stream.push(byte) for byte in b"\xe2\x82"] == ["", ""]
    assert stream.push(ord("A")) == "\ufffdA"
    assert stream.push(0xF0) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_ids_outside_the_vocabulary_leave_no_text() -> None:
    stream = Detokenizer(byte_pieces(), frozenset())
    assert [stream.push(i) for i in (-1, 258, 10**6, 256)] == ["", "", "", " word"]


def test_only_the_first_space_is_stripped() -> None:
    stream = Detokenizer(byte_pieces(), frozenset(), strip_space=True)
    assert stream.push_all([257, 256, 256]) == "word word"
