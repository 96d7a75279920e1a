"""What is run for which rows: blocks of workloads, and the sides that take part in them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from peers.client import PeerError

from comparison import machine
from comparison.runs import Runner, Sample, Step
from comparison.sides import LEAFAGE, Side, Sides, say
from leafage import bench
from leafage.overhead import BATCH_SIZES

ROWS = {
    "w1": "decode of one request",
    "w2": "prefill of 1,024 tokens",
    "w3": "64 mixed requests",
    "w4": "few-shot with shared prefixes",
    "w4cached": "the same, every prefix cached",
    "w5": "chat: conversations of five turns",
    "w7": "parallel sampling: four sequences of a prompt",
    "beam": "beam search of width 4",
    "pressure": "W3 in a fifth of the KV cache that it needs",
    "formats": "W1 and W2 on the same file: Q4_0, Q8_0, Gemma",
    "best": "W1 and W2, best format against best format",
    "sampled": "sampled W3 against greedy W3, both models",
    "start": "process start to the first token, both models",
    "memory": "memory beyond file and KV pool, both models",
    "outside": "time outside the native calls",
    "llama1b": "W1 and W2 on a random Llama-3.2-1B shape",
}
VOCABULARY = 49_152  # SmolLM2's; the workloads take ids below 40,000, which all models have
POOL_TOKENS = 20_480  # of the memory row: a little more than all tokens of W3
PRESSED_TOKENS = 3_840  # a fifth of the 19,184 that the sequences of W3 fill in the end, in blocks of 16
PRESSED_SLOTS = 7  # of llama.cpp: as many as have room for the longest request of W3 each
TOKEN_BUDGETS = (64, 128, 512)  # beside the default, 256

OURS = Side(LEAFAGE, "Q4_1")
OPENVINO, VLLM = Side("openvino", "Q4_1"), Side("vllm", "BF16")
SMALL_POOL = ("--kv-cache-tokens", str(PRESSED_TOKENS))
PRESSED = Side(LEAFAGE, "Q4_1", SMALL_POOL)
PRESSED_PEERS = (
    Side("openvino", "Q4_1", SMALL_POOL),
    Side("vllm", "BF16", SMALL_POOL),
    Side("llamacpp", "Q8_0", (*SMALL_POOL, "--unified")),
    Side("llamacpp", "Q8_0", (*SMALL_POOL, "--slots", str(PRESSED_SLOTS))),
)
GEMMA = Side(LEAFAGE, "Q4_K_M")
LLAMA1B = Side(LEAFAGE, "llama1b")


def llamacpp(form: str) -> Side:
    return Side("llamacpp", form)


def in_small_pool(form: str) -> Side:
    """Ours with a KV pool that W3 fills."""
    return Side(LEAFAGE, form, ("--kv-cache-tokens", str(POOL_TOKENS)))


def with_budget(tokens: int) -> Side:
    return Side(LEAFAGE, "Q4_1", ("--token-budget", str(tokens)))


def single_sides(rows: set[str]) -> list[Side]:
    """Sides of W1 and W2, each of ours next to the peers that it is compared with."""
    sides: list[Side] = []
    if rows & {"w1", "w2"}:
        sides += [llamacpp("Q4_1"), OURS, OPENVINO, VLLM]
    if "formats" in rows:
        sides += [Side(LEAFAGE, "Q4_0"), llamacpp("Q4_0"), llamacpp("Q8_0"), Side(LEAFAGE, "Q8_0")]
        sides += [GEMMA, llamacpp("Q4_K_M")]
    if "best" in rows:
        sides += [OURS, Side(LEAFAGE, "Q4_0"), llamacpp("Q4_0"), Side(LEAFAGE, "Q8_0"), llamacpp("Q8_0")]
        sides += [llamacpp("BF16")]
    return list(dict.fromkeys(sides))


def _seed(repetition: int) -> int:
    return 100_000 * (repetition + 1)


def single_groups(sides: list[Side], workloads: tuple[str, ...]) -> Callable[[int], list[list[Step]]]:
    def groups(repetition: int) -> list[list[Step]]:
        works = {name: bench.WORKLOADS[name].make(_seed(repetition), VOCABULARY) for name in workloads}
        return [
            [Step(side, name, works[name], floors=name == "W1" and side.engine == LEAFAGE)]
            for name in workloads
            for side in sides
        ]

    return groups


def batch_groups(rows: set[str]) -> Callable[[int], list[list[Step]]]:
    def groups(repetition: int) -> list[list[Step]]:
        work = bench.w3(_seed(repetition), VOCABULARY)
        found = [[Step(OURS, "W3", work)]]
        if "sampled" in rows:
            found[0].append(Step(OURS, "W3 sampled", work))
        if "w3" in rows:
            found += [[Step(side, "W3", work)] for side in (OPENVINO, VLLM, llamacpp("Q8_0"))]
        if "sampled" in rows:
            found.append([Step(GEMMA, "W3", work), Step(GEMMA, "W3 sampled", work)])
        return found

    return groups


def shared_groups(rows: set[str]) -> Callable[[int], list[list[Step]]]:
    def groups(repetition: int) -> list[list[Step]]:
        work = bench.w4(_seed(repetition), VOCABULARY)
        staging = bench.w4(_seed(repetition), VOCABULARY, first_question=8)

        def cached(side: Side, check: str = "") -> list[Step]:
            stage = Step(side, "W4", staging, record=False)
            return [stage, Step(side, "W4cached", work, reset_cache=False, check=check)]

        ours = cached(OURS, "W4cached = from a cold cache") if "w4cached" in rows else []
        found = [[Step(OURS, "W4", work), *ours]]
        if "w4cached" in rows:
            found.append(cached(OPENVINO))
        if "w4" in rows:
            found += [[Step(VLLM, "W4", work)], [Step(llamacpp("Q8_0"), "W4", work)]]
        return found

    return groups


def chat_groups(repetition: int) -> list[list[Step]]:
    """W5; ours with every token budget as well."""
    work = bench.w5(_seed(repetition), VOCABULARY)
    ours = [Step(OURS, "W5", work)]
    for budget in TOKEN_BUDGETS:
        ours.append(Step(with_budget(budget), "W5", work, check="W5 = with any token budget"))
    return [ours, *([Step(side, "W5", work)] for side in (OPENVINO, VLLM, llamacpp("Q8_0")))]


def several_groups(rows: set[str]) -> Callable[[int], list[list[Step]]]:
    """Several sequences of a prompt: W7 and beams."""

    def groups(repetition: int) -> list[list[Step]]:
        found = []
        if "w7" in rows:
            work = bench.w7(_seed(repetition), VOCABULARY)
            found += [[Step(side, "W7", work)] for side in (OURS, OPENVINO, VLLM, llamacpp("Q8_0"))]
        if "beam" in rows:
            beams = bench.beam(_seed(repetition), VOCABULARY)
            drawn = bench.Work(beams.prompts, beams.output_lengths, n=4, temperature=1.0)
            found.append([Step(OURS, "n=4", drawn), Step(OURS, "beam", beams)])
            found += [[Step(side, "beam", beams)] for side in (VLLM, OPENVINO)]
        return found

    return groups


def pressure_groups(repetition: int) -> list[list[Step]]:
    """W3 in a small pool and in our large one. The peers once: theirs is only printed, and takes minutes."""
    work = bench.w3(_seed(repetition), VOCABULARY)
    pressed = Step(PRESSED, "W3 pressed", work, check="W3 in a small KV pool = in a large one")
    found = [[Step(OURS, "W3 pressed", work), pressed]]
    if repetition == 0:
        found += [[Step(side, "W3 pressed", work)] for side in PRESSED_PEERS]
    return found


def run(rows: set[str], sides: Sides, runner: Runner, repetitions: int) -> None:
    """Everything that the rows need. Failures of sides end up in the runner's record."""
    prompt = bench.w2(1, VOCABULARY)
    if single := single_sides(rows):
        both_of = rows & {"formats", "best"}
        workloads = tuple(name for name in ("W1", "W2") if both_of or name.lower() in rows)
        runner.block("W1, W2", repetitions, single_groups(single, workloads))
        if "w2" in rows:
            for name in ("gemm", "attention"):
                runner.times(repetitions, Step(OURS, name, prompt, floors=name == "gemm"))
        keep = (OURS, GEMMA, OPENVINO, VLLM, llamacpp("Q8_0"))
        sides.end(side for side in sides.running() if side not in keep)
    if rows & {"w3", "sampled"}:
        runner.block("W3", repetitions, batch_groups(rows))
        runner.alone(OURS, "W3")
    if rows & {"w4", "w4cached"}:
        runner.block("W4", repetitions, shared_groups(rows))
        runner.alone(OURS, "W4")
    if "w5" in rows:
        runner.block("W5", repetitions, chat_groups)
        sides.end(map(with_budget, TOKEN_BUDGETS))
        runner.alone(OURS, "W5")
    if rows & {"w7", "beam"}:
        runner.block("W7, beams", repetitions, several_groups(rows))
        runner.alone(OURS, "W7")
    if "pressure" in rows:
        runner.block("W3 in a small KV pool", repetitions, pressure_groups)
        sides.end([PRESSED, *PRESSED_PEERS])
    if "outside" in rows:
        for batch in BATCH_SIZES:
            runner.times(repetitions, Step(OURS, f"outside {batch}", bench.Work([[1]] * batch, [1] * batch)))
    sides.end(sides.running())
    if "llama1b" in rows:
        both = [LLAMA1B, llamacpp("llama1b")]
        runner.block("Llama-3.2-1B shape", repetitions, single_groups(both, ("W1", "W2")))
        sides.end(both)
    if "memory" in rows:
        for side in (in_small_pool("Q4_1"), in_small_pool("Q4_K_M")):
            runner.run(Step(side, "memory", bench.w3(1, VOCABULARY)))
            sides.end([side])
    if "start" in rows:
        start(sides, runner, repetitions)


