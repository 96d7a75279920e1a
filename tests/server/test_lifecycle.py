"""The real process, real signals, real sockets."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest

from tests.server.process import Process, ask, connected, get, read_answer, request_bytes, started

LONG = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "temperature": 0}


def begin(server: Process, *, stream: bool, max_tokens: int = 2500) -> socket.socket:
    """A request that runs."""
    client = connected(server.port)
    client.sendall(request_bytes("/v1/completions", {**LONG, "stream": stream, "max_tokens": max_tokens}))
    if stream:
        client.recv(1)
    else:
        time.sleep(0.1)
    return client


def stop(server: Process, number: int = signal.SIGTERM) -> None:
    server.process.send_signal(number)
    server.wait_for("draining: ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_s09_running_requests_finish_and_new_ones_get_503(tiny_folder: Path, number: int) -> None:
    with started(str(tiny_folder), "--threads", "1") as server:
        streaming, whole = begin(server, stream=True), begin(server, stream=False)
        idle = connected(server.port)
        stop(server, number)
        refused = ask(server.port, "/v1/completions", LONG)
        assert refused.status == 503 and refused.error["code"] == "draining"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert get(server.port, "/v1/models").status == 200
        events = read_answer(streaming)
        assert b'"finish_reason":"length"' in events.body and events.body.endswith(b"data: [DONE]\n\n")
        answer = read_answer(whole)
        assert answer.status == 200 and answer.json["usage"]["completion_tokens"] == 2500
        assert server.ended() == 0
        idle.close()
        assert "once more ends at once" in server.text and "Traceback" not in server.text


def test_s09_what_takes_too_long_ends_with_an_error(tiny_folder: Path) -> None:
    with started(
        str(tiny_folder), "--drain-timeout", "0.2", "--threads", "1", "--max-num-seqs", "1"
    ) as server:
        streaming = begin(server, stream=True)
        waiting = begin(server, stream=False)  # behind the other one
        stop(server)
        events = read_answer(streaming).body.decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""] and '"code":' in events[-3] and "draining" in events[-3]
        answer = read_answer(waiting)
        assert answer.status == 503 and "0.2 s" in answer.error["message"]
        assert server.ended() == 0
        assert "2 of them did not end in time" in server.text


def test_s09_the_second_signal_ends_at_once(tiny_folder: Path) -> None:
    with started(str(tiny_folder), "--threads", "1") as server:
        streaming = begin(server, stream=True)
        stop(server)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 128 + signal.SIGTERM
        assert time.monotonic() - began < 5
        assert "Traceback" not in server.text
        streaming.close()


def test_an_idle_server_ends_at_once(tiny_folder: Path) -> None:
    with started(str(tiny_folder), "--threads", "1") as server:
        assert get(server.port, "/v1/models").status == 200
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0
        assert time.monotonic() - began < 5
        assert "draining" not in server.text
