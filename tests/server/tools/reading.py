"""Reading answers in tests: whole, and in pieces."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from leafage.server.tools.message import Message, MessageDelta
from leafage.server.tools.stream import MessageParser

Call = tuple[str, str]
"""Name and arguments."""


def parser(*args: Any, **settings: Any) -> MessageParser:
    """One whose calls are named call_0, call_1..."""
    numbers = itertools.count()
    return MessageParser(*args, new_id=lambda: f"call_{next(numbers)}", **settings)


def deltas(parser: MessageParser, pieces: Sequence[str]) -> list[MessageDelta]:
    """What a client gets."""
    return [*(parser.push(piece) for piece in pieces), parser.finish()]


def calls(message: Message) -> list[Call]:
    return [(call.name, call.arguments) for call in message.tool_calls]


def splits(text: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, list[str]]]:
    """A text and one of the ways to cut it into pieces."""

    def cut(whole: str) -> st.SearchStrategy[tuple[str, list[str]]]:
        cuts = st.sets(st.integers(1, max(1, len(whole) - 1)), max_size=12)
        return cuts.map(
            lambda chosen: (
                whole,
                [whole[a:b] for a, b in itertools.pairwise([0, *sorted(chosen), len(whole)])],
            )
        )

    return text.flatmap(cut)


def prefixes_sent(parser: MessageParser, text: str) -> list[tuple[str, str]]:
    """After each character: the text that came so far, and the content that was sent."""
    sent = ""
    found = []
    for i, char in enumerate(text):
        sent += parser.push(char).content
        found.append((text[: i + 1], sent))
    return found