def start(sides: Sides, runner: Runner, repetitions: int) -> None:
    """Cold starts of both engines on both models. The files are in the page cache of both."""
    for form in ("Q4_1", "Q4_K_M"):
        work = bench.Work([[1000, 1001, 1002, 1003]], [1])
        ours, theirs = Side(LEAFAGE, form), llamacpp(form)
        for _ in range(repetitions):
            try:
                load, meter = bench.load_average(), machine.Meter(os.getpid())
                began = children_cpu_seconds()
                seconds = first_token_seconds(sides.files.base(form), sides.threads)
                cpu = children_cpu_seconds() - began
                sample = Sample({"wall": seconds, "cpu": cpu}, *meter.others(), load)
                runner.record.samples.setdefault((ours, "cold"), []).append(sample)
                say(f"  {ours}, cold start: {seconds:.2f} s")
            except (PeerError, RuntimeError) as error:
                runner.record.errors[ours, "cold"] = str(error)
            runner.run(Step(theirs, "cold", work))
        sides.end([theirs])


def children_cpu_seconds() -> float:
    """Of the children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


COMMAND_LINE = (
    "import sys; sys.path[:] = filter(None, sys.path); from leafage.cli import main; sys.exit(main())"
)
"""`leafage` as installed: a checkout in the current folder has no kernels, and `-m` would take that."""


def first_token_seconds(model: Path, threads: int) -> float:
    """From starting `leafage run` to the first byte of its answer.

    Raises:
        RuntimeError: no answer came.
    """
    arguments = ["run", "Hello", "--max-tokens", "1", "--threads", str(threads), "--model", str(model)]
    with tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", COMMAND_LINE, *arguments], stdout=subprocess.PIPE, stderr=errors
        ) as process:
            assert process.stdout is not None
            first = process.stdout.read(1)
            seconds = time.perf_counter() - began
            process.stdout.read()
        if not first or process.returncode:
            errors.seek(0)
            why = (errors.read().strip().splitlines() or ["it said nothing"])[-1]
            raise RuntimeError(f"`leafage run` on {model.name}: exit code {process.returncode}; {why}")
    return seconds
