"""/v1/responses: answer an input, keep the answer, and go on from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from leafage.core.sampling_params import SamplingParams
from leafage.engine.output import CompletionOutput
from leafage.errors import InvalidParameterError
from leafage.server.body import answer_headers, operation, read_body
from leafage.server.context import Context, context_of
from leafage.server.conversation import Message, SessionTurn, Writing, owner_of
from leafage.server.errors import ApiError
from leafage.server.generation import complete, encoded, start, written
from leafage.server.protocol.answers import to_json
from leafage.server.protocol.responses import (
    LOGPROBS,
    DeletedResponse,
    ResponseEvent,
    ResponseObject,
    ResponsesRequest,
)
from leafage.server.response_answer import ResponseAnswer
from leafage.server.response_input import chat_tool_choice, chat_tools, messages_of
from leafage.server.routes.chat import check_format, template_variables
from leafage.server.sessions import Conversation
from leafage.server.sse import EventStream
from leafage.server.tools.request import ToolUse

router = APIRouter(tags=["responses"])


@dataclass(frozen=True, slots=True)
class Stored:
    """A response that is kept.

    Attributes:
        body: its JSON.
        messages: of the conversation, the answer included, without instructions.
        conversation: its token ids.
    """

    body: bytes
    messages: list[Message]
    conversation: Conversation

    @property
    def num_bytes(self) -> int:
        """Roughly."""
        texts = sum(len(str(message)) for message in self.messages)
        return len(self.body) + texts + self.conversation.num_bytes


@router.post(
    "/v1/responses",
    openapi_extra=operation(
        ResponsesRequest,
        ResponseObject,
        event=ResponseEvent,
        example={"input": "Why is the sky blue?", "max_output_tokens": 100},
    ),
)
async def create_response(request: Request) -> Response:
    """Answer an input through the model's chat template."""
    context = context_of(request)
    body = await read_body(request, ResponsesRequest)
    context.model.check_name(body.model)
    _check(body)
    tools = ToolUse.of(chat_tools(body.tools), chat_tool_choice(body.tool_choice), body.parallel_tool_calls)
    chat_format = context.model.chat_format()
    params = _params(body, context.model.default_sampling_params)
    if chat_format.needs_special_tokens(tools):
        params = replace(params, skip_special_tokens=False)
    owner = owner_of(request)
    before = _previous(context, owner, body.previous_response_id)
    messages = [*(before.messages if before is not None else ()), *messages_of(body.input)]
    system: list[Message] = [{"role": "system", "content": body.instructions}] if body.instructions else []
    effort = None if body.reasoning is None else body.reasoning.effort
    options = template_variables(request, body.chat_template_kwargs, effort)
    writing = Writing(context.model.tokenizer, chat_format, tools, options)
    known = None if before is None else before.conversation
    turn = await encoded(request, lambda: SessionTurn(known, [*system, *messages], writing))
    new = context.model.inputs.request(
        context.engine.new_request_id(),
        {"prompt_token_ids": turn.token_ids, "cache_salt": body.cache_salt or "", "tenant": body.tenant},
        params,
        priority=body.priority or 0,
    )
    answer = ResponseAnswer(
        context.model,
        body,
        params,
        new,
        partial(chat_format.new_parser, tools, new.prompt_token_ids),
        None if body.store is False else partial(_keep, context, owner, turn, messages, params),
        turn.report if before is not None else None,
    )
    if body.stream:
        running = await start(request, [new], stream=True)
        return EventStream(running, answer, headers=answer_headers(request))
    [output] = await complete(request, [new])
    whole = await written(request, [output], lambda: to_json(answer.whole(output)))
    return Response(whole, media_type="application/json", headers=answer_headers(request))


@router.get(
    "/v1/responses/{response_id}", openapi_extra=operation(None, ResponseObject, statuses=(400, 401, 404))
)
async def get_response(request: Request, response_id: str) -> Response:
    """A stored response."""
    if request.query_params:
        name = next(iter(request.query_params))
        raise InvalidParameterError("a stored response is told whole", value=name, remedy="leave it out")
    stored = _find(context_of(request), owner_of(request), response_id)
    return Response(stored.body, media_type="application/json")


@router.delete(
    "/v1/responses/{response_id}", openapi_extra=operation(None, DeletedResponse, statuses=(401, 404))
)
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a stored response."""
    context, owner = context_of(request), owner_of(request)
    _find(context, owner, response_id)
    context.responses.remove((owner, response_id))
    answer: DeletedResponse = {"id": response_id, "object": "response", "deleted": True}
    return Response(to_json(answer), media_type="application/json")


def _find(context: Context, owner: str, response_id: str) -> Stored:
    stored: Stored | None = context.responses.get((owner, response_id))
    if stored is None:
        raise ApiError(
            f"no response {response_id[:100]!r} is stored here. The oldest ones make room for new ones, and "
            "none outlives the server",
            status=404,
            code="response_not_found",
        )
    return stored


def _previous(context: Context, owner: str, response_id: str | None) -> Stored | None:
    if response_id is None:
        return None
    try:
        return _find(context, owner, response_id)
    except ApiError as error:
        message = f"{error.message}. Send the whole conversation as input"
        code, param = "previous_response_not_found", "previous_response_id"
        raise ApiError(message, status=400, code=code, param=param) from None


def _keep(
    context: Context,
    owner: str,
    turn: SessionTurn,
    messages: list[Message],
    params: SamplingParams,
    answer: CompletionOutput,
    message: Message,
    response: ResponseObject,
) -> None:
    conversation = turn.after(answer, message, params)
    stored = Stored(to_json(response), [*messages, message], conversation)
    context.responses.put((owner, response["id"]), stored, stored.num_bytes)


def _check(body: ResponsesRequest) -> None:
    check_format(None if body.text is None or body.text.format is None else body.text.format.type)
    for name in body.include or ():
        if name != LOGPROBS:
            raise InvalidParameterError("include: this is not there", value=name[:100], limit=LOGPROBS)
    if body.top_logprobs is not None and LOGPROBS not in (body.include or ()):
        raise InvalidParameterError(
            "top_logprobs needs logprobs", value=body.top_logprobs, remedy=f"put {LOGPROBS!r} into include"
        )
    if body.stream_options is not None and not body.stream:
        raise InvalidParameterError("stream_options is for streams", remedy="set stream, or leave it out")


def _params(body: ResponsesRequest, base: SamplingParams) -> SamplingParams:
    settings: dict[str, Any] = {"max_tokens": body.max_output_tokens}
    if LOGPROBS in (body.include or ()):
        settings["logprobs"] = body.top_logprobs or 0
    return body.sampling_params(base, **settings)
