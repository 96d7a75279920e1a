"""BlockPool: free list and reference counts."""

from __future__ import annotations

import pytest

from leafage.core.block_pool import BlockPool
from tests.core.toy import Loop


def test_blocks_are_handed_out_once_and_come_back() -> None:
    pool = BlockPool(4)
    taken = [pool.take() for _ in range(4)]
    assert taken == [0, 1, 2, 3] and pool.num_free == 0
    pool.hold(2)
    assert pool.drop(2) == 1 and pool.num_free == 0
    assert pool.drop(2) == 0 and pool.num_free == 1
    assert pool.take() == 2
    pool.check()


def test_a_double_free_is_seen() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.drop(block)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.drop(block)


def test_a_free_block_cannot_be_held() -> None:
    with pytest.raises(AssertionError, match="is free"):
        BlockPool(2).hold(1)


def test_check_sees_a_lost_block() -> None:
    pool = BlockPool(3)
    pool.take()
    pool.ref_count[0] = 0
    with pytest.raises(AssertionError, match="block 0"):
        pool.check()


def test_blocks_follow_demand_in_the_pools_order() -> None:
    """Two sequences of 20 and 24 tokens, block 8, shuffled pool: a new block when the last is full."""
    order = [8, 11, 4, 7, 5, 0, 1, 9, 2, 3, 6, 10]
    loop = Loop(12, 8, block_order=order)
    loop.add(range(20), "A", max_tokens=30)
    loop.add(range(100, 124), "B", max_tokens=30)

    def tables() -> list[list[int]]:
        return [request.sequences[0].block_table for request in loop.scheduler.roster.running]

    loop.step()
    assert tables() == [[8, 11, 4], [7, 5, 0]] and loop.kv.num_free == 6
    loop.step()
    assert tables() == [[8, 11, 4], [7, 5, 0, 1]] and loop.kv.num_free == 5
    for _ in range(4):
        loop.step()
    assert tables() == [[8, 11, 4, 9], [7, 5, 0, 1]] and loop.kv.num_free == 4
    for _ in range(7):
        loop.step()
    assert tables() == [[8, 11, 4, 9], [7, 5, 0, 1, 2]] and loop.kv.num_free == 3
