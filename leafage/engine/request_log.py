"""The request log: what an engine served, without its text, for replay in the simulator.

A file of JSON lines. Each start of an engine adds a header; a file that was emptied begins with it
again:

    leafage_request_log   version of the format, 1
    started               seconds since 1970; the times of the lines below count from here
    block_size            tokens that one block hash stands for
    tenants               how tenants are written: "hashed" or "plain"

Each request adds a line when it ends:

    arrival, ttft, finished   seconds: when it came, how long its first token took (null: none), when it ended
    number                    in the order in which the requests came
    prompt_tokens             length of the prompt
    cached_tokens             how much of it was found in the cache
    prompt_blocks             hashes of its full blocks, 16 hexadecimal digits each, one after another
    answers                   of each sequence its number of `tokens`, its `finish` reason, and `blocks`: the
                              hashes of the full blocks behind the prompt's; the first may hold its end
    n, beam_width             answers asked for; beams (null: drawn)
    priority, tenant          its class; whose it was
    preemptions               how often it was preempted
    oldest                    no request on a later line arrived before this time, so lines can be sorted
                              while they are read

A block's hash covers all tokens before it as well (`h_j = hash(h_{j-1}, tokens_j)`), so equal hashes mean
equal prefixes: what requests shared can be rebuilt, rounded down to whole blocks. It is BLAKE2b under a
secret key, drawn at the start and written nowhere unless the operator gives one, and begins with the
request's `cache_salt`. So hashes tell which requests began alike, and nothing else: whoever has the log
cannot try texts against them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import stat
import sys
import threading
import time
import warnings
from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from leafage.core.request import Request
from leafage.engine.metrics import EngineMetrics, RequestMetrics
from leafage.errors import InvalidParameterError

VERSION = 1
HEADER = "leafage_request_log"
HASH_BYTES = 8
MAX_BLOCK_SIZE = 256
MAX_UNWRITTEN = 10_000
"""Lines that wait for a slow disk; more are lost."""
CLOSE_TIMEOUT = 1.0
"""Seconds that the end waits for a disk that hangs."""


class RequestLogWarning(UserWarning):
    """Requests are missing in the log."""


def open_request_log(path: str | Path) -> int:
    """The file descriptor of a log to add to, which nobody else adds to while it is open.

    Raises:
        InvalidParameterError: another engine writes it: lines count their times from their engine's header.
        OSError: it cannot be written.
    """
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise InvalidParameterError(
            "request_log is being written by another engine", value=str(path), remedy="name another file"
        ) from None
    except OSError:
        pass  # a file system without locks
    return file


class RequestLog:
    """Writes the log of an engine. Made on any thread; lines are made on the engine's, and written on one of
    its own, so that no disk, however slow, holds up a step.

    Args:
        path: the file, which is begun or added to.
        metrics: of the engine whose requests are logged from now on.
        block_size: tokens of one hash; the KV cache's own tells most.
        plain_tenants: write tenants as they are, instead of their hashes.
        secret: key of the hashes, up to 64 bytes; logs with the same one can be compared.
        now: seconds since 1970.

    Attributes:
        num_lost: requests that could not be written. What was written of their lines is taken back.

    Raises:
        InvalidParameterError: block_size or secret is out of range, or another engine writes the file.
        OSError: the file cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        metrics: EngineMetrics,
        *,
        block_size: int = 16,
        plain_tenants: bool = False,
        secret: bytes | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        if not 1 <= block_size <= MAX_BLOCK_SIZE:
            limit = f"1 to {MAX_BLOCK_SIZE}"
            raise InvalidParameterError("block_size is out of range", value=block_size, limit=limit)
        if secret is not None and not 16 <= len(secret) <= blake2b.MAX_KEY_SIZE:
            limit = f"16 to {blake2b.MAX_KEY_SIZE} bytes"
            raise InvalidParameterError("the secret has the wrong length", value=len(secret), limit=limit)
        self.num_lost = 0
        self._closed = False
        self._block_size = block_size
        self._plain_tenants = plain_tenants
        self._secret = secret or os.urandom(32)
        self._metrics = metrics
        self._file = open_request_log(path)
        header = {
            HEADER: VERSION,
            "started": now(),
            "block_size": block_size,
            "tenants": "plain" if plain_tenants else "hashed",
        }
        self._header = _encode(header)
        try:
            self._write(self._header)
        except OSError:
            os.close(self._file)
            raise
        self._origin = metrics.clock.now()
        self._unwritten: queue.Queue[bytes | None] = queue.Queue(MAX_UNWRITTEN)
        self._thread = threading.Thread(target=self._run, name="leafage-request-log", daemon=True)
        self._thread.start()
        self._next = metrics.on_finished
        metrics.on_finished = self._finished

    def flush(self) -> None:
        """Return when all requests that have ended so far are written, or lost."""
        self._unwritten.join()

    def close(self) -> None:
        """Write what is left, for a few seconds at most, and no more."""
        if self._closed:
            return
        self._closed = True
        if self._metrics.on_finished == self._finished:  # else somebody came later, and hands on to this
            self._metrics.on_finished = self._next
        try:
            self._unwritten.put_nowait(None)
        except queue.Full:  # the disk has been hanging for long
            self._give_up()
        self._thread.join(CLOSE_TIMEOUT)

    def _give_up(self) -> None:
        """Lose all that waits."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._unwritten.get_nowait()
                self._unwritten.task_done()
                self._lose("the disk is too slow")
        self._unwritten.put_nowait(None)

    def _finished(self, request: Request, metrics: RequestMetrics) -> None:
        if not self._closed:
            try:
                self._unwritten.put_nowait(_encode(self.line(request, metrics)))
            except queue.Full:
                self._lose("the disk is too slow")
        if self._next is not None:
            self._next(request, metrics)

    def _run(self) -> None:
        while (line := self._unwritten.get()) is not None:
            try:
                if self._was_emptied():
                    line = self._header + line
                self._write(line)
            except OSError as error:  # a full disk must not stop the log: it may have room again
                self._lose(str(error))
            self._unwritten.task_done()
        self._unwritten.task_done()
        os.close(self._file)

    def _was_emptied(self) -> bool:
        """As log rotation does that copies the file and truncates it."""
        status = os.fstat(self._file)
        return stat.S_ISREG(status.st_mode) and status.st_size == 0

    def _write(self, line: bytes) -> None:
        """All of a line, or, when that fails, nothing of it."""
        written = 0
        try:
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            if written:
                with contextlib.suppress(OSError):  # a pipe cannot take it back
                    os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise

    def _lose(self, why: str) -> None:
        self.num_lost += 1
        if self.num_lost == 1:
            warnings.warn(f"the request log cannot be written: {why}", RequestLogWarning, stacklevel=2)

    def line(self, request: Request, metrics: RequestMetrics) -> dict[str, Any]:
        """What is written of a request that has ended."""
        params, prompt = request.params, request.prompt_token_ids
        first = len(prompt) // self._block_size * self._block_size
        root = self._hash(b"salt", request.cache_salt.encode())
        hashes = self._chain(root, prompt[:first])
        last = hashes[-1] if hashes else root
        answers = []
        for tokens, finish in _answers(request):
            blocks = self._chain(last, [*prompt[first:], *tokens])
            answers.append({"tokens": len(tokens), "blocks": b"".join(blocks).hex(), "finish": finish})
        oldest = self._metrics.oldest_arrival
        ttft = metrics.time_to_first_token
        return {
            "arrival": self._seconds(metrics.arrival_time),
            "number": request.arrival,
            "ttft": None if ttft is None else round(ttft, 6),
            "finished": self._seconds(metrics.finished_time or metrics.arrival_time),
            "prompt_tokens": len(prompt),
            "cached_tokens": request.num_cached or 0,
            "prompt_blocks": b"".join(hashes).hex(),
            "answers": answers,
            "n": params.n if params.beam_width is not None else params.num_sequences,
            "beam_width": params.beam_width,
            "priority": request.priority,
            "tenant": self._tenant(request.tenant),
            "preemptions": request.num_preemptions,
            "oldest": self._seconds(oldest),
        }

    def _seconds(self, time: float) -> float:
        return round(time - self._origin, 6)

    def _tenant(self, tenant: str) -> str:
        if self._plain_tenants or not tenant:
            return tenant
        return self._hash(b"tenant", tenant.encode()).hex()

    def _chain(self, before: bytes, tokens: Sequence[int]) -> list[bytes]:
        """Hashes of the full blocks of `tokens`, which follow what `before` is the hash of."""
        packed = array("q", tokens)
        if sys.byteorder == "big":
            packed.byteswap()
        data, size = packed.tobytes(), self._block_size * packed.itemsize
        hashes = []
        for end in range(size, len(data) + 1, size):
            before = self._hash(before, data[end - size : end])
            hashes.append(before)
        return hashes

    def _hash(self, before: bytes, data: bytes) -> bytes:
        return blake2b(before + data, digest_size=HASH_BYTES, key=self._secret).digest()


def _encode(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _answers(request: Request) -> list[tuple[list[int], str]]:
    """(tokens, finish reason) of each answer of a request that has ended, as far as it got."""
    if request.beams is not None and request.beams.finished:
        best = request.beams.finished[: request.params.n]
        return [
            ([token.token_id for token in found.path.tokens()], found.finish.kind.value) for found in best
        ]
    return [
        (seq.tokens[seq.num_prompt_tokens :], seq.finish.kind.value if seq.finish is not None else "abort")
        for seq in request.sequences
    ]
