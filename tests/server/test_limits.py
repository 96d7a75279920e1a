from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leafage.build import Assets
from leafage.server import limits
from leafage.server.context import Context
from leafage.server.limits import ApiKeys, TokenBucket
from tests.server.conftest import tiny_server
from tests.server.process import ask, connected, get, read_answer, request_bytes, started

Server = tuple[Context, int]
SHORT = {"prompt": "abc", "max_tokens": 2}
PATH = "/v1/completions"


def bearer(key: str) -> tuple[str, ...]:
    return (f"Authorization: Bearer {key}",)


@pytest.fixture(scope="module")
def locked(tiny_assets: Assets) -> Iterator[Server]:
    """It wants keys, and lets a page in."""
    origins = ("https://chat.example",)
    with tiny_server(tiny_assets, api_key=("alpha", "beta"), rate_limit=3, cors_origin=origins) as server:
        yield server


@pytest.fixture(scope="module")
def small(tiny_assets: Assets) -> Iterator[Server]:
    with tiny_server(tiny_assets, max_body_bytes=2000, max_prompt_len=50) as server:
        yield server


# -- keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        (),
        bearer("gamma"),
        bearer(""),
        bearer("alph"),
        bearer("alphaa"),
        ("Authorization: alpha",),
        ("Authorization: Basic alpha",),
        ("Authorization: Bearer \u00fc\u00ff",),
        ("X-Api-Key: alpha",),
    ],
)
def test_without_a_key_nothing_but_open_pages(locked: Server, headers: tuple[str, ...]) -> None:
    context, port = locked
    before = context.rejections["unauthorized"]
    for answer in (ask(port, PATH, SHORT, headers=headers), get(port, "/v1/models", headers=headers)):
        assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert answer.error["code"] == "invalid_api_key"
        assert "alpha" not in answer.error["message"]
    assert context.rejections["unauthorized"] == before + 2
    assert get(port, "/nowhere", headers=headers).status == 401
    assert get(port, "/metrics", headers=headers).status == 401
    assert get(port, "/openapi.json", headers=headers).status == 200
    assert get(port, "/health/live", headers=headers).status in (200, 404)


