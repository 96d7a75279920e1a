"""Errors as the OpenAI API words them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping

from starlette.responses import Response

from leafage.errors import (
    InvalidParameterError,
    LeafageError,
    PinRefusedError,
    RequestTooLargeError,
    TemplateError,
    UnsupportedError,
)

_KINDS: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "service_unavailable_error",
}
RETRY = "Come again after the seconds of the header Retry-After"
MAX_MESSAGE = 2000
"""Characters of a message."""
_NAME = re.compile(r"(?:the |unknown )?(\w+(?:\.\w+|\[\d+\])*)")
"""What an error begins with."""


class ApiError(Exception):
    """A request that is answered with an error.

    Args:
        message: what happened, the value, the limit, what to do.
        param: the field that is to blame, or None.
        code: OpenAI's word for it, or None.
        headers: of the answer (Retry-After...).
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, object]:
        """The JSON of the answer."""
        kind = _KINDS.get(self.status, "server_error")
        return {
            "error": {"message": _clipped(self.message), "type": kind, "param": self.param, "code": self.code}
        }


def _clipped(message: str) -> str:
    """Without most of what a client sent in megabytes."""
    if len(message) <= MAX_MESSAGE:
        return message
    return f"{message[: MAX_MESSAGE // 2]} [...] {message[-MAX_MESSAGE // 2 :]}"


def api_error(error: Exception, param: str | None = None) -> ApiError:
    """What a client is told of any error.

    Args:
        param: the field that is to blame, where the error does not know it.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestTooLargeError):
        code = "context_length_exceeded" if "prompt" in error.what else None  # else it is about n, best_of...
        return ApiError(str(error), param=param, code=code)
    if isinstance(error, UnsupportedError):
        return ApiError(str(error), param=param, code="unsupported")
    if isinstance(error, InvalidParameterError | TemplateError):
        return ApiError(str(error), param=param)
    if isinstance(error, PinRefusedError):
        return ApiError(str(error), status=429)
    if isinstance(error, LeafageError):
        return ApiError(str(error), status=500)
    return ApiError(f"internal error ({type(error).__name__}); the server's log has more", status=500)


def field_error(error: Exception, fields: Collection[str], names: Mapping[str, str]) -> ApiError:
    """What is told of an error that a request's body caused, in terms of its fields; `param` is the one to
    blame. Leafage's errors begin with the name of what is wrong.

    Args:
        fields: of the body.
        names: paths in it for what the engine calls otherwise.
    """
    if not isinstance(error, LeafageError):
        return api_error(error)
    found = _NAME.match(error.what)
    path = found[1] if found else ""
    if isinstance(error, TemplateError) and not path.startswith("messages"):
        path = "messages"
    name = _root(path)
    param = names.get(name, path)
    if _root(param) not in fields:
        return api_error(error)
    told = api_error(error, param)
    for old, new in names.items():
        if (old == name or old == "max_tokens") and old != "prompt":  # which is a word as well
            told.message = re.sub(rf"\b{old}\b(?!\[)", new, told.message)
    return told


def _root(path: str) -> str:
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def error_response(error: Exception) -> Response:
    """The answer to a request that failed before it streamed."""
    told = api_error(error)
    return Response(
        json.dumps(told.body), status_code=told.status, headers=told.headers, media_type="application/json"
    )
