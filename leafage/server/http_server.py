"""uvicorn with what a server on its own needs: bounded heads, no patience with clients that stall, errors as
the API words them, and signals that drain."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import signal
import socket
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from types import FrameType
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from leafage.errors import LeafageError
from leafage.server.config import ServerConfig
from leafage.server.errors import ApiError
from leafage.server.lifecycle import Lifecycle

MAX_HEAD_BYTES = 64 << 10
"""Request line and headers."""
MAX_DISCARDED_BYTES = 1 << 20
KEEP_ALIVE_SECONDS = 75
"""For the next request of a connection: longer than clients (5 s) and proxies (60 s) keep one, so that it is
they who end it, and not we while a request is on its way."""
LINGER_SECONDS = 2.0
"""For the rest of what is no request."""
FLUSH_SECONDS = 5
"""For the last bytes of answers, once the server has drained."""
# Of clients whose machine vanished: the kernel asks after a minute, and gives up half a minute later.
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
_NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_FORCED_EXIT = 128


class ListenError(LeafageError, OSError):
    """The address cannot be listened at."""


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets at an address, which is now taken; nobody is let in yet.

    Args:
        host: a name may stand for several addresses.
        port: 0 takes a free one.

    Raises:
        ListenError: the port is in use, or the address is not this machine's.
    """
    shown = f"[{host}]" if ":" in host else host
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(
            f"the host cannot be found: {error.strerror or error}",
            value=host,
            remedy="give an address of this machine",
        ) from error
    sockets: list[socket.socket] = []
    refused: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            sockets.append(_bound(family, kind, protocol, (address[0], port, *address[2:])))
        except OSError as error:
            refused = error
            if error.errno not in _NO_SUCH_FAMILY:
                break
        else:
            port = sockets[0].getsockname()[1]
    if refused is None or (sockets and refused.errno in _NO_SUCH_FAMILY):
        return sockets
    for taken in sockets:
        taken.close()
    remedy = "give another --host or --port"
    if refused.errno == errno.EADDRINUSE:
        remedy = "give another --port, or end the program that listens there"
    raise ListenError(
        f"cannot listen at {shown}:{port}: {(refused.strerror or str(refused)).lower()}", remedy=remedy
    ) from refused


class HttpServer(uvicorn.Server):
    """Serves an application until a signal has drained it.

    The first SIGTERM or SIGINT: no new requests; those that are here get their answers, for at most
    `drain_timeout` seconds. The second ends everything at once.

    Args:
        say: told in words what happens with a signal.
        on_ready: called when connections are taken.

    Attributes:
        exit_code: of the process, once it has ended: 0 when it has drained.
    """

    def __init__(
        self,
        app: Any,
        config: ServerConfig,
        lifecycle: Lifecycle,
        *,
        say: Callable[[str], None] = lambda text: None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(Protocol, timeout=config.send_timeout),  # type: ignore[arg-type]
                ws="none",
                lifespan="on",
                log_config=None,
                log_level=logging.ERROR,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=FLUSH_SECONDS,
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_not_logged_by_us)
        self.exit_code = 0
        self._drain_timeout = config.drain_timeout
        self._lifecycle = lifecycle
        self._say = say
        self._on_ready = on_ready
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.started:
            self._loop.call_soon_threadsafe(self._signalled, sig)
        else:
            self._end_at_once(sig)

    def _signalled(self, sig: int) -> None:
        if self._draining is None and not self.should_exit:
            self._draining = asyncio.ensure_future(self._drain(sig))
        else:
            self._end_at_once(sig)

    def _end_at_once(self, sig: int) -> None:
        self.exit_code = _FORCED_EXIT + sig
        self.force_exit = self.should_exit = True
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what is cut off is no news
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def _drain(self, sig: int) -> None:
        num_open, again = self._lifecycle.num_open, "Ctrl-C" if sig == signal.SIGINT else "SIGTERM"
        if num_open:
            requests = "one request is" if num_open == 1 else f"{num_open} requests are"
            self._say(
                f"draining: {requests} still answered, for at most {self._drain_timeout:g} s; "
                f"new ones get 503. {again} once more ends at once"
            )
        num_ended = await self._lifecycle.drain(self._drain_timeout)
        if num_ended:
            self._say(f"{num_ended} of them did not end in time and got an error (--drain-timeout)")
        for connection in list(self.server_state.connections):
            if isinstance(connection, Protocol) and connection.is_watching:
                connection.transport.close()
        self.should_exit = True


