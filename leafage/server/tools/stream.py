"""An answer's text to the parts of a message, as it comes: reasoning, then content and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Collection

from leafage.server.tools.message import DeltaCollector, Message, MessageDelta, new_call_id
from leafage.server.tools.parser import ToolParser
from leafage.server.tools.reasoning import ReasoningSplitter


class MessageParser:
    """Parses the text of one answer.

    The deltas, put together, are the same however the text was split, so that a streamed message is the one
    that would have come whole. Inside the reasoning nothing is a tool call.

    Args:
        tool_parser: reads the model's tool calls; None: none are looked for.
        names: the functions that the request listed, for the tool parser.
        splits_reasoning: whether the model thinks inside tags.
        starts_in_reasoning: the prompt ends inside the opened tag.
        max_calls: later calls are left out; None: no limit.
        new_id: makes the ids of calls; None: as the tool parser does.
    """

    def __init__(
        self,
        tool_parser: type[ToolParser] | None = None,
        names: Collection[str] = (),
        *,
        splits_reasoning: bool = False,
        starts_in_reasoning: bool = False,
        max_calls: int | None = None,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        if new_id is None:
            new_id = new_call_id if tool_parser is None else tool_parser.new_id
        self._out = DeltaCollector(max_calls=max_calls, new_id=new_id)
        self._tools = tool_parser(names, self._out) if tool_parser is not None else None
        self.splits_reasoning = splits_reasoning
        self.starts_in_reasoning = starts_in_reasoning
        self._splitter = ReasoningSplitter(is_open=starts_in_reasoning) if splits_reasoning else None

    @property
    def is_plain(self) -> bool:
        """Whether the message is the text as it is."""
        return self._tools is None and self._splitter is None

    @property
    def has_calls(self) -> bool:
        """Whether a call was sent."""
        return self._out.num_calls > 0

    def push(self, text: str) -> MessageDelta:
        """What the next characters of the answer add to the message."""
        if self._splitter is not None:
            reasoning, text = self._splitter.push(text)
            self._out.reasoning(reasoning)
        self._push_answer(text)
        return self._out.take()

    def finish(self) -> MessageDelta:
        """What the end of the answer adds to the message."""
        if self._splitter is not None:
            reasoning, text = self._splitter.finish()
            self._out.reasoning(reasoning)
            self._push_answer(text)
        if self._tools is not None:
            self._tools.finish()
        return self._out.take()

    def parse(self, text: str) -> Message:
        """The message of a whole answer."""
        return Message.of((self.push(text), self.finish()))

    def finish_reason(self, reason: str | None) -> str | None:
        """OpenAI's, from the engine's: an answer with calls that ended by itself ended for their sake."""
        return "tool_calls" if reason == "stop" and self.has_calls else reason

    def _push_answer(self, text: str) -> None:
        if self._tools is None:
            self._out.content(text)
        elif text:
            self._tools.push(text)
