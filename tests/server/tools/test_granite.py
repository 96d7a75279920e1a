"""Granite's tool calls."""

from __future__ import annotations

import pytest

from leafage.server.tools.granite import GraniteParser
from leafage.server.tools.message import Message
from tests.server.tools.reading import Call, calls, deltas, parser

PARIS = '{"city": "Paris"}'
WEATHER = f'{{"name": "get_weather", "arguments": {PARIS}}}'
TIME = '{"name": "get_time", "arguments": {"days": [1]}}'


def read(text: str) -> Message:
    message = parser(GraniteParser, ["get_weather"]).parse(text)
    assert message == Message.of(deltas(parser(GraniteParser, ["get_weather"]), text))
    return message


@pytest.mark.parametrize(
    ("text", "content", "expected"),
    [
        (f"<|tool_call|>[{WEATHER}]", "", [("get_weather", PARIS)]),
        (
            f"<|tool_call|> [ {WEATHER} , {TIME} ]",
            "",
            [("get_weather", PARIS), ("get_time", '{"days": [1]}')],
        ),
        (f"Wait.\n<|tool_call|>[{WEATHER}", "Wait.", [("get_weather", PARIS)]),
        (f"<|tool_call|>{WEATHER}", "", [("get_weather", PARIS)]),
        (f"<|tool_call|>[{WEATHER}, 5]", ", 5]", [("get_weather", PARIS)]),
    ],
)
def test_calls(text: str, content: str, expected: list[Call]) -> None:
    message = read(text)
    assert (message.content, calls(message)) == (content, expected)


@pytest.mark.parametrize(
    "text", [WEATHER, "<|tool_call|>", "<|tool_call|>[]", "<|tool_call|> none", f"<tool_call>{WEATHER}"]
)
def test_what_is_no_call_stays_content(text: str) -> None:
    message = read(text)
    assert (message.content, message.tool_calls) == (text, [])
