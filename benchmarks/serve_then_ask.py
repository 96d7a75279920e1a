"""Serve for a while, then ask the simulator what other settings would have done; then serve with those, too.

    leafage sim calibrate machine.json
    python benchmarks/serve_then_ask.py machine.json [--variants policy=fcfs kv_cache_tokens=8192 ...]

A server (`leafage serve --request-log`) answers questions about many tasks, each behind its task's
instructions, of which its KV cache holds a few. From the log of the first variant's run comes how fast the
machine was then (`leafage sim calibrate --trace`), and the requests, as hashes and times. They are simulated
with each variant's settings; beside it stands what really happens: the same requests, served with those.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from leafage.build import build_simulation
from leafage.config import EngineConfig
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.result import SimResult
from leafage.sim.scenario import Scenario
from leafage.sim.summary import summarize
from leafage.sim.trace_file import TraceFile
from leafage.sim.trace_fit import fit_trace, read_measured

TASK_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 400, 40, 24
FIRST_TOKEN_ID = 1000
"""Ids below may be special."""
START_TIMEOUT = 120.0
SETTINGS: dict[str, Any] = {"kv_cache_tokens": 4096, "max_model_len": 1024}
"""Of the engine, where a variant does not say otherwise."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What is compared: seconds, running sequences, and the share of prompt tokens found in the cache."""

    ttft_mean: float
    ttft_p90: float
    e2e_mean: float
    mean_batch: float
    hit_rate: float

    def row(self, label: str) -> str:
        return (
            f"| {label} | {self.ttft_mean:.2f} s | {self.ttft_p90:.2f} s | {self.e2e_mean:.2f} s "
            f"| {self.mean_batch:.1f} | {self.hit_rate:.1%} |"
        )

    def error(self, real: Numbers) -> str:
        """A row of what is off, in percent; of the hit rate in points."""
        off = [f"{getattr(self, f.name) / getattr(real, f.name) - 1:+.0%}" for f in fields(self)[:-1]]
        return f"| error | {' | '.join(off)} | {100 * (self.hit_rate - real.hit_rate):+.1f} points |"


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt that is sent so many seconds after the start."""

    due: float
    prompt: list[int]


def questions(rate: float, seconds: float, *, num_tasks: int, vocab_size: int, seed: int) -> list[Question]:
    """Poisson arrivals; each prompt is the instructions of one task, and a question of its own."""
    rng = np.random.default_rng(seed)
    tasks = rng.integers(FIRST_TOKEN_ID, vocab_size, (num_tasks, TASK_TOKENS))
    due, found = 0.0, []
    while (due := due + rng.exponential(1 / rate)) < seconds:
        question = rng.integers(FIRST_TOKEN_ID, vocab_size, QUESTION_TOKENS)
        found.append(Question(due, [*tasks[rng.integers(num_tasks)].tolist(), *question.tolist()]))
    return found


def send(url: str, asked: Sequence[Question]) -> None:
    """Each at its time, and wait for all answers."""
    began = time.monotonic()
    failed: list[Exception] = []

    def one(question: Question) -> None:
        body = {"prompt": question.prompt, "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "seed": 1}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
        time.sleep(max(0.0, began + question.due - time.monotonic()))
        try:
            with urllib.request.urlopen(request, timeout=600) as response:
                response.read()
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(question,)) for question in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(f"{len(failed)} of {len(asked)} requests failed, the first with {failed[0]}")


def serve(model: str, settings: Mapping[str, Any], log: Path, asked: Sequence[Question]) -> Numbers:
    """Really serve them, and tell what happened."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    command = [
        sys.executable,
        "-m",
        "leafage",
        "serve",
        model,
        f"--port={port}",
        f"--request-log={log}",
        *flags,
    ]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(server, url)
            send(url, [replace(asked[0], due=0.0, prompt=[FIRST_TOKEN_ID] * 8)])  # so that nothing is cold
            before = scrape(url)
            send(url, asked)
            after = scrape(url)
        finally:
            server.send_signal(signal.SIGTERM)
    batch = (after["running_sequence_seconds_total"] - before["running_sequence_seconds_total"]) / (
        after["engine_busy_seconds_total"] - before["engine_busy_seconds_total"]
    )
    _drop_first(log)
    return told(log, batch)


