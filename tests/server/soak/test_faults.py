"""Clients that behave badly beside clients that behave well: the latter get the tokens they get alone.

Killed processes, connections that are dropped or half open, readers that do not read, bodies that are no
bodies, a disk that is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.process import Process, request_bytes
from tests.server.soak.rig import Stream, rss, serving, settle, stream

pytestmark = pytest.mark.soak
SECONDS = float(os.environ.get("SOAK_FAULT_SECONDS", "120"))
NUM_GOOD = 12
LONG = {"prompt": [500, 501, 502], "max_tokens": 2000, "ignore_eos": True, "stream": True}

KILLED = """
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.sendall(bytes.fromhex(sys.argv[2]))
s.recv(100)
print("here", flush=True)
import time
time.sleep(60)
"""


def good_body(number: int) -> dict[str, Any]:
    rng = random.Random(number)
    return {
        "prompt": rng.choices(range(100, 40000), k=rng.randrange(5, 200)),
        "max_tokens": rng.randrange(5, 30),
        "temperature": rng.choice([0, 1]),
        "seed": number,
        "ignore_eos": True,
    }


async def killed_process(server: Process, rng: random.Random) -> None:
    """kill -9 in the middle of a stream."""
    data = request_bytes("/v1/completions", LONG).hex()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(server.port), data, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    process.kill()
    await process.wait()


async def leaver(server: Process, rng: random.Random) -> None:
    """Leaves after some events."""
    await stream(server.port, {**LONG, "seed": 1}, leave_after=rng.randrange(1, 20))


async def silent_leaver(server: Process, rng: random.Random) -> None:
    """Closes without a word, not streaming."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request_bytes("/v1/completions", {**LONG, "stream": False}))
    await asyncio.sleep(rng.random() * 0.3)
    writer.close()


async def half_request(server: Process, rng: random.Random) -> None:
    """Sends a part of its request, and then nothing."""
    data = request_bytes("/v1/completions", LONG)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data[: rng.randrange(1, len(data))])
    await asyncio.sleep(0.5)
    writer.close()


async def half_open(server: Process, rng: random.Random) -> None:
    """Says that it will send no more, and still reads."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request_bytes("/v1/completions", {**LONG, "max_tokens": 5}))
    writer.write_eof()
    await asyncio.wait_for(reader.read(), 60)
    writer.close()


async def slow_reader(server: Process, rng: random.Random) -> None:
    """Takes a little of its stream, and then nothing, with a small window."""
    taker = socket.socket()
    taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    taker.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(taker, ("127.0.0.1", server.port))
    await loop.sock_sendall(taker, request_bytes("/v1/completions", {**LONG, "max_tokens": 300}))
    await loop.sock_recv(taker, 100)
    await asyncio.sleep(4)
    taker.close()


async def reset(server: Process, rng: random.Random) -> None:
    """Ends its connection with a reset."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request_bytes("/v1/completions", LONG))
    await asyncio.sleep(rng.random() * 0.2)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


async def garbage(server: Process, rng: random.Random) -> None:
    """Bodies that are no request."""
    bodies = (b"{" * 100_000, b"\xff\xfe\x00", b'{"prompt": "\\ud800"}', b'{"prompt": NaN}', b"[]", b"")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request_bytes("/v1/completions", rng.choice(bodies)))
    status = int((await reader.readline()).split()[1])
    assert 400 <= status < 500, status
    writer.close()


FAULTS: list[Callable[[Process, random.Random], Awaitable[None]]] = [
    killed_process,
    leaver,
    silent_leaver,
    half_request,
    half_open,
    slow_reader,
    reset,
    garbage,
]


@pytest.mark.timeout(SECONDS * 3 + 600)
def test_bad_clients_harm_no_good_one(smollm2_path: Path, tmp_path: Path) -> None:
    wrong: list[str] = []
    counts = {"good": 0, **{fault.__name__: 0 for fault in FAULTS}}
    log = tmp_path / "requests.jsonl"
    flags = ("--kv-cache-tokens", "6000", "--request-log", str(log), "--send-timeout", "3")
    with serving(str(smollm2_path), *flags) as server:
        bodies = [good_body(number) for number in range(40)]
        alone = [asyncio.run(stream(server.port, body)).token_ids for body in bodies]

        async def good(number: int, end: float) -> None:
            rng = random.Random(number)
            while time.monotonic() < end:
                which = rng.randrange(len(bodies))
                seen: Stream = await stream(server.port, bodies[which])
                if not seen.ended or seen.error or seen.token_ids != alone[which]:
                    wrong.append(f"request {which}: {seen}")
                    return
                counts["good"] += 1

        async def bad(fault: Callable[[Process, random.Random], Awaitable[None]], end: float) -> None:
            rng = random.Random(fault.__name__)
            while time.monotonic() < end:
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    await fault(server, rng)
                counts[fault.__name__] += 1
                await asyncio.sleep(rng.random() * 0.2)

        async def main() -> None:
            end = time.monotonic() + SECONDS
            await asyncio.gather(
                *(good(i, end) for i in range(NUM_GOOD)), *(bad(fault, end) for fault in FAULTS)
            )

        asyncio.run(main())
        assert not wrong, wrong[:2]
        settle(server, 30)
    print("==", ", ".join(f"{name} {count}" for name, count in counts.items()))
    assert min(counts.values()) > 0


@pytest.mark.timeout(600)
def test_a_thousand_connections_leave_nothing(smollm2_path: Path) -> None:
    with serving(str(smollm2_path), "--kv-cache-tokens", "6000") as server:
        asyncio.run(stream(server.port, good_body(1)))
        time.sleep(0.5)
        files, memory = server.num_files, rss(server)
        sockets = []
        for number in range(1000):
            one = socket.create_connection(("127.0.0.1", server.port))
            if number % 2:
                one.sendall(request_bytes("/v1/completions", LONG)[: 20 + number % 100])
            sockets.append(one)
            if len(sockets) == 200:
                for old in sockets:
                    old.close()
                sockets.clear()
        assert asyncio.run(stream(server.port, good_body(2))).ended
        settle(server)
        end = time.monotonic() + 20
        while server.num_files > files + 2 and time.monotonic() < end:
            time.sleep(0.1)
        assert server.num_files <= files + 2
        growth = (rss(server) - memory) / 2**20
        print(f"== 1,000 connections: {server.num_files - files:+d} files, {growth:+.1f} MiB")


@pytest.mark.timeout(300)
def test_a_full_disk_costs_the_log_only(smollm2_path: Path, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    flags = ("--kv-cache-tokens", "6000", "--request-log", str(log))
    with serving(str(smollm2_path), *flags) as server:
        wanted = asyncio.run(stream(server.port, good_body(3))).token_ids
        size = log.stat().st_size
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size + 100, size + 100))
        for _ in range(3):
            assert asyncio.run(stream(server.port, good_body(3))).token_ids == wanted
        assert log.stat().st_size <= size + 100
