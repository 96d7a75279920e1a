"""Clients that leave, deadlines, long texts: over real sockets, in this process."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from copy import copy
from typing import Any

import pytest

from leafage.build import Assets
from leafage.server.context import Context
from tests.server.conftest import slow_down, tiny_server, until
from tests.server.process import ask, connected, get, read_answer, request_bytes

PATH = "/v1/completions"
LONG = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
Server = tuple[Context, int]


@pytest.fixture
def slow(tiny_assets: Assets, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Steps of 40 ms; one request runs, the others wait."""
    with tiny_server(tiny_assets, {"max_num_seqs": 1}) as (context, port):
        slow_down(context, monkeypatch, 0.04)
        yield context, port


def aborted(context: Context) -> int:
    return context.core.scheduler.counters.finished.get("abort", 0)


def steps_until_free(context: Context, client: socket.socket) -> int:
    """Leave, and count the steps that begin before nothing is held any more."""
    scheduler = context.core.scheduler
    client.close()
    step = scheduler.step
    until(lambda: scheduler.num_running == 0)
    assert scheduler.kv.num_active == 0 and len(scheduler.roster) == 0
    return scheduler.step - step


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(PATH, {**LONG}, id="s01"),
        pytest.param(PATH, {**LONG, "stream": True}, id="s03"),
        pytest.param(PATH, {**LONG, "prompt": ["abc", "xyz"]}, id="s01-batch"),
        pytest.param("/v1/chat/completions", {**CHAT, "max_tokens": 4000, "ignore_eos": True}, id="s01-chat"),
    ],
)
def test_s01_s03_who_leaves_frees_the_cache_within_a_step(
    slow: Server, path: str, body: dict[str, Any], reset: bool
) -> None:
    context, port = slow
    client = connected(port)
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.sendall(request_bytes(path, body))
    time.sleep(0.2)
    assert context.core.scheduler.num_running == 1
    assert steps_until_free(context, client) <= 1
    assert aborted(context) == (2 if isinstance(body.get("prompt"), list) else 1)


@pytest.mark.parametrize("stream", [False, True])
def test_s01_s03_who_leaves_while_waiting_is_gone_too(slow: Server, stream: bool) -> None:
    context, port = slow
    scheduler = context.core.scheduler
    running, waiting = connected(port), connected(port)
    running.sendall(request_bytes(PATH, LONG))
    until(lambda: scheduler.num_running == 1)
    waiting.sendall(request_bytes(PATH, {**LONG, "stream": stream}))
    until(lambda: scheduler.num_waiting == 1)
    step = scheduler.step
    waiting.close()
    until(lambda: scheduler.num_waiting == 0)
    assert scheduler.step - step <= 1 and scheduler.num_running == 1
    assert steps_until_free(context, running) <= 1


def test_s02_a_normal_end_makes_no_abort(tiny_assets: Assets, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 requests of all kinds, some on connections that stay open."""
    with tiny_server(tiny_assets) as (context, port):
        thread = context.engine._thread
        calls: list[Any] = []
        for name in ("abort", "abandon"):
            monkeypatch.setattr(thread, name, lambda *a: calls.append(a))
        bodies = [
            (PATH, {"prompt": ["abc", "de"], "max_tokens": 3}),
            (PATH, {"prompt": "abc", "max_tokens": 3, "stream": True, "n": 2}),
            ("/v1/chat/completions", CHAT),
            ("/v1/chat/completions", {**CHAT, "stream": True, "stop": "a"}),
        ]

        def many() -> None:
            for number in range(50):
                path, body = bodies[number % len(bodies)]
                assert ask(port, path, body).status == 200

        threads = [threading.Thread(target=many) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        with connected(port) as client:  # kept alive
            for _ in range(5):
                client.sendall(request_bytes(*bodies[0], close=False))
                head, _, body = client.recv(1 << 16).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200") and body
        assert calls == [] and aborted(context) == 0
        assert context.core.scheduler.kv.num_active == 0


def test_who_leaves_in_the_middle_of_a_body_is_no_fault(
    tiny_assets: Assets, caplog: pytest.LogCaptureFixture
) -> None:
    with tiny_server(tiny_assets) as (context, port):
        for _ in range(3):
            with connected(port) as client:
                client.sendall(request_bytes(PATH, LONG)[:-5])
                time.sleep(0.02)
        until(lambda: context.lifecycle.num_open == 0)
        assert ask(port, PATH, {"prompt": "a", "max_tokens": 1}).status == 200
    assert not caplog.records


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_ends_with_504(
    tiny_assets: Assets, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    with tiny_server(tiny_assets, {"max_num_seqs": 1}, request_timeout=0.3) as (context, port):
        slow_down(context, monkeypatch, 0.04)
        clients = [connected(port), connected(port)]  # one runs, one waits
        for client in clients:
            client.sendall(request_bytes(PATH, {**LONG, "stream": stream}))
        began = time.monotonic()
        for client in clients:
            answer = read_answer(client)
            if stream:
                assert answer.status == 200
                error = answer.events[-1]["error"]
            else:
                assert answer.status == 504
                error = answer.error
            assert error["code"] == "timeout" and "limit: 0.3 s" in error["message"]
            client.close()
        assert time.monotonic() - began < 5
        until(lambda: context.core.scheduler.kv.num_active == 0)
        assert context.rejections["timeout"] == 2 and not context.lifecycle._running
        assert ask(port, PATH, {"prompt": "a", "max_tokens": 1}).status == 200


def test_a_frozen_engine_does_not_outlast_the_deadline(tiny_assets: Assets) -> None:
    """The engine takes nothing; the client is told all the same."""
    go_on = threading.Event()
    with tiny_server(tiny_assets, request_timeout=0.2) as (context, port):
        context.engine._thread.call(go_on.wait)
        for stream in (False, True):
            answer = ask(port, PATH, {**LONG, "stream": stream})
            assert answer.status == 504 and answer.error["code"] == "timeout"
        assert get(port, "/v1/models").status == 200
        go_on.set()
        until(lambda: len(context.core.scheduler.roster) == 0)
        assert ask(port, PATH, {"prompt": "a", "max_tokens": 1}).status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"prompt": "a" * 20_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 20_000}]}),
    ],
)
def test_long_texts_hold_up_nobody(
    tiny_assets: Assets, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    """While they are encoded others are answered, and when both encoders are busy, too."""
    go_on, num_begun = threading.Event(), itertools.count(1)
    encode = tiny_assets.tokenizer.encode

    def hangs(text: str, **kwargs: Any) -> list[int]:
        if len(text) > 5000:
            next(num_begun)
            go_on.wait(20)
        return encode(text, **kwargs)

    monkeypatch.setattr(tiny_assets.tokenizer, "encode", hangs)
    with tiny_server(tiny_assets) as (_, port):
        clients = [connected(port) for _ in range(4)]
        for client in clients:
            client.sendall(request_bytes(path, body))
        until(lambda: copy(num_begun).__next__() > 2)
        began = time.monotonic()
        assert ask(port, PATH, {"prompt": "abc", "max_tokens": 2}).status == 200
        assert time.monotonic() - began < 15
        go_on.set()
        for client in clients:
            assert read_answer(client).error["code"] == "context_length_exceeded"
            client.close()
