from __future__ import annotations

import math

import pytest

from leafage.errors import InvalidParameterError
from leafage.sim.experiments import Spread, compare, run_all, simulate, sweep
from leafage.sim.parallel import in_parallel
from leafage.sim.summary import METRICS
from tests.sim.scenarios import small_scenario


def test_a_run_keeps_metrics_quantiles_and_timeline() -> None:
    run = simulate(small_scenario(rate=50))
    assert set(run.metrics) == set(METRICS) and run.metrics["num_requests"] == 30
    assert run.quantiles["ttft"][90] == pytest.approx(run.metrics["ttft_p90"])
    assert run.timeline is not None and run.timeline.edges[-1] == run.metrics["seconds"]
    assert run.num_slots == 2048 and run.error is None


def test_a_sweep_has_every_combination_in_order() -> None:
    told: list[tuple[int, int]] = []
    points = sweep(
        small_scenario(),
        {"rate": [5, 50], "block-size": [16, 64]},
        seeds=(0, 1),
        on_progress=lambda *done: told.append(done),
    )
    assert [point.settings for point in points] == [
        {"rate": rate, "block_size": size} for rate in (5, 50) for size in (16, 64)
    ]
    assert told == [(done, 8) for done in range(9)]
    for point in points:
        assert len(point.runs) == 2 and point.scenario.config.block_size == point.settings["block_size"]
        assert len(set(point.spread("seconds").values)) == 2, "seeds draw different requests"
    assert points[0].spread("throughput").mean < points[2].spread("throughput").mean
    assert points[0].spread("waste_internal").mean < points[1].spread("waste_internal").mean


def test_variants_get_the_same_requests() -> None:
    points = compare(small_scenario(rate=100), [{"kv": "paged"}, {"kv": "reserved-max"}], seeds=(3, 4))
    paged, reserved = points
    assert paged.label == "kv=paged"
    for name in ("num_requests", "num_refused"):
        assert paged.spread(name) == reserved.spread(name)
    tokens = [[run.metrics["throughput"] * run.metrics["seconds"] for run in p.runs] for p in points]
    assert tokens[0] == pytest.approx(tokens[1]) and tokens[0][0] != tokens[0][1]
    assert reserved.spread("waste_internal").mean > 10 * paged.spread("waste_internal").mean


def test_what_cannot_run_says_why_and_the_others_go_on() -> None:
    scenario = small_scenario(config={"kv_cache_tokens": None})
    small, large = run_all([scenario, scenario.with_setting("model", "llama-3-70b")])
    assert small.error is None and small.metrics["num_requests"] == 30
    assert large.error is not None and "does not fit on 1 x l4" in large.error and not large.metrics
    (point,) = compare(scenario, [{"model": "llama-3-70b"}])
    assert point.error == large.error and math.isnan(point.spread("throughput").mean)


def test_a_wrong_setting_is_refused_before_anything_runs() -> None:
    told: list[int] = []
    with pytest.raises(InvalidParameterError, match="Did you mean policy"):
        sweep(small_scenario(), {"polcy": ["fcfs"]}, on_progress=lambda done, _: told.append(done))
    assert not told


def test_spread() -> None:
    spread = Spread((1.0, 4.0, math.nan))
    assert spread.mean == 2.5
    assert (Spread((1.0, 5.0, 2.0)).median, Spread((1.0, 5.0)).low, Spread((1.0, 5.0)).high) == (2, 1, 5)
    assert math.isnan(Spread((math.nan,)).mean)


def test_processes_give_the_same_as_one() -> None:
    scenarios = [small_scenario(rate=rate) for rate in (5, 50)]
    alone, together = run_all(scenarios), run_all(scenarios, processes=2)
    assert [run.metrics for run in together] == [run.metrics for run in alone]


def test_an_error_in_a_process_comes_back() -> None:
    with pytest.raises(ZeroDivisionError):
        in_parallel(_inverse, [0, 1], processes=2)
    assert in_parallel(_inverse, [1, 2, 4]) == [1, 0.5, 0.25]
    assert in_parallel(_inverse, []) == []


def _inverse(number: float) -> float:
    return 1 / number
