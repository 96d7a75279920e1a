from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leafage.core.sampling_params import SamplingParams
from leafage.engine import histograms as module
from leafage.engine.histograms import BlockAges, Histogram, Histograms
from leafage.errors import ExecutorError

MakeRig = Callable[..., Any]


def test_a_value_belongs_to_the_first_bound_that_is_not_below_it() -> None:
    histogram = Histogram((1, 2.5))
    for value in (0.5, 1, 1.1, 2.5, 2.6, 100):
        histogram.observe(value)
    histogram.observe(2, times=3)
    assert histogram.counts == [2, 5, 2] and histogram.sum == pytest.approx(113.7)


def test_no_value_makes_the_sum_smaller() -> None:
    histogram = Histogram((1, 2))
    histogram.observe(-5.0)
    assert histogram.counts == [1, 0, 0] and histogram.sum == 0


def test_a_copy_stays_as_it_is() -> None:
    histograms = Histograms()
    histograms.queue_time.observe(1.0)
    copy = histograms.copy()
    histograms.queue_time.observe(1.0)
    histograms.num_prompt_tokens += 5
    assert sum(copy.queue_time.counts) == 1 and copy.queue_time.sum == 1 and copy.num_prompt_tokens == 0


@pytest.mark.parametrize(
    "bounds",
    [value for name, value in vars(module).items() if name.isupper() and isinstance(value, tuple)],
)
def test_bounds_ascend(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds)) and bounds[0] > 0


def watched(rig: Any) -> Histograms:
    return rig.metrics.keep_histograms()


def values(histogram: Histogram) -> tuple[int, float]:
    return sum(histogram.counts), histogram.sum


def test_times_and_lengths_of_a_request(make_rig: MakeRig) -> None:
    """The clock moves one second at each look: at add, schedule and the end of each step. Six tokens."""
    rig = make_rig("hello")
    seen = watched(rig)
    rig.engine.add_request("r", [5, 6, 7], SamplingParams(max_tokens=20))
    rig.run()
    assert values(seen.queue_time) == (1, 1) and values(seen.time_to_first_token) == (1, 2)
    assert values(seen.prefill_time) == (1, 1) and values(seen.decode_time) == (1, 10)
    assert values(seen.inference_time) == (1, 11) and values(seen.e2e_latency) == (1, 12)
    assert values(seen.inter_token_latency) == (5, 10) and values(seen.time_per_output_token) == (1, 2)
    assert values(seen.prompt_tokens) == (1, 3) and values(seen.generation_tokens) == (1, 6)
    assert values(seen.step_tokens) == (6, 3 + 6), "three of the prompt, and six drawn"
    assert (seen.num_prompt_tokens, seen.num_cached_tokens) == (3, 0)


def test_cached_prompt_tokens_are_counted(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    seen = watched(rig)
    for i in range(2):
        rig.engine.add_request(f"r{i}", [5, 6, 7], SamplingParams(max_tokens=20))
        rig.run()
    assert (seen.num_prompt_tokens, seen.num_cached_tokens) == (6, 2)


def test_gaps_are_those_of_each_request(make_rig: MakeRig) -> None:
    """One alone for two steps, then both, then one waits a step as nothing but others is scheduled."""
    rig = make_rig("hello")
    seen = watched(rig)
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    rig.engine.add_request("a", [5], params)
    rig.engine.step()
    rig.engine.step()
    rig.engine.add_request("b", [6], params)
    rig.run()
    assert sum(seen.inter_token_latency.counts) == 3 + 3
    assert sum(seen.time_to_first_token.counts) == 2


def test_a_gap_over_steps_without_the_request_counts_whole(make_rig: MakeRig) -> None:
    """The pool has room for one: the second is preempted and comes back steps later."""
    rig = make_rig(lambda prompt: [7] * 40, num_blocks=8, block_size=4, max_model_len=32)
    seen = watched(rig)
    for name in "ab":
        rig.engine.add_request(name, [ord(name)] * 4, SamplingParams(max_tokens=24, ignore_eos=True))
    rig.run()
    assert rig.engine.scheduler.counters.preemptions > 0
    gaps = seen.inter_token_latency
    assert sum(gaps.counts) == 2 * 23
    assert sum(gaps.counts[gaps.bounds.index(2.5) + 1 :]) > 0, "the one that waited"


def test_siblings_count_as_one_request(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    seen = watched(rig)
    rig.engine.add_request("r", [5, 6, 7], SamplingParams(max_tokens=20, n=3))
    rig.run()
    assert sum(seen.inter_token_latency.counts) == 5 and values(seen.generation_tokens) == (1, 18)


def test_aborted_and_failed_requests_are_not_answered(make_rig: MakeRig) -> None:
    rig = make_rig("hello")
    seen = watched(rig)
    rig.engine.add_request("a", [5, 6, 7], SamplingParams(max_tokens=20))
    rig.engine.step()
    rig.engine.abort("a")
    rig.engine.add_request("b", [5, 6, 7], SamplingParams(max_tokens=20))
    rig.executor.fail_at = {3: ExecutorError("broken")}
    rig.run()
    assert sum(seen.time_to_first_token.counts) == 2 and sum(seen.e2e_latency.counts) == 0


def test_ages_of_cached_blocks(make_rig: MakeRig) -> None:
    """A block of the first prompt is used again, then all gives way to the last prompt."""
    rig = make_rig("hello", num_blocks=8, block_size=4, max_model_len=32)
    seen = watched(rig)
    params = SamplingParams(max_tokens=1)

    def serve(name: str, prompt: list[int]) -> None:
        rig.engine.add_request(name, prompt, params)
        rig.run()

    serve("a", [5] * 8)
    rig.metrics.clock.time += 100
    serve("b", [5] * 4 + [6] * 4)
    assert values(seen.block_reuse_gap)[0] == 1 and 100 < values(seen.block_reuse_gap)[1] < 110
    rig.metrics.clock.time += 100
    serve("c", [7])
    rig.metrics.clock.time += 1000
    serve("d", [8])
    assert values(seen.block_lifetime) == (0, 0)
    serve("e", [9] * 28)
    lifetimes, idle = values(seen.block_lifetime), values(seen.block_idle_before_evict)
    assert lifetimes[0] == idle[0] == rig.kv.counters.evicted_blocks > 2
    assert 1000 < idle[1] < lifetimes[1], "one was used again, so it was unused for less than it lived"


def test_steps_that_are_too_long_ago_count_as_the_oldest_known() -> None:
    seen = Histograms()
    ages = BlockAges(seen, lambda: 10.5, num_steps=4)
    for step in range(1, 11):
        ages.begin(step, float(step))
    ages.reused(2)
    ages.reused(9)
    assert values(seen.block_reuse_gap) == (2, 3.5 + 1.5)
