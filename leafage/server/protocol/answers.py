"""What the server answers: the parts that several endpoints share."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from typing_extensions import NotRequired, TypedDict

from leafage.engine.output import RequestOutput
from leafage.server.errors import ApiError
from leafage.text.tokenizer import Tokenizer


class ErrorDetail(TypedDict):
    """What happened, the value, the limit and what to do; the field that is to blame; a word for it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(TypedDict):
    """Every error, before an answer and inside a stream."""

    error: ErrorDetail


class PromptTokensDetails(TypedDict):
    """`cached_tokens`: those whose K/V came from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    """`reasoning_tokens`: those of the thinking in front of the answer."""

    reasoning_tokens: int


class Usage(TypedDict):
    """Tokens of a request: each prompt once, and all answers, also those that `best_of` left out. A beam
    search counts the answers that it found."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class Miss(TypedDict):
    """Where the cached prefix of a prompt ended. `no_match`: what follows was never cached behind it, and the
    most similar prefix has `cached_token` there (null: it ends); `evicted`: it was until lately;
    `below_block`: it is cached as a part of a block that could not be shared."""

    reason: str
    position: int
    token_id: int
    token: str
    cached_token_id: int | None
    cached_token: str | None


class SessionReport(TypedDict):
    """What a `session_id` did: the prompt's tokens that it kept, and why there are none: `new`, `edited`
    (the messages are not those of the session), or `unknown_place` (the chat template moves answers)."""

    kept_tokens: int
    why: str | None


class CacheReport(TypedDict):
    """The extension `explain_cache`. No miss: nothing but the last token had to be computed."""

    prompt_tokens: int
    cached_tokens: int
    miss: Miss | None
    session: NotRequired[SessionReport]


class Count:
    """Tokens of one prompt and its answers, as they come."""

    __slots__ = ("cached", "generated", "prompt")

    def __init__(self, prompt: int) -> None:
        self.prompt = prompt
        self.cached = 0
        self.generated = 0

    def add(self, output: RequestOutput) -> None:
        """An output, each once."""
        self.cached = output.num_cached_tokens
        self.generated += output.num_rejected_tokens
        for one in output.outputs:
            self.generated += len(one.token_ids)


def usage(counts: Iterable[Count], *, reasoning: int | None = None) -> Usage:
    """Of the prompts of a request.

    Args:
        reasoning: tokens of the thinking, None where nobody knows of any.
    """
    prompt = cached = generated = 0
    for one in counts:
        prompt, cached, generated = prompt + one.prompt, cached + one.cached, generated + one.generated
    found: Usage = {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    if reasoning is not None:
        found["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return found


def cache_report(output: RequestOutput, tokenizer: Tokenizer) -> CacheReport:
    """Where the cached prefix of a prompt ended, and why."""
    miss = output.prefix_miss
    told: Miss | None = None
    if miss is not None:
        other = miss.cached_token_id
        told = {
            "reason": miss.reason,
            "position": miss.position,
            "token_id": miss.token_id,
            "token": tokenizer.token_text(miss.token_id),
            "cached_token_id": other,
            "cached_token": None if other is None else tokenizer.token_text(other),
        }
    return {
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens": output.num_cached_tokens,
        "miss": told,
    }


def check_answered(output: RequestOutput, count: Count) -> None:
    """No answer is empty without a reason: a request that was ended from outside before its first token is an
    error."""
    is_aborted = any(one.finish_reason == "abort" for one in output.outputs)
    if is_aborted and count.generated == 0:
        raise ApiError(
            "the server ended the request before its first token. Send it again", status=503, code="aborted"
        )


def new_id(prefix: str) -> str:
    """An id of an answer."""
    return f"{prefix}{uuid.uuid4().hex}"


def to_json(data: Mapping[str, Any]) -> bytes:
    """The body of an answer."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
