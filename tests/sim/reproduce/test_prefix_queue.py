"""The harness on the prefix index alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from leafage.sim.reproduce.prefix_queue import (
    BLOCK_SIZE,
    Choice,
    PrefixCache,
    Waiting,
    fcfs,
    longest_prefix,
    simulate,
)
from leafage.sim.reproduce.prefix_traces import conversations, few_shot, in_order
from leafage.sim.workload import SimRequest, Trace


def waiting(prompt: Sequence[int], answer: Sequence[int] = ()) -> Waiting:
    return Waiting(SimRequest("", 0.0, prompt, answer), list(prompt), 0)


@pytest.mark.parametrize("choose", [fcfs, longest_prefix()])
@pytest.mark.parametrize("block_size", [1, 4])
def test_blocks_change_nothing_where_they_divide_the_shared_prefixes(choose: Choice, block_size: int) -> None:
    """Hits, order and waits are those of an index with one token a block, as the lecture's."""
    sizes = (BLOCK_SIZE, block_size)
    runs = [simulate(Trace(few_shot(1, 40)), 1500, choose, block_size=size) for size in sizes]
    chats = [simulate(conversations(1, 7, 3), 1500, choose, block_size=size) for size in sizes]
    assert runs[0] == runs[1] and chats[0] == chats[1]
    assert 0 < chats[0].hit_rate < 1 and 0 < runs[0].hit_rate < 1


def test_hits_are_counted_to_the_token() -> None:
    cache = PrefixCache(math.inf, block_size=4)
    assert cache.serve(waiting(range(10), [90, 91, 92])) == 0
    assert cache.num_tokens == 13
    assert cache.serve(waiting([*range(10), 90, 91, 92, 50, 51])) == 13, "the answer is cached as well"
    assert cache.num_tokens == 15, "the longer end replaced the shorter one"
    assert cache.serve(waiting([0, 1, 2, 3, 4, 5, 60])) == 6
    assert cache.serve(waiting(range(10), [90])) == 10
    cache.check()


def test_whole_leaves_leave_the_least_recently_used_first() -> None:
    cache = PrefixCache(28, block_size=4)
    first, second = [*range(8), *range(100, 112)], [*range(8), *range(200, 208)]
    cache.serve(waiting(first))
    cache.serve(waiting(second))
    assert cache.num_tokens == 28
    cache.serve(waiting(range(300, 304)))  # the 12 tokens of `first` below the branch make room
    assert cache.num_tokens == 20
    assert cache.matched(waiting(first)) == 8 and cache.matched(waiting(second)) == 16
    cache.check()


def test_what_was_matched_before_an_eviction_is_looked_up_again() -> None:
    cache = PrefixCache(12, block_size=4)
    again = waiting(range(12))
    cache.serve(waiting(range(12)))
    assert cache.matched(again) == 12
    cache.serve(waiting(range(100, 112)))
    assert cache.matched(again) == 0
    cache.serve(waiting(range(8)))
    assert cache.matched(again) == 8


def test_the_window_is_all_that_an_order_sees() -> None:
    shared, other = list(range(20)), list(range(100, 120))
    prompts = [[*shared, 1000], [*other, 1001], [*other, 1002], [*shared, 1003]]
    requests = [SimRequest(str(i), 0.0, prompt, [2000 + i]) for i, prompt in enumerate(prompts)]
    wide = simulate(Trace(requests), math.inf, longest_prefix(), window=4)
    narrow = simulate(Trace(requests), math.inf, longest_prefix(), window=2)
    assert wide.request_ids == ["0", "3", "1", "2"] and wide.waits == [0, 1, 2, 3]
    assert narrow.request_ids == ["0", "1", "2", "3"] and narrow.waits == [0, 1, 1, 1]
    assert wide.prompts == [(21, 0), (21, 20), (21, 0), (21, 20)]


def test_ageing_and_bounds_change_who_goes_first() -> None:
    requests = few_shot(0, 100)
    runs = {
        name: simulate(Trace(requests), 2000, choose)
        for name, choose in {
            "plain": longest_prefix(),
            "aged": longest_prefix(alpha=1000),
            "bounded": longest_prefix(max_wait=36),
            "first": longest_prefix(first=1),
            "fcfs": fcfs,
        }.items()
    }
    assert runs["aged"].max_wait == runs["fcfs"].max_wait == 31
    assert runs["first"] == runs["fcfs"]
    assert 36 <= runs["bounded"].max_wait < runs["plain"].max_wait
    assert runs["fcfs"].hit_rate < runs["bounded"].hit_rate < runs["plain"].hit_rate


def test_in_order_puts_common_prefixes_together() -> None:
    requests = in_order(few_shot(0, 50))
    tasks = [request.prompt[100] for request in requests]
    assert tasks == sorted(tasks) and len(set(tasks)) == 8


def test_steps_pass_while_everybody_thinks() -> None:
    result = simulate(conversations(0, 1, 3), math.inf)
    assert result.request_ids == ["0.1", "0.2", "0.3"] and result.waits == [0, 0, 0]
    assert result.prompts[0][1] == 0 and all(cached for _, cached in result.prompts[1:])
