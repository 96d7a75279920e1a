"""What servers are asked for over HTTP, and what they answer: OpenAI's completions and llama-server's own.

Prompts are token ids; answers are streamed, have exactly the length that is asked for, and are greedy where
the temperature is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from comparison.http_client import Exchange, HTTPError, post

UNTOLD = 100  # stands for a token that llama-server never tells: those whose text ends inside a character


@dataclass(frozen=True, slots=True)
class Ask:
    """A request.

    Attributes:
        n: sequences that are wanted.
        wants_ids: of the tokens; a conversation goes on with them.
        salt: requests share cached prefixes only with those of the same salt, where a server knows salts.
        stream: false: one answer at the end.
    """

    prompt: list[int]
    length: int
    n: int = 1
    temperature: float = 0.0
    wants_ids: bool = False
    salt: str = ""
    stream: bool = True


@dataclass(slots=True)
class Reply:
    """An answer.

    Attributes:
        times: of each sequence, when its events came, each with its number of tokens where `ids` are told.
        ids: of each sequence, where they were wanted or the server tells them anyway.
        num_tokens: of each sequence.
        cached_tokens: of the prompt, where the server tells.
    """

    times: list[list[tuple[float, int]]]
    ids: list[list[int]] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server is spoken to.

    Attributes:
        request: the bytes of a request.
        read: its answer. Raises HTTPError when it failed or is not what was asked for.
    """

    request: Callable[[Ask], bytes]
    read: Callable[[Exchange, Ask], Reply]


def _openai_request(ask: Ask) -> bytes:
    body: dict[str, Any] = {
        "prompt": ask.prompt,
        "max_tokens": ask.length,
        "temperature": ask.temperature,
        "ignore_eos": True,
    }
    if ask.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if ask.n > 1:
        body["n"] = ask.n
    if ask.wants_ids:
        body["return_token_ids"] = True
    if ask.salt:
        body["cache_salt"] = ask.salt
    return post("/v1/completions", body)


def _openai_reply(exchange: Exchange, ask: Ask) -> Reply:
    reply = Reply([[] for _ in range(ask.n)], [[] for _ in range(ask.n)])
    usage: dict[str, Any] | None = None
    reasons: list[str] = []
    for came, event in exchange.events() if ask.stream else [(exchange.arrivals[-1], exchange.json())]:
        if "error" in event:
            raise HTTPError(f"the server ended a stream: {event['error']}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            ids = choice.get("token_ids") or []
            reply.ids[choice["index"]] += ids
            reply.times[choice["index"]].append((came, len(ids)))
            if choice.get("finish_reason"):
                reasons.append(choice["finish_reason"])
    if usage is None or reasons != ["length"] * ask.n:
        raise HTTPError(f"expected usage and {ask.n} endings by length, got {usage} and {reasons}")
    total = usage["completion_tokens"]
    reply.num_tokens = [total // ask.n] * ask.n if total % ask.n == 0 else [total]
    details = usage.get("prompt_tokens_details") or {}
    reply.cached_tokens = details.get("cached_tokens")
    return reply


def _llama_request(ask: Ask) -> bytes:
    greedy = {"samplers": ["top_k"], "top_k": 1, "temperature": 0.0}
    drawn = {"samplers": ["temperature"], "temperature": ask.temperature}
    body = {
        "prompt": ask.prompt,
        "n_predict": ask.length,
        "n_cmpl": ask.n,
        "ignore_eos": True,
        "cache_prompt": True,
        "repeat_penalty": 1.0,
        "stream": ask.stream,
        **(drawn if ask.temperature else greedy),
    }
    return post("/completion", body)


def _llama_reply(exchange: Exchange, ask: Ask) -> Reply:
    reply = Reply([[] for _ in range(ask.n)], [[] for _ in range(ask.n)], [0] * ask.n)
    for came, event in exchange.events():
        if "error" in event:
            raise HTTPError(f"the server ended a stream: {event['error']}")
        index = event.get("index", 0)
        ids = list(event.get("tokens", []))
        untold = event.get("tokens_predicted", 0) - len(reply.ids[index]) - len(ids)
        ids = [UNTOLD] * untold + ids
        reply.ids[index] += ids
        reply.times[index].append((came, len(ids)))
        if event.get("stop"):
            reply.num_tokens[index] = event["tokens_predicted"]
            if ask.n == 1:
                reply.cached_tokens = event["timings"]["cache_n"]
    return reply


OPENAI = Dialect(_openai_request, _openai_reply)
LLAMA = Dialect(_llama_request, _llama_reply)
