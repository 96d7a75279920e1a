"""Drives llama.cpp (see protocol.py): llama-bench for W1 and W2, llama-server for all others.

llama-bench is a process per run and takes tokens of its own making. The server is started when first needed,
and anew when its cache is to be empty. `--format Q8_0` runs the model in another of llama.cpp's formats, made
once with llama-quantize. `--kv-cache-tokens` is the context of all slots together; each has its part, or they
share it (`--unified`).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import protocol
from chat import Chat
from llamacpp_settings import BINARIES, CONTEXT, SLOTS, quantized, version

COLD_CONTEXT = 4096
UNTOLD = 100  # stands for a token of a stream that is never told: those whose text ends inside a character
START_TIMEOUT = 60.0
ANSWER_TIMEOUT = 300.0


class Server:
    """A llama-server on a port of its own; `options` beside model, threads and address."""

    def __init__(self, command: list[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        address = ["--host", "127.0.0.1", "--port", str(self._port)]
        self._process = subprocess.Popen([*command, *address], stdin=subprocess.DEVNULL, stdout=sys.stderr)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def complete(
        self, prompt: list[int], length: int, *, n: int = 1, temperature: float = 0.0
    ) -> list[dict[str, Any]]:
        """`n` completions of a prompt, on a connection of its own: the server closes kept ones early."""
        with self._post(_body(prompt, length, n, temperature)) as response:
            answers = json.loads(response.read())
        ended = time.perf_counter()
        return [answer | {"ended": ended} for answer in (answers if n > 1 else [answers])]

    def stream(self, prompt: list[int], length: int) -> Iterator[dict[str, Any]]:
        """Greedy tokens, as they come; the last event has the timings."""
        with self._post(_body(prompt, length, 1, 0.0) | {"stream": True}) as response:
            for line in response:
                if line.startswith(b"data: "):
                    yield json.loads(line[len(b"data: ") :])
                elif line.startswith(b"error"):
                    raise RuntimeError(f"llama-server ended a stream: {line[:200].decode(errors='replace')}")

    @contextlib.contextmanager
    def _post(self, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
        with contextlib.closing(self._connection(ANSWER_TIMEOUT)) as connection:
            headers = {"Content-Type": "application/json", "Connection": "close"}
            connection.request("POST", "/completion", json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                text = response.read()[:200].decode(errors="replace")
                raise RuntimeError(f"llama-server answered {response.status}: {text}")
            yield response

    def cpu_seconds(self) -> float:
        """CPU time of the process so far, in steps of 10 ms."""
        return cpu_seconds(self._process.pid)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout)

    def _wait(self) -> None:
        end = time.monotonic() + START_TIMEOUT
        while self._process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError), contextlib.closing(self._connection(1.0)) as connection:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            time.sleep(0.005)
        raise RuntimeError(f"llama-server did not start (exit code {self._process.poll()})")


class LlamaCpp:
    """`slots` are options of llama-server that say how many there are and what context they have."""

    peer = "llamacpp"

    def __init__(self, folder: Path, model: Path, threads: int, slots: list[str]) -> None:
        self._binaries = folder / BINARIES
        self._model = ["-m", str(model), "-t", str(threads)]
        self._slots = slots
        self._server: Server | None = None
        self.version = version(folder)
        self.settings = {
            "model": str(model),
            "threads": threads,
            "W1, W2": "llama-bench",
            "others": " ".join(["llama-server", *slots]),
        }

    def run(self, request: protocol.Request) -> protocol.Answer:
        if request.workload == "W1":
            return self._decode(request)
        if request.workload == "W2":
            return self._prefill(request)
        if request.workload == "cold":
            return self._cold(request)
        if request.beam_width > 1:
            raise RuntimeError("llama-server has no beam search")
        if request.reset_cache or self._server is None:
            self._start()
        return (self._converse if request.turns > 1 else self._batch)(request)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _decode(self, request: protocol.Request) -> protocol.Answer:
        """At depth 0, as llama-bench's users quote it, and after the prompt, as the other engines do it."""
        prompt, length = len(request.prompts[0]), request.output_lengths[0]
        rate, cpu = self._bench("-p", "0", "-n", str(length))
        rate_after_prompt, _ = self._bench("-p", "0", "-n", str(length), "-d", str(prompt))
        return protocol.Answer(
            wall=length / rate,
            decode=(length - 1) / rate,
            output_tokens=[length],
            cpu=cpu,
            extra={f"decode_at_depth_{prompt}": (length - 1) / rate_after_prompt},
        )

    def _prefill(self, request: protocol.Request) -> protocol.Answer:
        prompt = len(request.prompts[0])
        rate, cpu = self._bench("-p", str(prompt), "-n", "0")
        return protocol.Answer(wall=prompt / rate, first_token=prompt / rate, output_tokens=[1], cpu=cpu)

    def _bench(self, *words: str) -> tuple[float, float]:
        """Tokens per second of a llama-bench run, and its CPU seconds from the end of its warm-up on."""
        command = [str(self._binaries / "llama-bench"), *self._model, "-r", "1", "-o", "json", "--progress"]
        process = subprocess.Popen(
            [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        before = 0.0
        assert process.stdout is not None and process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(line)
            if re.search(r"(prompt|generation) run 1/1", line):
                before = cpu_seconds(process.pid)
        report = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)  # Popen would not tell its CPU time
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"llama-bench {' '.join(words)} ended with {process.returncode}")
        return float(json.loads(report)[-1]["avg_ts"]), usage.ru_utime + usage.ru_stime - before

    def _cold(self, request: protocol.Request) -> protocol.Answer:
        """From starting a server to the first token of a prompt."""
        began = time.perf_counter()
        server = Server([str(self._binaries / "llama-server"), *self._model, "-c", str(COLD_CONTEXT)])
        try:
            (answer,) = server.complete(request.prompts[0], 1)
            wall, cpu = answer["ended"] - began, server.cpu_seconds()
        finally:
            server.close()
        return protocol.Answer(
            wall=wall, first_token=wall, output_tokens=[answer["tokens_predicted"]], cpu=cpu
        )

    def _start(self) -> None:
        """A new server, warm and with an empty cache."""
        self.close()
        self._server = Server([str(self._binaries / "llama-server"), *self._model, *self._slots])
        self._server.complete(list(range(100, 108)), 4)

    def _batch(self, request: protocol.Request) -> protocol.Answer:
        server = self._server
        assert server is not None

        def complete(prompt: list[int], length: int) -> list[dict[str, Any]]:
            return server.complete(prompt, length, n=request.n, temperature=request.temperature)

        cpu, began = server.cpu_seconds(), time.perf_counter()
        found = _all_at_once(complete, list(zip(request.prompts, request.output_lengths, strict=True)))
        cpu = server.cpu_seconds() - cpu
        answers = [answer for completions in found for answer in completions]
        timings = [answer["timings"] for answer in answers]
        first_tokens = [a["ended"] - a["timings"]["predicted_ms"] / 1000 for a in answers]
        return protocol.Answer(
            wall=max(answer["ended"] for answer in answers) - began,
            first_token=min(first_tokens) - began,
            output_tokens=[answer["tokens_predicted"] for answer in answers],
            cpu=cpu,
            cached_tokens=sum(timing["cache_n"] for timing in timings) if request.n == 1 else None,
        )

    def _converse(self, request: protocol.Request) -> protocol.Answer:
        server = self._server
        assert server is not None
        chat = Chat(request.prompts, request.output_lengths, request.turns)

        def converse(number: int | None) -> int:
            """A conversation from its first turn; returns the tokens that came from the cache."""
            cached = 0
            while number is not None:
                for event in server.stream(chat.send(number), chat.length(number)):
                    tokens = event.get("tokens", [])
                    untold = event.get("tokens_predicted", 0) - len(chat.tokens[number]) - len(tokens)
                    chat.receive(number, [UNTOLD] * untold + tokens)
                    cached += event.get("timings", {}).get("cache_n", 0)
                number = chat.next(number)
            return cached

        cpu = server.cpu_seconds()
        cached = _all_at_once(converse, [(number,) for number in chat.first()])
        cpu = server.cpu_seconds() - cpu
        return protocol.Answer(cpu=cpu, cached_tokens=sum(cached), **chat.figures())


