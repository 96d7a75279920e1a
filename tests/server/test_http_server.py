"""Connections: clients that stall, read nothing, or only come and go. In this process, over real sockets."""

from __future__ import annotations

import gc
import os
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from leafage.build import Assets
from leafage.server.context import Context
from leafage.server.http_server import ListenError, bind
from tests.server.conftest import slow_down, tiny_server, until
from tests.server.process import Answer, ask, connected, get, read_answer, request_bytes

PATH = "/v1/completions"
LONG = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "temperature": 0}
Server = tuple[Context, int]


@pytest.fixture(scope="module")
def hasty(tiny_assets: Assets) -> Iterator[Server]:
    """Clients may stall for 0.8 s."""
    with tiny_server(tiny_assets, send_buffer=1 << 14, send_timeout=0.8) as server:
        yield server


# -- what comes in -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", 0),
        (b"POST /v1/compl", 408),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 10\r\n", 408),
        (
            b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{",
            408,
        ),
        (b"POST /nowhere HTTP/1.1\r\nContent-Length: 10\r\n\r\n{", 404),  # answered, and never sent
    ],
)
def test_half_a_request_is_not_waited_for(hasty: Server, sent: bytes, status: int) -> None:
    context, port = hasty
    with connected(port) as client:
        client.sendall(sent)
        began, answer = time.monotonic(), b""
        while piece := client.recv(1000):
            answer += piece
        assert 0.5 < time.monotonic() - began < 8
        assert answer.startswith(b"HTTP/1.1 %d" % status if status else b"") and bool(answer) == bool(status)
    until(lambda: context.lifecycle.num_open == 0)


def test_a_head_that_drips_has_its_time_and_no_more(hasty: Server) -> None:
    with connected(hasty[1]) as client:
        began = time.monotonic()
        with pytest.raises(OSError):
            for _ in range(400):  # a method that never ends
                client.sendall(b"G")
                time.sleep(0.05)
        assert time.monotonic() - began < 8


def test_a_body_that_goes_on_is_waited_for(hasty: Server) -> None:
    """A slow line is no stall: each piece comes in time."""
    head, _, body = request_bytes(PATH, {"prompt": "abc", "max_tokens": 2}).partition(b"\r\n\r\n")
    with connected(hasty[1]) as client:
        client.sendall(head + b"\r\n\r\n")
        for start in range(0, len(body), 8):
            client.sendall(body[start : start + 8])
            time.sleep(0.3)
        assert read_answer(client).status == 200


def test_a_connection_that_is_kept_is_not_stalled(hasty: Server) -> None:
    with connected(hasty[1]) as client:
        for _ in range(2):
            client.sendall(request_bytes("/v1/models", b"", method="GET", close=False))
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            time.sleep(1.0)


def test_requests_in_a_pipeline_are_answered_in_turn(hasty: Server) -> None:
    bodies = [{"prompt": "abc", "max_tokens": n, "ignore_eos": True} for n in (3, 1, 2)]
    data = [request_bytes(PATH, body, close=number == 2) for number, body in enumerate(bodies)]
    with connected(hasty[1]) as client:
        client.sendall(b"".join(data))
        text = b""
        while piece := client.recv(1 << 16):
            text += piece
    assert re.findall(rb'"completion_tokens": ?(\d+)', text) == [b"3", b"1", b"2"]


def test_a_connection_outlives_the_clients_patience(hasty: Server) -> None:
    """Of httpx and others, who drop theirs after 5 s: never while a request is on its way."""
    with connected(hasty[1]) as client:
        for _ in range(2):
            client.sendall(request_bytes("/version", b"", method="GET", close=False))
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            time.sleep(5.5)


def _raw(port: int, data: bytes) -> Answer:
    with connected(port) as client:
        client.sendall(data)
        return read_answer(client)


@pytest.mark.parametrize("stream", [True, False])
def test_http_1_0_knows_no_chunks(hasty: Server, stream: bool) -> None:
    body = {"prompt": "abc", "max_tokens": 3, "temperature": 0, "ignore_eos": True, "stream": stream}
    data = request_bytes(PATH, body, close=False).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    answer = _raw(hasty[1], data)
    assert answer.status == 200 and "transfer-encoding" not in answer.headers
    assert ("content-length" in answer.headers) != stream
    assert len(answer.events if stream else answer.json["choices"]) == (3 if stream else 1)


