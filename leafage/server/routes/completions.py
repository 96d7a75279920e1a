"""POST /v1/completions: continue texts."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from leafage.core.sampling_params import SamplingParams
from leafage.engine.inputs import NewRequest
from leafage.engine.output import CompletionOutput, LogprobDict, RequestOutput
from leafage.errors import InvalidParameterError
from leafage.server.body import answer_headers, body_schema, read_body
from leafage.server.context import Context, context_of
from leafage.server.generation import complete, encoded, start
from leafage.server.protocol.answers import cache_report, finite, new_id, prompt_logprobs_json, usage
from leafage.server.protocol.completions import CompletionRequest
from leafage.server.sse import DONE, EventStream, event

router = APIRouter(tags=["completions"])

MAX_PROMPTS = 1024
"""In one request."""


@router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Continue a text, token ids, or a list of either."""
    context = context_of(request)
    body = await read_body(request, CompletionRequest)
    context.model.check_name(body.model)
    params = _params(body, context.model.default_sampling_params)
    prompts = _prompts(body)
    requests = await encoded(
        request, lambda: [_new_request(context, body, prompt, params) for prompt in prompts]
    )
    answer = _Answer(context, body, requests, params)
    if body.stream:
        running = await start(request, requests, stream=True)
        return EventStream(running, answer, headers=answer_headers(request))
    outputs = await complete(request, requests)
    return Response(
        json.dumps(answer.whole(outputs)), media_type="application/json", headers=answer_headers(request)
    )


def _params(body: CompletionRequest, base: SamplingParams) -> SamplingParams:
    settings: dict[str, Any] = {"max_tokens": 16 if body.max_tokens is None else body.max_tokens}
    if body.logprobs is not None:
        settings["logprobs"] = body.logprobs
    if body.echo and body.logprobs is not None:
        settings["prompt_logprobs"] = body.logprobs
    if body.best_of is not None and body.best_of != (body.n or 1):
        settings["best_of"] = body.best_of
    return body.sampling_params(base, **settings)


def _prompts(body: CompletionRequest) -> Sequence[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidParameterError("prompt is empty", remedy="pass a text or token ids")
    if isinstance(prompt[0], int):
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidParameterError(
            "too many prompts in one request",
            value=len(prompt),
            limit=MAX_PROMPTS,
            remedy="send them in parts",
        )
    return prompt


def _new_request(
    context: Context, body: CompletionRequest, prompt: str | list[int], params: SamplingParams
) -> NewRequest:
    key = "prompt" if isinstance(prompt, str) else "prompt_token_ids"
    return context.model.inputs.request(
        context.engine.new_request_id(),
        {key: prompt, "cache_salt": body.cache_salt or "", "tenant": body.user},
        params,
        priority=body.priority or 0,
    )


class _Answer:
    """Writes the answer to one call, whole or in chunks."""

    def __init__(
        self, context: Context, body: CompletionRequest, requests: list[NewRequest], params: SamplingParams
    ) -> None:
        self._body = body
        self._n = params.n
        self._requests = requests
        self._model = context.model
        self._head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": context.model.name,
        }
        options = body.stream_options
        self._usage_at_end = options is not None and options.include_usage
        self._usage_always = options is not None and options.continuous_usage_stats
        self._counts = [(len(new.prompt_token_ids), 0, 0) for new in requests]
        self._begun: set[int] = set()
        self._lengths: dict[int, int] = {}
        self._prompt_logprobs: dict[int, Sequence[LogprobDict | None]] = {}

    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        choices = []
        for number, output in enumerate(outputs):
            self._count(number, output)
            choices += [self._choice(number, output, one) for one in output.outputs]
        answer = {**self._head, "choices": choices, "usage": usage(self._counts)}
        if self._body.explain_cache:
            answer["cache"] = [cache_report(output) for output in outputs]
        return answer

    def of(self, number: int, output: RequestOutput) -> bytes:
        self._count(number, output)
        chunks = b""
        for one in output.outputs:
            chunk: dict[str, Any] = {**self._head, "choices": [self._choice(number, output, one)]}
            if self._usage_at_end:
                chunk["usage"] = None
            if self._usage_always:
                chunk["usage"] = usage(self._counts)
            if self._body.explain_cache and output.finished:
                chunk["cache"] = cache_report(output)
            chunks += event(chunk)
        return chunks

    def end(self) -> bytes:
        if not self._usage_at_end:
            return DONE
        return event({**self._head, "choices": [], "usage": usage(self._counts)}) + DONE

    def _count(self, number: int, output: RequestOutput) -> None:
        prompt, _, generated = self._counts[number]
        generated += sum(len(one.token_ids) for one in output.outputs)
        self._counts[number] = (prompt, output.num_cached_tokens, generated)
        if output.prompt_logprobs is not None:  # a stream has them once, each answer begins with them
            self._prompt_logprobs[number] = output.prompt_logprobs

    def _choice(self, number: int, output: RequestOutput, one: CompletionOutput) -> dict[str, Any]:
        index = number * self._n + one.index
        first = index not in self._begun
        self._begun.add(index)
        echoed = self._echo(number, output) if self._body.echo and first else ""
        choice: dict[str, Any] = {
            "index": index,
            "text": echoed + one.text,
            "logprobs": None,
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
        }
        if one.logprobs is not None:
            prompt = self._prompt_logprobs.get(number) if self._body.echo and first else None
            choice["logprobs"] = self._logprobs(index, prompt, one.logprobs)
        if self._body.prompt_logprobs is not None and output.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs_json(output.prompt_logprobs)
        if self._body.return_token_ids:
            choice["token_ids"] = one.token_ids
            choice["prompt_token_ids"] = output.prompt_token_ids if first else None
        return choice

    def _echo(self, number: int, output: RequestOutput) -> str:
        text = self._requests[number].prompt
        if text is not None:
            return text
        return self._model.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)

    def _logprobs(
        self, index: int, prompt: Sequence[LogprobDict | None] | None, positions: Sequence[LogprobDict]
    ) -> dict[str, Any]:
        """The older shape of log-probabilities, with offsets of characters."""
        tokens: list[str] = []
        logprobs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        offset = self._lengths.get(index, 0)
        if prompt is not None:
            ids = self._requests[index // self._n].prompt_token_ids
            known = [(self._model.tokenizer.token_text(ids[0]), None), *zip(ids[1:], prompt[1:], strict=True)]
        else:
            known = []
        for token, position in [*known, *((None, position) for position in positions)]:
            if position is None:
                text, logprob, top = str(token), None, None
            else:
                found = next(iter(position.values()))
                text, logprob = found.decoded_token, finite(found.logprob)
                top = {one.decoded_token: finite(one.logprob) for one in position.values()}
            tokens.append(text)
            logprobs.append(logprob)
            tops.append(top)
            offsets.append(offset)
            offset += len(text)
        self._lengths[index] = offset
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}
