"""Workloads on a loaded model, W1 to W4 also against what the machine can do at best.

Prompts are random token ids, decoding is greedy (but for W7 and beams) and ignores end-of-generation ids, so
every run does the same work. The prefix cache is emptied before each run and every run has fresh prompts:
what there is to share is within it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from leafage.core.sampling_params import SamplingParams
from leafage.core.usage import KINDS
from leafage.errors import InvalidParameterError
from leafage.overhead import BATCH_SIZES, Overhead, measure_overhead

if TYPE_CHECKING:
    from leafage.engine.output import RequestOutput
    from leafage.llm import LLM

BANDWIDTH_BYTES = 1 << 30
BUSY_LOAD = 0.5
OVERHEAD = "overhead"
HELD = ("stored", "reservation", "internal")
"""What running requests keep from others, of `core.usage.KINDS`."""
COUNTERS = ("prompt_tokens", "generation_tokens", "num_preemptions", "recomputed_tokens")
"""Of LLM.stats: prompt tokens that were computed, tokens generated, preemptions, tokens computed again."""


@dataclass(frozen=True, slots=True)
class Work:
    """Requests that are sent at once: prompts as token ids, and output lengths.

    Attributes:
        turns: so many prompts in a row are the turns of one conversation: a turn's whole prompt is all that
            was said before and this, and it leaves when the answer before it has ended.
        n: sequences that each request asks for.
        temperature: 0 is greedy.
        beam_width: of beam search; 1 is none.
    """

    prompts: list[list[int]]
    output_lengths: list[int]
    turns: int = 1
    n: int = 1
    temperature: float = 0.0
    beam_width: int = 1

    @property
    def num_prompt_tokens(self) -> int:
        """Of whole prompts: what was said before counts in every turn."""
        total = said = 0
        for i, (prompt, length) in enumerate(zip(self.prompts, self.output_lengths, strict=True)):
            said = len(prompt) + (said if i % self.turns else 0)
            total += said
            said += length
        return total

    @property
    def num_output_tokens(self) -> int:
        return self.n * sum(self.output_lengths)


def w1(seed: int, vocab_size: int) -> Work:
    """Decode: one request, 128 prompt and 128 output tokens."""
    return Work([_ids(seed, vocab_size, 128)], [128])


def w2(seed: int, vocab_size: int) -> Work:
    """Prefill: one request, 1,024 prompt tokens, 1 output token."""
    return Work([_ids(seed, vocab_size, 1024)], [1])


def w3(seed: int, vocab_size: int) -> Work:
    """Batch: 64 requests, 9,326 prompt and 9,352 output tokens, lengths 32 to 255."""
    lengths = np.random.default_rng(0)
    prompts, outputs = lengths.integers(32, 256, 64), lengths.integers(32, 256, 64)
    ids = _ids(seed, vocab_size, int(prompts.sum()))
    ends = np.cumsum(prompts)
    return Work([ids[end - n : end] for n, end in zip(prompts, ends, strict=True)], [int(n) for n in outputs])


def w4(seed: int, vocab_size: int, *, first_question: int = 0) -> Work:
    """Few-shot: 8 tasks x 8 questions, shuffled; 100 common, 500 task and 40 own tokens, 16 output tokens.

    Another `first_question` (a multiple of 8, below 992) gives other questions on the same tasks.
    """
    common = _ids(seed, vocab_size, 100)
    prompts = []
    for task in range(8):
        first = seed + 1000 * (task + 1)
        shared = common + _ids(first, vocab_size, 500)
        questions = range(first + first_question + 1, first + first_question + 9)
        prompts += [shared + _ids(question, vocab_size, 40) for question in questions]
    order = np.random.default_rng(0).permutation(len(prompts))
    return Work([prompts[i] for i in order], [16] * len(prompts))


def w5(seed: int, vocab_size: int) -> Work:
    """Chat: 16 conversations of 5 turns, 48 new prompt tokens and 32 output tokens each."""
    turns, sessions = 5, 16
    ids = _ids(seed, vocab_size, 48 * turns * sessions)
    prompts = [ids[i : i + 48] for i in range(0, len(ids), 48)]
    return Work(prompts, [32] * len(prompts), turns=turns)


def w7(seed: int, vocab_size: int) -> Work:
    """Parallel sampling: 8 requests for 4 sequences each, 512 prompt and 64 output tokens, temperature 1."""
    return Work([_ids(seed + i, vocab_size, 512) for i in range(8)], [64] * 8, n=4, temperature=1.0)


def beam(seed: int, vocab_size: int) -> Work:
    """Beam search: one request, 4 beams, 128 prompt and 64 output tokens."""
    return Work([_ids(seed, vocab_size, 128)], [64], beam_width=4)


def _ids(seed: int, vocab_size: int, count: int) -> list[int]:
    generator = np.random.default_rng(seed)
    return [int(token) for token in generator.integers(100, min(40_000, vocab_size), count)]


@dataclass(slots=True)
class Run:
    """One run of a workload; times in seconds. `native` is the part of `wall` inside native calls.

    `mean_batch` is sequences that ran, and `kv` slots of the KV cache by kind (`core.usage.Usage`), both as
    means over the time of the steps. `tokens` is what each request gave, in the order of the prompts: its
    sequences one after the other, of beams the best. `counted` is what the engine counted meanwhile, by the
    names in COUNTERS.
    """

    wall: float
    decode: float | None
    first_token: float
    native: float
    steps: int
    cached_tokens: int
    mean_batch: float = 0.0
    kv: dict[str, float] = field(default_factory=dict)
    tokens: list[list[int]] = field(default_factory=list, repr=False)
    counted: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workload:
    """What is measured: `rate` turns a run into the number that is shown, in `unit`."""

    name: str
    title: str
    unit: str
    make: Callable[[int, int], Work]
    rate: Callable[[Work, Run], float]


def _decode_rate(work: Work, run: Run) -> float:
    assert run.decode is not None
    return (work.num_output_tokens - 1) / run.decode


WORKLOADS: dict[str, Workload] = {
    w.name: w
    for w in (
        Workload("W1", "decode 128 + 128", "tok/s", w1, _decode_rate),
        Workload("W2", "prefill 1,024", "tok/s", w2, lambda work, run: 1024 / run.first_token),
        Workload("W3", "batch of 64", "s", w3, lambda work, run: run.wall),
        Workload("W4", "few-shot 8 x 8", "s", w4, lambda work, run: run.wall),
    )
}


@dataclass(slots=True)
class Result:
    """All runs of a workload. `share` is the part of the machine's floor that was reached, if it has one."""

    name: str
    title: str
    unit: str
    values: list[float]
    runs: list[Run]
    num_prompt_tokens: int
    num_output_tokens: int
    floor: str | None = None
    share: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def kv_shares(self) -> dict[str, float]:
        """Of the slots that running requests held in the last run, the fraction of each kind."""
        kv = self.runs[-1].kv
        held = sum(kv[kind] for kind in HELD) or 1.0
        return {kind: kv[kind] / held for kind in (*HELD, "duplicates")}

    @property
    def outside_native(self) -> float:
        """Median fraction of the wall time that was spent outside the native call."""
        return statistics.median(max(0.0, 1 - run.native / run.wall) for run in self.runs)

    @property
    def outside_per_step(self) -> float:
        """Median seconds outside the native call for each step."""
        return statistics.median((run.wall - run.native) / max(1, run.steps) for run in self.runs)


