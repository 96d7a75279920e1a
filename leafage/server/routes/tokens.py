"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from leafage.errors import InvalidParameterError
from leafage.server.body import answer_headers, operation, read_body
from leafage.server.context import context_of
from leafage.server.conversation import Writing
from leafage.server.protocol.answers import to_json
from leafage.server.protocol.tokens import (
    Detokenized,
    DetokenizeRequest,
    Tokenized,
    TokenizeRequest,
)
from leafage.server.routes.chat import template_variables
from leafage.server.tools.request import ToolUse

router = APIRouter(tags=["tokens"])
_STATUSES = (400, 401, 404, 408, 413, 415, 503)


@router.post(
    "/tokenize",
    openapi_extra=operation(
        TokenizeRequest, Tokenized, statuses=_STATUSES, example={"prompt": "Hello", "return_token_strs": True}
    ),
)
async def tokenize(request: Request) -> Response:
    """Token ids of a text, as `/v1/completions` would read it, or of a conversation."""
    context = context_of(request)
    body = await read_body(request, TokenizeRequest)
    context.model.check_name(body.model)
    tokenizer = context.model.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise InvalidParameterError("tokenize takes either prompt or messages", remedy="pass one of them")
    _check(body)
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        ids = tokenizer.encode(body.prompt, add_special=special, parse_special=True)
    else:
        assert body.messages is not None
        options = {
            **template_variables(request, body.chat_template_kwargs, None),
            "add_generation_prompt": body.add_generation_prompt is not False,
            "continue_final_message": bool(body.continue_final_message),
        }
        messages = [message.as_dict() for message in body.messages]
        tools = ToolUse.of(body.tools)
        ids = Writing(tokenizer, context.model.chat_format(), tools, options).encode(messages)
    answer: Tokenized = {
        "count": len(ids),
        "max_model_len": context.model.max_model_len,
        "tokens": ids,
        "token_strs": [tokenizer.token_text(token_id) for token_id in ids]
        if body.return_token_strs
        else None,
    }
    return Response(to_json(answer), media_type="application/json", headers=answer_headers(request))


def _check(body: TokenizeRequest) -> None:
    """Refuses fields of the other form."""
    chat = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")
    others, form = (chat, "messages") if body.prompt is not None else (("add_special_tokens",), "prompt")
    for name in others:
        if getattr(body, name) is not None:
            raise InvalidParameterError(f"{name} is for {form}", remedy="leave it out")


@router.post(
    "/detokenize",
    openapi_extra=operation(
        DetokenizeRequest, Detokenized, statuses=_STATUSES, example={"tokens": [72, 105]}
    ),
)
async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens written out."""
    context = context_of(request)
    body = await read_body(request, DetokenizeRequest)
    context.model.check_name(body.model)
    tokenizer = context.model.tokenizer
    wrong = next((one for one in body.tokens if not 0 <= one < tokenizer.vocab_size), None)
    if wrong is not None:
        limit = f"0 to {tokenizer.vocab_size - 1}"
        raise InvalidParameterError("tokens: no such token id", value=wrong, limit=limit)
    answer: Detokenized = {"prompt": tokenizer.decode(body.tokens, skip_special_tokens=False)}
    return Response(to_json(answer), media_type="application/json", headers=answer_headers(request))
