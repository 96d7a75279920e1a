"""An HTTP client that leaves the cores to the server it measures: raw sockets, one thread, epoll.

While an answer comes only its bytes and when they came are kept; they are read when it has ended.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

READ_BYTES = 1 << 18
LAST_CHUNK = b"0\r\n\r\n"
EVENT_END = b"\n\n"


class HTTPError(Exception):
    """A server that answered with another status, broke off, or said nothing."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request and the bytes of its answer.

    Attributes:
        number: of the caller's.
        sent: when its first byte left, by `time.perf_counter`, as all times.
        arrivals, pieces: when bytes came, and which.
    """

    number: int
    request: bytes
    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    _num_bytes: int | None = None  # of the whole answer; -1 where it comes in chunks

    def take(self, data: bytes, now: float) -> bool:
        """Bytes came. Whether they were the last."""
        self.arrivals.append(now)
        self.pieces.append(data)
        if self._num_bytes is None:
            head, end, _ = b"".join(self.pieces).partition(b"\r\n\r\n")
            if not end:
                return False
            length = _header(head, b"content-length")
            self._num_bytes = -1 if length is None else len(head) + len(end) + int(length)
        if self._num_bytes < 0:
            last = data if len(data) >= len(LAST_CHUNK) else b"".join(self.pieces[-5:])
            return last.endswith(LAST_CHUNK)  # events end in newlines: no text looks like that
        return sum(map(len, self.pieces)) >= self._num_bytes

    def body(self) -> tuple[bytes, list[tuple[int, float]]]:
        """The answer's body, and by where its parts end in it, when they came.

        Raises HTTPError when the status is not 200 or the body is not whole.
        """
        data = b"".join(self.pieces)
        ends = list(itertools.accumulate(map(len, self.pieces)))
        head, _, _ = data.partition(b"\r\n\r\n")
        begin = len(head) + 4
        status = head.split(b" ", 2)[1:2]
        if status != [b"200"]:
            text = data[begin : begin + 300].decode(errors="replace")
            line = head.partition(b"\r\n")[0].decode(errors="replace")
            raise HTTPError(f"the server answered {line!r}: {text}")
        parts = []
        if _header(head, b"content-length") is not None:
            parts.append((begin, len(data)))
            whole = len(data) == self._num_bytes
        elif b"chunked" in (_header(head, b"transfer-encoding") or b""):
            parts, whole = _chunks(data, begin)
        else:
            raise HTTPError("the answer has neither a length nor chunks")
        if not whole:
            raise HTTPError(f"the answer broke off after {len(data)} bytes: {data[-100:]!r}")
        body, marks, size = [], [], 0
        for start, stop in parts:
            body.append(data[start:stop])
            # A chunk's bytes may have come in several pieces.
            piece = bisect.bisect_right(ends, start)
            while start < stop:
                here = min(stop, ends[piece])
                size += here - start
                marks.append((size, self.arrivals[piece]))
                start, piece = here, piece + 1
        return b"".join(body), marks

    def json(self) -> Any:
        """The body of an answer that is one JSON value. Raises HTTPError as `body`."""
        return json.loads(self.body()[0])

    def events(self) -> Iterator[tuple[float, Any]]:
        """The JSON of each server-sent event, and when its last byte came. Raises HTTPError as `body`."""
        body, marks = self.body()
        begin, mark = 0, 0
        while (end := body.find(EVENT_END, begin)) >= 0:
            line = body[begin:end]
            begin = end + len(EVENT_END)
            while marks[mark][0] < begin:
                mark += 1
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                yield marks[mark][1], json.loads(line[len(b"data: ") :])
            elif line.startswith(b"error"):
                raise HTTPError(f"the server ended a stream: {line[:200].decode(errors='replace')}")


def _header(head: bytes, name: bytes) -> bytes | None:
    """A header's value, in lower case."""
    for line in head.lower().split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip() == name:
            return value.strip()
    return None


def _chunks(data: bytes, begin: int) -> tuple[list[tuple[int, int]], bool]:
    """Where the contents of chunks begin and end, and whether the last one came."""
    parts = []
    while (line := data.find(b"\r\n", begin)) >= 0:
        size = int(data[begin:line].partition(b";")[0], 16)
        start = line + 2
        begin = start + size + 2
        if begin > len(data):
            break
        if size == 0:
            return parts, True
        parts.append((start, start + size))
    return parts, False


def post(path: str, body: dict[str, Any]) -> bytes:
    """The bytes of a request with a JSON body, on a connection that ends with its answer."""
    content = json.dumps(body, separators=(",", ":")).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content


def exchange(
    port: int,
    requests: Iterable[Exchange],
    *,
    ended: Callable[[Exchange], Exchange | None] = lambda _: None,
    timeout: float = 600.0,
) -> None:
    """Send requests at once, each on a connection of its own, and keep what comes until all have ended.

    Args:
        ended: told of each answer that is complete; what it returns is sent next.

    Raises:
        HTTPError: nothing came for `timeout` seconds, or nobody listens.
    """
    with contextlib.closing(_Connections(port)) as connections:
        for request in requests:
            connections.send(request)
        while connections.num_open:
            finished = connections.wait(timeout)
            for request in finished:
                following = ended(request)
                if following is not None:
                    connections.send(following)


class _Connections:
    def __init__(self, port: int) -> None:
        self._address = ("127.0.0.1", port)
        self._epoll = select.epoll()
        self._open: dict[int, tuple[socket.socket, Exchange]] = {}

    @property
    def num_open(self) -> int:
        return len(self._open)

    def send(self, request: Exchange) -> None:
        request.sent = time.perf_counter()
        try:
            connection = socket.create_connection(self._address)
            connection.sendall(request.request)
        except OSError as error:
            raise HTTPError(f"nobody takes requests at {self._address}: {error}") from error
        connection.setblocking(False)
        self._open[connection.fileno()] = connection, request
        self._epoll.register(connection, select.EPOLLIN)

    def wait(self, timeout: float) -> list[Exchange]:
        """Those that have ended. Returns when something came."""
        ready = self._epoll.poll(timeout)
        if not ready:
            raise HTTPError(f"nothing came for {timeout:.0f} s, with {self.num_open} answers open")
        ended = []
        for descriptor, _ in ready:
            connection, request = self._open[descriptor]
            try:
                data = connection.recv(READ_BYTES)
            except ConnectionError:
                data = b""
            if not data or request.take(data, time.perf_counter()):
                del self._open[descriptor]
                connection.close()
                ended.append(request)
        return ended

    def close(self) -> None:
        for connection, _ in self._open.values():
            connection.close()
        self._epoll.close()
