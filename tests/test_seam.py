"""The seam between scheduler and executor: the same answers give the same decisions, whoever executes.

The toy executor reads its answers back out of a paged cache; the replay executor has no cache at all and
answers from a record, as a simulator does. Every batch must be equal, field by field. At the end the real
model and the simulator's own executor do the same.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

from leafage.build import Assets, assemble, build_simulation
from leafage.calibration import spec_of
from leafage.config import EngineConfig
from leafage.core.batch import Batch, ItemOutput, SampledToken, StepOutput
from leafage.core.protocols import Executor
from leafage.core.request import Request
from leafage.engine.engine import Engine
from leafage.sim.hardware import Hardware
from leafage.sim.simulation import params_of
from leafage.sim.workload import SimRequest
from tests.core.toy import Loop

Decision = tuple[object, ...]


class ReplayExecutor:
    """Answers with recorded tokens: token i of sequence (request id, index) is `record[id, index][i]`."""

    def __init__(self, record: dict[tuple[str, int], list[int]]) -> None:
        self.record = record

    def execute(self, batch: Batch) -> StepOutput:
        output = StepOutput()
        for item in batch.items:
            tokens = [
                self.record[item.request_id, sample.index][sample.position - item.num_prompt_tokens]
                for sample in item.samples
            ]
            output.items.append(ItemOutput([SampledToken(token, 0.0) for token in tokens]))
        return output


def decisions(batch: Batch) -> Decision:
    """Everything that a batch says, frozen."""
    items = tuple(
        (
            item.seq_id,
            item.request_id,
            tuple(item.block_table),
            item.start,
            tuple(item.token_ids),
            item.write_from,
            item.logits,
            tuple(dataclasses.astuple(sample) for sample in item.samples),
        )
        for item in batch.items
    )
    copies = tuple(dataclasses.astuple(copy) for copy in batch.copies)
    return (items, copies, tuple(batch.released), tuple(batch.swap_out), tuple(batch.swap_in))


def drive(seed: int, executor: Callable[[Loop], Executor]) -> tuple[list[Decision], Loop]:
    """Arrivals by step, in a pool small enough to preempt and evict."""
    rng = random.Random(seed)
    loop = Loop(24, 4, max_num_batched_tokens=32, max_num_seqs=8, vocab_size=3)
    run = executor(loop)
    trace = []
    head = [rng.randint(0, 2) for _ in range(40)]
    step = 0
    while step < 60 or loop.scheduler.has_unfinished:
        if step < 60 and rng.random() < 0.6:
            prompt = head[: rng.randint(1, 40)] + [rng.randint(0, 2) for _ in range(rng.randint(0, 6))]
            loop.add(
                prompt,
                max_tokens=rng.randint(1, 20),
                n=rng.choice([1, 1, 2]),
                priority=rng.choice([0, 0, 1]),
                seed=rng.randint(0, 9),
                temperature=1.0,
                eos=[0] if rng.random() < 0.3 else [],
            )
        batch = loop.scheduler.schedule()
        trace.append(decisions(batch))
        loop.record(loop.scheduler.update(batch, run.execute(batch) if batch.has_work else StepOutput()))
        loop.verify()
        step += 1
    return trace, loop


def test_toy_and_replay_executors_see_identical_batches() -> None:
    preemptions = hits = 0
    for seed in range(8):
        trace, loop = drive(seed, lambda loop: loop.executor)
        record = {key: answer.tokens for key, answer in loop.answers.items()}
        replayed, _ = drive(seed, lambda loop, record=record: ReplayExecutor(record))  # type: ignore[misc]
        assert replayed == trace
        preemptions += loop.scheduler.counters.preemptions
        hits += loop.scheduler.counters.prefix_hits
    assert preemptions > 0 and hits > 0, "the trace must exercise what it compares"


def test_another_answer_gives_other_decisions() -> None:
    """The comparison is not blind."""
    trace, loop = drive(3, lambda loop: loop.executor)
    record = {key: list(answer.tokens) for key, answer in loop.answers.items()}
    longest = max(record, key=lambda key: len(record[key]))
    record[longest][0] += 1
    replayed, _ = drive(3, lambda loop: ReplayExecutor(record))
    assert replayed != trace


def test_both_executors_keep_the_protocol() -> None:
    executors: list[Executor] = [Loop(4, 4).executor, ReplayExecutor({})]
    for executor in executors:
        assert executor.execute(Batch()).items == []


def workload(vocab_size: int) -> dict[int, list[SimRequest]]:
    """By step of arrival: prompts with common heads, some drawn twice or three times."""
    rng = random.Random(7)
    heads = [[rng.randrange(vocab_size) for _ in range(30)] for _ in range(2)]
    arrivals: dict[int, list[SimRequest]] = {}
    for number in range(14):
        prompt = rng.choice(heads)[: rng.randint(1, 30)]
        prompt += [rng.randrange(vocab_size) for _ in range(rng.randint(1, 20))]
        request = SimRequest(f"r{number}", 0.0, prompt, range(rng.randint(6, 24)), n=rng.choice([1, 1, 2, 3]))
        arrivals.setdefault(2 * number, []).append(request)
    return arrivals


def drive_engine(
    engine: Engine, arrivals: dict[int, list[SimRequest]], known: dict[str, SimRequest]
) -> tuple[list[Decision], list[Request]]:
    """Step an engine; returns what each batch said, and the requests."""
    execute, trace, requests = engine.executor.execute, list[Decision](), list[Request]()

    def watched(batch: Batch) -> StepOutput:
        trace.append(decisions(batch))
        return execute(batch)

    engine.executor.execute = watched  # type: ignore[method-assign]
    step = 0
    while step <= max(arrivals) or engine.has_unfinished:
        for request in arrivals.get(step, ()):
            known[request.request_id] = request
            params = params_of(request)
            requests.append(engine.add_request(request.request_id, request.prompt, params))
        engine.step()
        engine.scheduler.kv.check()
        step += 1
    return trace, requests


def with_answers(
    arrivals: dict[int, list[SimRequest]], requests: list[Request]
) -> dict[int, list[SimRequest]]:
    """The same requests, with the tokens that the real model gave."""
    answers = {
        request.request_id: [seq.tokens[seq.num_prompt_tokens :] for seq in request.sequences]
        for request in requests
    }
    return {
        step: [
            dataclasses.replace(
                request,
                output=answers[request.request_id][0],
                siblings=answers[request.request_id][1:],
            )
            for request in arriving
        ]
        for step, arriving in arrivals.items()
    }


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("preemption", "prefix_index"),
    [("recompute", "radix"), ("swap", "radix"), ("auto", "radix"), ("auto", "none")],
)
def test_the_real_model_and_the_simulator_see_identical_batches(
    assets: Assets, preemption: str, prefix_index: str
) -> None:
    config = EngineConfig(
        block_size=4,
        kv_cache_tokens=200,
        max_model_len=128,
        max_num_seqs=12,
        max_num_batched_tokens=48,
        preemption=preemption,
        prefix_index=prefix_index,
        swap_bytes=None if preemption == "recompute" else 40 * 4 * 23040,
        pinned_share=0.0,
        seed=3,
        threads=1,
    )
    build = assemble(config, assets)
    arrivals = workload(build.model.vocab_size)
    trace, requests = drive_engine(build.engine, arrivals, {})
    simulation = build_simulation(config, Hardware.load("h100"), spec_of(build))
    # "auto" weighs costs: both sides are given the same.
    simulation.engine.scheduler.admission.restore_cost = build.engine.scheduler.admission.restore_cost
    known: Any = simulation._requests
    replayed, _ = drive_engine(simulation.engine, with_answers(arrivals, requests), known)
    assert len(replayed) == len(trace)
    for step, (simulated, real) in enumerate(zip(replayed, trace, strict=True)):
        assert simulated == real, f"step {step}"
    counters = build.engine.scheduler.counters
    assert counters.preemptions > 3, "the trace must exercise what it compares"
    assert (counters.prefix_hits > 50) == (prefix_index == "radix")
    assert (counters.swap_outs > 0) == (preemption != "recompute")
    assert simulation.engine.scheduler.counters == counters
    assert simulation.clock.now() > 0
