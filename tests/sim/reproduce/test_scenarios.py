"""The frozen requests and the settings of both scenarios."""

from __future__ import annotations

from pathlib import Path

import pytest

from leafage.sim.reproduce.scenarios import SCENARIO_A, SCENARIO_B, TRACES, Scenario, write_traces


def test_the_generators_make_the_frozen_files_again(tmp_path: Path) -> None:
    write_traces(tmp_path)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(path.name for path in TRACES.glob("*.csv"))
    for name in made:
        assert (tmp_path / name).read_text() == (TRACES / name).read_text(), name


@pytest.mark.parametrize("scenario", [SCENARIO_A, SCENARIO_B], ids=lambda scenario: scenario.file)
def test_a_rate_stretches_the_arrivals_and_nothing_else(scenario: Scenario) -> None:
    slow, fast = list(scenario.trace(1.0)), list(scenario.trace(4.0))
    assert len(slow) == scenario.drawn.num_requests
    for a, b in zip(slow, fast, strict=True):
        assert b.arrival == pytest.approx(a.arrival / 4)
        assert (len(a.prompt), len(a.output)) == (len(b.prompt), len(b.output))
        assert len(a.prompt) + len(a.output) <= scenario.max_model_len


def test_other_seeds_draw_other_requests() -> None:
    lengths = [[len(r.output) for r in SCENARIO_A.redrawn(1.0, seed)] for seed in (16, 17)]
    assert lengths[0] != lengths[1]
    assert lengths[0] == [len(request.output) for request in SCENARIO_A.trace(1.0)]
