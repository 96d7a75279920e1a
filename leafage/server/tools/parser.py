"""What the parsers of tool calls have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import ClassVar

from leafage.server.tools.message import DeltaCollector, new_call_id


class ToolParser(ABC):
    """Reads one answer, as it comes, and tells its content and its tool calls to a collector.

    The result depends on the text alone, not on how it was split. No text raises: what is no call stays
    content. Whitespace around calls belongs to neither.

    Args:
        names: the functions that the request listed; as a mapping, with the JSON Schemas of their arguments.
        out: where content and calls go.

    Attributes:
        markers: texts that open a call. Where one is a control token of the model, the answer's text must
            keep its special tokens.
    """

    markers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, names: Collection[str], out: DeltaCollector) -> None:
        self._names = frozenset(names)
        self._out = out
        self._buffer = ""
        self._space = ""
        self._state: Callable[[bool], bool] = self._start

    @staticmethod
    def new_id() -> str:
        """A fresh id of a call, as the model's chat template takes them back."""
        return new_call_id()

    def push(self, text: str) -> None:
        """Go on with the text."""
        self._buffer += text
        self._run(False)

    def finish(self) -> None:
        """The answer has ended."""
        self._run(True)
        if self._out.num_calls == 0:
            self._out.content(self._space)
        self._space = ""

    def _run(self, is_final: bool) -> None:
        while self._state(is_final):
            pass

    @abstractmethod
    def _start(self, is_final: bool) -> bool:
        """The first state. A state is a method that takes what it can of the buffer and sets the next one; it
        returns whether that may go on at once. With `is_final` no more text comes: it must leave nothing."""

    def _content(self, text: str) -> None:
        """Send text, but for whitespace at its end, which a call may follow."""
        body = text.rstrip()
        if body:
            self._out.content(self._space + body)
            self._space = ""
        self._space += text[len(body) :]

    def _take(self, count: int) -> str:
        """Remove the next characters from the buffer."""
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken


def partial_suffix(text: str, marker: str) -> int:
    """Length of the longest end of `text` with which `marker` may begin, short of the whole marker."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0


def is_encodable(text: str) -> bool:
    """Whether it is text: JSON can spell halves of characters, which no answer can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_name(value: object) -> bool:
    """Whether a decoded JSON value can be the name of a function."""
    return isinstance(value, str) and value != "" and is_encodable(value)
