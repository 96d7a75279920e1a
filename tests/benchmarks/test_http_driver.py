"""The HTTP client, the dialects and their driver, against servers of the standard library."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import http_driver
import pytest
from comparison import http_servers
from comparison.http_client import Exchange, HTTPError, exchange, post
from comparison.http_dialects import LLAMA, OPENAI, Ask, Dialect
from comparison.http_servers import Recipe
from peers import protocol

Answer = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


@contextmanager
def serving(answer: Answer) -> Iterator[int]:
    """A server that answers each POST so; its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def begin(handler: BaseHTTPRequestHandler, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def sent(port: int, *bodies: dict[str, Any], **how: Any) -> list[Exchange]:
    exchanges = [Exchange(i, post("/x", body)) for i, body in enumerate(bodies)]
    exchange(port, exchanges, **how)
    return exchanges


def test_bytes_that_come_in_any_pieces_are_the_same_events_with_their_times() -> None:
    """Events over chunks, chunks over pieces, the end of all chunks in two pieces."""
    stream = event({"n": 1}) + event({"n": 2}) + b": a comment\n\n" + event({"n": 3}) + b"data: [DONE]\n\n"
    data = chunk(stream[:20]) + chunk(stream[20:]) + b"0\r\n\r\n"

    def answer(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        begin(handler)
        for i in range(0, len(data), body["size"]):
            handler.wfile.write(data[i : i + body["size"]])
            time.sleep(body["pause"])

    with serving(answer) as port:
        for size, pause in ((3, 0.001), (17, 0.001), (10_000, 0.0)):
            (one,) = sent(port, {"size": size, "pause": pause})
            found = list(one.events())
            assert [value["n"] for _, value in found] == [1, 2, 3]
            times = [came for came, _ in found]
            assert one.sent < times[0] and times == sorted(times) and times[-1] <= one.arrivals[-1]
            if pause:
                assert times[0] < times[1] < times[2]


def test_answers_with_a_length() -> None:
    def answer(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        text = json.dumps({"twice": body["n"] * 2}).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    with serving(answer) as port:
        assert [one.json() for one in sent(port, {"n": 1}, {"n": 2})] == [{"twice": 2}, {"twice": 4}]


def test_what_follows_an_answer_is_sent_when_it_ends() -> None:
    def answer(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        begin(handler)
        handler.wfile.write(chunk(event(body)) + b"0\r\n\r\n")

    exchanges = [Exchange(0, post("/x", {"n": 0}))]

    def following(one: Exchange) -> Exchange | None:
        if one.number == 2:
            return None
        exchanges.append(Exchange(one.number + 1, post("/x", {"n": one.number + 1})))
        return exchanges[-1]

    with serving(answer) as port:
        exchange(port, list(exchanges), ended=following)
    assert [value["n"] for one in exchanges for _, value in one.events()] == [0, 1, 2]
    assert all(b.sent >= a.arrivals[-1] for a, b in itertools.pairwise(exchanges))


def test_failures_say_what_happened() -> None:
    def answer(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if body["how"] == "refuse":
            begin(handler, 429)
            handler.wfile.write(chunk(b"the queue is full") + b"0\r\n\r\n")
            return
        begin(handler)
        handler.wfile.write(chunk(event({"n": 1})))
        if body["how"] == "hang":
            time.sleep(1)
        elif body["how"] == "error":
            handler.wfile.write(chunk(b"error: the context is full\n\n") + b"0\r\n\r\n")
        handler.close_connection = True

    with serving(answer) as port:
        for how, message in (
            ("refuse", "(?s)429.*the queue is full"),
            ("break off", r"broke off after \d+ bytes"),
            ("error", "ended a stream: error: the context is full"),
        ):
            (one,) = sent(port, {"how": how})
            with pytest.raises(HTTPError, match=message):
                list(one.events())
        with pytest.raises(HTTPError, match="nothing came for 0 s, with 1 answers open"):
            sent(port, {"how": "hang"}, timeout=0.2)
    with pytest.raises(HTTPError, match="nobody takes requests"):
        sent(port, {})


SERVER = """
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

open(sys.argv[1], "a").write("started ")
slow = time.monotonic() + 0.1

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200 if self.path == "/health" and time.monotonic() > slow else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        (self.openai if self.path == "/v1/completions" else self.llama)(body)
        self.wfile.write(b"0\\r\\n\\r\\n")

    def openai(self, body):
        assert body["ignore_eos"] and body["stream"] and body["stream_options"] == {"include_usage": True}
        length, n = body["max_tokens"] + ("short" in sys.argv), body.get("n", 1)
        for i in range(length):
            time.sleep(0.002)
            for index in range(n):
                choice = {"index": index, "text": "a", "finish_reason": "length" if i == length - 1 else None}
                if body.get("return_token_ids"):
                    choice["token_ids"] = [sum(body["prompt"]) + i]
                self.event({"choices": [choice]})
        usage = {"completion_tokens": n * length, "prompt_tokens_details": {"cached_tokens": 3}}
        self.event({"choices": [], "usage": usage})

    def llama(self, body):
        assert body["ignore_eos"] and body["cache_prompt"]
        how = (["temperature"], 1.0) if body["temperature"] else (["top_k"], 0.0)
        assert (body["samplers"], body["temperature"]) == how
        for index in range(body["n_cmpl"]):
            for i in range(body["n_predict"]):
                time.sleep(0.002)
                event = {"index": index, "tokens": [sum(body["prompt"]) + i], "tokens_predicted": i + 1}
                if i != 1:  # ends inside a character
                    self.event(event)
            self.event({"index": index, "tokens": [], "stop": True, "tokens_predicted": body["n_predict"],
                        "timings": {"cache_n": 2}})

    def event(self, value):
        data = b"data: " + json.dumps(value).encode() + b"\\n\\n"
        self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(data), data))

    def log_message(self, *words):
        pass

ThreadingHTTPServer((sys.argv[-3], int(sys.argv[-1])), Handler).serve_forever()
"""


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    return tmp_path / "starts"


@pytest.fixture
def small_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_servers, "WARM_UP", ((2, 4, 2),))


@contextmanager
def driven(starts: Path, *words: str, **how: Any) -> Iterator[http_driver.HTTPDriver]:
    how = {"dialect": OPENAI, "health": "/health"} | how
    recipe = Recipe([sys.executable, "-c", SERVER, str(starts), *words], **how)
    driver = http_driver.HTTPDriver("leafage", "1", Path("model.gguf"), recipe)
    try:
        yield driver
    finally:
        driver.close()


@pytest.mark.parametrize("dialect", [OPENAI, LLAMA])
def test_a_run_has_the_times_of_all_its_requests(starts: Path, small_warm_up: None, dialect: Any) -> None:
    with driven(starts, dialect=dialect) as driver:
        assert driver.settings["first_answer_s"] > driver.settings["ready_s"] >= 0.1
        answer = driver.run(protocol.Request("W3", [[1, 2], [5]], [10, 20]))
        assert answer.output_tokens == [10, 20] and answer.cached_tokens == {OPENAI: 6, LLAMA: 4}[dialect]
        times, wall = answer.extra["times"], answer.wall
        assert wall >= 0.04 and answer.extra["client_cpu"] < wall
        assert 0.001 < times["tpot"]["p50"] <= times["tpot"]["p99"] < wall
        assert 0.001 < times["ttft"]["p50"] <= times["ttft"]["p99"] < wall
        assert times["ttft"]["p99"] >= answer.mean_first_token >= answer.first_token > 0.001
        several = driver.run(protocol.Request("W7", [[1], [2]], [3, 4], n=2, temperature=1.0))
        assert several.output_tokens == [3, 3, 4, 4]


@pytest.mark.parametrize("dialect", [OPENAI, LLAMA])
def test_conversations_go_on_with_what_was_answered(starts: Path, small_warm_up: None, dialect: Any) -> None:
    """The answers are sums of the whole prompts: 1 gives 1 (and 2), with those and 5 comes 9."""
    asked: list[Ask] = []
    seen = Dialect(lambda ask: asked.append(ask) or dialect.request(ask), dialect.read)
    with driven(starts, dialect=seen) as driver:
        asked.clear()
        answer = driver.run(protocol.Request("W5", [[1], [5], [7], [8]], [2, 1, 1, 1], turns=2))
    answered = {OPENAI: [1, 2], LLAMA: [1, 100]}[dialect]
    assert sorted(ask.prompt for ask in asked) == sorted([[1], [1, *answered, 5], [7], [7, 7, 8]])
    assert answer.output_tokens == [2, 1, 1, 1] and all(ask.wants_ids for ask in asked)


def test_every_run_has_its_own_salt_or_its_own_process(starts: Path, small_warm_up: None) -> None:
    work = protocol.Request("W3", [[1]], [2])
    bodies: list[bytes] = []
    seen = Dialect(lambda ask: bodies.append(OPENAI.request(ask)) or bodies[-1], OPENAI.read)
    with driven(starts, dialect=seen) as driver:
        bodies.clear()
        driver.run(work)
        driver.run(work)
        salts = [json.loads(body.partition(b"\r\n\r\n")[2])["cache_salt"] for body in bodies]
        assert len(set(salts)) == 2 and starts.read_text().split() == ["started"]
        start = driver.run(protocol.Request("start", [[1]], [1]))
        assert start.first_token > start.wall >= 0.1 and len(starts.read_text().split()) == 2
    with driven(starts, dialect=LLAMA, is_emptied_by_start=True) as driver:
        driver.run(work)
        assert len(starts.read_text().split()) == 4


def test_other_lengths_than_asked_for_are_an_error(starts: Path, small_warm_up: None) -> None:
    with driven(starts, "short") as driver:
        line = {"workload": "W3", "prompts": [[1]], "output_lengths": [3]}
        assert "made [4] output tokens, asked for were [3]" in protocol._answer(driver, line)["error"]


def test_percentiles_are_of_the_nearest_rank() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert http_driver.percentile(values, 50) == 50.0 and http_driver.percentile(values, 99) == 99.0
    assert http_driver.percentile([3.0], 99) == 3.0 and http_driver.percentile([], 50) is None
