"""POST /v1/chat/completions: what is sent, and what is answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired, TypedDict

from leafage.server.protocol.answers import CacheReport, Usage
from leafage.server.protocol.common import (
    ChatHints,
    Described,
    List,
    ModelName,
    Only,
    ReturnTokenIds,
    Sampling,
    Stream,
    StreamOptions,
    Strict,
)
from leafage.server.protocol.logprobs import ChatLogprobs


class ContentPart(Strict):
    """A part of a message; only text can be read."""

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: Annotated[Any, Only(why="every prefix is cached by itself")] = None

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("type"), str) and value["type"] != "text":
            message = "only text can be read, got a part of type '{kind}'. Send text parts only"
            raise PydanticCustomError("refused", message, {"kind": value["type"][:80]})
        return value


MAX_MESSAGES = 10_000
"""Of a conversation; and parts of a message. More fit no model, and each costs time."""

Parts = Annotated[List[ContentPart | str], Field(max_length=MAX_MESSAGES)]
Content = Annotated[str | Parts | None, Described("a string or a list of text parts")]


class FunctionCall(Strict):
    name: str
    arguments: str


class ToolCall(Strict):
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: FunctionCall


class Message(Strict):
    """One turn of a conversation. A message that was answered here may be sent back as it is."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content = None
    name: Annotated[
        str | None,
        Field(description="X-Leafage-Ignored-Fields lists it where the chat template writes no names"),
    ] = None
    tool_calls: List[ToolCall] | None = None
    tool_call_id: Annotated[str | None, Field(description="of the call that this message answers")] = None
    reasoning_content: Annotated[
        str | None,
        Field(
            description="the thinking of an earlier turn; the chat template decides whether the model sees it"
        ),
    ] = None
    refusal: Annotated[Any, Only(why="refusals cannot be told to the model")] = None
    annotations: Annotated[Any, Only([], why="annotations cannot be told to the model")] = None
    audio: Annotated[Any, Only(why="there is no audio here")] = None
    function_call: Annotated[Any, Only(why="function_call is deprecated: send tool_calls")] = None

    def as_dict(self) -> dict[str, Any]:
        """What a chat template reads."""
        return self.model_dump(exclude_none=True, exclude={"refusal", "annotations"})


class ResponseFormat(Strict):
    """Only `text` until structured output is there."""

    type: str
    json_schema: dict[str, Any] | None = None


class ChatCompletionRequest(Sampling, ChatHints):
    """Answer a conversation."""

    model: ModelName = None
    messages: Annotated[List[Message], Field(max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int | None, Field(description="the older name of max_completion_tokens")] = None
    max_completion_tokens: Annotated[
        int | None, Field(description="of each answer, the thinking included; default: as many as fit")
    ] = None
    logprobs: Annotated[bool | None, Field(description="of each token of the answer")] = None
    top_logprobs: Annotated[int | None, Field(description="alternatives for each token, up to 20")] = None
    stream: Stream = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[
        List[dict[str, Any]] | None,
        Field(description="functions that the model may call, as OpenAI has them"),
    ] = None
    tool_choice: Annotated[str | dict[str, Any] | None, Field(description="`auto` or `none`")] = None
    parallel_tool_calls: Annotated[bool | None, Field(description="false: one call in an answer")] = None
    reasoning_effort: Annotated[
        str | None, Field(description="for chat templates that read it; 'none' also where nothing reasons")
    ] = None
    add_generation_prompt: Annotated[
        bool | None, Field(description="begin the assistant's turn behind the messages; default true")
    ] = None
    continue_final_message: Annotated[
        bool | None, Field(description="go on with the last message; add_generation_prompt must be false")
    ] = None
    session_id: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=256,
            description="keeps this conversation's token ids, so that its next turn finds all of it cached",
        ),
    ] = None
    return_token_ids: ReturnTokenIds = None
    store: Annotated[Any, Only(False, why="chat completions are not stored here")] = None
    modalities: Annotated[Any, Only(["text"], why="only text is made here")] = None
    audio: Annotated[Any, Only(why="only text is made here")] = None
    prediction: Annotated[Any, Only(why="predicted outputs have no use here")] = None
    web_search_options: Annotated[Any, Only(why="nothing is searched on the web")] = None
    verbosity: Annotated[Any, Only("medium", why="the model has no verbosity to set")] = None
    functions: Annotated[Any, Only(why="functions is deprecated: send tools")] = None
    function_call: Annotated[Any, Only(why="function_call is deprecated: send tool_choice")] = None

    @property
    def engine_names(self) -> dict[str, str]:
        """Fields by the names that the engine has for them."""
        length = "max_completion_tokens" if self.max_tokens is None else "max_tokens"
        return {"prompt": "messages", "max_tokens": length, "logprobs": "top_logprobs", "tenant": "user"}


class AnswerFunction(TypedDict):
    """`arguments`: JSON, unless the model broke off."""

    name: str
    arguments: str


class AnswerToolCall(TypedDict):
    """A call of a function."""

    id: str
    type: Literal["function"]
    function: AnswerFunction


class AnswerMessage(TypedDict):
    """The assistant's turn. `content` is null where only reasoning or calls stand for it."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[Any]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[AnswerToolCall]]


class Choice(TypedDict):
    """One answer. `finish_reason`: stop, length, tool_calls, or abort when the server ended it.
    `stop_reason`: the stop string or token id that ended it, null for an end-of-generation token."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: NotRequired[list[int]]


class ChatCompletion(TypedDict):
    """The answers to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    system_fingerprint: str
    service_tier: NotRequired[Literal["default"]]
    metadata: NotRequired[dict[str, str]]
    prompt_logprobs: NotRequired[list[dict[str, Any] | None]]
    prompt_token_ids: NotRequired[list[int]]
    cache: NotRequired[CacheReport]


class ChoiceDelta(TypedDict):
    """What is new of an answer. `delta.role` comes with the first one."""

    index: int
    delta: dict[str, Any]
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]


class ChatCompletionChunk(TypedDict):
    """An event of a stream. With `stream_options.include_usage` the last one has no choice, and the usage."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChoiceDelta]
    system_fingerprint: str
    usage: NotRequired[Usage | None]
    service_tier: NotRequired[Literal["default"]]
    prompt_logprobs: NotRequired[list[dict[str, Any] | None]]
    prompt_token_ids: NotRequired[list[int]]
    cache: NotRequired[CacheReport]
