from __future__ import annotations

import statistics
import tracemalloc
from collections import deque
from itertools import pairwise

import pytest

from leafage.errors import InvalidParameterError
from leafage.sim.distributions import LogNormal
from leafage.sim.independent import Independent


def test_the_same_settings_give_the_same_requests() -> None:
    assert list(Independent(num_requests=50, seed=3)) == list(Independent(num_requests=50, seed=3))
    workload = Independent(num_requests=50, seed=3)
    assert list(workload) == list(workload) != list(Independent(num_requests=50, seed=4))


def test_another_rate_changes_arrivals_only() -> None:
    slow, fast = (list(Independent(num_requests=50, rate=rate)) for rate in (1.0, 4.0))
    assert [r.arrival for r in fast] == pytest.approx([r.arrival / 4 for r in slow])
    assert [(r.prompt, r.output) for r in fast] == [(r.prompt, r.output) for r in slow]


def test_requests_are_sorted_within_the_clips_and_share_nothing() -> None:
    workload = Independent(
        num_requests=3000,
        prompt_tokens="lognormal:150,1.0,4-1000",
        output_tokens="20-99",
        max_total_tokens=1050,
    )
    requests = list(workload)
    assert len(requests) == len(workload) == 3000
    assert all(a.arrival <= b.arrival for a, b in pairwise(requests))
    assert {min(len(r.prompt) for r in requests), max(len(r.prompt) for r in requests)} == {4, 1000}
    assert max(len(r.prompt) + len(r.output) for r in requests) == 1050
    assert min(len(r.output) for r in requests) == 20
    mean = statistics.fmean(len(r.prompt) for r in requests)
    assert mean == pytest.approx(LogNormal(150, 1.0, 4, 1000).mean, rel=0.05)
    assert all(a.prompt.stop == a.output.start <= b.prompt.start for a, b in pairwise(requests))


def test_memory_is_flat_in_the_number_of_requests() -> None:
    tracemalloc.start()
    try:
        deque(Independent(num_requests=4_000), maxlen=0)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_requests": 0}, "num_requests is out of range; got 0; limit: at least 1"),
        ({"n": 0}, "n is out of range"),
        ({"beam_width": 65}, "beam_width is out of range; got 65; limit: 1 to 64"),
        ({"n": 3, "beam_width": 2}, "n .of beam search. is out of range; got 3; limit: 1 to 2"),
        ({"prompt_tokens": "10-90", "max_total_tokens": 90}, "max_total_tokens is out of range"),
        ({"cv": 2.0}, "cv is for gamma"),
        ({"prompt_tokens": "many"}, "not a distribution"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        Independent(**settings)
