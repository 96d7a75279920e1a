"""The servers that are compared over HTTP, each at its best settings, and how long they take to be ready."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from peers import llamacpp_settings, vllm_settings

from comparison.http_client import Exchange, HTTPError, exchange
from comparison.http_dialects import LLAMA, OPENAI, Ask, Dialect
from comparison.machine import tree_cpu_seconds

POLL_SECONDS = 0.01
START_TIMEOUT = 600.0
WARM_UP = ((1, 128, 8), (1, 1024, 1), (4, 200, 16))  # requests at once, prompt tokens, output tokens


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a server is started.

    Attributes:
        command: without host and port.
        health: the path that answers 200 when it is ready.
        environment: variables that it needs beside ours.
        settles: seconds after an answer until its threads sleep.
        is_emptied_by_start: it knows no salts: a run on an empty cache needs a new process.
    """

    command: list[str]
    dialect: Dialect
    health: str
    environment: dict[str, str] = field(default_factory=dict)
    settles: float = 0.0
    is_emptied_by_start: bool = False


def leafage(model: Path, threads: int) -> Recipe:
    return Recipe([*LEAFAGE_COMMAND, "serve", str(model), "--threads", str(threads)], OPENAI, "/health/ready")


LEAFAGE_COMMAND = [
    sys.executable,
    "-c",
    "import sys; sys.path[:] = filter(None, sys.path); from leafage.cli import main; sys.exit(main())",
]
"""`leafage` as installed: a checkout in the current folder has no kernels, and `-m` would take that."""


def llamacpp(model: Path, threads: int, peers: Path) -> Recipe:
    """Slots with a part of the context each: a pool shared by all is slower, and fails when it is full."""
    binary = peers / "llamacpp" / llamacpp_settings.BINARIES / "llama-server"
    slots = ["-np", str(llamacpp_settings.SLOTS), "-no-kvu", "-c", str(llamacpp_settings.CONTEXT)]
    words = ["-m", str(model), "-t", str(threads), *slots]
    return Recipe([str(binary), *words], LLAMA, "/health", is_emptied_by_start=True)


def vllm(model: Path, threads: int, peers: Path) -> Recipe:
    python = peers / "vllm" / "bin" / "python"
    folder = vllm_settings.hf_folder(model, peers, python)
    command = [str(python.with_name("vllm")), "serve", str(folder)]
    command += ["--dtype", "bfloat16", "--max-model-len", str(vllm_settings.MAX_MODEL_LEN)]
    command += ["--block-size", str(vllm_settings.BLOCK_SIZE), "--enable-prefix-caching"]
    command += ["--uvicorn-log-level", "warning", "--disable-log-stats", "--enable-prompt-tokens-details"]
    return Recipe(
        command,
        OPENAI,
        "/health",
        environment=vllm_settings.environment(peers, threads),
        settles=vllm_settings.OPENMP_SPIN,
    )


class Server:
    """A running server on a port of its own, warm.

    Attributes:
        ready: seconds from its start to the first 200 of its health.
        first_answer: seconds from its start to the end of a first answer of one token.
        start_cpu: CPU seconds until then.
    """

    def __init__(self, recipe: Recipe) -> None:
        """Raises HTTPError when it ends or is not ready in time."""
        self.recipe = recipe
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [*recipe.command, "--host", "127.0.0.1", "--port", str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env=os.environ | recipe.environment,
            preexec_fn=os.setpgrp,  # so that its children can be ended with it
        )
        try:
            self._wait(began)
            self.ready = time.perf_counter() - began
            self._ask([Ask([1000, 1001, 1002, 1003], 1)])
            self.first_answer, self.start_cpu = time.perf_counter() - began, self.cpu_seconds()
            for count, prompt, length in WARM_UP:
                self._ask([Ask(list(range(1000 + i, 1000 + i + prompt)), length) for i in range(count)])
        except BaseException:
            self.close()
            raise

    def cpu_seconds(self) -> float:
        """Of all its processes so far, in steps of 10 ms."""
        return tree_cpu_seconds(self._process.pid)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _ask(self, asks: list[Ask]) -> None:
        dialect = self.recipe.dialect
        requests = [Exchange(i, dialect.request(ask)) for i, ask in enumerate(asks)]
        exchange(self.port, requests, timeout=START_TIMEOUT)
        for ask, request in zip(asks, requests, strict=True):
            dialect.read(request, ask)

    def _wait(self, began: float) -> None:
        address = ("127.0.0.1", self.port)
        request = f"GET {self.recipe.health} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        while self._process.poll() is None and time.perf_counter() - began < START_TIMEOUT:
            with contextlib.suppress(OSError), socket.create_connection(address) as connection:
                connection.sendall(request.encode())
                if connection.recv(4096).split(b" ", 2)[1:2] == [b"200"]:
                    return
            time.sleep(POLL_SECONDS)
        raise HTTPError(f"{self.recipe.command[0]} was not ready (exit code {self._process.poll()})")
