"""Llama 3's tool calls."""

from __future__ import annotations

import json

import pytest

from leafage.server.tools.json_calls import MAX_HELD_CHARS
from leafage.server.tools.llama3 import Llama3Parser
from leafage.server.tools.message import Message
from tests.server.tools.reading import Call, calls, deltas, parser, prefixes_sent

NAMES = ["get_weather", "get_time"]
PARIS = '{"city": "Paris"}'
WEATHER = f'{{"name": "get_weather", "parameters": {PARIS}}}'
TIME = '{"type": "function", "name": "get_time", "parameters": {}}'
OTHER = '{"name": "other", "parameters": {}}'


def read(text: str) -> Message:
    message = parser(Llama3Parser, NAMES).parse(text)
    assert message == Message.of(deltas(parser(Llama3Parser, NAMES), text))
    return message


@pytest.mark.parametrize(
    ("text", "content", "expected"),
    [
        (WEATHER, "", [("get_weather", PARIS)]),
        (f"\n\n{WEATHER}\n", "", [("get_weather", PARIS)]),
        (f"{WEATHER}; {TIME}", "", [("get_weather", PARIS), ("get_time", "{}")]),
        (f"{WEATHER};{WEATHER};\n{TIME};", "", [("get_weather", PARIS)] * 2 + [("get_time", "{}")]),
        (f"<|python_tag|>{WEATHER}", "", [("get_weather", PARIS)]),
        (f"<|python_tag|>{OTHER}; {WEATHER}", "", [("other", "{}"), ("get_weather", PARIS)]),
        (f"<|python_tag|>{WEATHER}; <|python_tag|>{TIME}", "", [("get_weather", PARIS), ("get_time", "{}")]),
        (f"I look. <|python_tag|>{WEATHER}", "I look.", [("get_weather", PARIS)]),
        (f"{WEATHER} Done.", " Done.", [("get_weather", PARIS)]),
        (f"{WEATHER}; {OTHER}", "; " + OTHER, [("get_weather", PARIS)]),
        (f"{WEATHER}; and more", "; and more", [("get_weather", PARIS)]),
        ('{"name": "get_time", "arguments": {"a": 1}}', "", [("get_time", '{"a": 1}')]),
    ],
)
def test_calls(text: str, content: str, expected: list[Call]) -> None:
    message = read(text)
    assert (message.content, calls(message)) == (content, expected)
    assert all(isinstance(json.loads(one.arguments), dict) for one in message.tool_calls)


@pytest.mark.parametrize(
    "text",
    [
        OTHER,
        '{"name": "get_weather"}',
        '{"parameters": {}, "name": "get_weather"}',
        '{"name": "get_weather", "parameters": {"city": "Par',
        f"See: {WEATHER}",
        '<|python_tag|>brave_search.call(query="weather")',
        "<|python",
        '{"answer": [1, 2]} ',
    ],
)
def test_what_is_no_call_stays_content(text: str) -> None:
    message = read(text)
    assert (message.content, message.tool_calls) == (text, [])


def test_an_answer_in_json_is_sent_as_it_comes() -> None:
    text = '{"answer": "' + "x" * 50 + '"}'
    for came, sent in prefixes_sent(parser(Llama3Parser, NAMES), text):
        assert sent == came or len(came) <= len('{"answer": "')
    text = '{"name": "Alice", "age": 5}'
    for came, sent in prefixes_sent(parser(Llama3Parser, NAMES), text):
        assert sent.strip() == came.strip() or len(came) <= len('{"name": "Alice"')


def test_a_long_call_is_sent_as_it_comes() -> None:
    arguments = '{"text": "' + "x" * (2 * MAX_HELD_CHARS) + '"}'
    text = f'{{"name": "get_time", "parameters": {arguments}}}; {WEATHER}'
    found = deltas(parser(Llama3Parser, NAMES), text)
    message = Message.of(found)
    assert calls(message) == [("get_time", arguments), ("get_weather", PARIS)] and message.content == ""
    assert sum(1 for delta in found if delta.tool_calls) > MAX_HELD_CHARS
