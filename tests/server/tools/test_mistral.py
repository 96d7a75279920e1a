"""Mistral's tool calls, in both of its forms."""

from __future__ import annotations

import json
import re

import pytest

from leafage.server.tools.json_calls import MAX_HELD_CHARS
from leafage.server.tools.message import Message
from leafage.server.tools.mistral import MistralParser
from leafage.server.tools.stream import MessageParser
from tests.server.tools.reading import Call, calls, deltas, parser, prefixes_sent

NAMES = ["get_weather"]
PARIS = '{"city": "Paris"}'
WEATHER = f'{{"name": "get_weather", "arguments": {PARIS}}}'
TIME = '{"arguments": {}, "name": "get_time", "id": "abcdefghi"}'


def read(text: str) -> Message:
    message = parser(MistralParser, NAMES).parse(text)
    assert message == Message.of(deltas(parser(MistralParser, NAMES), text))
    return message


@pytest.mark.parametrize(
    ("text", "content", "expected"),
    [
        (f"[TOOL_CALLS] [{WEATHER}]", "", [("get_weather", PARIS)]),
        (f"[TOOL_CALLS][{WEATHER},\n {TIME}]\n", "", [("get_weather", PARIS), ("get_time", "{}")]),
        (f"I look.\n[TOOL_CALLS] [{WEATHER}] Done.", "I look.\n Done.", [("get_weather", PARIS)]),
        (f"[TOOL_CALLS]{WEATHER}", "", [("get_weather", PARIS)]),
        (f"[TOOL_CALLS]{WEATHER}, {TIME}", f", {TIME}", [("get_weather", PARIS)]),
        (f"[TOOL_CALLS]get_weather[ARGS]{PARIS}", "", [("get_weather", PARIS)]),
        (
            f"[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]other.one[ARGS]{{}}",
            "",
            [("get_weather", PARIS), ("other.one", "{}")],
        ),
        (f"[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS] {PARIS}", "", [("get_weather", PARIS)]),
        (f"So: [TOOL_CALLS]get_weather{PARIS}]", "So: ]", [("get_weather", PARIS)]),
    ],
)
def test_calls(text: str, content: str, expected: list[Call]) -> None:
    message = read(text)
    assert (message.content, calls(message)) == (content, expected)
    assert all(isinstance(json.loads(one.arguments), dict) for one in message.tool_calls)


@pytest.mark.parametrize(
    "text",
    [
        WEATHER,
        "[TOOL_CALLS]",
        "[TOOL_CALLS] [",
        "[TOOL_CALLS] []",
        "[TOOL_CALLS] [1, 2]",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Par',
        "[TOOL_CALLS] no function at all",
        "[TOOL_CALLS]get weather[ARGS]{}",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Par',
        "[TOOL_CALLS]get_weather[ARGS]",
        f"[TOOL_CALLS]{'x' * 300}[ARGS]{{}}",
        "see [TOOL_CAL",
    ],
)
def test_what_is_no_call_stays_content(text: str) -> None:
    message = read(text)
    assert (message.content, message.tool_calls) == (text, [])


def test_content_is_sent_as_it_comes() -> None:
    text = "A list [1, 2] and [TOOL] and more"
    for came, sent in prefixes_sent(parser(MistralParser, NAMES), text):
        assert len(came) - len(sent) <= len("[TOOL") + 1


@pytest.mark.parametrize("form", ["[TOOL_CALLS]f[ARGS]%s", '[TOOL_CALLS] [{"name": "f", "arguments": %s}]'])
def test_long_arguments_are_sent_as_they_come(form: str) -> None:
    arguments = '{"text": "' + "x" * (2 * MAX_HELD_CHARS) + '"}'
    found = deltas(parser(MistralParser, NAMES), form % arguments)
    assert calls(Message.of(found)) == [("f", arguments)] and Message.of(found).content == ""
    assert sum(1 for delta in found if delta.tool_calls) > MAX_HELD_CHARS


def test_ids_are_what_its_chat_templates_take() -> None:
    [call] = MessageParser(MistralParser, NAMES).parse(f"[TOOL_CALLS] [{WEATHER}]").tool_calls
    assert re.fullmatch("[A-Za-z0-9]{9}", call.id)
