"""HashChain: finding by hash, comparing tokens."""

from __future__ import annotations

import random

import pytest

from leafage.core.hash_chain import HashChain
from leafage.core.prefix_index import Key, Node


def weak(value: str | tuple[int, Key]) -> int:
    """A hash of 2 bits."""
    return hash(value) & 3


def test_equal_hashes_are_told_apart_by_their_tokens() -> None:
    index = HashChain(2, weak)
    rng = random.Random(3)
    prompts = {tuple(rng.randint(0, 9) for _ in range(8)) for _ in range(50)}
    nodes: dict[tuple[int, ...], Node] = {}
    for prompt in prompts:
        node = index.root("")
        for i in range(0, 8, 2):
            key = prompt[i : i + 2]
            node = index.child(node, key) or index.insert(node, key, len(nodes))
            nodes[prompt[: i + 2]] = node
    index.check()
    assert len(index._table) == 4 < len(nodes)
    for prefix, node in nodes.items():
        assert index.match("", prefix, len(prefix))[-1] is node
    leaves = [prefix for prefix in nodes if len(prefix) == 8]
    for prefix in rng.sample(leaves, len(leaves)):  # first, middle and last of their chains
        index.detach(nodes[prefix])
        assert len(index.match("", prefix, 8)) == 3
        index.check()


def test_only_whole_blocks_are_known() -> None:
    index = HashChain(4)
    root = index.root("")
    index.insert(root, (1, 2, 3, 4), 0)
    assert index.child(root, (1, 2, 3)) is None and index.longest_run(root, (1, 2, 3)) is None
    assert index.covers(root, (7,)), "a partial block is never hung"
    assert index.superseded(root, (1, 2, 3, 5)) is None and index.nearest(root, (1, 2)) == (0, None)


@pytest.mark.parametrize("break_it", ["missing", "moved"])
def test_check_sees_a_wrong_table(break_it: str) -> None:
    index = HashChain(1)
    node = index.insert(index.root(""), (1,), 0)
    index._table.clear()
    if break_it == "moved":
        index._table[node.hash + 1] = node
    with pytest.raises(AssertionError):
        index.check()