def _all_at_once(work: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[Any]:
    """Results of calls, each on a thread of its own.

    Raises RuntimeError, when all have ended, with the first failure and how many there were.
    """
    with ThreadPoolExecutor(len(arguments)) as pool:
        calls = [pool.submit(work, *words) for words in arguments]
    errors = [error for call in calls if (error := call.exception()) is not None]
    if errors:
        raise RuntimeError(f"{len(errors)} of {len(calls)} failed, the first: {errors[0]}") from errors[0]
    return [call.result() for call in calls]


def _body(prompt: list[int], length: int, n: int, temperature: float) -> dict[str, Any]:
    """A request's JSON."""
    greedy = {"samplers": ["top_k"], "top_k": 1, "temperature": 0.0}
    return {
        "prompt": prompt,
        "n_predict": length,
        "n_cmpl": n,
        "ignore_eos": True,
        "cache_prompt": True,
        "repeat_penalty": 1.0,
        **({"samplers": ["temperature"], "temperature": temperature} if temperature else greedy),
    }


def cpu_seconds(pid: int) -> float:
    """User and system time of a running process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    answers = protocol.take_stdout()
    parser = protocol.arguments(__doc__)
    parser.add_argument("--format", help="run the model in this format of llama-quantize, for example Q8_0")
    parser.add_argument("--slots", type=int, default=SLOTS, metavar="N", help="requests served at once")
    parser.add_argument("--unified", action="store_true", help="one context, shared by the slots")
    parser.set_defaults(kv_cache_tokens=CONTEXT)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server ends with its driver
    folder, model = args.peers / "llamacpp", args.model
    if args.format:
        model = quantized(folder / BINARIES, model, args.format, args.peers / "models")
    unified = "-kvu" if args.unified else "-no-kvu"
    slots = ["-np", str(args.slots), unified, "-c", str(args.kv_cache_tokens)]
    protocol.serve(lambda: LlamaCpp(folder, model, args.threads, slots), answers)


if __name__ == "__main__":
    main()
