from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from leafage.errors import InvalidParameterError
from leafage.sim.goodput import goodput, show_rate
from leafage.sim.result import SLO
from leafage.sim.scenario import Scenario
from tests.sim.scenarios import small_scenario

TIGHT = SLO(ttft=0.05, tpot=0.01)


def scenario() -> Scenario:
    config = {"kv_cache_tokens": 512, "max_model_len": 512}
    return small_scenario(config=config, num_requests=30, rate=30)


def test_the_found_rate_meets_the_level_and_a_larger_one_does_not() -> None:
    (found,) = goodput(scenario(), slo=TIGHT, seeds=(0, 1), tolerance=0.1)
    assert found.load_setting == "rate" and found.base_rate == 1 and len(found.searches) == 2
    for search in found.searches:
        attained = {load: run.metrics["slo_attainment"] for load, run in search.runs.items()}
        assert attained[search.load] >= 0.9
        above = min(load for load in attained if load > search.load)
        assert above <= search.load * 1.1 + 1e-9 and attained[above] < 0.9
    assert found.rate.low <= found.rate.median <= found.rate.high
    curve = found.curves("ttft_p90")[0]
    assert curve == sorted(curve) and len(curve) == len(found.searches[0].runs)


def test_memory_that_is_reserved_serves_less() -> None:
    paged, reserved = goodput(
        scenario(), [{"kv": "paged"}, {"kv": "reserved-max"}], slo=TIGHT, seeds=(0,), tolerance=0.3
    )
    assert paged.label == "kv=paged"
    assert 0 < reserved.rate.median < 0.7 * paged.rate.median


def test_a_level_that_nothing_meets_and_one_that_all_meet() -> None:
    (none,) = goodput(scenario(), slo=SLO(1e-6, 1e-6), seeds=(0,))
    assert none.rate.median == 0 and len(none.searches[0].runs) < 10, "it ends when requests run alone"
    (everything,) = goodput(scenario(), slo=SLO(60.0, 60.0), seeds=(0,))
    assert math.isinf(everything.rate.median) and show_rate(everything.rate.median) == "any"
    assert len(everything.searches[0].runs) < 12, "it ends when all requests come at once"


def test_of_a_trace_the_scale_is_searched(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    lines = [f"{second / 4},20,40" for second in range(30)]
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(lines) + "\n")
    recorded = replace(scenario(), workload=str(path), workload_settings={})
    (found,) = goodput(recorded, slo=TIGHT, tolerance=0.3)
    assert found.load_setting == "rate_scale" and len(found.searches) == 1, "nothing is drawn"
    assert found.base_rate == pytest.approx(30 / (29 / 4))
    assert found.rate.median == pytest.approx(found.searches[0].load * found.base_rate)


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match="share is out of range"):
        goodput(scenario(), share=1.5)
    with pytest.raises(InvalidParameterError, match="no rate"):
        goodput(scenario().with_setting("arrivals", "at-once"))
