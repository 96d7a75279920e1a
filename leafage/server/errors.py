"""Errors as the OpenAI API words them."""

from __future__ import annotations

import json
from collections.abc import Mapping

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


def api_error(error: Exception) -> ApiError:
    """What a client is told of any error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestTooLargeError):
        return ApiError(str(error), code="context_length_exceeded")
    if isinstance(error, UnsupportedError):
        return ApiError(str(error), code="unsupported")
    if isinstance(error, InvalidParameterError | TemplateError):
        return ApiError(str(error))
    if isinstance(error, PinRefusedError):
        return ApiError(str(error), status=429)
    if isinstance(error, LeafageError):
        return ApiError(str(error), status=500)
    return ApiError(f"internal error ({type(error).__name__}); the server's log has more", status=500)


def error_response(error: Exception) -> Response:
    """The answer to a request that failed before it streamed."""
    told = api_error(error)
    return Response(
        json.dumps(told.body), status_code=told.status, headers=told.headers, media_type="application/json"
    )
