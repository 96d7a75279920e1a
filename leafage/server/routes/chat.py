"""POST /v1/chat/completions: answer conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from leafage.core.sampling_params import SamplingParams
from leafage.engine.output import CompletionOutput
from leafage.errors import InvalidParameterError, UnsupportedError
from leafage.server.body import answer_headers, note_ignored, operation, read_body
from leafage.server.chat_answer import ChatAnswer
from leafage.server.context import Context, context_of
from leafage.server.conversation import Message, SessionTurn, Writing, session_key
from leafage.server.generation import complete, encoded, start, written
from leafage.server.protocol.answers import to_json
from leafage.server.protocol.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
)
from leafage.server.sse import EventStream
from leafage.server.tools.request import ToolUse
from leafage.text.chat_template import OWN_VARIABLES

router = APIRouter(tags=["chat"])


@router.post(
    "/v1/chat/completions",
    openapi_extra=operation(
        ChatCompletionRequest,
        ChatCompletion,
        event=ChatCompletionChunk,
        example={"messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 100},
    ),
)
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation through the model's chat template."""
    context = context_of(request)
    body = await read_body(request, ChatCompletionRequest)
    context.model.check_name(body.model)
    _check(body)
    tools = ToolUse.of(body.tools, body.tool_choice, body.parallel_tool_calls)
    chat_format = context.model.chat_format()
    params = _params(body, context.model.default_sampling_params)
    if chat_format.needs_special_tokens(tools):
        params = replace(params, skip_special_tokens=False)
    prompt = await _prompt(request, body, tools)
    new = context.model.inputs.request(
        context.engine.new_request_id(),
        {
            "prompt_token_ids": prompt.token_ids,
            "cache_salt": body.cache_salt or "",
            "tenant": body.tenant,
        },
        params,
        priority=body.priority or 0,
    )
    answer = ChatAnswer(
        context.model,
        body,
        new,
        partial(chat_format.new_parser, tools, new.prompt_token_ids),
        None if prompt.turn is None else partial(prompt.keep, context, params),
        None if prompt.turn is None else prompt.turn.report,
    )
    if body.stream:
        running = await start(request, [new], stream=True)
        return EventStream(running, answer, headers=answer_headers(request))
    [output] = await complete(request, [new])
    whole = await written(request, [output], lambda: to_json(answer.whole(output)))
    return Response(whole, media_type="application/json", headers=answer_headers(request))


def _check(body: ChatCompletionRequest) -> None:
    check_format(None if body.response_format is None else body.response_format.type)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidParameterError(
            "top_logprobs needs logprobs", value=body.top_logprobs, remedy="set logprobs to true"
        )
    if body.stream_options is not None and not body.stream:
        raise InvalidParameterError("stream_options is for streams", remedy="set stream, or leave it out")
    if body.session_id is not None:
        if (body.n or 1) > 1:
            raise InvalidParameterError(
                "n: a session keeps one answer to each turn", value=body.n, remedy="leave n out"
            )
        if body.continue_final_message or body.add_generation_prompt is False:
            raise InvalidParameterError(
                "session_id: the answers of a session are whole turns",
                remedy="leave add_generation_prompt and continue_final_message out, or session_id",
            )


def check_format(wanted: str | None) -> None:
    """Raises InvalidParameterError, UnsupportedError for a format other than text."""
    if wanted is None or wanted == "text":
        return
    if wanted not in ("json_object", "json_schema"):
        raise InvalidParameterError(
            "unknown response_format", value=wanted, limit="text, json_object or json_schema"
        )
    raise UnsupportedError(
        "response_format: structured output is not there yet",
        value=wanted,
        limit="text",
        remedy="leave it out",
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


@dataclass(slots=True)
class _Prompt:
    """The prompt of a conversation; of a session also its key and its turn."""

    token_ids: list[int]
    key: tuple[str, ...] = ()
    turn: SessionTurn | None = None

    def keep(
        self, context: Context, params: SamplingParams, answer: CompletionOutput, message: Message
    ) -> None:
        """The session's answer is there. One that failed is not kept."""
        if self.turn is not None and answer.finish_reason in ("stop", "length"):
            conversation = self.turn.after(answer, message, params)
            context.sessions.put(self.key, conversation, conversation.num_bytes)


async def _prompt(request: Request, body: ChatCompletionRequest, tools: ToolUse) -> _Prompt:
    context = context_of(request)
    messages = [message.as_dict() for message in body.messages]
    variables = template_variables(request, body.chat_template_kwargs, body.reasoning_effort)
    options = {
        **variables,
        "add_generation_prompt": body.add_generation_prompt is not False,
        "continue_final_message": bool(body.continue_final_message),
    }
    writing = Writing(context.model.tokenizer, context.model.chat_format(), tools, options)
    note_ignored(request, await encoded(request, lambda: writing.unwritten_names(messages)))
    if body.session_id is None:
        return _Prompt(await encoded(request, lambda: writing.encode(messages)))
    key = session_key(request, body.session_id, body.cache_salt or "", body.tenant or "")
    before = context.sessions.get(key)
    turn = await encoded(request, lambda: SessionTurn(before, messages, writing))
    return _Prompt(turn.token_ids, key, turn)


def template_variables(
    request: Request, given: Mapping[str, Any] | None, effort: str | None
) -> dict[str, Any]:
    """Those that a request sets. What the template does not read is refused, or ignored and listed in the
    answer's header where the server tolerates unknown fields.

    Args:
        given: `chat_template_kwargs`.
        effort: `reasoning_effort`, a variable of some templates.

    Raises:
        InvalidParameterError, UnsupportedError: one that the template does not read.
    """
    template = context_of(request).model.template()
    variables = {name: value for name, value in (given or {}).items() if name in template.variables}
    unread = sorted((given or {}).keys() - variables.keys())
    own = next((name for name in unread if name in OWN_VARIABLES), None)
    if own is not None:
        raise InvalidParameterError(
            "chat_template_kwargs: this variable is set by Leafage itself", value=own, remedy="leave it out"
        )
    if unread and context_of(request).config.unknown_fields == "ignore":
        note_ignored(request, [f"chat_template_kwargs.{name}" for name in unread])
    elif unread:
        raise InvalidParameterError(
            "chat_template_kwargs: the model's chat template reads no such variable",
            value=unread[0],
            limit=", ".join(sorted(template.variables)) or "none at all",
            remedy="leave it out",
        )
    if effort is not None and "reasoning_effort" in template.variables:
        variables.setdefault("reasoning_effort", effort)
    elif effort is not None and (effort != "none" or "enable_thinking" in template.variables):
        remedy = "leave it out"
        if "enable_thinking" in template.variables:
            remedy = 'set chat_template_kwargs to {"enable_thinking": true} or false'
        raise UnsupportedError(
            "reasoning_effort: the model's chat template does not read it", value=effort, remedy=remedy
        )
    return variables
