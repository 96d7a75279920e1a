from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leafage.sim.result import SLO
from leafage.sim.scenario import Scenario
from leafage.sim.verdict import Verdict
from tests.sim.scenarios import small_scenario

LEVEL = SLO(ttft=0.5, tpot=0.004)


def scenario(rate: float, replicas: int = 1, **settings: object) -> Scenario:
    memory = {"kv_cache_tokens": 2500, "max_model_len": 2048}
    found = small_scenario("sharegpt", memory, num_requests=60, rate=rate, prompt_tokens="20-300", **settings)
    return replace(found, replicas=replicas)


@pytest.mark.parametrize("settings", [{}, {"n": 3}])
def test_one_request_attains_the_level_as_all_do(settings: dict[str, object]) -> None:
    result = scenario(60, **settings).run()
    num_answered = result.records.num_requests
    met = [result.records.attained(index, LEVEL) for index in range(num_answered)]
    assert sum(met) / 60 == result.attainment(LEVEL)
    assert 0 < sum(met) < num_answered, "some met it and some did not"
    for index, (ttft, tpot) in enumerate(zip(result.ttft, result.tpot, strict=True)):
        assert result.records.attained(index, SLO(ttft, tpot))
        assert not result.records.attained(index, SLO(ttft, np.nextafter(tpot, 0)))
        assert not result.records.attained(index, SLO(np.nextafter(ttft, 0), tpot))


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("share", [0.8, 0.95])
def test_a_run_is_stopped_exactly_when_the_whole_of_it_misses_the_level(replicas: int, share: float) -> None:
    outcomes = set()
    for rate in (1, 20, 100, 1000):
        asked = scenario(rate * replicas, replicas)
        whole = asked.run()
        verdict = Verdict(LEVEL, share, 60)
        result = asked.run(verdict=verdict)
        assert verdict.is_missed == (whole.attainment(LEVEL) < share)
        assert result.attainment(LEVEL) < share or not verdict.is_missed
        outcomes.add(verdict.is_missed)
        if not verdict.is_missed:
            assert result.records.last_token == whole.records.last_token
            assert result.counters == whole.counters
    assert outcomes == {False, True}


@pytest.mark.parametrize("replicas", [1, 3])
def test_an_overloaded_run_ends_early(replicas: int) -> None:
    asked = scenario(1000 * replicas, replicas)
    verdict = Verdict(LEVEL, 0.9, 60)
    result = asked.run(verdict=verdict)
    assert verdict.is_missed
    assert result.counters.steps < 0.7 * asked.run().counters.steps


def test_refused_requests_have_missed_it() -> None:
    """Some do not fit into the context, which is said when they come."""
    asked = scenario(1000).with_setting("max_model_len", 600)
    verdict = Verdict(SLO(ttft=1e3, tpot=1e3), 0.999, 60)
    result = asked.run(verdict=verdict)
    assert result.records.num_refused > 0
    assert verdict.is_missed and verdict.num_missed == result.records.num_refused
    assert result.records.num_requests + result.records.num_refused < 60
