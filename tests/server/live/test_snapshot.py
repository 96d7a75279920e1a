"""Snapshots of the core: what adds up, what is bounded, and that taking one changes nothing."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from leafage.core.request import Request
from leafage.engine.metrics import EngineMetrics
from leafage.server.live.snapshot import MAX_EDGES, MAX_REQUESTS, STATES, ended, in_runs, snapshot
from tests.core.toy import Loop, numbers
from tests.core.world import World
from tests.engine.rig import Rig


class Clock:
    """Stands still until it is moved."""

    time = 0.0

    def now(self) -> float:
        return self.time


def taken(loop: Loop) -> dict[str, Any]:
    """A snapshot, as the page gets it."""
    engine: Any = SimpleNamespace(scheduler=loop.scheduler)
    return json.loads(json.dumps(snapshot(engine, EngineMetrics(Clock(), loop.scheduler))))


def expanded(runs: str) -> str:
    return re.sub(r"(.)(\d+)", lambda run: run[1] * int(run[2]), runs)


@pytest.mark.parametrize("seed", range(16))
def test_blocks_add_up_in_every_world(seed: int) -> None:
    options: dict[str, object] = {"check": False}
    if seed % 4 == 3:
        options |= {"reservation": "pow2", "allocator": ["buddy", "scattered"][seed // 4 % 2]}
    else:
        options["prefix_index"] = ["radix", "hash_chain", "none"][seed % 4]
    world = World(random.Random(seed), **options)
    for _ in range(80):
        world.step()
        state = taken(world.loop)
        blocks = state["blocks"]
        assert blocks["free"] + blocks["cached"] + blocks["active"] == blocks["total"]
        assert sum(blocks["states"].values()) == blocks["total"]
        assert blocks["states"]["free"] == blocks["free"] and blocks["states"]["cached"] == blocks["cached"]
        letters = expanded(blocks["map"])
        assert len(letters) == blocks["total"]
        assert {name: letters.count(chr(letter)) for name, letter in STATES.items()} == blocks["states"]
        assert len(state["running"]) == state["num_running"]
        assert len(state["waiting"]) == state["num_waiting"]
        for row in state["running"]:
            assert row["cached"] <= row["prompt"] and row["computed"] <= row["prompt"]
            assert row["blocks"] > 0 and row["state"] in ("prefill", "decode")
            assert all(place < len(state["tree"]["edges"]) for place in row["edges"])


def test_taking_one_changes_nothing() -> None:
    def play(looks: bool) -> tuple[object, ...]:
        world = World(random.Random(5), prefix_index="radix")
        for _ in range(150):
            world.step()
            if looks:
                snapshot(SimpleNamespace(scheduler=world.loop.scheduler), EngineMetrics(Clock()))  # type: ignore[arg-type]
                world.loop.verify()
        index: Any = world.loop.kv.index
        return world.loop.kv.block_map(), world.loop.scheduler.counters, sorted(index._roots), index._number

    assert play(looks=True) == play(looks=False)


def test_a_shared_prefix_is_an_edge_at_whose_ends_the_requests_stand() -> None:
    loop = Loop(num_blocks=64, block_size=4)
    for i in range(3):
        loop.add([*numbers(12), *numbers(4, 20 + 10 * i)], max_tokens=9)
    loop.step()
    loop.step()
    state = taken(loop)
    edges = state["tree"]["edges"]
    assert [edge[2:5] for edge in edges] == [[-1, 12, 1], [0, 4, 1], [0, 4, 1], [0, 4, 1]]
    assert [row["edges"] for row in state["running"]] == [[1], [2], [3]]
    assert [row["number"] for row in state["running"]] == [0, 1, 2]
    assert state["blocks"]["states"]["shared"] == 3


def test_salts_are_told_apart_and_not_told() -> None:
    loop = Loop(num_blocks=64, block_size=4)
    loop.add(numbers(8), salt="a secret", max_tokens=1)
    loop.add(numbers(8), max_tokens=1)
    loop.run()
    state = taken(loop)
    assert sorted(edge[2] for edge in state["tree"]["edges"]) == [-2, -1]
    assert "secret" not in json.dumps(state)


def test_pinned_edges_say_so() -> None:
    loop = Loop(num_blocks=64, block_size=4, max_pinned_blocks=8)
    pin = loop.pin(numbers(8))
    loop.run()
    assert pin.held
    loop.add(numbers(16), max_tokens=1)
    loop.run()
    state = taken(loop)
    assert [edge[3:5] for edge in state["tree"]["edges"]] == [[8, 2], [8, 0]]
    assert state["blocks"]["states"]["pinned"] == 2


def test_waiting_and_preempted_requests_say_why() -> None:
    loop = Loop(num_blocks=8, block_size=4, num_swap_slots=8, preemption="swap", prefix_index="none")
    for i in range(6):
        loop.add(numbers(8, 10 * i), max_tokens=20)
    states = set()
    for _ in range(30):
        loop.step()
        states.update(row["state"] for row in taken(loop)["waiting"])
    assert states == {"waiting", "swapped"}
    assert taken(loop)["waiting"][0]["blocks"] > 0


def test_it_is_bounded_whatever_runs() -> None:
    loop = Loop(num_blocks=4000, block_size=2, max_num_seqs=128, check=False)
    rng = random.Random(1)
    for _ in range(900):
        loop.add([rng.randrange(1000) for _ in range(rng.randrange(2, 12))], max_tokens=1)
    loop.run()
    for _ in range(300):
        loop.add([rng.randrange(1000) for _ in range(8)], max_tokens=100)
    loop.step()
    loop.step()
    state = taken(loop)
    assert state["num_running"] == 128 and state["num_waiting"] == 172
    assert len(state["running"]) == len(state["waiting"]) == MAX_REQUESTS
    assert len(state["tree"]["edges"]) == MAX_EDGES < 900 < state["tree"]["num_edges"]
    assert len(json.dumps(state)) < 64 * 1024


def test_runs_of_the_map() -> None:
    assert in_runs(b"....cc") == ".4cc"
    assert in_runs(b"...c" + b"p" * 12000) == "...cp12000"


def test_the_row_of_a_request_that_ended(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("hello", clock=Clock())
    rows: list[dict[str, Any]] = []
    rig.metrics.on_finished = lambda request, times: rows.append(ended(request, times))
    request = rig.engine.add_request("one", [5] * 9, rig.inputs.request("one", [5], _params(20)).params)
    rig.engine.step()
    Clock.time = 0.0
    rig.metrics.clock.time = 2.0  # type: ignore[attr-defined]
    rig.engine.step()
    assert isinstance(request, Request)
    row = snapshot(rig.engine, rig.metrics)["running"][0]
    assert (row["id"], row["prompt"], row["computed"], row["output"]) == ("one", 9, 9, 2)
    assert (row["ttft"], row["decode"], row["age"]) == (0.0, 2.0, 2.0)
    while rig.engine.has_unfinished:
        rig.engine.step()
    assert rows[0].keys() <= row.keys()
    assert (rows[0]["state"], rows[0]["output"], rows[0]["age"]) == ("stop", 6, 2.0)
    rig.engine.add_request("two", [6] * 9, request.params)
    rig.engine.abort("two")
    assert (rows[1]["state"], rows[1]["output"], rows[1]["ttft"]) == ("abort", 0, None)


def _params(max_tokens: int) -> Any:
    from leafage.core.sampling_params import SamplingParams

    return SamplingParams(max_tokens=max_tokens, temperature=0.0)
