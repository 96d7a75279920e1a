"""Gemma's tool calls."""

from __future__ import annotations

import json

import pytest

from leafage.server.tools.gemma import GemmaParser, read_calls
from leafage.server.tools.message import Message
from tests.server.tools.reading import Call, calls, deltas, parser, prefixes_sent

NAMES = ["get_weather", "get_time"]
PARIS = '{"city": "Paris"}'
PYTHON = 'get_weather(city="Paris")'
JSON = f'{{"name": "get_weather", "parameters": {PARIS}}}'
ONE: list[Call] = [("get_weather", PARIS)]


def read(text: str) -> Message:
    message = parser(GemmaParser, NAMES).parse(text)
    assert message == Message.of(deltas(parser(GemmaParser, NAMES), text))
    return message


@pytest.mark.parametrize(
    ("text", "content", "expected"),
    [
        (f"[{PYTHON}]", "", ONE),
        (f"\n[{PYTHON}, get_time()]\n", "", [*ONE, ("get_time", "{}")]),
        (JSON, "", ONE),
        (f"[{JSON}, {JSON}]", "", ONE * 2),
        (f"```tool_code\n{PYTHON}\n```", "", ONE),
        (f"```tool_code\n[{PYTHON}]\n```\n", "", ONE),
        (f"```tool_code\n{PYTHON}\nget_time()\n```", "", [*ONE, ("get_time", "{}")]),
        (f"```json\n{JSON}\n```", "", ONE),
        (f"```json\n[{JSON}]\n```", "", ONE),
        (f"I look.\n```tool_code\n{PYTHON}\n```\nThen.", "I look.\n\nThen.", ONE),
        (f"```tool_code\n{PYTHON}", "", ONE),
        ('[get_time(a=[1, -2.5, None, True], b={"c": \'d"\'}, e=(1,), f=false)]', "",
         [("get_time", '{"a": [1, -2.5, null, true], "b": {"c": "d\\""}, "e": [1], "f": false}')]),
        ('[get_time(a="""x ``` [ ") \n\\""" y""", b="", c=\'it"s\')] z', " z",
         [("get_time", '{"a": "x ``` [ \\") \\n\\"\\"\\" y", "b": "", "c": "it\\"s"}')]),
        ("```tool_code\nget_time(a='```')\n```", "", [("get_time", '{"a": "```"}')]),
        ('{"name": "get_time", "parameters": {"a": "}"}} tail', " tail", [("get_time", '{"a": "}"}')]),
    ],
)  # fmt: skip
def test_calls(text: str, content: str, expected: list[Call]) -> None:
    message = read(text)
    assert (message.content, calls(message)) == (content, expected)
    assert all(isinstance(json.loads(one.arguments), dict) for one in message.tool_calls)


@pytest.mark.parametrize(
    "text",
    [
        "[other(a=1)]",
        f"[{PYTHON}, other()]",
        f"See: [{PYTHON}]",
        "[get_weather('Paris')]",
        "[get_weather(**x)]",
        "[get_weather(city=find())]",
        "[get_weather(city={1: 2})]",
        "[get_weather(city={1, 2})]",
        "[get_weather(city=1e999)]",
        "[get_weather(city='\\ud800')]",
        "[get_weather(city=b'x')]",
        "[get_weather(city=)]",
        '[get_weather(city="Par',
        "get_weather(city=1)",
        '{"name": "get_weather"}',
        '{"name": "other", "parameters": {}}',
        '{"city": "Paris"}',
        f"```python\n{PYTHON}\n```",
        "```tool_code\nprint(1)\n```",
        "```tool_code\nget_weather = 1\n```",
        '```json\n{"answer": 1}\n```',
        "```",
        "``` `` ```tool_cod",
        "[1, 2]",
        "[",
    ],
)
def test_what_is_no_call_stays_content(text: str) -> None:
    message = read(text)
    assert (message.content, message.tool_calls) == (text, [])


def test_deep_nesting_is_refused() -> None:
    for inside in ("(" * 5000, "[" * 100_000, "-" * 100_000):
        assert read_calls(f"get_time(a={inside}", NAMES) is None
    deep = "[" * 3000 + "]" * 3000
    assert read_calls(f"get_time(a={deep})", NAMES) is None
    assert read_calls(f'{{"name": "get_time", "parameters": {{"a": {"[" * 100_000}', NAMES) is None


def test_code_that_is_no_call_is_sent_as_it_comes() -> None:
    text = '```python\nx = [get_weather]\n```\n```json\n{"answer": 1}\n```'
    for came, sent in prefixes_sent(parser(GemmaParser, NAMES), text):
        held = came.removeprefix(sent)
        assert came.startswith(sent) and len(held.strip()) <= len("```json\n{") + 1


def test_no_listed_function() -> None:
    message = parser(GemmaParser, []).parse("[f()]")
    assert message.content == "[f()]" and not message.tool_calls
