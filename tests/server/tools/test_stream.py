"""Messages from answers, in any pieces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafage.server.tools.choose import PARSERS
from leafage.server.tools.message import Message
from leafage.server.tools.stream import MessageParser
from tests.server.tools.reading import calls, deltas, parser, splits

NAMES = ["f", "get_weather"]
LONG = '{"name": "f", "arguments": {"x": "' + "y" * 300
PIECES = [
    *("<tool_call>", "</tool_call>", "<tool", "_call>", "<|python_tag|>", "<|py", ";", "</"),
    *("```", "`", "tool_code\n", "json\n", "[", "]", "(", ")", "{", "}", '"', "'", '"""', "\\", ",", ":"),
    *('{"name": "f", "arguments": {"x": 1}}', '{"name": "other", "parameters": {}}', LONG, '"}}', '"name"'),
    *('{"name": "get_weather"', ', "parameters": {', "[f(x=1)]", "get_weather(city='é')", "f(", "x=", "1"),
    *("[TOOL_CALLS]", "[TOOL_", "[ARGS]", "[CALL_ID]", "f[ARGS]{}", "<|tool_call|>", " [", "[{", "}]"),
    *("<function=f>", "<function=other>", "</function>", "<parameter=x>", "</parameter>", "<func"),
    *("<think>", "</think>", "<thi", "nk>", " ", "\n", "word", "é", "null"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


@settings(max_examples=400, deadline=None)
@given(splits(TEXTS), st.sampled_from([*PARSERS]), st.booleans(), st.booleans(), st.sampled_from([None, 1]))
def test_g14_concatenated_deltas_are_the_message(
    case: tuple[str, list[str]], name: str, splits_reasoning: bool, is_open: bool, max_calls: int | None
) -> None:
    text, pieces = case

    def new() -> MessageParser:
        return parser(
            PARSERS[name],
            NAMES,
            splits_reasoning=splits_reasoning,
            starts_in_reasoning=is_open,
            max_calls=max_calls,
        )

    whole = new().parse(text)
    assert Message.of(deltas(new(), pieces)) == whole
    assert Message.of(deltas(new(), text)) == whole
    if not whole.tool_calls and not splits_reasoning:
        assert whole.content == text
    assert [call.id for call in whole.tool_calls] == [f"call_{i}" for i in range(len(whole.tool_calls))]


TRANSCRIPT = (
    "<think>\nThe user wants <tool_call> no, the weather.\n</think>\n\nLet me look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
)


def test_reasoning_then_content_then_calls() -> None:
    found = parser(PARSERS["hermes"], NAMES, splits_reasoning=True)
    message = found.parse(TRANSCRIPT)
    assert message.to_json() == {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "The user wants <tool_call> no, the weather.",
        "tool_calls": [
            {
                "id": "call_0",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    }
    assert found.finish_reason("stop") == "tool_calls"
    assert found.finish_reason("length") == "length" and found.finish_reason(None) is None


def test_without_calls_the_finish_reason_is_the_engines() -> None:
    found = parser(PARSERS["hermes"], NAMES)
    found.parse("<tool_call>no</tool_call>")
    assert not found.has_calls and found.finish_reason("stop") == "stop"


@pytest.mark.parametrize(
    ("text", "content"), [("", ""), ("<tool_call>{}", "<tool_call>{}"), (" a \n", " a \n")]
)
def test_an_answer_that_nothing_is_looked_for_in(text: str, content: str) -> None:
    assert MessageParser().parse(text).to_json() == {"role": "assistant", "content": content}


def test_content_is_null_where_only_other_parts_are_there() -> None:
    thinking = parser(splits_reasoning=True).parse("<think>it never ends")
    assert thinking.to_json() == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "it never ends",
    }
    calling: Any = parser(PARSERS["gemma"], NAMES).parse("[f()]").to_json()
    assert calling["content"] is None and len(calling["tool_calls"]) == 1


def test_ids_are_fresh() -> None:
    message = MessageParser(PARSERS["gemma"], NAMES).parse("[f(), f()]")
    first, second = (call.id for call in message.tool_calls)
    assert first != second and first.startswith("call_") and len(first) == len("call_") + 24
    assert calls(message) == [("f", "{}")] * 2
