"""What a request must keep to before a route sees it: API keys, pages of other origins, sizes, rates."""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Sequence
from hashlib import sha256
from ipaddress import ip_address
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leafage.server.errors import RETRY, ApiError, error_response

if TYPE_CHECKING:
    from leafage.server.context import Context

OPEN_PATHS = ("/", "/docs", "/openapi.json")
"""Need no key, nor do those below OPEN_PREFIXES: they tell nothing about requests."""
OPEN_PREFIXES = ("/health", "/live/static/", "/docs/static/")
GENERATING_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
ENDLESS_PATHS = ("/live/events",)
"""Of answers without an end, which have no head alone."""
DISCARDED_BYTES = 64 << 20
"""Of the body of a request that was refused, at most."""


class TokenBucket:
    """So many a minute, of which as many may come at once.

    Args:
        per_minute: above 0.
        now: seconds of a monotonic clock, as in `take`.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        self._per_second = per_minute / 60
        self._size = max(1.0, per_minute)
        self._level = self._size
        self._time = now

    def take(self, now: float) -> float:
        """Take one, and return 0; or take none, and return the seconds until there is one."""
        self._level = min(self._size, self._level + (now - self._time) * self._per_second)
        self._time = now
        if self._level >= 1:
            self._level -= 1
            return 0.0
        return (1 - self._level) / self._per_second


class ApiKeys:
    """Tells keys from other texts in a time that says nothing about either."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [sha256(key.encode()).digest() for key in keys]

    def __len__(self) -> int:
        return len(self._digests)

    def find(self, header: str | None) -> int | None:
        """The number of the key that an Authorization header carries; None: none of ours."""
        scheme, _, key = (header or "").partition(" ")
        digest = sha256(key.strip().encode("latin-1", "replace")).digest()
        found = None
        for number, known in enumerate(self._digests):
            if hmac.compare_digest(known, digest):
                found = number
        return found if scheme.lower() == "bearer" else None


class Limits:
    """ASGI middleware: turns away what may not come in, counts a body while it arrives, takes HEAD as GET."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self.app = app
        self._context = context
        config = context.config
        self._keys = ApiKeys(config.api_key)
        self._pages = PageCheck(config.host, config.cors_origin)
        self._buckets: list[TokenBucket] = []
        if config.rate_limit is not None:
            now = time.monotonic()
            self._buckets = [TokenBucket(config.rate_limit, now) for _ in config.api_key]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check(scope)
        except ApiError as error:
            if _closes(scope, error):
                await _discard(receive)
            await error_response(error)(scope, receive, send)
            return
        if scope["method"] == "HEAD" and scope["path"] not in ENDLESS_PATHS:
            scope = {**scope, "method": "GET"}  # the protocol leaves the body out
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        with self._context.lifecycle.answering():
            await self.app(scope, self._bounded(scope, receive), send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        key = None
        if not self._keys:
            self._pages.check(headers)
        elif not is_open(scope["path"]):
            key = self._keys.find(headers.get("authorization"))
            if key is None:
                raise self._reject("unauthorized", _unauthorized(headers))
        if scope["method"] != "POST":
            return
        if self._context.lifecycle.draining:
            raise self._reject("draining", self._context.lifecycle.refusal())
        if key is not None and self._buckets:
            self._check_rate(key)
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length[:20]) > self._context.config.max_body_bytes:
            raise self._too_large(length[:20])
        if scope["path"] in GENERATING_PATHS:
            self._context.admission.check_queue()

    def _check_rate(self, key: int) -> None:
        wait = self._buckets[key].take(time.monotonic())
        if wait:
            rate = self._context.config.rate_limit
            error = ApiError(
                f"too many requests with this API key; limit: {rate:g} a minute. {RETRY}",
                status=429,
                code="rate_limit_exceeded",
                headers={"Retry-After": str(math.ceil(wait))},
            )
            raise self._reject("rate_limit", error)

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        left = self._context.config.max_body_bytes

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                error = self._too_large(None)
                if message.get("more_body") and _closes(scope, error):
                    await _discard(receive)
                raise error
            return message

        return bounded

    def _too_large(self, length: str | None) -> ApiError:
        limit = self._context.config.max_body_bytes
        got = "" if length is None else f"; got {length} bytes"
        error = ApiError(
            f"the body is too large{got}; limit: {limit} bytes. Send less, or raise --max-body-bytes",
            status=413,
            code="body_too_large",
        )
        return self._reject("body_too_large", error)

    def _reject(self, reason: str, error: ApiError) -> ApiError:
        self._context.rejections[reason] += 1
        return error


class PageCheck:
    """Keeps web pages that a person happens to look at from using a server without keys on his machine.

    A browser says in its headers which page sends a request, even where the page may not read the answer; and
    a stranger's name can be pointed at this machine's address, which makes its page one of this server.

    Args:
        host: that the server listens at.
        origins: of pages that may use it.
    """

    def __init__(self, host: str, origins: Sequence[str]) -> None:
        self._is_local = is_loopback(host)
        self._origins = origins

    def check(self, headers: Headers) -> None:
        """Raises ApiError 403 for a page that may not."""
        origin = headers.get("origin")
        if (origin is None and "sec-fetch-site" not in headers) or "*" in self._origins:
            return
        host = headers.get("host", "")
        if origin in self._origins:
            return
        if origin is None or origin.partition("://")[2] == host:
            if not self._is_local or _is_address(host):
                return
            origin = origin or f"http://{host}"
        raise ApiError(
            f"web pages of {origin[:200]} may not use this server. "
            f"Start it with --cors-origin {origin[:200]} if they may, or with --api-key",
            status=403,
            code="origin_not_allowed",
        )


def is_open(path: str) -> bool:
    """Whether a path needs no API key."""
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIXES)


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own for sure."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    """Whether a Host header holds an address or localhost, not a name that anybody could own."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if is_loopback(name):
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _closes(scope: Scope, error: ApiError) -> bool:
    """Whether the connection ends with the answer to a request whose body may still be on its way. Where it
    arrives after the end, the client's system may throw away the answer."""
    headers = Headers(scope=scope)
    has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
    if not has_body or "expect" in headers:  # who expects a word first has sent nothing
        return False
    wanted = (headers.get("connection", "") + error.headers.get("Connection", "")).lower()
    return "close" in wanted or scope.get("http_version") == "1.0"


async def _discard(receive: Receive) -> None:
    left = DISCARDED_BYTES
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        if not message.get("more_body"):
            return


def _unauthorized(headers: Headers) -> ApiError:
    given = "an API key that is not known here" if "authorization" in headers else "no API key"
    return ApiError(
        f"the request carries {given}. Send the header Authorization: Bearer KEY",
        status=401,
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
