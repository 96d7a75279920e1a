"""The map of the pool against a count of who holds what, in random worlds."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from leafage.core.block_map import CACHED, FREE, PINNED, PRIVATE, RESERVED, SHARED
from leafage.core.kv_manager import INDEXES
from tests.core.toy import Loop, numbers
from tests.core.world import World


def counted(loop: Loop) -> bytes:
    """The same, block by block."""
    kv: Any = loop.kv
    holders = Counter(block for seq in kv.attached() for block in seq.block_table)
    indexed = {node.block for node in kv.index.nodes()}
    pinned = {node.block for pin in kv.pins for node in pin.nodes}
    free: set[int] = set()
    reserved = hasattr(kv, "_arena")
    if reserved:
        free.update(b for start, length in kv._arena.free_runs() for b in range(start, start + length))
    letters = []
    for block in range(kv.num_blocks):
        if block in pinned:
            letters.append(PINNED)
        elif holders[block] > 1:
            letters.append(SHARED)
        elif holders[block]:
            letters.append(PRIVATE)
        elif block in indexed:
            letters.append(CACHED)
        else:
            letters.append(RESERVED if reserved and block not in free else FREE)
    return bytes(letters)


@pytest.mark.parametrize("seed", range(30))
def test_letters_are_what_a_count_says_in_every_world(seed: int) -> None:
    options: dict[str, object] = {"check": False}
    if seed < len(INDEXES):
        options["prefix_index"] = list(INDEXES)[seed]
    elif seed % 5 == 4:
        options["reservation"] = ["max", "pow2", "oracle"][seed % 3]
        options["allocator"] = ["first-fit", "buddy", "scattered"][seed // 5 % 3]
    world = World(random.Random(seed), **options)
    kv = world.loop.kv
    for _ in range(150):
        world.step()
        letters = kv.block_map()
        assert letters == counted(world.loop)
        assert letters.count(FREE) == kv.num_free
        assert letters.count(CACHED) == kv.num_cached
        assert len(letters) - letters.count(FREE) - letters.count(CACHED) == kv.num_active
        assert letters.count(PINNED) == kv.pins.num_blocks


def test_a_block_may_have_more_holders_than_a_byte_can_count() -> None:
    loop = Loop(num_blocks=1600, block_size=4, max_num_seqs=300, check=False)
    loop.add(numbers(9), n=300, max_tokens=9, temperature=1.0)
    loop.step()
    loop.step()
    assert loop.kv.block_map() == counted(loop)
    assert loop.kv.block_map().count(SHARED) == 2


def test_node_at_is_the_node_of_a_block() -> None:
    loop = Loop(num_blocks=8, block_size=4)
    loop.add(numbers(10), max_tokens=1)
    loop.run()
    nodes = {node.block: node for node in loop.kv.index.nodes()}
    assert len(nodes) == 3
    assert [loop.kv.node_at(block) for block in range(8)] == [nodes.get(block) for block in range(8)]
    assert Loop(8, 4, reservation="max", max_model_len=8).kv.node_at(0) is None
