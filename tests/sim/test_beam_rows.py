from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from leafage.core.request import Delta
from leafage.sim.beam_rows import FIRST_CANDIDATE, beam_row
from leafage.sim.independent import Independent
from leafage.sim.workload import SimRequest, Trace
from tests.core.naive_beam import naive_beam_search
from tests.sim.runs import run, small_simulation


def test_a_row_is_a_distribution_best_first() -> None:
    for last in range(50):
        row = beam_row(3, 7, last, 1000)
        logprobs = [logprob for _, logprob in row]
        assert logprobs == sorted(logprobs, reverse=True) and len({token for token, _ in row}) == 1000
        assert 0.99 < sum(math.exp(logprob) for logprob in logprobs) <= 1.0 + 1e-9
        assert min(token for token, _ in row) >= FIRST_CANDIDATE and max(row)[0] < 1 << 62


def test_a_row_depends_on_the_request_the_position_and_the_last_token() -> None:
    rows = [beam_row(key, position, last, 4) for key in (1, 2) for position in (5, 6) for last in (8, 9)]
    assert rows == [
        beam_row(key, position, last, 4) for key in (1, 2) for position in (5, 6) for last in (8, 9)
    ]
    assert len({token for row in rows for token, _ in row}) == 8 * 4
    assert beam_row(1, 5, 8, 2) == beam_row(1, 5, 8, 9)[:2]


@pytest.mark.parametrize("width", [1, 2, 4])
def test_the_scheduler_searches_as_the_definition_says(width: int) -> None:
    """Also when it is preempted: the pool has no room for all."""
    requests = [
        SimRequest(str(i), 0.1 * i, range(t, t + 20), range(t + 50, t + 62), n=width, beam_width=width)
        for i, t in enumerate(range(0, 500, 100))
    ]
    simulation = small_simulation(num_blocks=24, block_size=4)
    answers: dict[str, list[list[int]]] = {}
    original = simulation.engine.step

    def step() -> list[Delta]:
        deltas = original()
        for delta in deltas:
            answers.setdefault(delta.request_id, []).append([token.token_id for token in delta.tokens])
        simulation.engine.scheduler.check()
        return deltas

    simulation.engine.step = step  # type: ignore[method-assign]
    result, _ = run(Trace(requests), simulation)
    assert result.records.num_requests == 5
    assert result.counters.preemptions > 0
    for request in requests:
        assert answers[request.request_id] == naive_answers(request, width)


def naive_answers(request: SimRequest, width: int) -> list[list[int]]:
    """By the definition, on small ids: the rows are numbered as they are met."""
    rows: dict[tuple[int, int], int] = {}
    ids: list[int] = []

    def logprobs(tokens: list[int]) -> np.ndarray:
        last = ids[tokens[-1] - 10_000] if tokens[-1] >= 10_000 else tokens[-1]
        place = rows.setdefault((len(tokens), last), len(rows))
        row = beam_row(request.output[0], len(tokens), last, 2 * width)
        if len(ids) == place * 2 * width:
            ids.extend(token for token, _ in row)
        table = np.full(10_000 + 2 * width * 200, -np.inf)
        table[10_000 + place * 2 * width : 10_000 + (place + 1) * 2 * width] = [logprob for _, logprob in row]
        return table

    found = naive_beam_search(logprobs, list(request.prompt), width=width, max_tokens=len(request.output))
    return [[ids[token - 10_000] for token in answer.tokens] for answer in found]


@pytest.mark.parametrize("width", [2, 4, 8])
def test_beams_share_about_as_much_as_those_of_models(width: int) -> None:
    """Blocks that a beam search holds against those of beams that share nothing, over all steps."""
    workload = Independent(num_requests=6, prompt_tokens=40, output_tokens=30, beam_width=width, rate=0.1)
    simulation = small_simulation(block_size=4)
    savings: list[float] = []
    original = simulation.engine.step

    def step() -> list[Delta]:
        deltas = original()
        for request in simulation.engine.scheduler.roster.running:
            tables = [seq.block_table for seq in request.sequences]
            if len(tables) == width:
                savings.append(1 - len(set().union(*tables)) / sum(map(len, tables)))
        return deltas

    simulation.engine.step = step  # type: ignore[method-assign]
    run(workload, simulation)
    assert len(savings) > 6 * 25
    bound = (width - 1) / width
    assert bound - 0.1 <= statistics.fmean(savings) <= bound