def test_each_key_is_let_in(locked: Server) -> None:
    for key in ("alpha", "beta"):
        for headers in (bearer(key), (f"authorization: bearer   {key} ",)):
            assert get(locked[1], "/v1/models", headers=headers).status == 200


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, each as a whole, by the function that is made for it."""
    compared = []
    real = limits.hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(limits.hmac, "compare_digest", compare)
    keys = ApiKeys(["alpha", "beta", "a-much-longer-key" * 20])
    assert keys.find("Bearer alpha") == 0 and len(compared) == 3
    assert keys.find("Bearer wrong") is None and keys.find(None) is None and len(compared) == 9
    assert {len(one) for pair in compared for one in pair} == {32}


# -- rates -------------------------------------------------------------------------------------------


def test_a_bucket_gives_so_many_a_minute() -> None:
    bucket = TokenBucket(6, now=0.0)
    assert [bucket.take(0.0) for _ in range(6)] == [0.0] * 6
    assert bucket.take(0.0) == pytest.approx(10)
    assert bucket.take(4.0) == pytest.approx(6)
    assert bucket.take(10.0) == 0.0
    assert bucket.take(10.0) == pytest.approx(10)
    assert [bucket.take(1000.0) for _ in range(7)][:6] == [0.0] * 6  # no more than a minute's
    slow = TokenBucket(0.5, now=0.0)
    assert slow.take(0.0) == 0.0 and slow.take(0.0) == pytest.approx(120)


def test_the_rate_counts_what_a_key_sends(locked: Server) -> None:
    context, port = locked
    assert [ask(port, PATH, SHORT, headers=bearer("alpha")).status for _ in range(3)] == [200] * 3
    answer = ask(port, PATH, SHORT, headers=bearer("alpha"))
    assert answer.status == 429 and answer.error["code"] == "rate_limit_exceeded"
    assert 1 <= int(answer.headers["retry-after"]) <= 20 and "3 a minute" in answer.error["message"]
    assert context.rejections["rate_limit"] == 1
    assert get(port, "/v1/models", headers=bearer("alpha")).status == 200
    assert ask(port, PATH, SHORT, headers=bearer("beta")).status == 200


# -- sizes -------------------------------------------------------------------------------------------


def body_of(size: int) -> bytes:
    """A completion in so many bytes."""
    return b'{"prompt": "abc", "max_tokens": 2' + b" " * (size - 34) + b"}"


def test_a_body_is_as_large_as_it_may_be(small: Server) -> None:
    assert ask(small[1], PATH, body_of(2000)).status == 200
    answer = ask(small[1], PATH, body_of(2001))
    assert answer.status == 413 and answer.error["code"] == "body_too_large"
    assert "2001" in answer.error["message"] and "limit: 2000 bytes" in answer.error["message"]


def chunked(port: int, sizes: list[int], *, end: bool) -> str:
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with connected(port) as client:
        client.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        for size in sizes:
            client.sendall(f"{size:x}\r\n".encode() + b" " * size + b"\r\n")
            time.sleep(0.01)
        if end:
            client.sendall(b"0\r\n\r\n")
        return client.recv(1 << 16).decode()


def test_a_body_without_a_length_is_counted_while_it_arrives(small: Server) -> None:
    """The answer comes before the end of the body, which may never come."""
    assert chunked(small[1], [1500, 600], end=False).startswith("HTTP/1.1 413 ")
    assert chunked(small[1], [1500, 400], end=True).startswith("HTTP/1.1 400 ")  # spaces are no JSON


@pytest.mark.parametrize("told", [True, False], ids=["with length", "chunked"])
@pytest.mark.parametrize("key", [(), bearer("beta")], ids=["no key", "key"])
def test_a_client_that_sends_all_first_reads_the_answer(
    locked: Server, told: bool, key: tuple[str, ...]
) -> None:
    """Also where the connection closes after it, as urllib's do."""
    size = 20 << 20
    framing = f"Content-Length: {size}" if told else "Transfer-Encoding: chunked"
    lines = [
        f"POST {PATH} HTTP/1.1",
        "Host: a",
        "Content-Type: application/json",
        "Connection: close",
        framing,
        *key,
    ]
    with connected(locked[1], SO_SNDBUF=1 << 16) as client:
        client.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        client.sendall(b" " * size if told else b"%x\r\n%b\r\n0\r\n\r\n" % (size, b" " * size))
        assert read_answer(client).status == (413 if key else 401)


@pytest.mark.parametrize("told", [True, False], ids=["with length", "chunked"])
def test_a_large_body_is_refused_without_being_kept(tiny_folder: Path, told: bool) -> None:
    """50 MB, all of them sent. The connection is of use for the next request."""
    flags = ("--threads", "1", "--max-body-bytes", "1MiB", "--kv-cache-tokens", "1024")
    piece = b" " * (1 << 20)
    framing = f"Content-Length: {50 << 20}" if told else "Transfer-Encoding: chunked"
    head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
    with started(str(tiny_folder), *flags) as server, connected(server.port) as client:
        ask(server.port, PATH, SHORT)
        before = server.peak_memory
        client.sendall(head.encode())
        for _ in range(50):
            client.sendall(piece if told else b"100000\r\n" + piece + b"\r\n")
        client.sendall(b"" if told else b"0\r\n\r\n")
        client.sendall(request_bytes("/v1/models", b"", method="GET"))
        answers = b""
        while part := client.recv(1 << 16):
            answers += part
        assert answers.startswith(b"HTTP/1.1 413 ") and b"limit: 1048576 bytes" in answers
        assert b"HTTP/1.1 200 OK" in answers
        assert server.peak_memory - before < 10 << 20


