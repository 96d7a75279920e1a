from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafage.errors import InvalidParameterError
from leafage.sim import distributions
from leafage.sim.distributions import (
    Distribution,
    Exponential,
    Fixed,
    LogNormal,
    Uniform,
    parse_distribution,
)

BOUNDS = st.tuples(st.integers(1, 500), st.integers(0, 500)).map(lambda pair: (pair[0], pair[0] + pair[1]))
DISTRIBUTIONS = st.one_of(
    st.integers(1, 500).map(Fixed),
    BOUNDS.map(lambda bounds: Uniform(*bounds)),
    st.builds(
        lambda median, sigma, b: LogNormal(median, sigma, *b), st.floats(1, 500), st.floats(0, 3), BOUNDS
    ),
)


@settings(max_examples=60, deadline=None)
@given(DISTRIBUTIONS, st.integers(0, 2**32))
def test_values_stay_within_the_bounds(distribution: Distribution, seed: int) -> None:
    rng, low_high = random.Random(seed), distribution.bounds
    for _ in range(50):
        length = distribution.draw_length(rng)
        assert isinstance(length, int) and low_high[0] <= length <= low_high[1]
        assert low_high[0] <= distribution.draw(rng) <= low_high[1]


@settings(max_examples=60, deadline=None)
@given(DISTRIBUTIONS)
def test_text_says_all_of_a_distribution(distribution: Distribution) -> None:
    again = parse_distribution(str(distribution))
    assert type(again) is type(distribution) and str(again) == str(distribution)


@pytest.mark.parametrize(
    "distribution",
    [
        Fixed(7),
        Uniform(20, 99),
        Exponential(30),
        LogNormal(150, 1.0, 4, 400),
        LogNormal(90, 0.0),
        LogNormal(90, 1.2),
    ],
    ids=str,
)
def test_the_mean_is_that_of_the_draws(distribution: Distribution) -> None:
    rng = random.Random(1)
    assert statistics.fmean(distribution.draw(rng) for _ in range(40_000)) == pytest.approx(
        distribution.mean, rel=0.03
    )
    lengths = statistics.fmean(distribution.draw_length(rng) for _ in range(40_000))
    assert lengths == pytest.approx(distribution.mean, rel=0.03)


def test_uniform_lengths_have_both_ends_as_often_as_the_rest() -> None:
    rng = random.Random(2)
    drawn = [Uniform(3, 6).draw_length(rng) for _ in range(8000)]
    assert all(drawn.count(length) == pytest.approx(2000, rel=0.08) for length in (3, 4, 5, 6))


def test_a_length_is_at_least_one() -> None:
    rng = random.Random(3)
    assert min(Exponential(0.3).draw_length(rng) for _ in range(200)) == 1
    assert Fixed(0).draw_length(rng) == 1


def test_presets_have_the_ratios_of_the_paper() -> None:
    d = distributions
    assert d.SHAREGPT_PROMPT.mean / d.ALPACA_PROMPT.mean == pytest.approx(8.4, rel=0.01)
    assert d.SHAREGPT_OUTPUT.mean / d.ALPACA_OUTPUT.mean == pytest.approx(5.8, rel=0.01)
    assert d.SHAREGPT_PROMPT.mean == pytest.approx(161.31) and d.SHAREGPT_OUTPUT.mean == pytest.approx(337.99)


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("200", Fixed(200)),
        (200, Fixed(200)),
        ("20-99", Uniform(20, 99)),
        ("0.5-2.5", Uniform(0.5, 2.5)),
        ("exponential:8", Exponential(8)),
        ("LogNormal:150,1.0", LogNormal(150, 1.0)),
        ("lognormal:150,1.0,4-2040", LogNormal(150, 1.0, 4, 2040)),
    ],
)
def test_distributions_can_be_written(text: str | int, distribution: Distribution) -> None:
    assert parse_distribution(text) == distribution


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("normal:3", "not a distribution.*lognormal:MEDIAN"),
        ("-5", "not a distribution"),
        ("", "not a distribution"),
        (True, "not a distribution"),
        (None, "not a distribution"),
        (float("nan"), "finite numbers from 0"),
        ("99-20", "wrong order"),
        ("lognormal:0,1", "median .* above 0"),
        ("lognormal:5,1,9-3", "wrong order"),
    ],
)
def test_what_is_no_distribution_is_refused(text: object, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        parse_distribution(text)


def test_a_mean_outside_of_the_clips_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="outside of the clips; got 5"):
        LogNormal.with_mean(5, 1.0, 10, 100)
