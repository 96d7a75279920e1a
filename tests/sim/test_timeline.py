from __future__ import annotations

import numpy as np
import pytest

from leafage.core.counters import SchedulerCounters
from leafage.core.usage import KINDS, Usage, UsageSeconds
from leafage.sim.timeline import Timeline


def played(timeline: Timeline, steps: int, seconds: float = 0.01) -> UsageSeconds:
    """Steps whose usage grows by a slot and whose batch is the step's number; each draws two tokens."""
    usage, counters = UsageSeconds(), SchedulerCounters()
    for step in range(1, steps + 1):
        usage.add(Usage(stored=step, cached=7), step, seconds)
        counters.generated_tokens += 2
        now = step * seconds
        if now >= timeline.next_time or step == steps:
            timeline.take(now, usage, counters, num_waiting=step % 5)
    return usage


@pytest.mark.parametrize("steps", [1, 17, 1000, 50_000])
def test_points_are_bounded_and_means_exact(steps: int) -> None:
    timeline = Timeline(max_points=64)
    usage = played(timeline, steps)
    assert 1 <= len(timeline) <= 64
    if steps >= 1000:
        assert len(timeline) >= 30, "few points are dropped at a time"
    assert timeline.edges[0] == 0 and timeline.edges[-1] == pytest.approx(steps * 0.01)
    spans = np.diff(timeline.edges)
    assert (spans > 0).all()
    total = usage.slot_seconds[KINDS.index("stored")]
    assert np.sum(timeline.slots("stored") * spans) == pytest.approx(total)
    assert np.sum(timeline.batch * spans) == pytest.approx(usage.seq_seconds)
    assert timeline.slots("cached") == pytest.approx([7] * len(timeline))
    assert timeline.rate("generated_tokens") == pytest.approx([200] * len(timeline))


def test_each_window_has_its_own_mean() -> None:
    timeline = Timeline(interval=0.1)
    played(timeline, 20)
    assert timeline.edges == pytest.approx([0, 0.1, 0.2])
    assert timeline.batch == pytest.approx([np.mean(range(1, 11)), np.mean(range(11, 21))])
    assert list(timeline.waiting) == [0, 0]


def test_nothing_is_held_while_nothing_runs() -> None:
    """Half of the window was idle."""
    timeline, usage = Timeline(), UsageSeconds()
    usage.add(Usage(stored=8, cached=6), 2, 1.0)
    timeline.take(2.0, usage, SchedulerCounters(), num_waiting=0)
    assert timeline.slots("stored") == [4] and timeline.batch == [1]
    assert timeline.slots("cached") == [6], "the cache stays"


def test_hit_rate_of_a_window_without_prompts_is_unknown() -> None:
    timeline, counters = Timeline(), SchedulerCounters()
    counters.prefix_queries, counters.prefix_hits = 10, 4
    timeline.take(1.0, UsageSeconds(), counters, num_waiting=0)
    timeline.take(2.0, UsageSeconds(), counters, num_waiting=0)
    assert timeline.hit_rate[0] == 0.4 and np.isnan(timeline.hit_rate[1])


def test_a_second_point_at_the_same_time_replaces_the_first() -> None:
    timeline, counters = Timeline(), SchedulerCounters()
    for tokens in (1, 5):
        counters.generated_tokens = tokens
        timeline.take(1.0, UsageSeconds(), counters, num_waiting=0)
    assert len(timeline) == 1 and timeline.rate("generated_tokens") == [5]
