from __future__ import annotations

import json
import tracemalloc
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from leafage.engine.request_log import RequestLog
from leafage.errors import InvalidParameterError, TraceFileError
from leafage.sim.independent import Independent
from leafage.sim.sessions import Agents, MultiTurn
from leafage.sim.shared_prompts import FewShot
from leafage.sim.simulation import Simulation
from leafage.sim.trace_file import TraceFile
from leafage.sim.workload import Workload
from tests.sim.runs import Ended, run, small_simulation

HEADER = {"leafage_request_log": 1, "started": 1000.0, "block_size": 4, "tenants": "hashed"}


def logged(workload: Workload, path: Path, simulation: Simulation, **settings: Any) -> list[Ended]:
    """Simulate with a log."""
    log = RequestLog(path, simulation.metrics, now=lambda: 0.0, secret=b"k" * 16, **settings)
    _, ended = run(workload, simulation)
    log.close()
    return ended


def in_order(ended: list[Ended]) -> list[Ended]:
    return sorted(ended, key=lambda one: (one.metrics.arrival_time, one.request.arrival))


def line(arrival: float = 0.0, **fields: Any) -> dict[str, Any]:
    """A request of 6 + 3 tokens with blocks of 4."""
    return {
        "arrival": arrival,
        "number": 0,
        "oldest": arrival,
        "prompt_tokens": 6,
        "prompt_blocks": "0" * 15 + "1",
        "answers": [{"tokens": 3, "blocks": "0" * 15 + "2", "finish": "stop"}],
        "n": 1,
        "beam_width": None,
        "priority": 0,
        "tenant": "",
        **fields,
    }


def trace(folder: Path, *lines: Any, **settings: Any) -> TraceFile:
    path = folder / "log"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TraceFile(path, **settings)


# -- there and back ------------------------------------------------------------------------------

