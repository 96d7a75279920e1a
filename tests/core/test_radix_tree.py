"""RadixTree: finding, eviction order, partial leaves."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafage.core.radix_tree import EVICTED_RING, MAX_OTHER_ROOTS, NoIndex, RadixTree, common_run


def grow(tree: RadixTree, tokens: list[int], salt: str = "", first_block: int = 0) -> None:
    """Hang whole blocks (and a partial leaf) of `tokens`, held."""
    node = tree.root(salt)
    size = tree.block_size
    for i in range(0, len(tokens), size):
        key = tuple(tokens[i : i + size])
        node = tree.child(node, key) or tree.insert(node, key, first_block + i // size)
    tree.check()


def test_match_walks_whole_blocks_within_one_salt() -> None:
    tree = RadixTree(4)
    grow(tree, list(range(12)))
    assert [node.block for node in tree.match("", list(range(12)), 12)] == [0, 1, 2]
    assert len(tree.match("", list(range(11)), 11)) == 2
    assert len(tree.match("", list(range(12)), 7)) == 1, "max_tokens cuts"
    assert len(tree.match("", [0, 1, 2, 3, 9, 9, 9, 9], 8)) == 1
    assert tree.match("tenant", list(range(12)), 12) == []


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=12),
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
    st.sets(st.integers(0, 11)),
)
def test_longest_run_is_the_best_computed_child(
    keys: list[list[int]], tokens: list[int], pending: set[int]
) -> None:
    tree = RadixTree(4)
    root = tree.root("")
    for i, key in enumerate(keys):
        if not tree.covers(root, tuple(key)) and tree.superseded(root, tuple(key)) is None:
            tree.insert(root, tuple(key), i).pending = i in pending
    runs = [common_run(node.key, tokens) for node in root.children.values() if not node.pending]
    found = tree.longest_run(root, tuple(tokens))
    assert (found[1] if found is not None else 0) == max(runs, default=0)
    if found is not None:
        assert not found[0].pending and common_run(found[0].key, tokens) == found[1]
    assert tree.longest_match(root, tuple(tokens)) == max(common_run(key, tokens) for key in root.children)


def test_a_partial_leaf_is_superseded_by_its_extension_only() -> None:
    tree = RadixTree(4)
    root = tree.root("")
    leaf = tree.insert(root, (1, 2), 0)
    assert tree.superseded(root, (1, 2, 3, 4)) is leaf
    assert tree.superseded(root, (1, 3, 3, 4)) is None
    assert tree.covers(root, (1,)) and tree.covers(root, (1, 2)) and not tree.covers(root, (1, 2, 3))


def test_eviction_takes_idle_leaves_by_step_then_depth_then_age() -> None:
    tree = RadixTree(2)
    root = tree.root("")
    a = tree.insert(root, (1, 1), 0)
    b = tree.insert(a, (2, 2), 1)
    c = tree.insert(root, (3, 3), 2)
    d = tree.insert(root, (4, 4), 3)
    for node, step in ((d, 5), (c, 5), (b, 7), (a, 7)):
        tree.set_idle(node, step)
    assert tree.num_idle == 4
    assert [tree.evict()[0] for _ in range(4)] == [c, d, b, a], "older first; a parent after its child"
    assert tree.num_idle == len(list(tree.nodes())) == 0
    tree.check()


def test_a_held_node_is_not_evicted_and_is_restamped_when_idle_again() -> None:
    tree = RadixTree(2)
    root = tree.root("")
    a, b = tree.insert(root, (1, 1), 0), tree.insert(root, (2, 2), 1)
    tree.set_idle(a, 1)
    tree.set_idle(b, 2)
    tree.set_held(a)
    assert tree.num_idle == 1
    tree.set_idle(a, 3)
    assert tree.evict() == [b]
    tree.check()


def test_evicted_prefixes_are_remembered_for_a_while() -> None:
    tree = RadixTree(1)
    node = tree.insert(tree.root(""), (7,), 0)
    tree.set_idle(node, 1)
    tree.evict()
    assert tree.evicted_run(tree.root(""), (7, 8), 0) == 1
    assert tree.evicted_run(tree.root("tenant"), (7, 8), 0) == 0, "never what another salt held"
    for i in range(EVICTED_RING):
        node = tree.insert(tree.root(""), (100 + i,), 0)
        tree.set_idle(node, 1)
        tree.evict()
    assert tree.evicted_run(tree.root(""), (7, 8), 0) == 0


def test_other_salts_are_seen_by_the_operators_metric_only() -> None:
    tree = RadixTree(2)
    grow(tree, [1, 2, 3, 4], salt="a")
    assert tree.elsewhere("b", [1, 2, 3, 4]) == 4
    assert tree.elsewhere("a", [1, 2, 3, 4]) == 0
    for i in range(MAX_OTHER_ROOTS):
        grow(tree, [9, 9], salt=f"newer {i}", first_block=10 + i)
    assert tree.elsewhere("b", [1, 2, 3, 4]) == 0, "the search is bounded: newest salts only"


def test_roots_without_nodes_go_away() -> None:
    tree = RadixTree(2)
    for i in range(100):
        node = tree.insert(tree.root(f"salt {i}"), (1, 2), 0)
        tree.set_idle(node, i)
        tree.evict()
    assert len(tree._roots) == 0
    tree.check()


def test_stale_heap_entries_do_not_pile_up() -> None:
    tree = RadixTree(2)
    node = tree.insert(tree.root(""), (1, 2), 0)
    for step in range(1000):
        tree.set_idle(node, step)
        tree.set_held(node)
    assert len(tree._heap) < 100


def test_no_index_keeps_nothing() -> None:
    index = NoIndex(4)
    assert index.root("").detached and index.match("", [1, 2, 3, 4], 4) == []


def test_eviction_is_fast_with_many_nodes() -> None:
    """O(log n): a linear search through 20,000 leaves would take minutes."""
    tree = RadixTree(1)
    root = tree.root("")
    for i in range(20_000):
        tree.set_idle(tree.insert(root, (i,), i), i)
    start = time.perf_counter()
    for _ in range(20_000):
        tree.evict()
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("break_it", ["keys", "stamp", "table", "counter", "prefix"])
def test_check_sees_damage(break_it: str) -> None:
    tree = RadixTree(2)
    node = tree.insert(tree.root(""), (1, 2), 0)
    tree.set_idle(node, 1)
    if break_it == "keys":
        tree.root("").keys.clear()
    elif break_it == "stamp":
        tree._heap.clear()
    elif break_it == "table":
        tree._nodes.clear()
    elif break_it == "counter":
        tree.num_idle = 0
    else:
        tree.insert(tree.root(""), (1,), 1)
    with pytest.raises(AssertionError):
        tree.check()