def test_a_prompt_is_as_long_as_it_may_be(small: Server) -> None:
    assert ask(small[1], PATH, {"prompt": "a" * 50, "max_tokens": 1}).status == 200
    answer = ask(small[1], PATH, {"prompt": "a" * 51, "max_tokens": 1})
    assert answer.status == 400 and answer.error["code"] == "context_length_exceeded"
    assert "51 tokens" in answer.error["message"] and "limit: 50 tokens" in answer.error["message"]


def test_m01_larger_than_the_kv_cache_is_refused_and_the_next_one_runs(tiny_assets: Assets) -> None:
    with tiny_server(tiny_assets, {"kv_cache_tokens": 64}) as (_, port):
        began = time.monotonic()
        for body in ({"prompt": "a" * 100}, {"prompt": "a" * 10, "max_tokens": 60}):
            for stream in (False, True):
                answer = ask(port, PATH, {**body, "stream": stream})
                assert answer.status == 400 and answer.error["code"] == "context_length_exceeded"
                assert "64" in answer.error["message"]
        assert time.monotonic() - began < 2
        assert ask(port, PATH, {"prompt": "a" * 30, "max_tokens": 5}).status == 200


# -- pages -------------------------------------------------------------------------------------------


def page(port: int, origin: str | None, host: str = "127.0.0.1", site: str | None = None) -> int:
    """Status that a page of an origin sees, or a browser that says where a request comes from."""
    headers = [f"Host: {host}:{port}"]
    headers += [] if origin is None else [f"Origin: {origin.format(port=port)}"]
    headers += [] if site is None else [f"Sec-Fetch-Site: {site}"]
    data = request_bytes(PATH, SHORT, headers=tuple(headers)).replace(b"Host: 127.0.0.1\r\n", b"", 1)
    with connected(port) as client:
        client.sendall(data)
        return read_answer(client).status


def test_a_page_of_a_stranger_cannot_use_a_server_without_keys(tiny_url: str) -> None:
    port = int(tiny_url.rpartition(":")[2])
    assert page(port, None) == 200
    assert page(port, "http://127.0.0.1:{port}") == 200
    assert page(port, "http://localhost:{port}", host="localhost") == 200
    assert page(port, "https://evil.example") == 403
    assert page(port, "null") == 403
    # The stranger's name was pointed at this machine: its page is one of this server.
    assert page(port, "http://evil.example:{port}", host="evil.example") == 403
    assert page(port, None, host="evil.example", site="same-origin") == 403
    assert page(port, None, host="evil.example") == 200  # no browser
    assert page(port, None, site="none") == 200


def test_cors_is_off_unless_an_origin_is_named(tiny_url: str, tiny_assets: Assets, locked: Server) -> None:
    asked = ("Origin: https://chat.example", "Access-Control-Request-Method: POST")
    preflight = ask(int(tiny_url.rpartition(":")[2]), PATH, b"", method="OPTIONS", headers=asked)
    assert preflight.status == 403 and not any("access-control" in name for name in preflight.headers)
    asked += ("Access-Control-Request-Headers: authorization, content-type",)
    preflight = ask(locked[1], PATH, b"", method="OPTIONS", headers=asked)
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-origin"] == "https://chat.example"
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    refused = get(locked[1], "/v1/models", headers=asked[:1])
    assert refused.status == 401  # and the page may read why
    assert refused.headers["access-control-allow-origin"] == "https://chat.example"
    other = get(locked[1], "/v1/models", headers=("Origin: https://evil.example",))
    assert "access-control-allow-origin" not in other.headers


def test_a_page_that_was_named_may_use_a_server_without_keys(tiny_assets: Assets) -> None:
    with tiny_server(tiny_assets, cors_origin=("https://chat.example",)) as (_, port):
        assert page(port, "https://chat.example") == 200
        assert page(port, "https://evil.example") == 403