def _wait_for(server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health/ready", timeout=5).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the server did not start")


def scrape(url: str) -> dict[str, float]:
    """Metrics without labels of their own, by name."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    found = {}
    for line in lines:
        name, _, rest = line.partition("{")
        if rest and "," not in rest.partition("}")[0]:
            found[name.removeprefix("leafage:")] = float(rest.rpartition(" ")[2])
    return found


def _drop_first(log: Path) -> None:
    """The request that warmed up."""
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([lines[0], *lines[2:]]))


def told(log: Path, mean_batch: float) -> Numbers:
    """What a request log says of the requests in it."""
    lines = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    ttft = [line["ttft"] for line in lines]
    return Numbers(
        ttft_mean=float(np.mean(ttft)),
        ttft_p90=float(np.percentile(ttft, 90)),
        e2e_mean=float(np.mean([line["finished"] - line["arrival"] for line in lines])),
        mean_batch=mean_batch,
        hit_rate=sum(line["cached_tokens"] for line in lines) / sum(line["prompt_tokens"] for line in lines),
    )


def fitted(log: Path, hardware: Hardware, spec: LLMSpec, settings: Mapping[str, Any]) -> Hardware:
    """`leafage sim calibrate --trace LOG`: the machine as it was while the log was written."""
    config, requests = EngineConfig(**settings), TraceFile(log)
    found = fit_trace(
        hardware,
        read_measured(log),
        lambda machine: build_simulation(config, machine, spec).run(requests),
    )
    return found.hardware


def simulate(log: Path, hardware: Hardware, spec: LLMSpec, settings: Mapping[str, Any]) -> Numbers:
    """What `leafage sim run --trace LOG` says."""
    scenario = Scenario(
        build=build_simulation,
        config=EngineConfig(**settings),
        hardware=hardware,
        spec=spec,
        workload=str(log),
    )
    return summarized(scenario.run())


def summarized(result: SimResult) -> Numbers:
    summary = summarize(result)
    return Numbers(**{f.name: float(summary[f.name]) for f in fields(Numbers)})


def parse_variant(text: str) -> dict[str, Any]:
    """'policy=fair,block_size=32' as settings."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name: int(value) if value.isdigit() else value for name, _, value in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hardware", help="a file that `leafage sim calibrate` wrote for the model")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--variants", nargs="+", default=["policy=fcfs", "policy=longest_prefix", "kv_cache_tokens=8192"]
    )
    parser.add_argument("--seconds", type=float, default=40.0, help="of arrivals")
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second")
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path, help="folder to keep the logs in")
    arguments = parser.parse_args()
    hardware = Hardware.load(arguments.hardware)
    if hardware.steps is None:
        parser.error(f"{arguments.hardware} holds no measured steps")
    asked = questions(
        arguments.rate,
        arguments.seconds,
        num_tasks=arguments.tasks,
        vocab_size=hardware.steps.spec.vocab_size,
        seed=arguments.seed,
    )
    folder = arguments.logs or Path(tempfile.mkdtemp())
    logs = [folder / f"{variant}.jsonl" for variant in arguments.variants]
    print(f"{len(asked)} requests in {arguments.seconds:g} s; logs in {folder}")
    print("| | TTFT mean | TTFT P90 | E2E mean | mean batch | hit rate |")
    print("| --- " * 6 + "|")
    machine, spec = hardware, hardware.steps.spec
    for variant, log in zip(arguments.variants, logs, strict=True):
        settings = {**SETTINGS, **parse_variant(variant)}
        real = serve(arguments.model, settings, log, asked)
        if log is logs[0]:
            machine = fitted(log, hardware, spec, settings)
        simulated = simulate(logs[0], machine, spec, settings)
        print(real.row(f"`{variant}`, served"))
        print(simulated.row("simulated from the log"))
        print(simulated.error(real), flush=True)


if __name__ == "__main__":
    main()