@dataclass(slots=True)
class Floors:
    """What the machine can do: bytes/s read from memory, int8 operations/s, and by which instruction."""

    bandwidth: float
    int8_peak: float
    instruction: str
    threads: int


@dataclass(slots=True)
class Report:
    """A whole bench. `load_before` is the machine's load average when it began."""

    model: str
    threads: int
    kernels: str
    load_before: float
    load_after: float = 0.0
    floors: Floors | None = None
    results: list[Result] = field(default_factory=list)
    overheads: list[Overhead] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        plain = asdict(self)
        for result, out in zip(self.results, plain["results"], strict=True):
            for run in out["runs"]:
                del run["tokens"]
            out |= {
                "median": result.median,
                "min": min(result.values),
                "max": max(result.values),
                "outside_native": result.outside_native,
                "outside_native_seconds_per_step": result.outside_per_step,
            }
        for overhead, out in zip(self.overheads, plain["overheads"], strict=True):
            out["total"] = overhead.total
        return plain


def load_average() -> float:
    """Of the last minute; 0 where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def choose(names: tuple[str, ...]) -> tuple[list[Workload], bool]:
    """Workloads by name, and whether the overhead of a step is wanted; all without a name.

    Raises:
        InvalidParameterError: an unknown name.
    """
    if not names:
        return list(WORKLOADS.values()), True
    chosen = []
    for name in names:
        if name.upper() in WORKLOADS:
            chosen.append(WORKLOADS[name.upper()])
        elif name.lower() != OVERHEAD:
            limit = ", ".join((*WORKLOADS, OVERHEAD))
            raise InvalidParameterError("unknown workload", value=name, limit=limit)
    return chosen, any(name.lower() == OVERHEAD for name in names)


def measure_floors(threads: int) -> Floors:
    """Best of ten reads of a 1 GiB buffer, best of fifty bursts of int8 products."""
    from leafage.kernels import _native

    peak, instruction = _native.measure_int8_peak(threads)
    return Floors(_native.measure_bandwidth(BANDWIDTH_BYTES, threads), peak, instruction, threads)


def measure(
    llm: LLM,
    workloads: list[Workload],
    *,
    repetitions: int = 3,
    overhead: bool = False,
    on_progress: Callable[[str], None] = lambda what: None,
) -> Report:
    """Run each workload `repetitions` times after one short warm-up, and the floors of the machine.

    Args:
        overhead: also time the parts of decode steps, at the batch sizes that the engine runs.
    """
    build = llm.build
    report = Report(build.model.name, build.threads, build.kernels, load_average())
    on_progress("measuring the machine")
    report.floors = measure_floors(build.threads)
    sizes = MatrixSizes(build.engine.executor)
    run_once(llm, Work([_ids(7, build.model.vocab_size, 64)], [8]))
    for workload in workloads:
        values, runs = [], []
        for repetition in range(repetitions):
            on_progress(f"{workload.name} {workload.title}: run {repetition + 1} of {repetitions}")
            work = workload.make(100_000 * (repetition + 1), build.model.vocab_size)
            run = run_once(llm, work)
            runs.append(run)
            values.append(workload.rate(work, run))
        result = Result(
            workload.name,
            workload.title,
            workload.unit,
            values,
            runs,
            work.num_prompt_tokens,
            work.num_output_tokens,
        )
        _compare(result, sizes, report.floors)
        report.results.append(result)
    for batch_size in BATCH_SIZES:
        if overhead and batch_size <= build.config.max_num_seqs:
            on_progress(f"overhead of a step, batch {batch_size}")
            report.overheads.append(measure_overhead(llm, batch_size, repetitions=repetitions))
    report.load_after = load_average()
    return report


def run_once(
    llm: LLM, work: Work, *, reset_cache: bool = True, sampling: Mapping[str, Any] | None = None
) -> Run:
    """One run, from a cold prefix cache unless `reset_cache` is false. Conversations are not for it: it sends
    all prompts at once.

    Args:
        sampling: fields of SamplingParams in place of what the work says.
    """
    assert work.turns == 1
    if reset_cache:
        llm.reset_prefix_cache()
    params = [
        SamplingParams(**how, max_tokens=length, ignore_eos=True)
        for how, length in zip(_sampling(work, sampling), work.output_lengths, strict=True)
    ]
    before = llm.stats()
    began = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in work.prompts], params)
    wall = time.perf_counter() - began
    after = llm.stats()
    _check(outputs, work)
    first = outputs[0].metrics
    assert first is not None and first.time_to_first_token is not None
    decode = None
    if len(outputs) == 1 and first.time_per_output_token is not None:
        decode = first.time_per_output_token * (work.num_output_tokens - 1)
    cached = sum(output.num_cached_tokens for output in outputs)
    native = after["native_seconds"] - before["native_seconds"]
    steps = int(after["num_steps"] - before["num_steps"])
    tokens = [out.token_ids for output in outputs for out in output.outputs[: work.n]]
    busy = after["busy_seconds"] - before["busy_seconds"]
    mean_batch = (after["seq_seconds"] - before["seq_seconds"]) / busy
    kv = {
        kind: (after[f"kv_slot_seconds_{kind}"] - before[f"kv_slot_seconds_{kind}"]) / busy for kind in KINDS
    }
    return Run(
        wall,
        decode,
        first.time_to_first_token,
        native,
        steps,
        cached,
        mean_batch,
        kv,
        tokens,
        counted(before, after),
    )


def counted(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, int]:
    """What COUNTERS grew by between two looks at LLM.stats."""
    return {name: int(after[name] - before[name]) for name in COUNTERS}


def _sampling(work: Work, sampling: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Fields of SamplingParams for each request; what is drawn is drawn with the request's number as seed."""
    if sampling is not None:
        return [dict(sampling)] * len(work.prompts)
    if work.beam_width > 1:
        return [{"beam_width": work.beam_width}] * len(work.prompts)
    if work.temperature == 0.0:
        return [{"temperature": 0.0, "n": work.n}] * len(work.prompts)
    return [{"temperature": work.temperature, "n": work.n, "seed": i} for i in range(len(work.prompts))]


