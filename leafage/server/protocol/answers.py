"""What the server answers: the parts that several endpoints share."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from leafage.engine.output import Logprob, LogprobDict, RequestOutput

LOWEST_LOGPROB = -9999.0
"""JSON has no -inf; the OpenAI API says -9999 instead."""


def new_id(prefix: str) -> str:
    """An id of an answer."""
    return f"{prefix}-{uuid.uuid4().hex}"


def finite(logprob: float) -> float:
    """A log-probability that JSON can carry; NaN counts as the lowest."""
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB


def usage(outputs: Iterable[tuple[int, int, int]]) -> dict[str, Any]:
    """Of (prompt tokens, cached ones of them, generated tokens) of each prompt."""
    prompt = cached = generated = 0
    for one in outputs:
        prompt, cached, generated = prompt + one[0], cached + one[1], generated + one[2]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def cache_report(output: RequestOutput) -> dict[str, Any]:
    """The extension `explain_cache`: where the cached prefix of the prompt ended, and why."""
    miss = output.prefix_miss
    return {
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens": output.num_cached_tokens,
        "miss": None if miss is None else asdict(miss),
    }


def chat_logprobs(positions: Iterable[LogprobDict], num_top: int) -> dict[str, Any]:
    """As chat completions have them: each token with its bytes and the `num_top` most likely ones."""
    content = []
    for position in positions:
        found = list(position.values())
        entry = _chat_logprob(found[0])
        best = sorted(found, key=lambda one: one.rank)[:num_top]
        entry["top_logprobs"] = [_chat_logprob(one) for one in best]
        content.append(entry)
    return {"content": content, "refusal": None}


def _chat_logprob(found: Logprob) -> dict[str, Any]:
    text = found.decoded_token
    return {"token": text, "logprob": finite(found.logprob), "bytes": list(text.encode(errors="replace"))}


def prompt_logprobs_json(positions: Iterable[LogprobDict | None]) -> list[dict[str, Any] | None]:
    """vLLM's extension: of each prompt token, None for the first."""
    return [
        None
        if position is None
        else {str(key): {**asdict(one), "logprob": finite(one.logprob)} for key, one in position.items()}
        for position in positions
    ]
