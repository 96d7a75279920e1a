"""What requests say about tools."""

from __future__ import annotations

from typing import Any

import pytest

from leafage.errors import InvalidParameterError, LeafageError, UnsupportedError
from leafage.server.tools.request import ToolUse
from tests.server.tools.formats import WEATHER


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": function}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_tools_that_may_be_called() -> None:
    for choice in (None, "auto"):
        use = ToolUse.of([WEATHER, tool(name="f")], choice)
        assert use.names == {"get_weather", "f"} and use.definitions[0] is WEATHER and use.max_calls is None
    assert ToolUse.of([WEATHER], parallel_tool_calls=True).max_calls is None
    assert ToolUse.of([WEATHER], parallel_tool_calls=False).max_calls == 1


def test_tools_that_may_not() -> None:
    assert ToolUse.of([WEATHER], "none") == ToolUse.of(None) == ToolUse.of([], "auto") == ToolUse()


@pytest.mark.parametrize(
    ("tools", "choice", "error", "words"),
    [
        ([WEATHER], "required", UnsupportedError, "cannot be forced yet; got 'required'.*Use 'auto'"),
        ([WEATHER], named("get_weather"), UnsupportedError, "cannot be forced yet; got 'get_weather'"),
        ([WEATHER], named("f"), InvalidParameterError, "tools does not list; got 'f'; limit: get_weather"),
        ([WEATHER], "any", InvalidParameterError, "unknown tool_choice; got 'any'"),
        ([WEATHER], {"type": "allowed_tools"}, InvalidParameterError, "tool_choice is malformed"),
        ([WEATHER], {"type": "function", "function": {}}, InvalidParameterError, "tool_choice is malformed"),
        ([WEATHER], 3, InvalidParameterError, "unknown tool_choice"),
        (None, "required", InvalidParameterError, "tool_choice needs tools"),
        ([], named("f"), InvalidParameterError, "tool_choice needs tools"),
        ([WEATHER, WEATHER], None, InvalidParameterError, "one name; got 'get_weather'"),
        ([{"type": "custom", "custom": {}}], None, UnsupportedError, r"tools\[0\].type.*got 'custom'"),
        ([{"function": {"name": "f"}}], None, InvalidParameterError, r"tools\[0\] must be a function"),
        (["f"], None, InvalidParameterError, r"tools\[0\] must be a function"),
        ([WEATHER, tool()], None, InvalidParameterError, r"tools\[1\].function.name"),
        ([tool(name="")], None, InvalidParameterError, r"tools\[0\].function.name"),
        ([tool(name="f", parameters=[])], None, InvalidParameterError, r"parameters must be a JSON Schema"),
        ([tool(name="f", strict=True)], None, UnsupportedError, r"tools\[0\].function.strict"),
        ([tool(name="f", strict=True)], "none", UnsupportedError, r"strict"),
    ],
)
def test_what_is_refused(tools: Any, choice: Any, error: type[LeafageError], words: str) -> None:
    with pytest.raises(error, match=words):
        ToolUse.of(tools, choice)
