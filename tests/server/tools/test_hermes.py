"""Hermes' and Qwen's tool calls."""

from __future__ import annotations

import json

import pytest

from leafage.server.tools.hermes import HermesParser
from leafage.server.tools.json_calls import MAX_HELD_CHARS
from leafage.server.tools.message import Message
from tests.server.tools.reading import Call, calls, deltas, parser, prefixes_sent

NAMES = ["get_weather", "get_time"]
PARIS = '{"city": "Paris"}'


def read(text: str, **settings: int) -> Message:
    message = parser(HermesParser, NAMES, **settings).parse(text)
    assert message == Message.of(deltas(parser(HermesParser, NAMES, **settings), text))
    return message


def call(arguments: str = PARIS, name: str = "get_weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "content", "expected"),
    [
        (call(), "", [("get_weather", PARIS)]),
        (f"I will look.\n{call()}", "I will look.", [("get_weather", PARIS)]),
        (f"{call()}\n{call('{}', 'get_time')}", "", [("get_weather", PARIS), ("get_time", "{}")]),
        (f"{call()}{call()}", "", [("get_weather", PARIS), ("get_weather", PARIS)]),
        (f"One.\n{call()}\nTwo.\n", "One.\n\nTwo.", [("get_weather", PARIS)]),
        ('<tool_call>{"arguments": {"a": [1, {"b": null}]}, "name": "f"}</tool_call>', "",
         [("f", '{"a": [1, {"b": null}]}')]),
        (call(name="not_listed"), "", [("not_listed", PARIS)]),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>', "", [("f", '{"x": 1}')]),
        ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("f", '{"x": 1}')]),
        ('<tool_call>{"name": "f", "arguments": ""}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"id": 7, "name": "caf\\u00e9", "arguments": {}}</tool_call>', "", [("café", "{}")]),
        (call('{"text": "</tool_call> \\" }"}'), "", [("get_weather", '{"text": "</tool_call> \\" }"}')]),
        (call('{"text": "two\nlines"}'), "", [("get_weather", '{"text": "two\\nlines"}')]),
        (call().removesuffix("\n</tool_call>"), "", [("get_weather", PARIS)]),
    ],
)  # fmt: skip
def test_calls(text: str, content: str, expected: list[Call]) -> None:
    message = read(text)
    assert (message.content, calls(message)) == (content, expected)
    assert all(isinstance(json.loads(one.arguments), dict) for one in message.tool_calls)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nno JSON\n</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>',
        "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "paris"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}, "name": "g"}</tool_call>',
        '<tool_call>[{"name": "f", "arguments": {}}]</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"city": "Par',
        "<tool_call>",
        "<tool_call",
        "An answer about <tool_call> and </tool_call>. \n",
        " \n",
        "",
    ],
)
def test_what_is_no_call_stays_content(text: str) -> None:
    message = read(text)
    assert (message.content, message.tool_calls) == (text, [])


def test_a_call_after_one_that_is_none() -> None:
    message = read(f"<tool_call>oops</tool_call>\n{call()}")
    assert message.content == "<tool_call>oops</tool_call>" and calls(message) == [("get_weather", PARIS)]
    message = read(f'<tool_call>{{"name": {call()}')
    assert message.content == '<tool_call>{"name":' and calls(message) == [("get_weather", PARIS)]


def test_only_what_may_be_a_marker_is_held_back() -> None:
    for came, sent in prefixes_sent(parser(HermesParser, NAMES), "1 < 2 <tool> <tool_calls> a b"):
        held = came.removeprefix(sent)
        assert came.startswith(sent) and "<tool_call>".startswith(held.strip())
    for came, sent in prefixes_sent(parser(HermesParser, NAMES), f"Let me look. {call()}"):
        assert "Let me look.".startswith(sent) and len(sent) >= min(len(came), 12) - 1


def test_deltas_are_openais() -> None:
    """The first of a call has its id, type and name, the others its arguments. A short call is sent when it
    is whole, so that nothing is sent that turns out to be none."""
    found = deltas(parser(HermesParser, NAMES), f"Hm.{call()}{call('{}')}")
    name = "get_weather"
    assert [one for delta in found for one in delta.to_json()] == [
        {"content": "H"},
        {"content": "m"},
        {"content": "."},
        *[
            {"tool_calls": [one]}
            for one in (
                {"index": 0, "id": "call_0", "type": "function", "function": {"name": name, "arguments": ""}},
                {"index": 0, "function": {"arguments": PARIS}},
                {"index": 1, "id": "call_1", "type": "function", "function": {"name": name, "arguments": ""}},
                {"index": 1, "function": {"arguments": "{}"}},
            )
        ],
    ]


def long_arguments(end: str) -> str:
    return '{"text": "' + "x" * MAX_HELD_CHARS + " " + end


def test_long_arguments_are_sent_as_they_come() -> None:
    arguments = long_arguments('and more", "n": [1, 2]}')
    found = deltas(parser(HermesParser, NAMES), call(arguments))
    pieces = [one.arguments for delta in found for one in delta.tool_calls]
    assert "".join(pieces) == arguments and len(pieces) > 20
    first = next(i for i, delta in enumerate(found) if delta.tool_calls)
    assert first < call(arguments).index(" and more") + 1


def test_a_long_call_that_breaks_keeps_what_the_model_wrote() -> None:
    arguments = long_arguments('"] oops')
    message = read(f"{call(arguments)}\nBack.{call()}")
    assert calls(message) == [("get_weather", f"{arguments}}}\n"), ("get_weather", PARIS)]
    assert message.content == "\nBack."
    cut = read(f'<tool_call>{{"name": "f", "arguments": {long_arguments("")}')
    assert calls(cut) == [("f", long_arguments(""))] and cut.content == ""


def test_a_long_call_whose_arguments_are_whole_is_one() -> None:
    arguments = long_arguments('"}')
    message = read(f'<tool_call>{{"name": "f", "arguments": {arguments} oops')
    assert calls(message) == [("f", arguments)] and message.content == "oops"


def test_calls_beyond_the_limit_are_left_out() -> None:
    message = read(f"a {call()} b {call()} c", max_calls=1)
    assert calls(message) == [("get_weather", PARIS)] and message.content == "a  b  c"
