"""Messages with tools, written for templates that have none."""

from __future__ import annotations

from typing import Any

import pytest

from leafage.errors import InvalidParameterError, UnsupportedError
from leafage.server.tools.hermes_template import write_tools
from tests.server.tools.formats import ARGUMENTS, CALL, RESULT, USER, WEATHER

WRITTEN = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'


def call(arguments: object, **message: Any) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {**CALL, "tool_calls": [{"type": "function", "function": function}], **message}


def test_the_system_message_describes_the_tools() -> None:
    [system, user] = write_tools([USER], [WEATHER, WEATHER])
    assert user == USER and system["role"] == "system"
    tools = system["content"].split("<tools>\n")[1].split("\n</tools>")[0].split("\n")
    assert len(tools) == 2 and all('"name": "get_weather"' in line for line in tools)
    assert (
        '<tool_call>\n{"name": "<name of the function>", "arguments": {<its arguments>}}' in system["content"]
    )
    for role, content in (("system", "Be brief."), ("developer", [{"type": "text", "text": "Be brief."}])):
        [system, user] = write_tools([{"role": role, "content": content}, USER], [WEATHER])
        assert system["role"] == role and system["content"].startswith("Be brief.\n\nYou can call functions")
    assert write_tools([USER], []) == [USER]


def test_calls_and_results_become_text() -> None:
    messages = [
        USER,
        {**CALL, "content": "I look.", "tool_calls": CALL["tool_calls"] * 2},
        RESULT,
        {**RESULT, "content": [{"type": "text", "text": "sun"}]},
        USER,
        CALL,
        {**RESULT, "content": None},
    ]
    before = [dict(message) for message in messages]
    written = write_tools(messages, [])
    assert [message["role"] for message in written] == [
        "user",
        "assistant",
        "user",
        "user",
        "assistant",
        "user",
    ]
    assert written[1]["content"] == f"I look.\n{WRITTEN}\n{WRITTEN}" and "tool_calls" not in written[1]
    assert written[2] == {
        "role": "user",
        "content": "<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response>",
    }
    assert written[4]["content"] == WRITTEN
    assert written[5]["content"] == "<tool_response>\n\n</tool_response>"
    assert messages == before


def test_arguments_are_kept_as_the_model_wrote_them() -> None:
    assert '"arguments": {"a":1}}' in write_tools([call('{"a":1}')], [])[0]["content"]
    assert '"arguments": {"a": "é"}}' in write_tools([call({"a": "é"})], [])[0]["content"]
    assert '"arguments": {}}' in write_tools([call("")], [])[0]["content"]


@pytest.mark.parametrize(
    ("message", "error", "words"),
    [
        (call("{"), InvalidParameterError, r"messages\[0\].tool_calls\[0\]: arguments is no JSON; got '{'"),
        (call("[" * 100_000), InvalidParameterError, "arguments is no JSON"),
        ({**CALL, "tool_calls": ["f"]}, InvalidParameterError, "has no function with a name"),
        ({**CALL, "tool_calls": [{"function": {}}]}, InvalidParameterError, "has no function with a name"),
        ({**RESULT, "content": 3}, InvalidParameterError, r"messages\[0\].content must be a string"),
        ({**RESULT, "content": [{"type": "image_url"}]}, UnsupportedError, "image_url"),
    ],
)
def test_malformed_messages(message: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        write_tools([message], [])
