"""measure_overhead over an executor without a model: what is counted, not how fast it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from leafage import LLM, InvalidParameterError
from leafage.core.step_times import PARTS, StepTimes
from leafage.overhead import _prompt_steps, measure_overhead
from tests.engine.rig import make_rig
from tests.test_llm import llm_over


@pytest.fixture
def llm() -> Iterator[LLM]:
    """Every look at the clock is a second later than the one before."""
    ticks = itertools.count()
    rig = make_rig(lambda prompt: [100] * 1000, num_blocks=4000, max_model_len=1000)
    rig.engine.times = StepTimes(lambda: float(next(ticks)))
    with llm_over(rig) as llm:
        yield llm


def test_full_decode_steps_are_timed_part_by_part(llm: LLM) -> None:
    result = measure_overhead(llm, 5, repetitions=2)
    assert tuple(result.outside) == PARTS
    # One lap each, of one second. Nobody comes in between, and the executor of the rig has none.
    laps = {"schedule", "update", "detokenize", "deliver"}
    assert {part for part, seconds in result.outside.items() if seconds == 1.0} == laps
    assert result.total == result.mean == len(laps) and result.native == {}
    assert len(result.totals) == 2 and result.num_steps >= 2 * 40


def test_steps_with_other_rows_do_not_count(llm: LLM) -> None:
    batches: list[int] = []
    engine = llm.build.engine
    execute = engine.executor.execute
    engine.executor.execute = lambda batch: batches.append(batch.num_tokens) or execute(batch)  # type: ignore
    result = measure_overhead(llm, 5, repetitions=1)
    assert len(batches) > batches.count(5) > result.num_steps > 0


def test_the_observer_is_back_afterwards_and_saw_every_step(llm: LLM) -> None:
    observer = llm.build.engine.observer
    result = measure_overhead(llm, 3, repetitions=1)
    assert llm.build.engine.observer is observer is llm.build.metrics
    assert llm.build.metrics.last_step_time is not None and result.num_steps > 0
    assert not llm.build.metrics._live


def test_more_sequences_than_the_engine_runs_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidParameterError, match=r"257.*256"):
        measure_overhead(llm, 257)


def test_a_pool_too_small_for_the_batch_is_said() -> None:
    expected = r"at once; got '64 requests'; limit: .* raise kv_cache_tokens|Raise kv_cache_tokens"
    rig = make_rig(lambda prompt: [100] * 1000, num_blocks=200, max_model_len=200)
    with llm_over(rig) as llm, pytest.raises(InvalidParameterError, match=expected):
        measure_overhead(llm, 64, repetitions=1)


def test_prompts_take_longer_the_more_sequences_decode_beside_them() -> None:
    assert _prompt_steps([10], 256) == 3
    assert _prompt_steps([8] * 32, 256) == 3
    assert _prompt_steps([8] * 256, 256) > 8 * 256 // 256 + 20
