"""Qwen3-Coder's tool calls."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from leafage.server.tools.message import Message
from leafage.server.tools.qwen3_coder import Qwen3CoderParser
from tests.server.tools.reading import calls, deltas, parser, prefixes_sent

SCHEMAS: dict[str, Any] = {
    "find": {
        "properties": {
            "text": {"type": "string"},
            "days": {"type": "integer"},
            "deep": {"type": ["boolean", "null"]},
            "limit": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "where": {"type": "array"},
            "any": {},
        }
    },
    "now": None,
}


def call(function: str, /, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<function={function}>\n{parameters}</function>"


def tagged(function: str, /, **values: str) -> str:
    return f"<tool_call>\n{call(function, **values)}\n</tool_call>"


def read(text: str) -> Message:
    message = parser(Qwen3CoderParser, SCHEMAS).parse(text)
    assert message == Message.of(deltas(parser(Qwen3CoderParser, SCHEMAS), text))
    return message


def read_in_pieces(text: str, size: int) -> Message:
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    return Message.of(deltas(parser(Qwen3CoderParser, SCHEMAS), pieces))


@pytest.mark.parametrize(
    ("text", "content", "expected"),
    [
        (tagged("find", text="Köln"), "", [("find", {"text": "Köln"})]),
        (f"I look.\n{tagged('now')}\n{tagged('now')}\n", "I look.", [("now", {})] * 2),
        (tagged("other", a="1"), "", [("other", {"a": 1})]),
        (f"So:\n{call('now')}\n</tool_call> Done.", "So: Done.", [("now", {})]),
        (call("now"), "", [("now", {})]),
        (f"{call('now')}\n", "", [("now", {})]),
        (f"<tool_call>\n{call('now')}", "", [("now", {})]),
        (f"a <tool_call> b\n{call('now')}", "a <tool_call> b", [("now", {})]),
    ],
)
def test_calls(text: str, content: str, expected: list[tuple[str, Any]]) -> None:
    message = read(text)
    assert "".join(message.content.split()) == "".join(content.split())
    assert [(name, json.loads(arguments)) for name, arguments in calls(message)] == expected


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("text", "3", "3"),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("text", "two\n\n  lines", "two\n\n  lines"),
        ("text", 'if a < b: "x"', 'if a < b: "x"'),
        ("text", "null", "null"),
        ("days", "3", 3),
        ("days", " three", " three"),
        ("days", "NaN", "NaN"),
        ("deep", "True", True),
        ("deep", "None", None),
        ("limit", "1.5", 1.5),
        ("name", "null", None),
        ("name", "5", "5"),
        ("where", '["a", 1]', ["a", 1]),
        ("any", "true", True),
        ("any", "word", "word"),
        ("unknown", "7", 7),
        ("where", "[" * 100_000, "[" * 100_000),
    ],
)
def test_values_are_what_the_schema_says(key: str, value: str, expected: Any) -> None:
    message = parser(Qwen3CoderParser, SCHEMAS).parse(tagged("find", **{key: value}))
    assert json.loads(message.tool_calls[0].arguments) == {key: expected}


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>',
        call("other"),
        "<tool_call>\n<function=find>\n<parameter=text>\nKö",
        "<tool_call>\n<function=find>\nno parameter\n</function>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<function=now",
        "a <tool_c",
    ],
)
def test_what_is_no_call_stays_content(text: str) -> None:
    message = read(text)
    assert (message.content, message.tool_calls) == (text, [])


def test_only_what_may_be_a_marker_is_held_back() -> None:
    for text in ("x < y <tool> and <func> more", "a <tool_call> is a tag, and more"):
        for came, sent in prefixes_sent(parser(Qwen3CoderParser, SCHEMAS), text):
            assert len(came) - len(sent) <= len(" <tool_call> ")


def test_whitespace_and_tags_without_end_cost_no_time() -> None:
    for text in (tagged("find", text=" \n" * 100_000)[:-20], "<tool_call><function=" * 5_000):
        start = time.perf_counter()
        assert read_in_pieces(text, 1000).content == text
        assert time.perf_counter() - start < 2
