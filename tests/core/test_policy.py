"""Admission orders."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from leafage.core.kv_manager import KVManager
from leafage.core.policy import POLICIES, Fair, KeyOrder, Policy
from leafage.core.request import Request
from leafage.errors import InvalidParameterError
from tests.core.toy import Loop, numbers


def order_of(loop: Loop) -> list[str]:
    scheduler = loop.scheduler
    return [request.request_id for request in scheduler.roster.policy.order(scheduler.roster.waiting)]


def admissions(loop: Loop) -> list[str]:
    """Run to the end; who was admitted in which order."""
    started: list[str] = []
    start = loop.scheduler.roster.start

    def noted(request: Request) -> None:
        started.append(request.request_id)
        start(request)

    loop.scheduler.roster.start = noted  # type: ignore[method-assign]
    loop.run()
    return started


def test_fcfs_keeps_the_order_of_service() -> None:
    loop = Loop()
    for name, priority in (("b", 0), ("a", 0), ("urgent", -1)):
        loop.add([1], name, priority=priority)
    assert order_of(loop) == ["urgent", "b", "a"]


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(InvalidParameterError, match="unknown policy; got 'sjf'; limit: fcfs or"):
        Loop(policy="sjf")


def test_a_policy_can_be_written_elsewhere() -> None:
    class Longest(Policy):
        def order(self, waiting: Sequence[Request]) -> Iterator[Request]:
            return iter(sorted(waiting, key=lambda request: -len(request.prompt_token_ids)))

    loop = Loop(policy=Longest, max_num_seqs=1)
    loop.add([1], "short", max_tokens=1)
    loop.add(range(9), "long", max_tokens=1)
    assert admissions(loop) == ["long", "short"]


@pytest.mark.parametrize("policy", POLICIES)
def test_classes_come_first_under_every_policy(policy: str) -> None:
    loop = Loop(policy=policy, max_num_seqs=1)
    rng = random.Random(policy)
    for i in range(40):
        prompt = [rng.randint(0, 2) for _ in range(rng.randint(1, 9))]
        loop.add(prompt, f"{i}", priority=rng.choice([-1, 0, 2]), tenant=rng.choice("ab"), max_tokens=1)
    started = admissions(loop)
    priorities = [loop.requests[request_id].priority for request_id in started]
    assert len(started) == 40 and priorities == sorted(priorities)


def test_shortest_prompt_first() -> None:
    loop = Loop(policy="shortest_prompt", max_num_seqs=1)
    for length in (5, 3, 9, 3):
        loop.add(numbers(length), max_tokens=1)
    assert admissions(loop) == ["r1", "r3", "r0", "r2"]


@pytest.mark.parametrize("prefix_index", ["radix", "hash_chain"])
def test_longest_prefix_follows_what_is_cached(prefix_index: str) -> None:
    loop = Loop(40, 4, policy="longest_prefix", max_num_seqs=1, prefix_index=prefix_index)
    loop.add(numbers(16), "a", max_tokens=1)
    loop.add(numbers(16, 100), "b", max_tokens=1)
    loop.add([*numbers(8), *numbers(8, 200)], "half", max_tokens=1)
    loop.add([*numbers(16), *numbers(4, 300)], "whole", max_tokens=1)
    loop.add(numbers(16), "whole in another salt", max_tokens=1, salt="s")
    assert order_of(loop) == ["a", "b", "half", "whole", "whole in another salt"], "nothing is cached yet"
    loop.step()
    assert order_of(loop) == ["whole", "half", "b", "whole in another salt"], "published while it runs"
    loop.kv.reset_prefix_cache()
    assert order_of(loop) == ["b", "half", "whole", "whole in another salt"]
    loop.run()


def test_depth_first_goes_through_the_tree_of_prompts() -> None:
    loop = Loop(policy="depth_first", max_num_seqs=1)
    prompts = {"x1": [1, 1, 1], "y1": [2, 1, 1], "x2": [1, 1, 2], "y2": [2, 1, 1, 1], "x3": [1, 2], "z": [0]}
    for name, prompt in prompts.items():
        loop.add(prompt, name, max_tokens=1)
    assert admissions(loop) == ["z", "x1", "x2", "x3", "y1", "y2"]


def test_depth_first_goes_on_where_it_was() -> None:
    loop = Loop(policy="depth_first", max_num_seqs=1)
    for first in (3, 7):
        loop.add([first, 1], f"{first}", max_tokens=3)
    loop.step()
    for first in (1, 4, 9):
        loop.add([first, 1], f"{first}", max_tokens=1)
    assert admissions(loop) == ["4", "7", "9", "1"], "from the 3 that runs to the end, then from the start"


@pytest.mark.parametrize("name", ["longest_prefix", "depth_first", "shortest_prompt"])
def test_the_sorted_entries_are_those_of_the_waiting_list(name: str) -> None:
    """Random arrivals, admissions and evictions: the list that is kept equals one that is made anew."""
    rng = random.Random(name)
    loop = Loop(30, 4, policy=name, max_num_seqs=3, max_passes=5)
    policy = loop.scheduler.roster.policy
    assert isinstance(policy, KeyOrder)
    heads = [[rng.randint(0, 5) for _ in range(24)] for _ in range(4)]
    for _ in range(200):
        if rng.random() < 0.6:
            head = rng.choice(heads)[: rng.randint(1, 24)]
            prompt = [*head, rng.randint(0, 9)]
            loop.add(prompt, max_tokens=rng.randint(1, 9), priority=rng.choice([0, 0, 1]))
        waiting = loop.scheduler.roster.waiting
        assert set(map(id, policy.order(waiting))) == set(map(id, waiting))
        anew = sorted((r.priority, policy.key(r), r.arrival) for r in waiting)
        assert [entry[:3] for entry in policy._entries] == anew
        loop.step()
    loop.run()
    assert not policy._entries and not policy._entry_of


def test_overdue_requests_go_first_in_order_of_arrival() -> None:
    loop = Loop(policy="shortest_prompt", max_num_seqs=1, max_passes=2)
    for length in (9, 8, 1, 2, 3, 4, 5):
        loop.add(numbers(length), max_tokens=1)
    assert admissions(loop) == ["r2", "r3", "r0", "r1", "r4", "r5", "r6"]
    assert [request.passed for request in loop.requests.values()] == [2, 2, 0, 0, 0, 0, 0]


def test_max_passes_of_zero_is_first_come_first_served() -> None:
    loop = Loop(policy="shortest_prompt", max_num_seqs=1, max_passes=0)
    for length in (9, 8, 1):
        loop.add(numbers(length), max_tokens=1)
    assert admissions(loop) == ["r0", "r1", "r2"]


# -- fair --------------------------------------------------------------------------------------------


def test_fair_alternates_between_equal_tenants() -> None:
    loop = Loop(policy="fair", max_num_seqs=1, prefix_index="none")
    for i in range(6):
        loop.add(numbers(4, i), f"a{i}", tenant="a", max_tokens=1)
    for i in range(3):
        loop.add(numbers(4, 100 + i), f"b{i}", tenant="b", max_tokens=1)
    assert admissions(loop) == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "a4", "a5"]


def test_fair_charges_what_is_computed() -> None:
    """Prompt tokens once, output tokens twice, cached ones not at all."""
    loop = Loop(40, 4, policy="fair", max_num_seqs=1)
    policy = loop.scheduler.roster.policy
    assert isinstance(policy, Fair)
    loop.add(numbers(9), tenant="a", max_tokens=3)
    loop.run()
    assert policy.served()["a"] == 9 + 2 * 3
    loop.add(numbers(9), tenant="a", max_tokens=3)
    loop.run()
    assert policy.served()["a"] == 15 + 1 + 2 * 3


def test_idle_time_earns_nothing() -> None:
    loop = Loop(policy="fair", max_num_seqs=1, prefix_index="none")
    for i in range(20):
        loop.add(numbers(4, i), tenant="a", max_tokens=1)
    loop.run()
    for i in range(4):
        loop.add(numbers(4, i), f"a{i}", tenant="a", max_tokens=1)
        loop.add(numbers(4, i), f"b{i}", tenant="b", max_tokens=1)
    started = admissions(loop)
    assert {request_id[0] for request_id in started[:2]} == {"a", "b"} == {r[0] for r in started[2:4]}


def test_tenants_that_left_are_forgotten() -> None:
    loop = Loop(policy="fair", check=False)
    for i in range(1000):
        loop.add(numbers(4, i), tenant=f"tenant {i}", max_tokens=1)
        loop.run()
    policy = loop.scheduler.roster.policy
    assert isinstance(policy, Fair)
    assert len(policy._waiting) < 150 and len(policy._settled) < 150 and len(policy._admitted) < 5


def test_every_policy_is_made_from_a_kv_manager_and_a_bound() -> None:
    for make in POLICIES.values():
        assert make(KVManager(4, 4), 7).max_passes == 7


def test_static_batches_run_until_all_of_them_ended() -> None:
    """Five wait, three run at once; then the two others and who arrived meanwhile."""
    loop = Loop(policy="static", max_num_seqs=3)
    for i, length in enumerate((2, 9, 4, 3, 3)):
        loop.add([i], f"r{i}", max_tokens=length)
    loop.step()
    loop.add([7], "late", max_tokens=2)
    batches = [loop.scheduler.num_running]
    while loop.scheduler.has_unfinished:
        before = {request.request_id for request in loop.scheduler.roster.running}
        loop.step()
        after = {request.request_id for request in loop.scheduler.roster.running}
        if before and after - before:
            raise AssertionError(f"{after - before} joined {before}")
        if not before and after:
            batches.append(len(after))
    assert batches == [3, 3]
    for request_id in loop.requests:
        loop.assert_undisturbed(request_id)


def test_a_static_batch_is_admitted_over_several_steps() -> None:
    """The token budget takes the prompts of a batch in turns; who arrives meanwhile does not join."""
    loop = Loop(policy="static", max_num_batched_tokens=16)
    for i in range(4):
        loop.add([i] * 20, f"r{i}", max_tokens=30)
    loop.step()
    assert 0 < loop.scheduler.num_running < 4
    loop.add([9], "late", max_tokens=1)
    for _ in range(12):
        loop.step()
    assert loop.scheduler.num_running == 4 and loop.scheduler.num_waiting == 1
    loop.run()


@pytest.mark.parametrize("reservation", [None, "max"])
def test_nobody_joins_a_static_batch_of_which_one_ended(reservation: str | None) -> None:
    """Not even when there is room; preempted ones wait, too, and nothing is lost."""
    loop = Loop(16, 4, policy="static", max_model_len=32, reservation=reservation)
    roster = loop.scheduler.roster
    start, remove, stop = roster.start, roster.remove, roster.stop
    broken = False
    batches: list[int] = []

    def started(request: Request) -> None:
        nonlocal broken
        if not roster.running:
            broken = False
            batches.append(0)
        assert not broken
        batches[-1] += 1
        start(request)

    def left(leave: Callable[[Request], None], request: Request) -> None:
        nonlocal broken
        broken = True
        leave(request)

    roster.start = started  # type: ignore[method-assign]
    roster.remove = partial(left, remove)  # type: ignore[method-assign]
    roster.stop = partial(left, stop)  # type: ignore[method-assign]
    for i in range(9):
        loop.add([i] * 5, f"r{i}", max_tokens=2 + 3 * i)
    loop.run()
    if reservation == "max":
        assert batches == [2, 2, 2, 2, 1]
    for request_id in loop.requests:
        loop.assert_undisturbed(request_id)
