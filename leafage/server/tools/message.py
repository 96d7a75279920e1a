"""What an assistant's message is made of: reasoning, content and tool calls, whole and in deltas."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


def new_call_id() -> str:
    """A fresh id of a tool call."""
    return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """What is new of one tool call.

    Attributes:
        index: the call's number within the message.
        arguments: the next characters of its arguments, which together are a JSON object.
        id, name: on the first delta of the call, None on the others.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None

    def to_json(self) -> dict[str, Any]:
        """In the shape of OpenAI's `choices[].delta.tool_calls[]`."""
        if self.id is None:
            return {"index": self.index, "function": {"arguments": self.arguments}}
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": self.index, "id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class MessageDelta:
    """What is new of a message; false when nothing is."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.tool_calls)

    def __add__(self, later: MessageDelta) -> MessageDelta:
        return MessageDelta(
            self.reasoning + later.reasoning,
            self.content + later.content,
            self.tool_calls + later.tool_calls,
        )

    def to_json(self) -> list[dict[str, Any]]:
        """In the shape of OpenAI's `choices[].delta`, one after the other, each with one new thing."""
        found: list[dict[str, Any]] = []
        if self.reasoning:
            found.append({"reasoning_content": self.reasoning})
        if self.content:
            found.append({"content": self.content})
        return found + [{"tool_calls": [call.to_json()]} for call in self.tool_calls]


@dataclass(slots=True)
class ToolCall:
    """A call of a function. `arguments` is text: a JSON object, unless the model broke off or erred late."""

    id: str
    name: str
    arguments: str = ""

    def to_json(self) -> dict[str, Any]:
        """In the shape of OpenAI's `message.tool_calls[]`."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class Message:
    """A whole message: its deltas, concatenated."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    @classmethod
    def of(cls, deltas: Iterable[MessageDelta]) -> Message:
        """The message that a client puts together from these deltas."""
        message = cls()
        for delta in deltas:
            message.reasoning += delta.reasoning
            message.content += delta.content
            for new in delta.tool_calls:
                if new.id is not None and new.name is not None:
                    message.tool_calls.append(ToolCall(new.id, new.name))
                message.tool_calls[new.index].arguments += new.arguments
        return message

    def to_json(self) -> dict[str, Any]:
        """In the shape of OpenAI's `choices[].message`; `content` is null where other parts stand for it."""
        content = self.content if self.content or not (self.tool_calls or self.reasoning) else None
        found: dict[str, Any] = {"role": "assistant", "content": content}
        if self.reasoning:
            found["reasoning_content"] = self.reasoning
        if self.tool_calls:
            found["tool_calls"] = [call.to_json() for call in self.tool_calls]
        return found


class DeltaCollector:
    """Gathers what parsers find between two deltas.

    Args:
        max_calls: later calls are left out; None: no limit.
        new_id: makes the ids of calls.
    """

    def __init__(self, *, max_calls: int | None = None, new_id: Callable[[], str] = new_call_id) -> None:
        self._max_calls = max_calls
        self._new_id = new_id
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCallDelta] = []
        self.num_calls = 0

    def reasoning(self, text: str) -> None:
        self._reasoning.append(text)

    def content(self, text: str) -> None:
        self._content.append(text)

    def begin_call(self, name: str) -> None:
        self.num_calls += 1
        if self._is_wanted:
            self._calls.append(ToolCallDelta(self.num_calls - 1, id=self._new_id(), name=name))

    def arguments(self, text: str) -> None:
        """The next of the latest call's arguments."""
        if text and self._is_wanted:
            self._calls.append(ToolCallDelta(self.num_calls - 1, text))

    def take(self) -> MessageDelta:
        """What came since the last time."""
        delta = MessageDelta("".join(self._reasoning), "".join(self._content), tuple(self._calls))
        self._reasoning, self._content, self._calls = [], [], []
        return delta

    @property
    def _is_wanted(self) -> bool:
        return self._max_calls is None or self.num_calls <= self._max_calls
