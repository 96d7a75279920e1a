from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from leafage.errors import InvalidParameterError
from leafage.sim.calibrate import ROUNDS, Scenario, Scenarios, errors, fit, kind_of, measure
from leafage.sim.cost_model import Load
from leafage.sim.replay import Step
from leafage.sim.step_costs import MeasuredSteps
from tests.sim.real import sleeping_engine
from tests.sim.test_step_costs import COSTS, SPEC


def steps(count: int, seed: int, *, noise: float = 0.0) -> list[Step]:
    """Random steps of all kinds that take what COSTS says, with relative noise."""
    rng = np.random.default_rng(seed)
    predict = MeasuredSteps(COSTS).seconds_of
    made = []
    for _ in range(count):
        rows, chunk = int(rng.integers(0, 40)), int(rng.integers(0, 100)) * int(rng.integers(0, 2))
        rows += rows + chunk == 0
        context = rows * int(rng.integers(1, 1000))
        load = Load(
            tokens=rows + chunk,
            rows=rows,
            pairs=context + chunk * int(rng.integers(1, 1000)),
            context=context,
            items=rows + (chunk > 0),
            decode_context=context,
            starts=int(rng.integers(0, 10) == 0),
        )
        seconds = predict(load) * float(1 + noise * rng.standard_normal())
        made.append(Step(load, seconds, seconds / 10))
    return made


def test_costs_are_found_again() -> None:
    found = fit(SPEC, 16, steps(2000, 0), steps(200, 1))
    assert found.held_out["all"].mean < 0.005
    assert found.costs.per_context == pytest.approx(COSTS.per_context, rel=0.02)
    assert found.costs.per_pair == pytest.approx(COSTS.per_pair, rel=0.02)
    assert found.costs.per_start == pytest.approx(COSTS.per_start, rel=0.02)
    assert found.costs.seconds_per_token == pytest.approx(0.5e-3, rel=0.02)
    assert found.disturbed == 0
    assert (found.costs.spec, found.costs.block_size) == (SPEC, 16)


def test_noise_is_averaged_and_reported() -> None:
    found = fit(SPEC, 16, steps(2000, 0, noise=0.05), steps(500, 1, noise=0.05))
    error = found.held_out["all"]
    assert 0.03 < error.mean < 0.06 and abs(error.bias) < 0.005
    assert 0.06 < error.worst < 0.12 and error.count == 500
    assert found.costs.error == error.mean


def test_noise_does_not_make_costs_too_low() -> None:
    """Relative to what was measured, a fit would weigh quick steps more: 20 % of noise took 4 % off."""
    found = fit(SPEC, 16, steps(2000, 0, noise=0.2), steps(500, 1))
    assert abs(found.held_out["all"].bias) < 0.015


def test_disturbed_steps_are_left_out() -> None:
    disturbed = [replace(step, seconds=3 * step.seconds) for step in steps(100, 2)]
    found = fit(SPEC, 16, [*steps(1900, 0), *disturbed], steps(200, 1))
    assert found.disturbed == pytest.approx(0.05)
    assert found.held_out["all"].mean < 0.005
    assert found.fitted["all"].count == 1900


def test_costs_contain_the_time_that_disturbances_take() -> None:
    """Runs to come are disturbed as often: their sum must be right, but for a stall that is an accident."""
    disturbed = [replace(step, seconds=3 * step.seconds) for step in steps(100, 2)]
    everything = [*steps(1900, 0), *disturbed]
    found = fit(SPEC, 16, everything, [])
    assert found.lost == pytest.approx(0.1, abs=0.01)
    assert errors(found.costs, everything)["all"].bias == pytest.approx(0, abs=0.002)
    stall = replace(disturbed[0], seconds=1000.0)
    assert fit(SPEC, 16, [*everything, stall], []).lost == pytest.approx(found.lost, rel=0.1)


def test_held_out_steps_are_fitted_once_their_error_is_told() -> None:
    """Costs that change beyond what the first steps reach are known afterwards."""
    held_out = [step for step in steps(600, 4) if step.load.rows > 20]
    within = [step for step in steps(2000, 0) if step.load.rows <= 20]
    doubled = [replace(step, seconds=1.5 * step.seconds) for step in held_out]
    found = fit(SPEC, 16, within, doubled)
    assert found.held_out["all"].bias < -0.3
    assert abs(errors(found.costs, doubled)["all"].bias) < abs(found.held_out["all"].bias) / 2


def test_later_rounds_find_the_long_contexts_again() -> None:
    real = sleeping_engine(num_blocks=2048, max_model_len=4096)
    scenarios = [scenario for scenario in Scenarios(real) if scenario.name == "long contexts"]
    prompts = [[tuple(request.prompt) for request in scenario.requests] for scenario in scenarios]
    assert len(prompts) % ROUNDS == 0 and max(map(len, prompts)) > 4
    for each in prompts:
        assert len(set(each)) == len(each)
        assert each == max(prompts, key=len)[: len(each)]


def test_the_parts_make_the_grid_together() -> None:
    """Every size of the whole grid is in one of them, and each part has all kinds of steps."""
    real = sleeping_engine()

    def sizes(scenarios: Iterable[Scenario], name: str) -> set[int]:
        return {len(each.requests[-1].prompt) for each in scenarios if each.name == name}

    whole = list(Scenarios(real).part(0, 1))
    parts = [list(Scenarios(real).part(number, 5)) for number in range(5)]
    together = [scenario for part in parts for scenario in part]
    assert sizes(whole, "chunks at 0") == sizes(together, "chunks at 0")
    sizes_of_few: set[int] = set()
    for part in parts:
        steps, held_out = measure(real, part)
        assert {kind_of(step) for step in steps} == {"decode", "prompt", "mixed"} and held_out
        sizes_of_few |= {step.load.rows for step in steps if kind_of(step) == "decode"}
    assert sizes_of_few >= set(range(1, 9))


def test_errors_tell_kinds_of_steps_apart() -> None:
    slow = [
        replace(step, seconds=2 * step.seconds) if kind_of(step) == "prompt" else step
        for step in steps(500, 3)
    ]
    found = errors(COSTS, slow)
    assert found["decode"].mean == pytest.approx(0) and found["mixed"].mean == pytest.approx(0)
    assert found["prompt"].bias == pytest.approx(-0.5)


def test_a_handful_of_steps_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="too few steps"):
        fit(SPEC, 16, steps(99, 0), [])


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_num_seqs": 1, "max_num_batched_tokens": 8, "max_model_len": 128},
        {"max_num_seqs": 70, "max_num_batched_tokens": 256, "num_blocks": 64},
    ],
)
def test_the_grid_stays_within_the_limits_of_the_engine(limits: dict[str, int]) -> None:
    real = sleeping_engine(**limits)
    said: list[str] = []
    fitted, held_out = measure(real, Scenarios(real), on_progress=said.append)
    assert len(set(said)) == 12 and len(said) > ROUNDS * 12
    assert len(fitted) > 100 and len(held_out) > 20
    assert {kind_of(step) for step in fitted} >= {"decode", "prompt"}
    largest = max(step.load.rows for step in fitted if kind_of(step) == "decode")
    assert largest == min(real.max_num_seqs, real.max_num_batched_tokens, real.kv_tokens // 128)
    assert not any(step.load.moved_blocks for step in fitted + held_out)


def test_an_engine_without_room_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="too small to calibrate"):
        Scenarios(sleeping_engine(max_model_len=64))