WORKLOADS = {
    "few-shot": FewShot(num_requests=60, arrivals="poisson", rate=4.0),
    "multi-turn": MultiTurn(num_sessions=12, turns=4, think_seconds="1-3", rate=4.0),
    "agents": Agents(num_agents=8, system_tokens=200, branch_share=0.5, rate=4.0),
    "parallel": Independent(num_requests=8, n=3, rate=4.0, output_tokens="10-40"),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_replay_shares_what_the_logged_run_shared(name: str, tmp_path: Path) -> None:
    """Block for block, at the same times, where only whole blocks are shared."""
    ended = logged(WORKLOADS[name], tmp_path / "log", small_simulation(prefix_index="hash_chain"))
    replayed = run(TraceFile(tmp_path / "log"), small_simulation(prefix_index="hash_chain"))[1]
    assert len(ended) == len(replayed)
    for before, after in zip(in_order(ended), in_order(replayed), strict=True):
        assert after.request.num_cached == before.request.num_cached
        assert after.metrics.arrival_time == pytest.approx(before.metrics.arrival_time, abs=1e-6)
        assert after.metrics.finished_time == pytest.approx(before.metrics.finished_time, abs=1e-6)
        assert after.asked.n == before.asked.n
        assert len(after.asked.prompt) == len(before.asked.prompt)
        assert len(after.asked.output) == len(before.asked.output)
    assert name == "parallel" or sum(one.request.num_cached for one in ended) > 1000


def test_token_granular_hits_come_back_but_for_the_rest_of_a_block(tmp_path: Path) -> None:
    ended = logged(WORKLOADS["multi-turn"], tmp_path / "log", small_simulation())
    replayed = run(TraceFile(tmp_path / "log"), small_simulation())[1]
    lost = [
        before.request.num_cached - after.request.num_cached
        for before, after in zip(in_order(ended), in_order(replayed), strict=True)
    ]
    assert all(0 <= tokens < 16 for tokens in lost) and any(lost)


def test_blocks_of_one_token_bring_all_of_it_back(tmp_path: Path) -> None:
    ended = logged(WORKLOADS["multi-turn"], tmp_path / "log", small_simulation(), block_size=1)
    replayed = run(TraceFile(tmp_path / "log"), small_simulation())[1]
    cached = [[one.request.num_cached for one in in_order(those)] for those in (ended, replayed)]
    assert cached[0] == cached[1]


def test_lines_come_back_in_the_order_of_arrival(tmp_path: Path) -> None:
    """They end in another order, and with priorities and tenants."""
    ended = logged(
        Independent(num_requests=100, rate=20.0, output_tokens="1-20"), tmp_path / "log", small_simulation()
    )
    assert ended != in_order(ended)
    made = list(TraceFile(tmp_path / "log"))
    assert [len(r.output) for r in made] == [len(one.asked.output) for one in in_order(ended)]
    made = list(trace(tmp_path, HEADER, line(1, priority=2, tenant="a7"), line(2, n=2, beam_width=4)))
    assert [(r.priority, r.tenant, r.n, r.beam_width) for r in made] == [(2, "a7", 1, None), (0, "", 2, 4)]


def test_only_what_ran_together_is_in_memory(tmp_path: Path) -> None:
    written = trace(tmp_path, HEADER, *(line(i) for i in range(800)))
    tracemalloc.start()
    try:
        deque(written, maxlen=0)
        assert tracemalloc.get_traced_memory()[1] < 60_000
    finally:
        tracemalloc.stop()


def test_a_log_of_several_starts(tmp_path: Path) -> None:
    made = trace(tmp_path, HEADER, line(1, oldest=0), line(0), {**HEADER, "started": 1060.0}, line(2))
    assert [r.arrival for r in made] == [0, 1, 62]


def test_requests_without_an_answer_are_left_out(tmp_path: Path) -> None:
    cut_off = {"tokens": 0, "blocks": "", "finish": "abort"}
    made = trace(tmp_path, HEADER, line(answers=[]), line(answers=[cut_off]), line(1))
    assert len(made) == 1 and made.num_left_out == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt_blocks": "0" * 32}, "prompt_blocks does not fit the lengths; .* limit: 1 hashes of 16 hex"),
        ({"prompt_blocks": "x" * 16}, "prompt_blocks does not fit"),
        (
            {"answers": [{"tokens": 9, "blocks": "0" * 16}]},
            "line 3: blocks does not fit the lengths; .* limit: 2",
        ),
        ({"answers": [{"blocks": ""}]}, "the field tokens is missing"),
        ({"answers": [{"tokens": -1, "blocks": ""}]}, "tokens is negative; got -1"),
        ({"answers": 5}, "answers is no list of objects; got '5'"),
        ({"prompt_tokens": 0}, "prompt_tokens is zero"),
        ({"n": 0}, "n is out of range; got '0'; limit: 1 to 1024"),
        ({"beam_width": 65}, "beam_width is out of range"),
        ({"tenant": 5}, "tenant is no text"),
        ({"priority": "high"}, "priority is not a finite number"),
        ({"arrival": None}, "arrival is not a finite number"),
        ({"oldest": float("nan")}, "oldest is not a finite number"),
    ],
)
def test_bad_lines_are_refused(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceFileError, match=message) as refused:
        trace(tmp_path, HEADER, line(), line(**wrong))
    assert "log, line 3: " in str(refused.value)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            {**HEADER, "leafage_request_log": 2},
            "line 1: the log is of another version; got '2'; limit: 1. Use",
        ),
        ({**HEADER, "block_size": 0}, "line 1: block_size is wrong; got '0'; limit: 1 to 256"),
        ({"leafage_request_log": 1, "block_size": 4}, "line 1: the field started is missing"),
    ],
)
def test_bad_headers_are_refused(tmp_path: Path, header: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceFileError, match=message):
        trace(tmp_path, header, line())


def test_what_the_log_says_cannot_be_set(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="says itself how many answers"):
        trace(tmp_path, HEADER, line(), n=2)
    with pytest.raises(TraceFileError, match="line 1: the log does not begin with its header"):
        trace(tmp_path, line(), format="leafage")
