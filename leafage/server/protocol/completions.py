"""POST /v1/completions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from leafage.server.protocol.common import Extensions, Sampling, StreamOptions

Prompts = str | list[str] | list[int] | list[list[int]]


class CompletionRequest(Sampling, Extensions):
    """Continue a text."""

    model: str | None = None
    prompt: Annotated[Prompts, Field(description="a text, token ids, or a list of either")]
    max_tokens: int | None = None
    best_of: int | None = None
    logprobs: Annotated[int | None, Field(description="alternatives reported for each token")] = None
    echo: bool = False
    suffix: None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
