"""Request bodies: JSON to a pydantic model, what is wrong with it told by name. And their part of OpenAPI."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request

from leafage.server.context import context_of
from leafage.server.errors import ApiError
from leafage.server.protocol.answers import ErrorAnswer

IGNORED_HEADER = "X-Leafage-Ignored-Fields"
MAX_LISTED = 5
"""Mistakes of one body that are listed."""
MAX_IGNORED = 20
"""Ignored fields that are listed."""
MAX_MISTAKES = 1000
"""More than this are not even looked at."""
MAX_NAME = 200
"""Characters of a field's path that are told of; its names may be a client's."""

SCHEMAS: dict[str, Any] = {}
"""Schemas that the OpenAPI document refers to, by name."""

M = TypeVar("M", bound=BaseModel)


async def read_body(request: Request, model: type[M]) -> M:
    """The body of a request. Fields that were ignored, where the server tolerates such, are noted in
    `request.state.ignored_fields` for the response header; errors name the fields of `request.state.body`.

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
        note_ignored(request, _extra(parsed, ""))
    request.state.body = parsed
    return parsed


def _check_media_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise ApiError(
            f"the body must be JSON; got content type {kind[:100] or 'none'!r}. "
            "Send the header Content-Type: application/json",
            status=415,
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(
            f"the body must not be compressed; got content encoding {encoding[:100]!r}. Send it as it is",
            status=415,
        )


def _check_numbers(data: bytes) -> None:
    """The parser takes NaN and Infinity, which are no JSON."""
    try:
        from_json(data, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise ApiError(f"the body is no JSON: {error}") from None


def _body_error(error: ValidationError, model: type[BaseModel]) -> ApiError:
    if error.error_count() > MAX_MISTAKES:
        count = f"{error.error_count()} mistakes; limit: {MAX_MISTAKES} to be listed"
        return ApiError(f"the body is no {model.__name__}: {count}. See /docs for its fields")
    found = _telling(error.errors(include_url=False, include_context=True))
    texts = [_text(one, model) for one in found[:MAX_LISTED]]
    if len(found) > MAX_LISTED:
        texts.append(f"and {len(found) - MAX_LISTED} more")
    return ApiError("; ".join(texts), param=_path_of(found[0]) or None)


def _telling(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Without those of a union's other branches: where something inside a value is wrong, its kind is not."""
    paths = [_path_of(one) for one in errors]
    is_kind = [one["type"].endswith("_type") for one in errors]

    def says_less(i: int) -> bool:
        inside = (f"{paths[i]}.", f"{paths[i]}[")
        return is_kind[i] and any(
            path.startswith(inside) or (path == paths[i] and not kind)
            for path, kind in zip(paths, is_kind, strict=True)
        )

    if len(errors) > 100:  # each would be compared with all, and nobody reads them
        return errors
    return [one for i, one in enumerate(errors) if not says_less(i)]


def _text(error: ErrorDetails, model: type[BaseModel]) -> str:
    path = _path_of(error)
    if error["type"] == "json_invalid":
        return f"the body is no JSON: {error['msg'].removeprefix('Invalid JSON: ')}"
    if error["type"] == "extra_forbidden":
        known = list(model.model_fields) if len(error["loc"]) == 1 else []
        close = difflib.get_close_matches(path, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "leave it out"
        return f"unknown field {path!r}: {hint}"
    value = error.get("input")
    got = "" if error["type"] == "missing" or isinstance(value, dict | list) else f", got {_short(value)}"
    return f"{path or 'the body'}: {error['msg']}{got}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _path_of(error: ErrorDetails) -> str:
    location = error["loc"]
    if error["type"] != "extra_forbidden":
        return _path(location)
    return _cut(".".join(filter(None, [_path(location[:-1]), str(location[-1])])))  # whatever it is called


def _path(location: Iterable[int | str]) -> str:
    """messages[0].content; names that pydantic gives the branches of a union are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and not part[0].isupper() and part not in ("str", "int", "float", "bool"):
            path += f".{part}" if path else part
    return _cut(path)


def _cut(path: str) -> str:
    return path if len(path) <= MAX_NAME else path[: MAX_NAME - 3] + "..."


def _extra(value: Any, path: str) -> Iterable[str]:
    if isinstance(value, BaseModel):
        for name in value.model_extra or {}:
            yield f"{path}{name}"
        for name in value.model_fields_set:
            yield from _extra(getattr(value, name, None), f"{path}{name}.")
    elif isinstance(value, list):
        for item in value:
            yield from _extra(item, path)


def note_ignored(request: Request, fields: Iterable[str]) -> None:
    """Tell the client in a header that these fields of its body changed nothing."""
    noted = getattr(request.state, "ignored_fields", [])
    request.state.ignored_fields = sorted({*noted, *fields})


def answer_headers(request: Request) -> dict[str, str]:
    """Headers of the answer to a request whose body was read."""
    ignored = [quote(name[:100], safe="[]") for name in getattr(request.state, "ignored_fields", [])]
    if len(ignored) > MAX_IGNORED:
        ignored[MAX_IGNORED:] = ["..."]
    return {IGNORED_HEADER: ", ".join(ignored)} if ignored else {}


ERROR_STATUSES = {
    400: "The request is wrong, or asks for something that is not there; the message says what to do",
    401: "The API key is missing or wrong",
    404: "No such model, or nothing is at this path",
    408: "The body did not come in time",
    413: "The body is too large",
    415: "The body is not said to be JSON",
    429: "Too many requests; Retry-After says when to try again",
    500: "The request ended with an error",
    503: "The server is starting, draining or stuck",
    504: "The request took longer than the server allows",
}


def operation(
    body: type[BaseModel] | None,
    answer: Any,
    *,
    event: Any = None,
    statuses: Iterable[int] = ERROR_STATUSES,
    example: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """`openapi_extra` of a route.

    Args:
        body: what it reads with `read_body`.
        answer: type of its JSON answer.
        event: type of the data of its events where `stream` is true.
        statuses: of the errors it may answer with.
        example: a body.
    """
    content: dict[str, Any] = {"application/json": {"schema": _reference(answer)}}
    if event is not None:
        content["text/event-stream"] = {"schema": _events(event)}
    error = {"application/json": {"schema": _reference(ErrorAnswer)}}
    responses = {"200": {"description": "The answer", "content": content}}
    for status in statuses:
        responses[str(status)] = {"description": ERROR_STATUSES[status], "content": error}
    extra: dict[str, Any] = {"responses": responses}
    if body is not None:
        sent: dict[str, Any] = {"application/json": {"schema": _reference(body)}}
        if example is not None:
            sent["application/json"]["example"] = dict(example)
        extra["requestBody"] = {"required": True, "content": sent}
    return extra


def _events(event: Any) -> dict[str, Any]:
    """Schema of an event of a stream: JSON, or what ends streams of the older endpoints."""
    told = {"anyOf": [_reference(event), _reference(ErrorAnswer)]}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": told}
    properties = {"event": {"type": "string"}, "data": {"anyOf": [data, {"const": "[DONE]"}]}}
    return {"type": "object", "properties": properties, "required": ["data"]}


def _reference(type_: Any) -> dict[str, str]:
    """Adds a type's schema to the document."""
    schema = TypeAdapter(type_).json_schema(ref_template="#/components/schemas/{model}")
    SCHEMAS.update(schema.pop("$defs", {}))
    SCHEMAS[type_.__name__] = schema
    return {"$ref": f"#/components/schemas/{type_.__name__}"}
