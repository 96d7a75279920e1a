"""Code 05, demos 2 to 4, and exercise 5, number by number; one seed here, all in the soak."""

from __future__ import annotations

import math

import pytest

from leafage.sim.cost_model import CostModel
from leafage.sim.hardware import Hardware
from leafage.sim.llm_spec import LLMSpec
from leafage.sim.reproduce.code_05 import (
    LECTURE_HITS,
    ORDERS,
    TOLERANCE,
    active_sessions,
    run_chat,
    run_few_shot,
)
from leafage.sim.reproduce.prefix_traces import best_hit_rate, few_shot
from tests.sim.reproduce.tools import assert_passed, run


@pytest.mark.parametrize("capacity", [300, 500, 650])
@pytest.mark.parametrize("order", ORDERS)
def test_e5_a_cache_smaller_than_a_request_never_hits(capacity: int, order: str) -> None:
    assert sum(cached for _, cached in run_few_shot(0, capacity, order).prompts) == 0


def test_e5_the_longest_request_has_739_tokens() -> None:
    assert max(len(request.prompt) + len(request.output) for request in few_shot(0)) == 739


@pytest.mark.parametrize(("capacity", "order"), LECTURE_HITS)
def test_r7_7_hit_rates_of_the_few_shot_run(capacity: int, order: str) -> None:
    result = run_few_shot(2, capacity, order)
    allowed = TOLERANCE[capacity, order]
    assert 100 * result.hit_rate == pytest.approx(LECTURE_HITS[capacity, order], abs=allowed)
    assert result.max_wait == 31 if order != "LSPF" else 62 < result.max_wait <= 206


def test_r7_7_depth_first_is_optimal_at_every_capacity() -> None:
    best = best_hit_rate(few_shot(2))
    assert {run_few_shot(2, capacity, "DFS").hit_rate for capacity in (800, 2000)} == {best}


def test_p6_order_is_of_no_use_where_everything_fits() -> None:
    runs = [run_few_shot(2, math.inf, order) for order in ORDERS]
    assert len({result.hit_rate for result in runs}) == 1
    assert runs[1].max_wait > runs[0].max_wait == 31


@pytest.mark.parametrize(("order", "seconds", "allowed"), [("FCFS", 3.95, 0.15), ("LSPF", 2.71, 0.05)])
def test_r7_10_hits_save_less_time_than_their_share(order: str, seconds: float, allowed: float) -> None:
    model = CostModel(Hardware.load("h100"), LLMSpec.load("llama-3-8b"))
    result = run_few_shot(2, 2000, order)
    whole = sum(model.prefill_seconds(tokens) for tokens, _ in result.prompts)
    ours = sum(model.prefill_seconds(tokens, cached) for tokens, cached in result.prompts)
    assert whole == pytest.approx(5.58, abs=0.03)
    assert ours == pytest.approx(seconds, abs=allowed)
    assert 1 - ours / whole < result.hit_rate


def test_r7_9_order_decides_with_a_cache_of_middling_size() -> None:
    first, longest = run_chat(0, 16_000, "FCFS"), run_chat(0, 16_000, "LSPF")
    assert longest.hit_rate > first.hit_rate + 0.4
    assert active_sessions(longest) < active_sessions(first) * 2 / 3


def test_sessions_are_active_from_their_first_to_their_last_turn() -> None:
    result = run_chat(0, 16_000, "FCFS")
    result = type(result)(["0.1", "1.1", "0.2", "2.1"], [], [])
    assert active_sessions(result) == (1 + 2 + 1 + 1) / 4


@pytest.mark.soak
@pytest.mark.parametrize("demo", ["code05-2", "code05-3", "code05-4", "exercise-5"])
def test_all_verdicts(demo: str) -> None:
    assert_passed(run(demo))
