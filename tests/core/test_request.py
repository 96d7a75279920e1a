"""Requests, sequences, seeds."""

from __future__ import annotations

from leafage.core.request import Request, derive
from leafage.core.sampling_params import SamplingParams


def test_the_first_sequence_draws_with_the_requests_own_seed() -> None:
    assert derive(42, 0) == 42
    assert derive(2**64 - 1, 0) == 2**64 - 1


def test_derived_seeds_are_64_bit_and_do_not_collide() -> None:
    seeds = {derive(seed, index) for seed in range(200) for index in range(50)}
    assert len(seeds) == 200 * 50
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_derived_seeds_never_change() -> None:
    """A stored seed must give the same answer for ever."""
    assert [derive(0, i) for i in range(1, 4)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_a_gang_lists_its_live_sequences() -> None:
    request = Request("r", [1, 2, 3], SamplingParams(n=2), seed=5)
    first, second = request.new_sequence(10), request.new_sequence(11)
    assert (first.index, second.index) == (0, 1) and second.seed == derive(5, 1)
    assert first.gang is second.gang is request.sequences
    assert first.tokens is not second.tokens and first.num_output_tokens == 0
    assert request.live == [first, second]
