"""Items of /v1/responses to messages of a conversation, and tools to those of chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leafage.server.conversation import Message
from leafage.server.protocol.responses import (
    FunctionCallItem,
    FunctionOutputItem,
    InputMessage,
    InputPart,
    ReasoningItem,
)

Item = InputMessage | FunctionCallItem | FunctionOutputItem | ReasoningItem


def messages_of(items: str | Sequence[Item]) -> list[Message]:
    """Messages for a chat template. Reasoning, text and calls that follow each other are one turn of the
    assistant, as the model made them."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[Message] = []
    turn: Message | None = None
    for item in items:
        if isinstance(item, InputMessage) and item.role != "assistant":
            turn = None
            messages.append({"role": item.role, "content": _text(item.content)})
            continue
        if isinstance(item, FunctionOutputItem):
            turn = None
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
            continue
        if turn is None or _begins_another(turn, item):
            turn = {"role": "assistant", "content": None}
            messages.append(turn)
        if isinstance(item, InputMessage):
            turn["content"] = _text(item.content)
        elif isinstance(item, ReasoningItem):
            turn["reasoning_content"] = "\n".join(part.text for part in item.content or ())
        else:
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            turn.setdefault("tool_calls", []).append(call)
    return [_whole(message) for message in messages]


def _begins_another(turn: Message, item: Item) -> bool:
    """Whether a turn has what only comes before this item."""
    if isinstance(item, FunctionCallItem):
        return False
    has_content = turn["content"] is not None or "tool_calls" in turn
    return has_content or (isinstance(item, ReasoningItem) and "reasoning_content" in turn)


def _whole(message: Message) -> Message:
    if message["content"] is None and "tool_calls" not in message:
        return {**message, "content": ""}
    return {key: value for key, value in message.items() if value is not None}


def _text(content: str | list[InputPart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def chat_tools(tools: Sequence[Any] | None) -> list[Any]:
    """Tools in the shape of chat completions, which holds a function's fields one level deeper."""
    return [_chat_tool(tool) for tool in tools or ()]


def _chat_tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function" or "function" in tool:
        return tool
    return {"type": "function", "function": {key: tool[key] for key in tool if key != "type"}}


def chat_tool_choice(choice: object) -> object:
    """`tool_choice` in the shape of chat completions."""
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice
