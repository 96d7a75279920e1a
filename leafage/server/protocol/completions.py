"""POST /v1/completions: what is sent, and what is answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from leafage.server.protocol.answers import CacheReport, Usage
from leafage.server.protocol.common import (
    Described,
    Extensions,
    List,
    ModelName,
    Only,
    ReturnTokenIds,
    Sampling,
    Stream,
    StreamOptions,
)
from leafage.server.protocol.logprobs import TextLogprobs

MAX_PROMPTS = 1024
"""In one request."""

Prompts = Annotated[
    str
    | List[int]
    | Annotated[List[str], Field(max_length=MAX_PROMPTS)]
    | Annotated[List[List[int]], Field(max_length=MAX_PROMPTS)],
    Described("a text, token ids, or a list of either"),
]


class CompletionRequest(Sampling, Extensions):
    """Continue a text."""

    model: ModelName = None
    prompt: Annotated[Prompts, Field(description="a text, token ids, or a list of either")]
    max_tokens: Annotated[
        int | None, Field(description="16 where nothing is said; 0 with echo: only the prompt's logprobs")
    ] = None
    best_of: Annotated[int | None, Field(description="draw so many, and answer with the n most likely")] = (
        None
    )
    logprobs: Annotated[int | None, Field(description="alternatives reported for each token")] = None
    echo: Annotated[bool | None, Field(description="begin each answer with its prompt")] = None
    suffix: Annotated[Any, Only("", why="nothing can be put in front of a suffix here")] = None
    stream: Stream = None
    stream_options: StreamOptions | None = None
    return_token_ids: ReturnTokenIds = None


class CompletionChoice(TypedDict):
    """One continuation, or in a stream what is new of it; the n answers to a prompt follow each other.
    `finish_reason` and `stop_reason` as of chat completions."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    prompt_logprobs: NotRequired[list[dict[str, Any] | None]]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int] | None]


class Completion(TypedDict):
    """The continuations of a request's prompts; also an event of a stream, where `usage` is there only if
    `stream_options` asks for it."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: NotRequired[Usage | None]
    cache: NotRequired[list[CacheReport] | CacheReport]
