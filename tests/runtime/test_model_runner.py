"""LocalExecutor: a batch of the core through a real (small, random) program."""

from __future__ import annotations

import numpy as np
import pytest

from leafage.core.batch import Batch, Copy, Item, Logits, Sample
from leafage.core.sampling_params import SamplingParams
from leafage.core.step_times import StepTimes
from leafage.errors import ExecutorError
from leafage.kernels import _native
from leafage.kernels.reference import ReferenceProgram
from leafage.runtime.load import LoadedModel
from leafage.runtime.model_runner import LocalExecutor
from tests.kernels.test_native import BLOCK, NUM_BLOCKS, VOCAB, logits, make_program, step, tokens

PROGRAM, WEIGHTS = make_program(np.random.default_rng(0))


def executor(compute: str = "fast", num_threads: int = 1, times: StepTimes | None = None) -> LocalExecutor:
    weights = WEIGHTS
    if compute == "fast":
        weights = {
            name: _native.PackedWeight("F32", *w.shape, w.reshape(-1).view(np.uint8))
            for name, w in WEIGHTS.items()
        }
    model = LoadedModel(None, PROGRAM, weights, compute, 0)
    return LocalExecutor(
        model,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK,
        max_num_batched_tokens=256,
        max_model_len=512,
        num_threads=num_threads,
        times=times,
    )


def item(history: list[int], table: list[int], params: SamplingParams, *, start: int = 0, **kwargs) -> Item:
    defaults = {
        "seq_id": 0,
        "request_id": "r",
        "block_table": table,
        "start": start,
        "token_ids": history[start:],
        "write_from": 0,
        "logits": Logits.LAST,
        "samples": [Sample(0, len(history), 7)],
        "top_k_logprobs": params.logprobs or 0,
        "params": params,
        "history": history,
        "num_prompt_tokens": len(history),
    }
    return Item(**{**defaults, **kwargs})


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64) - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("compute", ["fast", "float32"])
def test_prompt_logprobs_of_every_row_and_the_sampled_token(compute):
    """More rows than one slice of the output head holds, beside an item that wants one row."""
    prompt, other = tokens(1, 150), tokens(2, 20)
    params = SamplingParams(temperature=0, logprobs=2, prompt_logprobs=1)
    run = executor(compute)
    batch = Batch(
        items=[
            item(other, [20, 21], SamplingParams(temperature=0), seq_id=1),
            item(prompt, list(range(10)), params, logits=Logits.ALL),
        ]
    )
    first, second = run.execute(batch).items
    program = (
        executor(compute).program
        if compute == "fast"
        else ReferenceProgram(PROGRAM, WEIGHTS, num_blocks=NUM_BLOCKS, block_size=BLOCK)
    )
    expected = log_softmax(logits(program, step((prompt, 0, list(range(10))))))
    assert len(second.prompt_logprobs) == len(prompt) - 1
    for row, reported in enumerate(second.prompt_logprobs):
        assert reported.token_id == prompt[row + 1]
        assert abs(reported.logprob - expected[row, prompt[row + 1]]) < 1e-5
        assert reported.rank == 1 + (expected[row] > expected[row, prompt[row + 1]]).sum()
        assert reported.top[0][0] == expected[row].argmax()
    assert [s.token_id for s in second.sampled] == [expected[-1].argmax()]
    assert len(second.sampled[0].top) == 2
    assert len(first.sampled) == 1 and not first.prompt_logprobs


@pytest.mark.parametrize("num_threads", [1, 2])
def test_samples_of_one_row_are_those_of_single_requests(num_threads):
    """n sequences from one prompt: sequence i draws what a request with its seed draws alone."""
    prompt = tokens(3, 30)
    params = SamplingParams(temperature=1.3, n=3)
    run = executor(num_threads=num_threads)
    samples = [Sample(i, len(prompt), 100 + i) for i in range(3)]
    together = run.execute(Batch(items=[item(prompt, [0, 1], params, samples=samples)])).items[0].sampled
    for i, drawn in enumerate(together):
        alone = item(prompt, [0, 1], params, samples=[Sample(0, len(prompt), 100 + i)])
        assert executor().execute(Batch(items=[alone])).items[0].sampled[0].token_id == drawn.token_id


def test_copies_come_before_the_forward_pass():
    prompt = tokens(4, 40)
    run = executor()
    greedy = SamplingParams(temperature=0)
    run.execute(Batch(items=[item(prompt[:32], [0, 1], greedy)]))
    direct = run.execute(Batch(items=[item(prompt, [0, 1, 2], greedy, start=32)])).items[0].sampled
    run.execute(Batch(copies=[Copy(0, 10, BLOCK)]))  # a batch may hold nothing but copies
    via_copy = Batch(items=[item(prompt, [10, 11, 12], greedy, start=32)], copies=[Copy(1, 11, BLOCK)])
    assert run.execute(via_copy).items[0].sampled == direct


def test_suppressed_writes_leave_the_cache_alone():
    """A fully cached prompt runs its last token again without writing its K/V."""
    prompt = tokens(5, 32)
    run = executor()
    greedy = SamplingParams(temperature=0)
    first = run.execute(Batch(items=[item(prompt, [0, 1], greedy)])).items[0].sampled
    before = run.program.kv.array().copy()
    again = item(prompt, [0, 1], greedy, start=31, write_from=32)
    assert run.execute(Batch(items=[again])).items[0].sampled == first
    np.testing.assert_array_equal(run.program.kv.array(), before)


def test_m07_a_step_that_cannot_run_is_an_error_of_that_step():
    run = executor()
    greedy = SamplingParams(temperature=0)
    with pytest.raises(ExecutorError, match=r"token_ids in \[0, 300\)"):
        run.execute(Batch(items=[item([VOCAB], [0], greedy)]))
    assert run.execute(Batch(items=[item([1], [0], greedy)])).items[0].sampled


def test_native_time_is_counted_by_part_and_taken_out_of_the_rest() -> None:
    ticks = iter(range(1000))
    local = executor(times=StepTimes(lambda: float(next(ticks))))
    local.execute(Batch([item([1, 2, 3], [0], SamplingParams(temperature=0))]))
    native = local.times.native
    assert native["forward"] > 0  # sampling is inside
    assert sum(native.values()) == pytest.approx(local.program.native_seconds)
    # Four laps of a second: inputs, what to sample, forward, what was sampled.
    assert sum(local.times.outside.values()) == pytest.approx(4 - sum(native.values()))
