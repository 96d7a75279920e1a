"""Tools in the Hermes format for chat templates that have none: messages without tools that say the same.

The format is public: functions as JSON lines in <tools>, calls in <tool_call>, results in <tool_response>, in
a user's turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from leafage.errors import InvalidParameterError
from leafage.text.chat_template import Message, text_of_content

_INTRODUCTION = """\
You can call functions that help to answer. Their descriptions stand between the tags, one JSON object a line:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and its arguments between <tool_call> tags, and \
nothing after it; several calls each have their own tags:
<tool_call>
{{"name": "<name of the function>", "arguments": {{<its arguments>}}}}
</tool_call>
What a function returns comes in the next turn, between <tool_response> tags. Call no function that is not \
described above; answer directly when none is needed."""


def write_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with tools, calls and results written into their text.

    Raises:
        InvalidParameterError: a call in the messages is malformed.
        UnsupportedError: content other than text.
    """
    written: list[dict[str, Any]] = []
    was_result = False
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        role, calls = message.get("role"), message.get("tool_calls")
        if role in ("tool", "function"):
            text = f"<tool_response>\n{text_of_content(where, message.get('content'))}\n</tool_response>"
            if was_result:
                written[-1]["content"] += f"\n{text}"
            else:
                written.append({"role": "user", "content": text})
        elif calls:
            texts = [_call(f"{where}.tool_calls[{n}]", call) for n, call in enumerate(calls)]
            content = text_of_content(where, message.get("content"))
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            written.append({**rest, "content": "\n".join([*([content] if content else []), *texts])})
        else:
            written.append(dict(message))
        was_result = role in ("tool", "function")
    return _with_introduction(written, tools) if tools else written


def _with_introduction(
    messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _INTRODUCTION.format(tools=lines)
    if messages and messages[0].get("role") in ("system", "developer"):
        system, *others = messages
        before = text_of_content("messages[0]", system.get("content"))
        return [{**system, "content": f"{before}\n\n{text}" if before else text}, *others]
    return [{"role": "system", "content": text}, *messages]


def _call(where: str, call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidParameterError(f"{where} has no function with a name", remedy="pass the call as it came")
    arguments = function.get("arguments", "")
    if isinstance(arguments, str):
        text = arguments.strip() or "{}"
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidParameterError(
                f"{where}: arguments is no JSON", value=arguments[:80], remedy="pass a JSON object"
            ) from None
    else:
        text = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {text}}}\n</tool_call>'
