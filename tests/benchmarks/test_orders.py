"""The measurements of admission order and prefix indexes, on a small scale."""

from __future__ import annotations

import ageing
import ordering
import prefix_index
import pytest

from leafage.core.hash_chain import HashChain
from leafage.core.policy import POLICIES
from leafage.core.radix_tree import RadixTree


def test_first_come_first_served_waits_31_admissions() -> None:
    hits, wait, passed = ageing.run(ageing.prompts_of(0)[:120], 800, "fcfs", 0)
    assert (wait, passed) == (31, 0) and 0.2 < hits < 0.35


@pytest.mark.parametrize("bound", [4, 16])
def test_the_bound_holds_in_the_benchmark_too(bound: int) -> None:
    _, wait, passed = ageing.run(ageing.prompts_of(0)[:120], 800, "longest_prefix", bound)
    assert passed <= bound and wait <= 31 + bound


def test_alpha_orders_by_match_and_passes() -> None:
    steep = ageing.run(ageing.prompts_of(0)[:120], 2000, ageing.with_alpha(10**6), ageing.UNBOUNDED)
    flat = ageing.run(ageing.prompts_of(0)[:120], 2000, ageing.with_alpha(0), ageing.UNBOUNDED)
    assert steep[1] < 40 < flat[1] and steep[0] < flat[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_cost_of_each_order_is_measured(policy: str) -> None:
    times = ordering.measure(policy, num_waiting=5, num_tokens=32, num_steps=4)
    assert {name: len(values) for name, values in times.items()} == {"arrival": 4, "order": 4, "schedule": 4}
    assert min(times["schedule"]) > 0 and min(times["order"]) > 0


def test_the_cost_of_an_index_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_index, "NUM_PROMPTS", 4)
    monkeypatch.setattr(prefix_index, "REPETITIONS", 1)
    for make in (RadixTree, HashChain):
        assert min(prefix_index.costs(make, 64).values()) > 0
