"""The seam between scheduler and executor: the same answers give the same decisions, whoever executes.

The toy executor reads its answers back out of a paged cache; the replay executor has no cache at all and
answers from a record, as a simulator does. Every batch must be equal, field by field.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from leafage.core.batch import Batch, ItemOutput, SampledToken, StepOutput
from leafage.core.protocols import Executor
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