def _check(outputs: list[RequestOutput], work: Work) -> None:
    """The work must have been done, or the time says nothing."""
    lengths = [len(out.token_ids) for output in outputs for out in output.outputs[: work.n]]
    expected = [length for length in work.output_lengths for _ in range(work.n)]
    assert lengths == expected, f"expected {expected} output tokens, got {lengths}"


def _compare(result: Result, sizes: MatrixSizes, floors: Floors) -> None:
    """W1 reads every weight once a token; W2 multiplies every weight once a token."""
    if result.name == "W1":
        result.floor = "memory bandwidth"
        result.share = result.median * sizes.num_bytes / floors.bandwidth
    elif result.name == "W2":
        result.floor = "int8 peak"
        operations = 2 * (sizes.body_weights + sizes.head_weights / 1024)
        result.share = result.median * operations / floors.int8_peak


class MatrixSizes:
    """What a token reads and multiplies: bytes of all matrices, weights of the body and of the head."""

    def __init__(self, executor: Any) -> None:
        self.num_bytes = self.body_weights = self.head_weights = 0
        program = executor.program.program
        for index, op in enumerate(program.ops):
            if op.kind.value != "linear":
                continue
            for weight in op.weights:
                self.num_bytes += executor.program.weights[weight.name].nbytes
                if index < program.head_start:
                    self.body_weights += weight.rows * weight.cols
                else:
                    self.head_weights += weight.rows * weight.cols