class Protocol(HttpToolsProtocol):
    """A connection.

    Args:
        timeout: seconds for the head of a request, seconds without a byte of its body, and seconds in which
            the client takes nothing of an answer.
    """

    def __init__(self, *args: Any, timeout: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timeout = timeout
        self._in_head = self._in_body = False
        self._num_head_bytes = 0
        self._head_too_large = False
        self._discarding = 0  # bytes
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    @property
    def is_watching(self) -> bool:
        """Whether it takes something that has no end, such as the events of the live page."""
        return self.cycle is not None and not self.cycle.response_complete and self.scope["method"] == "GET"

    # -- what comes in ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._reading = self.loop.call_later(self._timeout, self._stalled)

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            self._discarding -= len(data)
            if self._discarding <= 0:
                self.transport.abort()
            return
        super().data_received(data)
        if self._in_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse(_HEAD_TOO_LARGE)
        if self._discarding or (self._in_head and self._reading is not None):
            return  # a head has its time from its first byte
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._in_head or self._in_body:
            self._reading = self.loop.call_later(self._timeout, self._stalled)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._num_head_bytes = True, 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":
            self.cycle.__class__ = _Unchunked

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(_HEAD_TOO_LARGE if self._head_too_large else _NO_HTTP)

    def _count(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._head_too_large = True
            raise httptools.HttpParserError("the head is too large")

    def _stalled(self) -> None:
        self._reading = None
        if self.flow.read_paused:  # it is us who read nothing
            self._reading = self.loop.call_later(self._timeout, self._stalled)
        elif self._in_head or self._in_body:
            self._refuse(_STALLED)
        else:
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        """Answer what is no request, unless an answer has begun, and close."""
        self._in_head = self._in_body = False
        if self.transport.is_closing() or self._discarding:
            return
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()
            return
        body = json.dumps(error.body).encode()
        status = HTTPStatus(error.status)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.write_eof()
        # What arrived after the end would make the client's system throw the answer away.
        self._discarding = MAX_DISCARDED_BYTES
        if self._reading is not None:
            self._reading.cancel()
        self._reading = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    # -- what goes out ---------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()
        self._reading = self._writing = None
        super().connection_lost(exc)

    def _watch_writing(self) -> None:
        """Look in a while whether the client has taken something of what is written. Nobody writes more where
        that matters: while writing is paused, and at the end of an answer."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        num_bytes = self.transport.get_write_buffer_size()
        if num_bytes:
            self._writing = self.loop.call_later(self._timeout, self._look, num_bytes)

    def _look(self, num_before: int) -> None:
        if self.transport.get_write_buffer_size() >= num_before:
            self.transport.abort()  # the route is told as if the client had left
        else:
            self._watch_writing()


class _Unchunked(RequestResponseCycle):
    """Answers a client of HTTP/1.0, who knows no chunks: a body without a length ends with the connection."""

    has_length = True

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
            self.chunked_encoding = None if self.has_length else False
        elif not self.has_length:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


def _bound(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections inherit it
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


def _not_logged_by_us(record: logging.LogRecord) -> bool:
    """Faults are logged where they are answered, once."""
    return not str(record.msg).startswith("Exception in ASGI application")


_NO_HTTP = ApiError("what was sent is no HTTP/1.1 request", status=400)
_HEAD_TOO_LARGE = ApiError(
    f"request line and headers are too large; limit: {MAX_HEAD_BYTES} bytes. Send fewer headers", status=431
)
_STALLED = ApiError("the request did not arrive in time; send it again", status=408)
