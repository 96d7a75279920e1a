from __future__ import annotations

import random
import statistics
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafage.errors import InvalidParameterError
from leafage.sim.arrivals import make_arrivals

KINDS = st.sampled_from([("poisson", None), ("gamma", 0.3), ("gamma", 4.0), ("constant", None)])


def times(
    kind: str, rate: float | None, cv: float | None = None, *, seed: int = 0, count: int = 200
) -> list[float]:
    return list(islice(make_arrivals(kind, rate, cv, random.Random(seed)), count))


@settings(max_examples=40, deadline=None)
@given(KINDS, st.floats(1e-3, 1e4), st.integers(0, 2**32))
def test_arrivals_are_sorted_and_repeatable(kind: tuple[str, float | None], rate: float, seed: int) -> None:
    made = times(kind[0], rate, kind[1], seed=seed)
    assert made[0] >= 0 and all(a <= b for a, b in pairwise(made))
    assert made == times(kind[0], rate, kind[1], seed=seed)


@pytest.mark.parametrize(
    ("kind", "cv", "expected"), [("poisson", None, 1.0), ("gamma", 0.5, 0.5), ("gamma", 3.0, 3.0)]
)
def test_gaps_have_the_rate_and_the_variation(kind: str, cv: float | None, expected: float) -> None:
    made = times(kind, 20.0, cv, count=60_000)
    gaps = [b - a for a, b in pairwise(made)]
    assert statistics.fmean(gaps) == pytest.approx(1 / 20, rel=0.04)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize(("kind", "cv"), [("poisson", None), ("gamma", 2.5)])
def test_another_rate_stretches_the_same_arrivals(kind: str, cv: float | None) -> None:
    assert times(kind, 8.0, cv) == pytest.approx([t / 4 for t in times(kind, 2.0, cv)])


def test_constant_and_at_once() -> None:
    assert times("constant", 4.0, count=4) == [0.0, 0.25, 0.5, 0.75]
    assert times("at-once", None, count=3) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "rate", "cv", "message"),
    [
        ("uniform", 1.0, None, "unknown arrivals.*poisson, gamma, constant, at-once"),
        ("poisson", 0.0, None, "rate must be above 0"),
        ("poisson", float("nan"), None, "rate must be above 0"),
        ("poisson", 1.0, 2.0, "cv is for gamma arrivals"),
        ("gamma", 1.0, None, "gamma arrivals need cv"),
        ("gamma", 1.0, -1.0, "cv must be above 0"),
        ("at-once", 1.0, None, "have no rate"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: str, rate: float, cv: float | None, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        make_arrivals(kind, rate, cv, random.Random(0))
