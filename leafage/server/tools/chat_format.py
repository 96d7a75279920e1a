"""How one model's conversations are written into a prompt, and how its answers are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leafage.errors import TemplateError, UnsupportedError
from leafage.server.tools.choose import PARSERS, choose_reasoning, choose_tool_parser
from leafage.server.tools.hermes_template import write_tools
from leafage.server.tools.reasoning import THINK_CLOSE, THINK_OPEN, opens_reasoning
from leafage.server.tools.request import ToolUse
from leafage.server.tools.stream import MessageParser
from leafage.text.chat_template import ChatTemplate, Message
from leafage.text.tokenizer import Tokenizer

_NUM_END_TOKENS = 16
"""Enough for the tag that opens the reasoning and whitespace, where they are no tokens of their own."""

_PROBE_TOOL = {
    "type": "function",
    "function": {"name": "probe_name", "description": "", "parameters": {"type": "object", "properties": {}}},
}
_PROBE_QUESTION = {"role": "user", "content": "probe_question"}
_PROBE_CALL: dict[str, Any] = {
    "role": "assistant",
    "tool_calls": [
        {"id": "probe0001", "type": "function", "function": {"name": "probe_call", "arguments": {}}}
    ],
}
_PROBE_RESULT = {"role": "tool", "tool_call_id": "probe0001", "name": "probe_call", "content": "probe_result"}


class ChatFormat:
    """Tools and reasoning of the model that is served. Threads may share it.

    Args:
        template: the model's chat template.
        tool_parser: a name of `choose.TOOL_PARSERS`.
        reasoning_parser: a name of `choose.REASONING_PARSERS`.
        tool_template: a name of `choose.TOOL_TEMPLATES`: what writes tools, calls and results into the
            prompt, the 'model's chat template, or 'hermes', which puts them into messages for any template.

    Attributes:
        template: as given.
        tool_parser: of the model's calls, or None.
        splits_reasoning: whether answers are searched for reasoning.
        renders_tools, renders_calls: whether functions, and calls with their results, reach the prompt.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
        tool_template: str = "model",
    ) -> None:
        self._tokenizer = tokenizer
        self.template = template
        self._writes_hermes = tool_template == "hermes"
        if self._writes_hermes and tool_parser == "auto":
            tool_parser = "hermes"
        self.tool_parser = choose_tool_parser(tool_parser, template.source)
        self.splits_reasoning = choose_reasoning(reasoning_parser, template.source)
        self.renders_tools = self._writes_hermes or _renders_tools(template)
        self._no_content = "" if _renders_calls(template, "") else None
        self.renders_calls = self._writes_hermes or _renders_calls(template, self._no_content)

    def write(
        self, messages: Sequence[Message], tools: ToolUse
    ) -> tuple[list[Message], Sequence[Mapping[str, Any]] | None]:
        """What to render of a conversation: messages and tools, for `encode_chat` and its like.

        Raises:
            UnsupportedError: tools, or calls in the messages, that would not reach the model.
            InvalidParameterError: a call in the messages is malformed.
        """
        self._check(messages, tools)
        if self._writes_hermes:
            return [*write_tools(messages, tools.definitions)], None
        return [self._with_content(message) for message in messages], tools.definitions or None

    def new_parser(self, tools: ToolUse, prompt_token_ids: Sequence[int]) -> MessageParser:
        """For one answer to this prompt."""
        starts_in_reasoning = False
        if self.splits_reasoning:
            end = self._tokenizer.decode(prompt_token_ids[-_NUM_END_TOKENS:], skip_special_tokens=False)
            starts_in_reasoning = opens_reasoning(end)
        return MessageParser(
            self.tool_parser if tools.definitions else None,
            tools.schemas,
            splits_reasoning=self.splits_reasoning,
            starts_in_reasoning=starts_in_reasoning,
            max_calls=tools.max_calls,
        )

    def needs_special_tokens(self, tools: ToolUse) -> bool:
        """Whether what the parser looks for are control tokens of the model: then answers are needed with
        `skip_special_tokens` off."""
        markers: tuple[str, ...] = (THINK_OPEN, THINK_CLOSE) if self.splits_reasoning else ()
        if self.tool_parser is not None and tools.definitions:
            markers += self.tool_parser.markers
        return any(self._tokenizer.token_id(marker) is not None for marker in markers)

    def _with_content(self, message: Message) -> Message:
        """Calls alone: some templates join their content to other text, some look whether it is None."""
        if _has_calls(message) and not message.get("content"):
            return {**message, "content": self._no_content}
        return message

    def _check(self, messages: Sequence[Message], tools: ToolUse) -> None:
        remedy = "start the server with --tool-template hermes, or leave it out"
        if tools.definitions and not self.renders_tools:
            raise UnsupportedError("tools: the model's chat template has no tool support", remedy=remedy)
        if not self.renders_calls and any(_has_calls(message) for message in messages):
            raise UnsupportedError(
                "tool_calls: the model's chat template does not write calls and their results", remedy=remedy
            )
        if tools.definitions and self.tool_parser is None:
            raise UnsupportedError(
                "tools: the server has no parser for the calls of this model",
                limit=", ".join(PARSERS),
                remedy="start it with --tool-parser, or leave out tools",
            )


def _has_calls(message: Any) -> bool:
    return isinstance(message, dict) and bool(message.get("tool_calls"))


def _renders_tools(template: ChatTemplate) -> bool:
    """A template that fails on the probe is left to speak for itself when a request comes."""
    try:
        without = template.render([_PROBE_QUESTION])
        return template.render([_PROBE_QUESTION], tools=[_PROBE_TOOL]) != without
    except TemplateError:
        return True


def _renders_calls(template: ChatTemplate, no_content: str | None) -> bool:
    """Calls, in a message with that for content, and results."""
    call = {**_PROBE_CALL, "content": no_content}
    try:
        text = template.render([_PROBE_QUESTION, call, _PROBE_RESULT], tools=[_PROBE_TOOL])
    except TemplateError:
        return False
    return "probe_call" in text and "probe_result" in text
