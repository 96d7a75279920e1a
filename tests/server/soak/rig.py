"""A server process under load, and a client that counts and checks every event of a stream."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.server.process import Process, get, request_bytes, started

Ids = list[int]


def rss(server: Process) -> int:
    """Bytes of memory that are this process's own."""
    pages = Path(f"/proc/{server.pid}/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


def gauge(server: Process, name: str, **labels: str) -> float:
    """A metric, summed over the labels that are not given."""
    text = get(server.port, "/metrics").body.decode()
    total, found = 0.0, False
    for line in text.splitlines():
        parts = re.fullmatch(rf"leafage:{name}(?:\{{(.*)\}})? (\S+)", line)
        if parts and all(f'{key}="{value}"' in (parts[1] or "") for key, value in labels.items()):
            total, found = total + float(parts[2]), True
    assert found, f"no metric {name} {labels}"
    return total


def settle(server: Process, seconds: float = 10.0) -> None:
    """Wait until nothing runs; then no block may be held."""
    end = time.monotonic() + seconds
    while gauge(server, "num_requests_running") + gauge(server, "num_requests_waiting"):
        assert time.monotonic() < end, "requests run on though nobody waits for them"
        time.sleep(0.05)
    assert gauge(server, "kv_blocks", state="active") == 0
    total = re.search(r'num_gpu_blocks="(\d+)"', get(server.port, "/metrics").body.decode())
    assert total is not None and gauge(server, "kv_blocks") == int(total[1]), "blocks were lost"


@contextmanager
def serving(model: str, *flags: str) -> Iterator[Process]:
    """A server that must live until it is told to end, and then ends in order."""
    with started(model, *flags) as server:
        yield server
        assert server.process.poll() is None, f"the server ended by itself: {server.text[-4000:]}"
        assert get(server.port, "/health/live").status == 200
        server.process.terminate()
        assert server.ended(60) == 0, server.text[-4000:]


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


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[str]:
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
