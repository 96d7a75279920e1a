"""What a decode step costs outside the native call, part by part (`core.step_times`)."""

from __future__ import annotations

import statistics
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from leafage.core.batch import Batch
from leafage.core.request import Delta, Request
from leafage.core.sampling_params import SamplingParams
from leafage.core.step_times import PARTS, StepTimes
from leafage.engine.engine_thread import EngineThread
from leafage.errors import InvalidParameterError

if TYPE_CHECKING:
    from leafage.engine.engine import Observer
    from leafage.engine.output import RequestOutput
    from leafage.llm import LLM

BATCH_SIZES = (1, 64, 256)
SHORTEST_PROMPT, LONGEST_PROMPT = 4, 12
OUTPUT_TOKENS = {1: 128, 64: 64}
"""By batch size; more sequences need fewer steps for as many measured rows."""
FEWEST_OUTPUT_TOKENS = 48


@dataclass(slots=True)
class Overhead:
    """Decode steps of one batch size.

    Attributes:
        batch_size: sequences, each with one row a step.
        num_steps: steps measured, over all repetitions.
        outside: seconds a step by part, without native calls; medians over all steps.
        native: seconds a step inside native calls, by the part that calls; medians.
        totals: seconds a step outside native calls, all parts together: the median of each repetition.
        mean: the same as a mean over all steps: with the steps that open or publish blocks, and whatever the
            machine did in between.
    """

    batch_size: int
    num_steps: int = 0
    outside: dict[str, float] = field(default_factory=dict)
    native: dict[str, float] = field(default_factory=dict)
    totals: list[float] = field(default_factory=list)
    mean: float = 0.0

    @property
    def total(self) -> float:
        """Median over the repetitions of the seconds a step outside native calls."""
        return statistics.median(self.totals)


def measure_overhead(llm: LLM, batch_size: int, *, repetitions: int = 3) -> Overhead:
    """Decode `batch_size` greedy streams together, several times, and time the parts of each step.

    Every step makes text and outputs for all of them and hands these to a list. Prompts are random and their
    lengths differ, so that block boundaries fall into different steps. Only steps count that compute one
    token of every request. The LLM must be idle: its engine runs on a thread of its own here.

    Raises:
        InvalidParameterError: the engine does not run that many sequences at once, or has no room for them.
    """
    build = llm.build
    if batch_size > build.config.max_num_seqs:
        raise InvalidParameterError(
            "the engine does not run that many sequences at once",
            value=batch_size,
            limit=build.config.max_num_seqs,
            remedy="raise max_num_seqs",
        )
    engine = build.engine
    result = Overhead(batch_size)
    steps: list[_Step] = []
    watched = engine.observer
    for repetition in range(repetitions):
        prompts = _prompts(repetition, batch_size, build.model.vocab_size)
        # The first one must still run when the last prompt is computed, and on through the measured steps.
        prefill = _prompt_steps([len(prompt) for prompt in prompts], build.config.max_num_batched_tokens)
        length = prefill + OUTPUT_TOKENS.get(batch_size, FEWEST_OUTPUT_TOKENS)
        params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        llm.reset_prefix_cache()
        log = _Log(engine.times, watched)
        engine.observer = log
        try:
            _stream(llm, prompts, params)
        finally:
            engine.observer = watched
        measured = log.decode_steps(batch_size)
        if not measured:
            raise InvalidParameterError(
                "no step computed a token of every request at once",
                value=f"{batch_size} requests",
                limit=f"{build.plan.kv_tokens} tokens of KV cache, "
                f"{build.config.max_num_batched_tokens} in a step",
                remedy="raise kv_cache_tokens or max_num_batched_tokens",
            )
        result.totals.append(statistics.median(sum(step.outside) for step in measured))
        steps += measured
    result.num_steps = len(steps)
    result.outside = _medians([step.outside for step in steps])
    native = _medians([step.native for step in steps])
    result.native = {part: seconds for part, seconds in native.items() if seconds > 0}
    result.mean = statistics.mean(sum(step.outside) for step in steps)
    return result


def _prompt_steps(lengths: list[int], budget: int) -> int:
    """About how many steps it takes to compute all prompts, while those that are done decode beside them."""
    steps = done = 0
    for running, end in enumerate(np.cumsum(lengths)):
        while done < end:
            done += max(budget - running, 1)
            steps += 1
    return steps + 2


def _stream(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> None:
    """Run them together to their end."""
    build = llm.build
    thread = EngineThread(build.engine, build.outputs)
    ended = threading.Semaphore(0)

    def sink(outputs: list[RequestOutput], output: RequestOutput) -> None:
        outputs.append(output)
        if output.finished:
            ended.release()

    new = [build.inputs.request(f"stream-{i}", ids, params) for i, ids in enumerate(prompts)]
    answers: list[list[RequestOutput]] = [[] for _ in prompts]
    try:
        thread.submit(new, [partial(sink, answer) for answer in answers], stream=True).result()
        for _ in prompts:
            ended.acquire()
    finally:
        thread.close()
    for answer in answers:
        tokens = sum(len(output.outputs[0].token_ids) for output in answer)
        assert tokens == params.max_tokens, f"expected {params.max_tokens} tokens, got {tokens}"


def _prompts(seed: int, count: int, vocab_size: int) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(SHORTEST_PROMPT, LONGEST_PROMPT, count, endpoint=True)
    return [generator.integers(100, vocab_size, length).tolist() for length in lengths]


def _medians(steps: list[tuple[float, ...]]) -> dict[str, float]:
    return {
        part: statistics.median(column) for part, column in zip(PARTS, zip(*steps, strict=True), strict=True)
    }


@dataclass(slots=True)
class _Step:
    """Seconds by part, in the order of PARTS."""

    outside: tuple[float, ...]
    native: tuple[float, ...]


class _Log:
    """Watches an engine and notes what the counters say in every step, next to the observer it had."""

    def __init__(self, times: StepTimes, watched: Observer | None) -> None:
        self._times = times
        self._watched = watched
        self._looks: list[tuple[int, int, tuple[float, ...], tuple[float, ...]]] = []

    def decode_steps(self, batch_size: int) -> list[_Step]:
        """The steps with one row of each of so many sequences.

        A look is at the end of scheduling, so a step is taken from there to the end of the next scheduling.
        """
        steps = []
        for this, after in zip(self._looks, self._looks[1:], strict=False):
            if this[:2] == after[:2] == (batch_size, batch_size):
                outside, native = (
                    tuple(b - a for a, b in zip(this[i], after[i], strict=True))  # type: ignore[arg-type]
                    for i in (2, 3)
                )
                steps.append(_Step(outside, native))
        return steps

    def added(self, request: Request) -> None:
        if self._watched is not None:
            self._watched.added(request)

    def scheduled(self, batch: Batch) -> None:
        if self._watched is not None:
            self._watched.scheduled(batch)
        times = self._times
        self._looks.append(
            (
                len(batch.items),
                batch.num_tokens,
                tuple(times.outside.values()),
                tuple(times.native.values()),
            )
        )

    def stepped(self, batch: Batch, deltas: list[Delta]) -> None:
        if self._watched is not None:
            self._watched.stepped(batch, deltas)

    def aborted(self, request_id: str) -> None:
        if self._watched is not None:
            self._watched.aborted(request_id)
