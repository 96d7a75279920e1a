"""POST /v1/completions: continue texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from leafage.core.sampling_params import SamplingParams
from leafage.engine.inputs import NewRequest
from leafage.errors import InvalidParameterError
from leafage.server.body import answer_headers, operation, read_body
from leafage.server.completion_answer import CompletionAnswer
from leafage.server.context import Context, context_of
from leafage.server.generation import complete, encoded, start, written
from leafage.server.protocol.answers import to_json
from leafage.server.protocol.completions import Completion, CompletionRequest
from leafage.server.sse import EventStream

router = APIRouter(tags=["completions"])


@router.post(
    "/v1/completions",
    openapi_extra=operation(
        CompletionRequest,
        Completion,
        event=Completion,
        example={"prompt": "The capital of France is", "max_tokens": 20, "temperature": 0},
    ),
)
async def create_completion(request: Request) -> Response:
    """Continue a text, token ids, or a list of either."""
    context = context_of(request)
    body = await read_body(request, CompletionRequest)
    context.model.check_name(body.model)
    params = _params(body, context.model.default_sampling_params)
    requests = await encoded(request, lambda: _requests(context, body, params))
    answer = CompletionAnswer(context.model, body, requests, params)
    if body.stream:
        running = await start(request, requests, stream=True)
        return EventStream(running, answer, headers=answer_headers(request))
    outputs = await complete(request, requests)
    whole = await written(request, outputs, lambda: to_json(answer.whole(outputs)))
    return Response(whole, media_type="application/json", headers=answer_headers(request))


def _params(body: CompletionRequest, base: SamplingParams) -> SamplingParams:
    length = 16 if body.max_tokens is None else body.max_tokens
    if length == 0 and body.echo:
        length = 1  # which is left out of the answer
    settings: dict[str, Any] = {"max_tokens": length}
    if body.logprobs is not None:
        settings["logprobs"] = body.logprobs
    if body.echo and body.logprobs is not None:
        settings["prompt_logprobs"] = body.logprobs
    if body.best_of is not None and body.best_of != (body.n or 1):
        settings["best_of"] = body.best_of
    if body.stream_options is not None and not body.stream:
        raise InvalidParameterError("stream_options is for streams", remedy="set stream, or leave it out")
    return body.sampling_params(base, **settings)


def _requests(context: Context, body: CompletionRequest, params: SamplingParams) -> list[NewRequest]:
    inputs = context.model.inputs
    params = replace(inputs.with_bad_words(params), bad_words=())  # once for all prompts
    return [
        inputs.request(
            context.engine.new_request_id(),
            {
                "prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt,
                "cache_salt": body.cache_salt or "",
                "tenant": body.user,
            },
            params,
            priority=body.priority or 0,
        )
        for prompt in _prompts(body)
    ]


def _prompts(body: CompletionRequest) -> Sequence[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidParameterError("prompt is empty", remedy="pass a text or token ids")
    if isinstance(prompt[0], int):
        return [prompt]
    return prompt
