"""`leafage serve` as a process of its own, and clients that speak HTTP/1.1 byte by byte."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ELSEWHERE = tempfile.gettempdir()
"""Not the checkout: there Python would take its package, which has no kernels, for the installed one."""


@dataclass
class Process:
    """A server that has said its address.

    Attributes:
        said: what it wrote to stderr so far.
    """

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def text(self) -> str:
        return "".join(self.said)

    @property
    def num_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def peak_memory(self) -> int:
        """Bytes it has had at most."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10

    def wait_for(self, words: str, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < end, f"it did not say {words!r} but {self.text}"
            assert self.process.poll() is None or words in self.text, self.text
            time.sleep(0.01)

    def ended(self, seconds: float = 20.0) -> int:
        """Its exit code."""
        return self.process.wait(seconds)


@contextmanager
def started(*words: str, cpus: Sequence[int] = (), **environment: str) -> Iterator[Process]:
    """`leafage serve WORDS` at a free port, listening, on these CPUs; killed at the end if it still runs."""
    command = [sys.executable, "-m", "leafage", "serve", *words]
    if cpus:
        command = ["taskset", "--cpu-list", ",".join(map(str, cpus)), *command]
    environment = {name: v for name, v in os.environ.items() if name != "LEAFAGE_MODEL"} | environment
    if "--port" not in words and "LEAFAGE_PORT" not in environment:
        command += ["--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=ELSEWHERE)
    server = Process(process)
    assert process.stderr is not None
    reader = threading.Thread(target=server.said.extend, args=(process.stderr,), daemon=True)
    reader.start()
    try:
        server.wait_for("serving ")
        found = re.search(r"serving .* at http://\S+:(\d+)", server.text)
        assert found is not None
        server.port = int(found[1])
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        reader.join(5)
        process.stderr.close()


def refused(*words: str, **environment: str) -> tuple[int, str]:
    """Exit code and stderr of a server that does not start."""
    command = [sys.executable, "-m", "leafage", "serve", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | environment, cwd=ELSEWHERE, timeout=60
    )
    return done.returncode, done.stderr


def connected(port: int, **options: int) -> socket.socket:
    """A connection; `options` are socket options to set before."""
    client = socket.socket()
    for name, value in options.items():
        client.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    client.settimeout(30)
    client.connect(("127.0.0.1", port))
    return client


def request_bytes(
    path: str, body: Any, *, method: str = "POST", headers: tuple[str, ...] = (), close: bool = True
) -> bytes:
    """A request; a body that is no bytes goes as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(data)}", *headers]
    if not any(line.lower().startswith("content-type") for line in headers):
        lines.append("Content-Type: application/json")
    if close:
        lines.append("Connection: close")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """Of our shape."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
        return error

    @property
    def events(self) -> list[Any]:
        """Of a stream that ended with [DONE]."""
        *events, done, rest = self.body.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", ""), self.body[-200:]
        return [json.loads(event.removeprefix("data: ")) for event in events]


def read_answer(client: socket.socket) -> Answer:
    """All of an answer to a request with `Connection: close`."""
    data = b""
    while piece := client.recv(1 << 16):
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = unchunked(body)
    return Answer(int(status.split()[1]), headers, body)


def unchunked(data: bytes) -> bytes:
    whole = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            break
        whole, data = whole + data[:length], data[length + 2 :]
    return whole


def ask(port: int, path: str, body: Any, *, method: str = "POST", headers: tuple[str, ...] = ()) -> Answer:
    """One request on a connection of its own."""
    with connected(port) as client:
        client.sendall(request_bytes(path, body, method=method, headers=headers))
        return read_answer(client)


def get(port: int, path: str, *, headers: tuple[str, ...] = ()) -> Answer:
    return ask(port, path, b"", method="GET", headers=headers)


def send_signal(server: Process, number: int = signal.SIGTERM) -> None:
    server.process.send_signal(number)
