"""Gains of sharing, in small."""

from __future__ import annotations

import pytest

from leafage.cli.sim_reproduce import make_tools
from leafage.sim.reproduce.scenarios import SCENARIO_A
from leafage.sim.reproduce.sharing_gains import BlocksSaved, Decoding, Translation
from leafage.sim.workload import SimRequest, Trace
from tests.sim.reproduce.tools import assert_passed, run


def test_blocks_saved_are_counted_over_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of 10 full blocks for 4 samples, beside one request that shares nothing."""
    monkeypatch.setattr("leafage.sim.reproduce.sharing_gains.EVERY", 1)
    simulation = SCENARIO_A.simulation(make_tools())
    saved = BlocksSaved(simulation)
    requests = [
        SimRequest("a", 0.0, range(160), range(8), n=4),
        SimRequest("b", 0.0, range(200, 216), range(8)),
    ]
    result = simulation.run(Trace(requests))
    assert result.records.num_requests == 2, "the engine's own observer was told everything"
    held, separate = 10 + 1, 10 + 1  # the step with the prompts
    held, separate = held + 7 * (10 + 4 + 2), separate + 7 * (4 * 11 + 2)
    assert saved.share == pytest.approx(1 - held / separate)


def test_r4_4_more_samples_save_more_blocks_and_beams_still_more() -> None:
    tools = make_tools()
    two, six, beams = (
        Decoding("Alpaca", searches, width, 12)(tools)
        for searches, width in ((False, 2), (False, 6), (True, 6))
    )
    assert 0.03 < two < six < 0.2 < beams < 5 / 6


def test_r4_5_a_shared_prefix_gains_more_than_paging_alone() -> None:
    shared, paged = Translation(341, 200)(make_tools())
    assert 1 <= paged < 1.2 < 2 < shared


@pytest.mark.soak
@pytest.mark.parametrize("demo", ["section4-1", "section4-2"])
def test_all_verdicts(demo: str) -> None:
    assert_passed(run(demo))
