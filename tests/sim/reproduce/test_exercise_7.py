"""Exercise 7: one pool, or a fixed share for prefixes."""

from __future__ import annotations

import pytest

from leafage.cli.sim_reproduce import make_tools
from leafage.core.batch import Batch
from leafage.core.request import Delta
from leafage.sim.distributions import Fixed
from leafage.sim.reproduce.exercise_7 import CacheBound, Divided
from leafage.sim.reproduce.scenarios import SCENARIO_A
from leafage.sim.sessions import MultiTurn
from tests.sim.reproduce.tools import assert_passed, run


def test_e7_a_bounded_cache_stays_within_its_bound() -> None:
    simulation = SCENARIO_A.simulation(make_tools(), prefix_index="radix")
    CacheBound(simulation, 20)
    kv, seen = simulation.engine.scheduler.kv, []
    inner = simulation.engine.observer
    assert inner is not None
    stepped = inner.stepped

    def watched(batch: Batch, deltas: list[Delta]) -> None:
        stepped(batch, deltas)
        seen.append(kv.num_cached)

    inner.stepped = watched  # type: ignore[method-assign]
    result = simulation.run(MultiTurn(num_sessions=5, turns=Fixed(3)))
    assert result.records.num_requests == 15, "the engine's own observer was told everything"
    assert max(seen) == 20


def test_e7_when_quiet_one_pool_hits_more() -> None:
    tools = make_tools()
    whole, quarter = Divided("quiet", None)(tools), Divided("quiet", 0.25)(tools)
    assert whole.hits > 0.8 > 0.7 > quarter.hits
    assert whole.cached > 0.6 and quarter.cached < 0.25
    assert whole.lost == 0 < quarter.lost


@pytest.mark.soak
def test_all_verdicts() -> None:
    assert_passed(run("exercise-7"))
