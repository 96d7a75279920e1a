from __future__ import annotations

import pytest
from comparison.spread import Spread, Target, digits, ratios


def test_median_and_range() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([1.0, 2.0]).median == 1.5
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])


def test_what_is_shown() -> None:
    assert Spread.of([1.944, 1.9, 2.011]).show("x") == "1.94x (1.90-2.01)"
    assert Spread.of([2.0]).show(" s") == "2.00 s"
    assert [digits(v) for v in (0.153, 12.34, 345.6, 12_345.0, -3.21)] == [
        "0.15",
        "12.3",
        "346",
        "12,345",
        "-3.21",
    ]


def test_ratios_are_above_one_where_ours_is_better() -> None:
    assert ratios([200.0, 90.0], [100.0, 100.0], more_is_better=True) == [2.0, 0.9]
    assert ratios([10.0, 25.0], [20.0, 20.0], more_is_better=False) == [2.0, 0.8]
    with pytest.raises(ValueError, match="above 0"):
        ratios([0.0], [1.0], more_is_better=True)
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [1.0, 2.0], more_is_better=True)


def test_targets_are_of_medians() -> None:
    at_least, at_most = Target(2.2), Target(8.0, at_most=True)
    assert at_least.met([2.2]) and at_least.met([1.0, 2.3, 9.0]) and not at_least.met([9.0, 2.1, 2.1])
    assert at_most.met([8.0, 8.0, 30.0]) and not at_most.met([8.1])
    assert (at_least.show("x"), at_most.show(" %")) == (">= 2.2x", "<= 8 %")
