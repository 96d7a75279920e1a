"""Request bodies: JSON to a pydantic model, what is wrong with it told by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request

from leafage.server.context import context_of
from leafage.server.errors import ApiError

IGNORED_HEADER = "X-Leafage-Ignored-Fields"
MAX_LISTED = 5
"""Mistakes of one body that are listed."""
MAX_IGNORED = 20
"""Ignored fields that are listed."""

BODY_MODELS: dict[str, Any] = {}
"""Schemas that the OpenAPI document refers to, by name."""

M = TypeVar("M", bound=BaseModel)


async def read_body(request: Request, model: type[M]) -> M:
    """The body of a request. Fields that were ignored, where the server tolerates such, are noted in
    `request.state.ignored_fields` for the response header.

    Raises:
        ApiError: it is no JSON, or not of this form.
    """
    _check_media_type(request)
    data = await request.body()
    if b"NaN" in data or b"Infinity" in data:
        _check_numbers(data)
    tolerant = context_of(request).config.unknown_fields == "ignore"
    try:
        parsed = model.model_validate_json(data, extra="allow" if tolerant else "forbid")
    except ValidationError as error:
        raise _body_error(error, model) from None
    if tolerant:
        request.state.ignored_fields = sorted(set(_extra(parsed, "")))
    return parsed


def _check_media_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise ApiError(
            f"the body must be JSON; got content type {kind[:100] or 'none'!r}. "
            "Send the header Content-Type: application/json",
            status=415,
        )


def _check_numbers(data: bytes) -> None:
    """The parser takes NaN and Infinity, which are no JSON."""
    try:
        from_json(data, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise ApiError(f"the body is no JSON: {error}") from None


def _body_error(error: ValidationError, model: type[BaseModel]) -> ApiError:
    found = error.errors(include_url=False, include_context=True)
    texts = [_text(one, model) for one in found[:MAX_LISTED]]
    if len(found) > MAX_LISTED:
        texts.append(f"and {len(found) - MAX_LISTED} more")
    return ApiError("; ".join(texts), param=_path(found[0]["loc"]) or None)


def _text(error: ErrorDetails, model: type[BaseModel]) -> str:
    path = _path(error["loc"])
    if error["type"] == "json_invalid":
        return f"the body is no JSON: {error['msg'].removeprefix('Invalid JSON: ')}"
    if error["type"] == "extra_forbidden":
        name = str(error["loc"][-1])[:100]
        close = difflib.get_close_matches(name, list(model.model_fields), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "leave it out"
        return f"unknown field {_short(path)}: {hint}"
    value = error.get("input")
    got = "" if error["type"] == "missing" or isinstance(value, dict | list) else f", got {_short(value)}"
    return f"{path or 'the body'}: {error['msg']}{got}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _path(location: Iterable[int | str]) -> str:
    """messages[0].content; names that pydantic gives the branches of a union are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and not part[0].isupper() and part not in ("str", "int", "float", "bool"):
            path += f".{part}" if path else part
    return path


def _extra(value: Any, path: str) -> Iterable[str]:
    if isinstance(value, BaseModel):
        for name in value.model_extra or {}:
            yield f"{path}{name}"
        for name in value.model_fields_set:
            yield from _extra(getattr(value, name, None), f"{path}{name}.")
    elif isinstance(value, list):
        for item in value:
            yield from _extra(item, path)


def answer_headers(request: Request) -> dict[str, str]:
    """Headers of the answer to a request whose body was read."""
    ignored = [quote(name[:100], safe="[]") for name in getattr(request.state, "ignored_fields", [])]
    if len(ignored) > MAX_IGNORED:
        ignored[MAX_IGNORED:] = ["..."]
    return {IGNORED_HEADER: ", ".join(ignored)} if ignored else {}


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads this model with `read_body`."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    BODY_MODELS.update(schema.pop("$defs", {}))
    BODY_MODELS[model.__name__] = schema
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
    return {"requestBody": {"required": True, "content": content}}
