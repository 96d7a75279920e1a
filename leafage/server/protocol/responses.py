"""/v1/responses: what is sent, and what is answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired, TypedDict

from leafage.server.protocol.answers import CacheReport
from leafage.server.protocol.chat import MAX_MESSAGES
from leafage.server.protocol.common import (
    ChatHints,
    Described,
    Drawing,
    List,
    ModelName,
    Only,
    Stream,
    Strict,
)
from leafage.server.protocol.logprobs import PositionLogprob

LOGPROBS = "message.output_text.logprobs"
"""What `include` can ask for."""

Status = Literal["in_progress", "completed", "incomplete"]


class InputPart(Strict):
    """A part of a message; only text can be read."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Annotated[Any, Only([], why="annotations cannot be told to the model")] = None
    logprobs: Annotated[List[Any] | None, Field(description="of an answer that is sent back")] = None

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind not in ("input_text", "output_text", "text"):
            message = "only text can be read, got a part of type '{kind}'. Send text parts only"
            raise PydanticCustomError("refused", message, {"kind": kind[:80]})
        return value


Parts = Annotated[List[InputPart], Field(max_length=MAX_MESSAGES)]


class InputMessage(Strict):
    """A turn; also one that was answered here."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str | Parts, Described("a string or a list of text parts")]
    id: str | None = None
    status: Status | None = None
    phase: Annotated[Any, Only("final_answer", why="the model knows no phases")] = None


class FunctionCallItem(Strict):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None


class FunctionOutputItem(Strict):
    """What a called function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Annotated[str | Parts, Described("a string or a list of text parts")]
    id: str | None = None
    status: Status | None = None


class ReasoningText(Strict):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Strict):
    """What the model thought; whether it reads it again is its chat template's choice."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: Annotated[Any, Only([], why="there are no summaries here")] = None
    content: Annotated[List[ReasoningText], Field(max_length=MAX_MESSAGES)] | None = None
    encrypted_content: Annotated[Any, Only(why="reasoning is not encrypted here")] = None
    status: Status | None = None


def _form(value: Any) -> str | None:
    """The class of an item, by its type."""
    if not isinstance(value, dict):
        return type(value).__name__
    kind = value.get("type", "message")
    return _FORMS.get(kind) if isinstance(kind, str) else None


_FORMS = {
    "message": "InputMessage",
    "function_call": "FunctionCallItem",
    "function_call_output": "FunctionOutputItem",
    "reasoning": "ReasoningItem",
}
InputItem = Annotated[
    Annotated[InputMessage, Tag("InputMessage")]
    | Annotated[FunctionCallItem, Tag("FunctionCallItem")]
    | Annotated[FunctionOutputItem, Tag("FunctionOutputItem")]
    | Annotated[ReasoningItem, Tag("ReasoningItem")],
    Discriminator(
        _form,
        custom_error_type="refused",
        custom_error_message="cannot be read: only messages, function calls, their outputs and reasoning can",
    ),
]


class TextFormat(Strict):
    """Only `text` until structured output is there."""

    type: str
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextConfig(Strict):
    format: TextFormat | None = None
    verbosity: Annotated[Any, Only("medium", why="the model has no verbosity to set")] = None


class ReasoningConfig(Strict):
    effort: Annotated[
        str | None, Field(description="for chat templates that read it; 'none' also where nothing reasons")
    ] = None
    summary: Annotated[Any, Only("auto", why="reasoning comes whole, without a summary")] = None
    generate_summary: Annotated[Any, Only("auto", why="reasoning comes whole, without a summary")] = None


class ResponseStreamOptions(Strict):
    include_obfuscation: Annotated[Any, Only(False, why="events are not padded")] = None


Items = Annotated[List[InputItem], Field(max_length=MAX_MESSAGES)]


class ResponsesRequest(Drawing, ChatHints):
    """Answer an input, and, with `previous_response_id`, what came before it."""

    model: ModelName = None
    input: Annotated[str | Items, Described("a text or a list of items")]
    instructions: Annotated[
        str | None, Field(description="a system message in front; not carried over to the next response")
    ] = None
    previous_response_id: Annotated[
        str | None, Field(description="of a stored response whose conversation goes on")
    ] = None
    store: Annotated[
        bool | None,
        Field(
            description="keep the response in memory, to be fetched and gone on with; default true. The "
            "oldest ones make room, and none outlives the server"
        ),
    ] = None
    max_output_tokens: Annotated[
        int | None, Field(description="of the answer, the thinking included; default: as many as fit")
    ] = None
    stream: Stream = None
    stream_options: ResponseStreamOptions | None = None
    include: Annotated[List[str], Field(max_length=100)] | None = None
    top_logprobs: Annotated[int | None, Field(description="alternatives for each token, up to 20")] = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: List[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    truncation: Annotated[Any, Only("disabled", why="inputs are never cut")] = None
    background: Annotated[Any, Only(False, why="nothing is answered in the background")] = None
    max_tool_calls: Annotated[Any, Only(why="there are no built-in tools")] = None
    conversation: Annotated[Any, Only(why="none are stored: use previous_response_id")] = None
    prompt: Annotated[Any, Only(why="there are no stored prompts")] = None
    context_management: Annotated[Any, Only(why="contexts are not managed here")] = None

    @property
    def engine_names(self) -> dict[str, str]:
        """Fields by the names that the engine has for them."""
        return {
            "prompt": "input",
            "messages": "input",
            "max_tokens": "max_output_tokens",
            "logprobs": "top_logprobs",
            "response_format": "text.format",
            "reasoning_effort": "reasoning.effort",
            "tenant": "user",
        }


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[PositionLogprob]


class OutputMessage(TypedDict):
    """Text of the answer."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: Status
    content: list[OutputText]


class OutputReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(TypedDict):
    """What the model thought."""

    type: Literal["reasoning"]
    id: str
    summary: list[Any]
    status: Status
    content: list[OutputReasoningText]


class OutputFunctionCall(TypedDict):
    """A call of a function."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


OutputItem = OutputMessage | OutputReasoning | OutputFunctionCall


class InputTokensDetails(TypedDict):
    """`cached_tokens`: from the prefix cache; `cache_write_tokens`: computed, and cached from now on."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(TypedDict):
    code: str
    message: str


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class ResponseObject(TypedDict):
    """A response. `status`: completed; incomplete when it reached max_output_tokens or the model's length; in
    a stream also in_progress and failed."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None
    system_fingerprint: str
    cache: NotRequired[CacheReport]


class ResponseEvent(TypedDict):
    """An event of a stream; its `type` says which other fields it has."""

    type: str
    sequence_number: int


class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]
