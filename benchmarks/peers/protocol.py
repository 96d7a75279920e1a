"""The talk between `compare.py` and a peer's driver: JSON lines over the driver's stdin and stdout.

A driver loads its engine once, says `{"ready": true, ...}`, and then answers a line for each line it gets:

    {"workload": "W1", "prompts": [[ids]...], "output_lengths": [...], "reset_cache": true, ...}
    {"wall": s, "first_token": s|null, "decode": s|null, "output_tokens": [n...], "cpu": s,
     "cached_tokens": n|null, ...}

All requests of a line are sent at once (conversations: chat.py) and decoded to exactly the given lengths. An
answer is `{"error": "..."}` when that was not possible. The end of stdin ends the driver.
Only the standard library: each driver runs on its own peer's interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO


@dataclass(frozen=True, slots=True)
class Request:
    """Work for one run.

    `reset_cache` asks for an empty prefix cache before the clock starts. With `turns`, so many prompts in a
    row are the turns of a conversation (chat.py). Each request asks for `n` sequences; `temperature` 0 is
    greedy; a `beam_width` above 1 is beam search.
    """

    workload: str
    prompts: list[list[int]]
    output_lengths: list[int]
    reset_cache: bool = True
    turns: int = 1
    n: int = 1
    temperature: float = 0.0
    beam_width: int = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run took; times in seconds.

    `output_tokens` has a count for each sequence, those of a request in a row; of beams only the best's.
    `first_token` is from sending to the first token of any request; `decode`, of W1 only, from the first to
    the last token; `cpu` the CPU seconds of the peer's own processes; `cached_tokens` the prompt tokens that
    the peer did not compute, where it tells. Conversations alone have `mean_first_token`, from sending a turn
    to its first token, and `p99_inter_token`, between two tokens of an answer. `extra` goes into the answer
    as it is.
    """

    wall: float
    output_tokens: list[int]
    cpu: float
    first_token: float | None = None
    decode: float | None = None
    cached_tokens: int | None = None
    mean_first_token: float | None = None
    p99_inter_token: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        answer = asdict(self)
        return answer | answer.pop("extra")


class Driver(Protocol):
    """One peer, loaded and warm."""

    peer: str
    version: str
    settings: dict[str, Any]

    def run(self, request: Request) -> Answer: ...

    def close(self) -> None: ...


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that every driver has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", type=Path, required=True, help="the GGUF file")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peers", type=Path, required=True, help="the folder that `setup` filled")
    parser.add_argument("--kv-cache-tokens", type=int, metavar="N", help="tokens that the KV pool holds")
    return parser


def take_stdout() -> TextIO:
    """Keeps stdout for the protocol: returns it, and sends all that libraries print to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def serve(load: Callable[[], Driver], answers: TextIO, requests: TextIO = sys.stdin) -> None:
    """Loads the peer, then answers requests until stdin ends."""
    began = time.perf_counter()
    driver = load()
    ready = {"ready": True, "peer": driver.peer, "version": driver.version, "settings": driver.settings}
    _say(answers, ready | {"startup_s": time.perf_counter() - began})
    try:
        for line in requests:
            _say(answers, _answer(driver, json.loads(line)))
    finally:
        driver.close()


def _answer(driver: Driver, line: dict[str, Any]) -> dict[str, Any]:
    try:
        request = Request(**line)
        answer = driver.run(request)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    wanted = [length for length in request.output_lengths for _ in range(request.n)]
    if answer.output_tokens != wanted:
        return {"error": f"{driver.peer} made {answer.output_tokens} output tokens, asked for were {wanted}"}
    return answer.as_dict()


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
