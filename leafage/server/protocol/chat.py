"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from leafage.server.protocol.common import Extensions, Sampling, StreamOptions, Strict


class ContentPart(Strict):
    """A part of a message; only text can be read."""

    type: str
    text: str | None = None


class FunctionCall(Strict):
    name: str
    arguments: str


class ToolCall(Strict):
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: FunctionCall


class Message(Strict):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart | str] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class ResponseFormat(Strict):
    """Only `text` until structured output is there."""

    type: str
    json_schema: dict[str, Any] | None = None


class ChatCompletionRequest(Sampling, Extensions):
    """Answer a conversation."""

    model: str | None = None
    messages: list[Message]
    max_tokens: Annotated[int | None, Field(description="the older name of max_completion_tokens")] = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    session_id: Annotated[
        str | None, Field(description="keeps this conversation's token ids, so that its next turn is cached")
    ] = None
    return_token_ids: bool = False
