"""A server process, and a client that counts and checks every event of a stream."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

Ids = list[int]


@dataclass
class Server:
    """A `leafage serve` of its own."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def rss(self) -> int:
        """Bytes of memory that are this process's own."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")

    @property
    def num_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def gauge(self, name: str) -> float:
        """Sum of a metric over its labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        found = re.findall(rf"^leafage:{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        assert found, f"no metric {name}"
        return sum(map(float, found))

    def settle(self, seconds: float = 10.0) -> None:
        """Wait until nothing runs; then no block may be held."""
        end = time.monotonic() + seconds
        while self.gauge("num_requests_running") + self.gauge("num_requests_waiting"):
            assert time.monotonic() < end, "requests run on though nobody waits for them"
            time.sleep(0.05)
        assert self.gauge("kv_blocks_active") == 0
        total = self.gauge("kv_blocks_free") + self.gauge("kv_blocks_cached")
        assert total == self.gauge("kv_blocks_total"), "blocks were lost"


@contextmanager
def serve(model: str, folder: Path, *flags: str) -> Iterator[Server]:
    """Start a server, wait until it is ready, and end it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "server.log"
    command = [sys.executable, "-m", "leafage", "serve", model, "--port", str(port), *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    server = Server(process, port, log)
    try:
        end = time.monotonic() + 120
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            try:
                if httpx.get(f"{server.url}/health/ready", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.05)
        yield server
        assert process.poll() is None, f"the server ended by itself: {log.read_text()[-4000:]}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass
class Stream:
    """What a client saw of one answer.

    Attributes:
        status: of the response; 0 when the connection broke before it.
        gaps: seconds between two events.
        error: of an error event.
        ended: whether [DONE] came.
    """

    status: int = 0
    body: str = ""
    token_ids: Ids = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    gaps: list[float] = field(default_factory=list)
    first: float = 0.0
    error: str | None = None
    ended: bool = False


def request_bytes(path: str, body: dict[str, Any] | bytes, *, close: bool = True) -> bytes:
    """An HTTP/1.1 request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: soak\r\nContent-Length: {len(data)}\r\n"
    head += "Content-Type: application/json\r\n" + ("Connection: close\r\n" if close else "")
    return head.encode() + b"\r\n" + data


async def stream(port: int, body: dict[str, Any], *, leave_after: int | None = None) -> Stream:
    """Send a streaming completion and follow it, or leave after so many events.

    Token ids come with `return_token_ids`; every event must be whole JSON.
    """
    seen = Stream()
    began = last = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        wanted = {**body, "stream": True, "return_token_ids": True}
        writer.write(request_bytes("/v1/completions", wanted))
        seen.status = int((await reader.readline()).split()[1])
        headers = (await reader.readuntil(b"\r\n\r\n")).lower() if seen.status else b""
        if b"chunked" not in headers:
            seen.body = (await reader.read()).decode()
            return seen
        async for data in _events(reader):
            now = time.monotonic()
            if not seen.gaps:
                seen.first = now - began
            seen.gaps.append(now - last)
            last = now
            if data == "[DONE]":
                seen.ended = True
                break
            chunk = json.loads(data)
            if "error" in chunk:
                seen.error = chunk["error"]["message"]
                continue
            for choice in chunk["choices"]:
                seen.text += choice["text"]
                seen.token_ids += choice["token_ids"]
                seen.finish_reason = choice["finish_reason"] or seen.finish_reason
            if leave_after is not None and len(seen.gaps) >= leave_after:
                break
    finally:
        writer.close()
    return seen


async def _events(reader: asyncio.StreamReader) -> Any:
    """Data of the events of a chunked response."""
    rest = b""
    while True:
        size = int((await reader.readline()).strip() or b"0", 16)
        if size == 0:
            assert not rest, f"the stream ended inside an event: {rest!r}"
            return
        rest += await reader.readexactly(size)
        await reader.readexactly(2)
        *events, rest = rest.split(b"\n\n")
        for event in events:
            yield event.decode().removeprefix("data: ")