@pytest.mark.parametrize("path", ["/", "/health/ready", "/metrics", "/v1/models", "/live/static/live.js"])
def test_head_is_get_without_a_body(hasty: Server, path: str) -> None:
    whole, head = get(hasty[1], path), ask(hasty[1], path, b"", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert int(head.headers["content-length"]) > 0


@pytest.mark.parametrize(("path", "status"), [("/live/events", 405), (PATH, 405), ("/nowhere", 404)])
def test_what_has_no_head(hasty: Server, path: str, status: int) -> None:
    assert ask(hasty[1], path, b"", method="HEAD").status == status


# -- what goes out -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_who_reads_nothing_loses_the_connection(
    hasty: Server, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small window, and never a read: the rest of the answer is not kept, nor is the KV cache."""
    context, port = hasty
    if stream:
        slow_down(context, monkeypatch, 0.001)
    core = context.core
    num_aborted = core.scheduler.counters.finished["abort"]
    with connected(port, SO_RCVBUF=2048) as client:
        client.sendall(request_bytes(PATH, {**LONG, "stream": stream, "logprobs": 5, "max_tokens": 2000}))
        until(lambda: len(core.scheduler.roster) == 1)
        until(lambda: len(core.scheduler.roster) == 0 and context.lifecycle.num_open == 0)
        assert core.scheduler.kv.num_active == 0
        assert core.scheduler.counters.finished["abort"] - num_aborted == (1 if stream else 0)
        time.sleep(2.0)
        taken = 0
        while piece := client.recv(1 << 16):
            taken += len(piece)
    assert taken < 100_000


def test_who_reads_slowly_gets_all(hasty: Server) -> None:
    """A little now and then, which is slower than the tokens come."""
    with connected(hasty[1], SO_RCVBUF=4096) as client:
        client.sendall(request_bytes(PATH, {**LONG, "stream": True, "max_tokens": 1500}))
        data = b""
        while piece := client.recv(10_000):
            data += piece
            time.sleep(0.06)
    assert data.rstrip().endswith(b"data: [DONE]\n\n\r\n0") and b'"finish_reason":"length"' in data


# -- many --------------------------------------------------------------------------------------------


def test_a_thousand_connections_leave_nothing(hasty: Server) -> None:
    """Opened and dropped: idle, in a head, in a body, in a stream, after a reset."""
    context, port = hasty
    data = request_bytes(PATH, {**LONG, "stream": True})

    def drop(number: int) -> None:
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall((b"", data[:20], data[:-3], data, data)[number % 5])
        if number % 5 == 4:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()

    def count() -> tuple[int, int, int]:
        gc.collect()
        tasks = sum(type(one).__name__ == "Task" for one in gc.get_objects())
        return len(os.listdir("/proc/self/fd")), tasks, context.core.scheduler.kv.num_active

    assert ask(port, PATH, {"prompt": "a", "max_tokens": 1}).status == 200
    time.sleep(0.1)
    before = count()
    for number in range(1000):
        drop(number)
    until(lambda: context.lifecycle.num_open == 0 and len(context.core.scheduler.roster) == 0, 20)
    until(lambda: count() <= before, 10)
    assert not context.lifecycle._running
    assert ask(port, PATH, {"prompt": "a", "max_tokens": 1}).status == 200


# -- addresses ---------------------------------------------------------------------------------------


def test_an_address_is_taken_before_anybody_is_let_in() -> None:
    [taken] = bind("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    taken.listen()
    with pytest.raises(ListenError, match=f"127.0.0.1:{port}: address already in use"):
        bind("127.0.0.1", port)
    taken.close()
    [again] = bind("127.0.0.1", port)
    again.close()


def test_a_name_may_stand_for_several_addresses() -> None:
    sockets = bind("localhost", 0)
    assert len({one.getsockname()[1] for one in sockets}) == 1
    for one in sockets:
        one.close()


@pytest.mark.parametrize(
    ("host", "what"), [("192.0.2.1", "cannot listen at"), ("no.invalid", "cannot be found")]
)
def test_addresses_that_are_not_ours(host: str, what: str) -> None:
    with pytest.raises(ListenError, match=what):
        bind(host, 0)


def test_connections_are_asked_whether_they_live(hasty: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose machine vanished says nothing; the kernel finds out."""
    [listening] = bind("127.0.0.1", 0)
    listening.listen()
    with socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        accepted.close()
    listening.close()


def test_the_server_does_not_say_what_it_is_made_of(hasty: Server) -> None:
    answer: Any = get(hasty[1], "/v1/models")
    assert "server" not in answer.headers
