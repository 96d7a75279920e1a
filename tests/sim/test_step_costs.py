from __future__ import annotations

from typing import Any

import pytest

from leafage.errors import InvalidParameterError
from leafage.sim.cost_model import Load
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.step_costs import MeasuredSteps, StepCosts

SPEC = LLMSpec.load("smollm2-135m")
COSTS = StepCosts(
    spec=SPEC,
    block_size=16,
    tokens=((0, 2e-3), (1, 2e-3), (3, 4e-3), (103, 54e-3)),
    rows=((0, 0.0), (2, 1e-3), (4, 4e-3)),
    per_item=1e-4,
    per_context=1e-6,
    per_pair=1e-7,
    per_start=3e-3,
    error=0.03,
)


@pytest.mark.parametrize(
    ("load", "seconds"),
    [
        (Load(tokens=1), 2e-3),
        (Load(tokens=2), 3e-3),
        (Load(tokens=2, starts=1), 6e-3),
        (Load(tokens=53), 29e-3),
        (Load(tokens=203), 104e-3),  # goes on as it rose
        (Load(tokens=1, rows=3), 2e-3 + 2.5e-3),
        (Load(tokens=1, rows=5), 2e-3 + 5.5e-3),
        (Load(tokens=1, items=7), 2e-3 + 7e-4),
        (Load(tokens=1, pairs=100, decode_context=100), 2e-3 + 100e-6),
        (Load(tokens=3, pairs=150, decode_context=100), 4e-3 + 100e-6 + 5e-6),
    ],
)
def test_a_step_is_the_sum_of_its_parts(load: Load, seconds: float) -> None:
    assert MeasuredSteps(COSTS).seconds_of(load) == pytest.approx(seconds)


def test_one_more_token_costs_what_the_upper_half_of_the_curve_says() -> None:
    assert COSTS.seconds_per_token == pytest.approx(0.5e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [[1, 1e-3], [2, 2e-3]]}, "tokens is no curve"),
        ({"rows": [[0, 0.0]]}, "rows is no curve"),
        ({"rows": [[0, 0.0], [4, 1.0], [2, 1.0]]}, "rows is no curve"),
        ({"tokens": [[0, -1e-3], [2, 2e-3]]}, "tokens is out of range"),
        ({"per_item": "little"}, "per_item is out of range"),
        ({"tokens": 5}, "cannot be read"),
        ({"spec": {"name": "unknown"}}, "cannot be read"),
    ],
)
def test_impossible_costs_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        StepCosts.from_dict({**COSTS.as_dict(), **change})


def test_as_dict_is_read_back() -> None:
    assert StepCosts.from_dict(COSTS.as_dict()) == COSTS


def test_on_a_slower_machine_every_part_takes_longer() -> None:
    load = Load(tokens=3, rows=3, items=7, pairs=150, decode_context=100, starts=1)
    once = MeasuredSteps(COSTS).seconds_of(load)
    assert MeasuredSteps(COSTS.scaled(1.5)).seconds_of(load) == pytest.approx(1.5 * once)
    assert COSTS.scaled(2.0).error == COSTS.error
