"""The lecture's workloads for a prefix cache: a few-shot evaluation and conversations. Times are steps."""

from __future__ import annotations

from collections.abc import Iterable

from leafage.sim.distributions import Fixed, Uniform
from leafage.sim.sessions import MultiTurn
from leafage.sim.shared_prompts import FewShot
from leafage.sim.workload import SimRequest

COMMON, TASK = 100, 500
ANSWER = 40
"""Makes the longest request one of 739 tokens, as exercise 5 says."""


def few_shot(seed: int, num_requests: int = 400) -> list[SimRequest]:
    """Prompts of 100 common tokens, 500 of one of 8 tasks and 20 to 99 of their own, all there at once."""
    return list(FewShot(seed=seed, num_requests=num_requests, output_tokens=Fixed(ANSWER)))


def best_hit_rate(requests: list[SimRequest]) -> float:
    """What a cache of any size gives few-shot requests in any order at most: every shared token is computed
    once."""
    tasks = {request.prompt[COMMON] for request in requests}
    shared = COMMON + TASK
    computed = COMMON + TASK * len(tasks) + sum(len(request.prompt) - shared for request in requests)
    return 1 - computed / sum(len(request.prompt) for request in requests)


def in_order(requests: Iterable[SimRequest]) -> list[SimRequest]:
    """Depth first through the tree of their prompts, which is their lexicographic order; all come at once.

    Optimal for a fixed set of requests and a cache that holds the longest of them (Zheng et al., NeurIPS
    2024, theorem 3.1).
    """
    return sorted(requests, key=lambda request: list(request.prompt))


def conversations(seed: int, num_sessions: int = 60, num_turns: int = 5) -> MultiTurn:
    """Turns over one system prompt of 100 tokens, with questions of 20 to 99 tokens and answers of 40 to 119.

    A turn comes 5 to 40 steps after the one before it was served; all first turns are there at once.
    """
    return MultiTurn(
        seed=seed,
        arrivals="at-once",
        num_sessions=num_sessions,
        turns=Fixed(num_turns),
        system_tokens=COMMON,
        think_seconds=Uniform(5, 40),
    )
