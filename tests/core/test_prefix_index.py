"""What all prefix indexes do alike: nodes, salts, eviction; and the index that keeps nothing."""

from __future__ import annotations

import time

import pytest

from leafage.core.hash_chain import HashChain
from leafage.core.prefix_index import (
    EVICTED_RING,
    MAX_EMPTY_ROOTS,
    MAX_OTHER_ROOTS,
    NodeIndex,
    NoIndex,
)
from leafage.core.radix_tree import RadixTree

BOTH = pytest.mark.parametrize("make", [RadixTree, HashChain])


def grow(index: NodeIndex, tokens: list[int], salt: str = "", first_block: int = 0) -> None:
    """Hang whole blocks of `tokens`, held."""
    node = index.root(salt)
    size = index.block_size
    for i in range(0, len(tokens), size):
        key = tuple(tokens[i : i + size])
        node = index.child(node, key) or index.insert(node, key, first_block + i // size)
    index.check()


@BOTH
def test_match_walks_whole_blocks_within_one_salt(make: type[NodeIndex]) -> None:
    index = make(4)
    grow(index, list(range(12)))
    assert [node.block for node in index.match("", list(range(12)), 12)] == [0, 1, 2]
    assert len(index.match("", list(range(11)), 11)) == 2
    assert len(index.match("", list(range(12)), 7)) == 1, "max_tokens cuts"
    assert len(index.match("", [0, 1, 2, 3, 9, 9, 9, 9], 8)) == 1
    assert index.match("tenant", list(range(12)), 12) == []
    assert index.match("", list(range(4, 12)), 8) == [], "a block is found behind its own prefix only"


@BOTH
def test_a_subtree_lists_parents_first(make: type[NodeIndex]) -> None:
    index = make(1)
    grow(index, [1, 2, 3])
    grow(index, [1, 2, 4], first_block=10)
    grow(index, [5], first_block=20)
    (top,) = index.match("", [1], 1)
    nodes = index.subtree(top)
    assert nodes[:2] == index.match("", [1, 2], 2) and {node.key for node in nodes[2:]} == {(3,), (4,)}
    leaf = index.match("", [5], 1)[0]
    assert index.subtree(leaf) == [leaf]


@BOTH
def test_eviction_takes_idle_leaves_by_step_then_depth_then_age(make: type[NodeIndex]) -> None:
    index = make(2)
    root = index.root("")
    a = index.insert(root, (1, 1), 0)
    b = index.insert(a, (2, 2), 1)
    c = index.insert(root, (3, 3), 2)
    d = index.insert(root, (4, 4), 3)
    for node, step in ((d, 5), (c, 5), (b, 7), (a, 7)):
        index.set_idle(node, step)
    assert index.num_idle == 4
    assert [index.evict()[0] for _ in range(4)] == [c, d, b, a], "older first; a parent after its child"
    assert index.num_idle == len(list(index.nodes())) == 0
    index.check()


@BOTH
def test_a_held_node_is_not_evicted_and_is_restamped_when_idle_again(make: type[NodeIndex]) -> None:
    index = make(2)
    root = index.root("")
    a, b = index.insert(root, (1, 1), 0), index.insert(root, (2, 2), 1)
    index.set_idle(a, 1)
    index.set_idle(b, 2)
    index.set_held(a)
    assert index.num_idle == 1
    index.set_idle(a, 3)
    assert index.evict() == [b]
    index.check()


@BOTH
def test_evicted_prefixes_are_remembered_for_a_while(make: type[NodeIndex]) -> None:
    index = make(1)
    node = index.insert(index.root(""), (7,), 0)
    index.set_idle(node, 1)
    index.evict()
    assert index.evicted_run(index.root(""), (7, 8), 0) == 1
    assert index.evicted_run(index.root("tenant"), (7, 8), 0) == 0, "never what another salt held"
    for i in range(EVICTED_RING):
        node = index.insert(index.root(""), (100 + i,), 0)
        index.set_idle(node, 1)
        index.evict()
    assert index.evicted_run(index.root(""), (7, 8), 0) == 0


@BOTH
def test_other_salts_are_seen_by_the_operators_metric_only(make: type[NodeIndex]) -> None:
    index = make(2)
    grow(index, [1, 2, 3, 4], salt="a")
    assert index.elsewhere("b", [1, 2, 3, 4]) == 4
    assert index.elsewhere("a", [1, 2, 3, 4]) == 0
    for i in range(MAX_OTHER_ROOTS):
        grow(index, [9, 9], salt=f"newer {i}", first_block=10 + i)
    assert index.elsewhere("b", [1, 2, 3, 4]) == 0, "the search is bounded: newest salts only"


@BOTH
def test_roots_without_nodes_go_away(make: type[NodeIndex]) -> None:
    index = make(2)
    for i in range(100):
        node = index.insert(index.root(f"salt {i}"), (1, 2), 0)
        index.set_idle(node, i)
        index.evict()
    assert len(index._roots) == 0
    index.check()


@BOTH
def test_stale_heap_entries_do_not_pile_up(make: type[NodeIndex]) -> None:
    index = make(2)
    node = index.insert(index.root(""), (1, 2), 0)
    for step in range(1000):
        index.set_idle(node, step)
        index.set_held(node)
    assert len(index._heap) < 100


@BOTH
def test_eviction_is_fast_with_many_nodes(make: type[NodeIndex]) -> None:
    """O(log n): a linear search through 20,000 leaves would take minutes."""
    index = make(1)
    root = index.root("")
    for i in range(20_000):
        index.set_idle(index.insert(root, (i,), i), i)
    start = time.perf_counter()
    for _ in range(20_000):
        index.evict()
    assert time.perf_counter() - start < 10


@BOTH
@pytest.mark.parametrize("break_it", ["stamp", "table", "counter", "children", "parent"])
def test_check_sees_damage(make: type[NodeIndex], break_it: str) -> None:
    index = make(2)
    node = index.insert(index.root(""), (1, 2), 0)
    index.set_idle(node, 1)
    if break_it == "stamp":
        index._heap.clear()
    elif break_it == "table":
        index._nodes.clear()
    elif break_it == "counter":
        index.num_idle = 0
    elif break_it == "children":
        node.num_children = 1
    else:
        index.root("").detached = True
    with pytest.raises(AssertionError):
        index.check()


def test_no_index_keeps_nothing() -> None:
    index = NoIndex(4)
    assert index.root("").detached and index.match("", [1, 2, 3, 4], 4) == [] and not list(index.nodes())
    for change in (lambda: index.insert(index.root(""), (1,), 0), index.evict):
        with pytest.raises(AssertionError):
            change()


def test_whole_leaves_go_at_once_up_to_where_the_path_branches() -> None:
    index = RadixTree(1, eviction_unit="node")
    grow(index, [1, 2, 3, 4])
    grow(index, [1, 2, 5, 6], first_block=10)
    for step, node in enumerate(list(index.nodes())[::-1]):
        index.set_idle(node, step)
    index.set_held(index.match("", [1], 1)[0])
    assert [node.key for node in index.evict()] == [(6,), (5,)], "3 still hangs below 2"
    assert [node.key for node in index.evict()] == [(4,), (3,), (2,)], "1 is held"
    index.check()
    assert index.num_idle == 0


@BOTH
def test_salts_that_were_only_asked_for_leave_nothing_behind(make: type[NodeIndex]) -> None:
    index = make(4)
    grow(index, [1, 2, 3, 4], "kept")
    kept = index.root("kept")
    for number in range(3 * MAX_EMPTY_ROOTS):
        root = index.root(f"tenant {number}")
        assert index.root(f"tenant {number}") is root, "the same for all who look"
    assert len(index._roots) <= MAX_EMPTY_ROOTS + 2
    assert index.root("kept") is kept
    index.check()
