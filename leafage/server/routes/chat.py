"""POST /v1/chat/completions: answer conversations."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from leafage.core.sampling_params import SamplingParams
from leafage.engine.inputs import NewRequest
from leafage.engine.output import CompletionOutput, RequestOutput
from leafage.errors import InvalidParameterError, UnsupportedError
from leafage.server.body import answer_headers, body_schema, read_body
from leafage.server.context import Context, context_of
from leafage.server.generation import complete, encoded, start
from leafage.server.protocol.answers import cache_report, chat_logprobs, new_id, prompt_logprobs_json, usage
from leafage.server.protocol.chat import ChatCompletionRequest
from leafage.server.sse import DONE, EventStream, event
from leafage.server.tools.request import ToolUse
from leafage.server.tools.stream import MessageParser
from leafage.text.chat_template import encode_chat

router = APIRouter(tags=["chat"])


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatCompletionRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation through the model's chat template."""
    context = context_of(request)
    body = await read_body(request, ChatCompletionRequest)
    context.model.check_name(body.model)
    _check(body)
    tools = ToolUse.of(body.tools, body.tool_choice, body.parallel_tool_calls)
    params = _params(body, context.model.default_sampling_params)
    if context.model.chat_format().needs_special_tokens(tools):
        params = replace(params, skip_special_tokens=False)
    prompt_token_ids = await encoded(request, lambda: _encode(context, body, tools))
    new = context.model.inputs.request(
        context.engine.new_request_id(),
        {
            "prompt_token_ids": prompt_token_ids,
            "cache_salt": body.cache_salt or "",
            "tenant": body.user,
        },
        params,
        priority=body.priority or 0,
    )
    answer = _Answer(context, body, new, tools)
    if body.stream:
        running = await start(request, [new], stream=True)
        return EventStream(running, answer, headers=answer_headers(request))
    [output] = await complete(request, [new])
    return Response(
        json.dumps(answer.whole(output)), media_type="application/json", headers=answer_headers(request)
    )


def _check(body: ChatCompletionRequest) -> None:
    if body.response_format is not None and body.response_format.type != "text":
        kind = body.response_format.type
        if kind not in ("json_object", "json_schema"):
            limit = "text, json_object or json_schema"
            raise InvalidParameterError("unknown response_format", value=kind, limit=limit)
        raise UnsupportedError(
            "response_format: structured output is not there yet",
            value=kind,
            limit="text",
            remedy="leave it out",
        )
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidParameterError(
            "top_logprobs needs logprobs", value=body.top_logprobs, remedy="set logprobs to true"
        )


def _params(body: ChatCompletionRequest, base: SamplingParams) -> SamplingParams:
    """The length is max_completion_tokens, max_tokens, or as much as fits."""
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise InvalidParameterError(
            "max_tokens and max_completion_tokens both set the length",
            value=f"{body.max_tokens} and {body.max_completion_tokens}",
            remedy="give one of them",
        )
    length = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    settings: dict[str, Any] = {"max_tokens": length}
    if body.logprobs:
        settings["logprobs"] = body.top_logprobs or 0
    return body.sampling_params(base, **settings)


def _encode(context: Context, body: ChatCompletionRequest, tools: ToolUse) -> list[int]:
    model = context.model
    messages, definitions = model.chat_format().write(
        [message.model_dump(exclude_none=True) for message in body.messages], tools
    )
    kwargs = body.chat_template_kwargs or {}
    return encode_chat(model.tokenizer, model.template(), messages, tools=definitions, **kwargs)


class _Answer:
    """Writes the answer to one call, whole or in chunks."""

    def __init__(
        self, context: Context, body: ChatCompletionRequest, new: NewRequest, tools: ToolUse
    ) -> None:
        self._body = body
        self._id = new_id("chatcmpl")
        self._created = int(time.time())
        self._model = context.model.name
        options = body.stream_options
        self._usage_at_end = options is not None and options.include_usage
        self._usage_always = options is not None and options.continuous_usage_stats
        self._count = (len(new.prompt_token_ids), 0, 0)
        format = context.model.chat_format()
        self._new_parser = partial(format.new_parser, tools, new.prompt_token_ids)
        self._parsers: dict[int, MessageParser] = {}

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        self._add(output)
        choices = []
        for one in output.outputs:
            parser = self._new_parser()
            message = {**parser.parse(one.text).to_json(), "refusal": None}
            choice: dict[str, Any] = {"index": one.index, "message": message, **self._rest(one, parser)}
            choices.append(choice)
        answer = {**self._head("chat.completion"), "choices": choices, "usage": usage([self._count])}
        if output.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs_json(output.prompt_logprobs)
        if self._body.return_token_ids:
            answer["prompt_token_ids"] = output.prompt_token_ids
        if self._body.explain_cache:
            answer["cache"] = cache_report(output)
        return answer

    def of(self, number: int, output: RequestOutput) -> bytes:
        self._add(output)
        chunks = b""
        for one in output.outputs:
            parser = self._parsers.get(one.index)
            if parser is None:
                parser = self._parsers[one.index] = self._new_parser()
                role = {"role": "assistant", "content": ""}
                first = {"index": one.index, "delta": role, "logprobs": None, "finish_reason": None}
                chunks += self._chunk(first)
            delta = parser.push(one.text)
            if one.finished:
                delta += parser.finish()
            rest = self._rest(one, parser)
            *deltas, last = delta.to_json() or [{}]
            for found in deltas:
                chunks += self._chunk(
                    {"index": one.index, "delta": found, "logprobs": None, "finish_reason": None}
                )
            if last or one.finished or rest["logprobs"] is not None or "token_ids" in rest:
                chunk_end = self._body.explain_cache and output.finished
                extra = {"cache": cache_report(output)} if chunk_end else {}
                chunks += self._chunk({"index": one.index, "delta": last, **rest}, **extra)
        return chunks

    def end(self) -> bytes:
        if not self._usage_at_end:
            return DONE
        last = {**self._head("chat.completion.chunk"), "choices": [], "usage": usage([self._count])}
        return event(last) + DONE

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _chunk(self, choice: dict[str, Any], **extra: Any) -> bytes:
        chunk: dict[str, Any] = {**self._head("chat.completion.chunk"), "choices": [choice], **extra}
        if self._usage_always:
            chunk["usage"] = usage([self._count])
        elif self._usage_at_end:
            chunk["usage"] = None
        return event(chunk)

    def _add(self, output: RequestOutput) -> None:
        generated = self._count[2] + sum(len(one.token_ids) for one in output.outputs)
        self._count = (self._count[0], output.num_cached_tokens, generated)

    def _rest(self, one: CompletionOutput, parser: MessageParser) -> dict[str, Any]:
        top = self._body.top_logprobs or 0
        rest: dict[str, Any] = {
            "logprobs": None if one.logprobs is None else chat_logprobs(one.logprobs, top),
            "finish_reason": parser.finish_reason(one.finish_reason),
            "stop_reason": one.stop_reason,
        }
        if self._body.return_token_ids:
            rest["token_ids"] = one.token_ids
        return rest
