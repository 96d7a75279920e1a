"""Bodies and heads that are made to hurt: a 4xx of our shape each, soon, and nobody else notices."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from leafage.build import Assets
from leafage.server.context import Context
from tests.server.conftest import tiny_server
from tests.server.process import Answer, ask, connected, get, read_answer, request_bytes

Server = tuple[Context, int]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
NUMBERS = {
    "huge float": "1e400",
    "huge integer": "9" * 400,
    "integer beyond Python's": "9" * 5000,
    "huge negative": "-" + "9" * 400,
    "negative": "-1",
    "NaN": "NaN",
    "Infinity": "Infinity",
    "minus Infinity": "-Infinity",
    "text": '"1"',
    "boolean": "true",
    "list": "[]",
    "object": "{}",
}
FIELDS = ("max_tokens", "temperature", "top_p", "n", "top_k", "min_p", "logprobs", "presence_penalty")
FIELDS += ("repetition_penalty", "prompt_logprobs", "min_tokens", "beam_width", "best_of", "length_penalty")
VALID = {("length_penalty", "negative"), ("top_k", "negative"), ("presence_penalty", "negative")}

BODIES: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"hello",
    "half JSON": b'{"prompt": "abc"',
    "two values": b'{"prompt": "abc"} {}',
    "null": b"null",
    "list": b"[]",
    "number": b"1",
    "brackets": b"[" * 100_000,
    "braces": b'{"a":' * 100_000,
    "closed brackets": b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "deep in an open field": b'{"prompt": "a", "logit_bias": ' + b'{"1":' * 100_000 + b"1" + b"}" * 100_001,
    "invalid UTF-8": b'{"prompt": "\xff\xfe"}',
    "overlong UTF-8": b'{"prompt": "\xc0\xaf"}',
    "a surrogate in UTF-8": b'{"prompt": "\xed\xa0\x80"}',
    "UTF-16": '{"prompt": "abc"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"prompt": "abc"}',
    "lone surrogate": b'{"prompt": "\\ud800"}',
    "reversed surrogates": b'{"prompt": "\\udc00\\ud800"}',
    "lone surrogate in a name": b'{"prompt": "a", "\\ud800": 1}',
    "raw NUL": b'{"prompt": "a\0b"}',
    "only NUL": b"\0" * 1000,
    "NaN for a text": b'{"prompt": NaN}',
    "NaN in a list": b'{"prompt": [1, NaN]}',
    "NaN in a name's place": b'{NaN: 1, "prompt": "a"}',
    "nothing": b"{}",
    "unknown name of megabytes": b'{"prompt": "a", "' + b"x" * (1 << 20) + b'": 1}',
    "many unknown names": b'{"prompt": "a"' + b"".join(b', "x%d": 1' % i for i in range(50_000)) + b"}",
    "wrong kinds by thousands": b'{"prompt": [' + b'{"a": 1}, ' * 20_000 + b"1]}",
    "model name of megabytes": b'{"prompt": "a", "model": "' + b"x" * (1 << 20) + b'"}',
    "negative ids": b'{"prompt": [-1]}',
    "ids beyond the vocabulary": b'{"prompt": [99999999999999999999999]}',
    "huge id": b'{"prompt": [' + b"9" * 4000 + b"]}",
    "no prompts": b'{"prompt": []}',
    "empty prompts": b'{"prompt": [[], []]}',
    "prompts of two kinds": b'{"prompt": ["a", 1]}',
    "too many prompts": b'{"prompt": [' + b'"a", ' * 5000 + b'"a"]}',
    "huge seed": b'{"prompt": "a", "seed": ' + b"9" * 4000 + b"}",
    "huge priority": b'{"prompt": "a", "priority": 1e9}',
    "logit_bias of no id": b'{"prompt": "a", "logit_bias": {"\xe0\xb2\x90": 1}}',
    "logit_bias of a huge id": b'{"prompt": "a", "logit_bias": {"' + b"9" * 5000 + b'": 1}}',
    "logit_bias beyond": b'{"prompt": "a", "logit_bias": {"1": 1e308}}',
    "stop of nothing": b'{"prompt": "a", "stop": ""}',
    "stop of another kind": b'{"prompt": "a", "stop": [1]}',
    "bad word without tokens": b'{"prompt": "a", "bad_words": [""]}',
    **{
        f"{field} {name}": f'{{"prompt": "a", "{field}": {number}}}'.encode()
        for field in FIELDS
        for name, number in NUMBERS.items()
        if (field, name) not in VALID
    },
}
CHATS: dict[str, Any] = {
    "no messages": {"messages": []},
    "g03 unknown response_format": {"response_format": {"type": "xml"}},
    "g03 response_format of no type": {"response_format": {}},
    "message of no kind": {"messages": ["a"]},
    "unknown role": {"messages": [{"role": "king", "content": "a"}]},
    "picture": {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
        ]
    },
    "part without text": {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    "template with an unknown argument's kind": {"chat_template_kwargs": [1]},
    "top_logprobs alone": {"top_logprobs": 3},
    "two lengths": {"max_tokens": 1, "max_completion_tokens": 2},
}


@pytest.fixture(scope="module")
def server(tiny_assets: Assets) -> Iterator[Server]:
    with tiny_server(tiny_assets) as server:
        yield server


def assert_refused(answer: Answer, *statuses: int) -> None:
    assert answer.status in (statuses or (400, 404)), answer.body[:500]
    assert answer.headers["content-type"] == "application/json"
    error = answer.error
    assert error["type"] != "server_error" and len(error["message"]) < 3000


@pytest.mark.parametrize("name", BODIES)
def test_bad_bodies(server: Server, name: str) -> None:
    began = time.monotonic()
    assert_refused(ask(server[1], COMPLETIONS, BODIES[name]))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("name", ["brackets", "lone surrogate", "invalid UTF-8", "empty", "null", "nothing"])
def test_bad_bodies_of_chats(server: Server, name: str) -> None:
    assert_refused(ask(server[1], CHAT, BODIES[name]))


@pytest.mark.parametrize("name", CHATS)
def test_bad_chats(server: Server, name: str) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], **CHATS[name]}
    assert_refused(ask(server[1], CHAT, body))
    assert ask(server[1], COMPLETIONS, {"prompt": "a", "max_tokens": 1}).status == 200


@pytest.mark.parametrize(
    "text", ["a\0b", "\ufffe\uffff", "\U0001f600" * 100, "\u202e", "\x7f\x1b[2J", "e\u0301" * 50]
)
def test_odd_characters_are_texts(server: Server, text: str) -> None:
    for path, body in (
        (COMPLETIONS, {"prompt": text, "echo": True}),
        (COMPLETIONS, {"prompt": "a", "stop": [text], "user": text, "cache_salt": text}),
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
    ):
        assert ask(server[1], path, {**body, "max_tokens": 2}).status == 200


@pytest.mark.parametrize(
    "kind",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", "json"],
)
def test_other_kinds_of_bodies(server: Server, kind: str | None) -> None:
    data = request_bytes(COMPLETIONS, {"prompt": "a", "max_tokens": 1})
    line = b"" if kind is None else f"Content-Type: {kind}\r\n".encode()
    with connected(server[1]) as client:
        client.sendall(data.replace(b"Content-Type: application/json\r\n", line, 1))
        answer = read_answer(client)
    assert_refused(answer, 415)
    assert "Content-Type: application/json" in answer.error["message"]


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/ld+json"]
)
def test_kinds_of_json(server: Server, kind: str) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    assert ask(server[1], COMPLETIONS, body, headers=(f"Content-Type: {kind}",)).status == 200


def test_a_compressed_body_is_refused_by_name(server: Server) -> None:
    data = gzip.compress(b'{"prompt": "a", "max_tokens": 1}')
    answer = ask(server[1], COMPLETIONS, data, headers=("Content-Encoding: gzip",))
    assert_refused(answer, 415)
    assert "content encoding 'gzip'" in answer.error["message"]
    body = {"prompt": "a", "max_tokens": 1}
    assert ask(server[1], COMPLETIONS, body, headers=("Content-Encoding: identity",)).status == 200


def test_names_that_are_ignored_cannot_break_the_header(tiny_assets: Assets) -> None:
    names = [
        "a plain one",
        "a line\r\nSet-Cookie: a=b",
        "\u4f60",
        "a" * 10_000,
        *(f"n{i}" for i in range(1000)),
    ]
    with tiny_server(tiny_assets, unknown_fields="ignore") as (_, port):
        answer = ask(port, COMPLETIONS, {"prompt": "a", "max_tokens": 1, **dict.fromkeys(names, 1)})
    assert answer.status == 200 and "set-cookie" not in answer.headers
    listed = answer.headers["x-leafage-ignored-fields"].split(", ")
    assert {"a%20plain%20one", "a%20line%0D%0ASet-Cookie%3A%20a%3Db", "a" * 100, "n0"} <= set(listed)
    assert len(listed) <= 21 and listed[-1] == "..."


# -- heads -------------------------------------------------------------------------------------------


def raw(port: int, data: bytes) -> Answer:
    with connected(port) as client:
        client.sendall(data)
        return read_answer(client)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100, 400),  # TLS
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA\0B: c\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(20_000)) + b"\r\n", 431),
        (b"GET /v1/models HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /" + b"y" * 500_000, 431),  # not a byte more is waited for
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000, 431),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 500_000, 431),
    ],
)
def test_heads_that_are_none(server: Server, data: bytes, status: int) -> None:
    answer = raw(server[1], data)
    assert_refused(answer, status)
    assert answer.headers["connection"] == "close"


def test_unknown_paths_and_methods(server: Server) -> None:
    assert_refused(get(server[1], "/v1/nothing%00%0a%ff"), 404)
    assert_refused(get(server[1], "/v1/models/" + "x" * 5000), 404)
    assert_refused(get(server[1], COMPLETIONS), 405)
    assert_refused(ask(server[1], "/v1/models", {}, method="DELETE"), 405)
    assert_refused(ask(server[1], "/v1/models", {}, method="BREW"), 400, 405)


def test_a_request_to_become_a_websocket_is_none(server: Server) -> None:
    headers = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    with connected(server[1]) as client:
        client.sendall(request_bytes("/v1/models", b"", method="GET", headers=headers, close=False))
        assert client.recv(100).startswith(b"HTTP/1.1 ")


# -- beside others -----------------------------------------------------------------------------------


def tokens(client: socket.socket) -> list[int]:
    return [i for one in read_answer(client).events for choice in one["choices"] for i in choice["token_ids"]]


def test_g03_a_stream_beside_all_of_them_is_as_alone(server: Server) -> None:
    context, port = server
    body = {"prompt": "abcd", "max_tokens": 2500, "ignore_eos": True, "temperature": 1, "seed": 3}
    data = request_bytes(COMPLETIONS, {**body, "stream": True, "return_token_ids": True})
    with connected(port) as client:
        client.sendall(data)
        alone = tokens(client)
    assert len(alone) == 2500
    with connected(port) as client:
        client.sendall(data)
        first = client.recv(1)
        for number, bad in enumerate(BODIES.values()):
            ask(port, (COMPLETIONS, CHAT)[number % 2], bad)
        for bad in CHATS.values():
            ask(port, CHAT, {"messages": [{"role": "user", "content": "a"}], **bad})
        assert first == b"H" and tokens(client) == alone
    assert context.core.scheduler.counters.finished.get("error", 0) == 0
    assert context.engine.is_alive and context.core.scheduler.kv.num_active == 0


def test_g03_health_is_as_before(server: Server) -> None:
    answer = ask(server[1], CHAT, {"messages": [], "response_format": {"type": "xml"}})
    assert answer.status == 400 and "xml" in json.dumps(answer.json)
    assert get(server[1], "/health/live").status in (200, 404)
