from __future__ import annotations

from itertools import pairwise

import pytest

from leafage.errors import InvalidParameterError
from leafage.sim.generated import Generated
from leafage.sim.sessions import Agents, MultiTurn
from leafage.sim.workload import SimRequest
from tests.sim.runs import Ended, run, small_simulation

SMALL = {
    MultiTurn: MultiTurn(num_sessions=12, turns=4, think_seconds="1-3", rate=5.0),
    Agents: Agents(num_agents=10, branch_share=0.5, rate=5.0, system_tokens=200),
}


def programs(ended: list[Ended]) -> dict[str, list[Ended]]:
    """By their names, each in the order of the end."""
    found: dict[str, list[Ended]] = {}
    for one in ended:
        found.setdefault(one.asked.request_id.split(".")[0], []).append(one)
    return found


def plain(request: SimRequest) -> tuple[str, list[int], list[int]]:
    return request.request_id, list(request.prompt), list(request.output)


def test_a_turn_follows_the_answer_before_and_repeats_it() -> None:
    _, ended = run(SMALL[MultiTurn])
    assert len(ended) == 12 * 4
    for name, turns in programs(ended).items():
        assert [t.asked.request_id for t in turns] == [f"{name}.{i}" for i in range(1, 5)]
        for before, after in pairwise(turns):
            pause = after.metrics.arrival_time - before.metrics.finished_time
            assert 1 <= pause <= 3
            history = [*before.asked.prompt, *before.request.sequences[0].tokens[len(before.asked.prompt) :]]
            assert after.asked.prompt[: len(history)] == history
            assert 20 <= len(after.asked.prompt) - len(history) <= 99


def test_a_turn_finds_its_history_in_the_cache() -> None:
    """All of it but the last token of the answer, which was drawn and never computed."""
    _, ended = run(SMALL[MultiTurn])
    for turns in programs(ended).values():
        for before, after in pairwise(turns):
            assert after.request.num_cached == len(before.asked.prompt) + len(before.asked.output) - 1


def test_an_agent_reads_all_branches_and_what_its_tools_say() -> None:
    _, ended = run(SMALL[Agents])
    branched = 0
    for runs in programs(ended).values():
        steps: dict[str, list[Ended]] = {}
        for one in sorted(runs, key=lambda one: one.asked.request_id):
            steps.setdefault(one.asked.request_id.split(".")[1], []).append(one)
        assert 3 <= len(steps) <= 8
        for before, after in pairwise(steps.values()):
            branched += len(before) == 3
            assert len(before) in (1, 3) and len({one.metrics.arrival_time for one in after}) == 1
            assert after[0].metrics.arrival_time > max(one.metrics.finished_time for one in before)
            begin = set(after[0].asked.prompt)
            for one in before:
                assert begin.issuperset(one.asked.prompt) and begin.issuperset(one.asked.output)
    assert branched > 5


def test_branches_compute_their_common_history_once() -> None:
    workload = Agents(num_agents=1, branch_share=1.0, steps=1, system_tokens=304, task_tokens=16, branches=4)
    result, ended = run(workload)
    assert len(ended) == 4 and len({tuple(one.asked.prompt[:320]) for one in ended}) == 1
    assert result.counters.prefix_hits == 3 * 320


@pytest.mark.parametrize("make", SMALL)
def test_what_is_said_does_not_depend_on_the_order_of_answers(make: type[Generated]) -> None:
    """On a slow engine answers come late and in another order; a second run is a new start."""
    _, fast = run(SMALL[make])
    _, slow = run(SMALL[make], small_simulation(max_num_seqs=4, budget=64))
    assert [one.asked.request_id for one in fast] != [one.asked.request_id for one in slow]
    assert sorted(plain(one.asked) for one in fast) == sorted(plain(one.asked) for one in slow)


@pytest.mark.parametrize("make", SMALL)
def test_programs_stay_below_the_length_that_is_set(make: type[Generated]) -> None:
    settings = {"max_total_tokens": 500, "rate": 5.0}
    _, ended = run(
        make(num_sessions=20, **settings) if make is MultiTurn else make(system_tokens=200, **settings)
    )
    longest = max(len(one.asked.prompt) + len(one.asked.output) for one in ended)
    assert 400 < longest <= 500
    firsts = [one for one in ended if one.asked.request_id.endswith(".1")]
    assert len(firsts) >= 20 and len(ended) > len(firsts)
    shortest = 40 if make is MultiTurn else 30
    assert all(len(one.asked.output) >= shortest for one in ended if one not in firsts), "no answer is cut"


def test_a_first_prompt_that_fills_the_room_gets_a_short_answer() -> None:
    workload = MultiTurn(num_sessions=5, question_tokens=50, output_tokens=40, max_total_tokens=160)
    assert [(len(r.prompt), len(r.output)) for r in workload] == [(150, 10)] * 5


def test_a_program_ends_where_a_request_is_refused() -> None:
    simulation = small_simulation(num_blocks=16)
    result, ended = run(MultiTurn(num_sessions=3, turns=9, question_tokens=40, output_tokens=40), simulation)
    assert result.records.num_refused == 3 and 0 < len(ended) < 27


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (MultiTurn, {"num_sessions": 0}, "num_sessions is out of range"),
        (MultiTurn, {"system_tokens": -1}, "system_tokens is out of range"),
        (
            MultiTurn,
            {"max_total_tokens": 199},
            "no room after the first prompt; got 199; limit: at least 200",
        ),
        (Agents, {"num_agents": 0}, "num_agents is out of range"),
        (Agents, {"branches": 1}, "branches is out of range; got 1; limit: at least 2"),
        (Agents, {"branch_share": 1.5}, "branch_share is out of range"),
        (Agents, {"max_total_tokens": 1000}, "no room after the first prompt"),
    ],
)
def test_settings_out_of_range_are_refused(
    make: type[Generated], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        make(**settings)
