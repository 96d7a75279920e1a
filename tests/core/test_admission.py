"""What can ever fit, and who makes room for whom."""

from __future__ import annotations

import pytest

from leafage.core.admission import at_least, fitting_max_tokens, growth_left, victim_for
from leafage.core.kv_manager import KVManager
from leafage.core.request import Request
from leafage.core.sampling_params import SamplingParams
from leafage.errors import InvalidParameterError
from tests.core.toy import Loop


def make(arrival: int, priority: int = 0, visited: int = 0, num_preemptions: int = 0) -> Request:
    request = Request(str(arrival), [1], SamplingParams(), arrival=arrival, priority=priority)
    request.visited = visited
    request.num_preemptions = num_preemptions
    return request


def test_the_victim_is_behind_the_requester_and_had_no_turn() -> None:
    running = [make(0), make(1), make(2), make(3)]
    assert victim_for(running[1], running, 7, 4) is running[3]
    running[3].visited = 7
    assert victim_for(running[1], running, 7, 4) is running[2]
    running[2].visited = 7
    assert victim_for(running[1], running, 7, 4) is running[1], "never one ahead of it"


def test_the_bound_protects_within_a_class_only() -> None:
    high, low = make(5), make(1, priority=1, num_preemptions=4)
    peer = make(9, num_preemptions=4)
    assert victim_for(high, [high, low], 7, 4) is low
    assert victim_for(high, [high, peer], 7, 4) is high


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("n", [1, 3])
def test_the_largest_output_is_exactly_what_the_pool_holds(block_size: int, n: int) -> None:
    kv = KVManager(20, block_size)
    for length in range(1, 3 * block_size):
        request = Request("r", list(range(length)), SamplingParams(max_tokens=None, n=n))
        fitting = fitting_max_tokens(request, kv, max_seqs=8, max_model_len=10_000)
        full = length // block_size

        def worst(max_tokens: int, length: int = length, full: int = full) -> int:
            return full + n * (-(-(length + max_tokens - 1) // block_size) - full)

        assert worst(fitting) <= 20 < worst(fitting + 1)


def test_growth_left_covers_what_a_gang_still_takes() -> None:
    loop = Loop(200, 4)
    loop.add(range(10), "gang", n=3, max_tokens=21, temperature=1.0)
    request = loop.requests["gang"]
    while loop.scheduler.has_unfinished:
        loop.step()
        if loop.scheduler.has_unfinished:
            assert loop.kv.num_active + growth_left(request, loop.kv) >= 2 + 3 * (8 - 2)


def test_at_least_names_the_limit() -> None:
    at_least(1, a=1, b=2)
    with pytest.raises(InvalidParameterError, match="b is out of range; got 0; limit: at least 1"):
        at_least(1, a=1, b=0)
