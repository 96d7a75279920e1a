"""RadixTree: finding and partial leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafage.core.radix_tree import RadixTree, common_run


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
        if tree.child(root, tuple(key)) is None:  # also one that extends another, as where that is pinned
            tree.insert(root, tuple(key), i).pending = i in pending
    runs = [common_run(node.key, tokens) for node in root.children.values() if not node.pending]
    found = tree.longest_run(root, tuple(tokens))
    assert (found[1] if found is not None else 0) == max(runs, default=0)
    if found is not None:
        assert not found[0].pending and common_run(found[0].key, tokens) == found[1]
    run, token = tree.nearest(root, tuple(tokens))
    assert run == max(common_run(key, tokens) for key in root.children)
    behind = {key[run] if run < len(key) else None for key in root.children if common_run(key, tokens) == run}
    assert token in behind


def test_a_partial_leaf_is_superseded_by_its_extension_only() -> None:
    tree = RadixTree(4)
    root = tree.root("")
    leaf = tree.insert(root, (1, 2), 0)
    assert tree.superseded(root, (1, 2, 3, 4)) is leaf
    assert tree.superseded(root, (1, 3, 3, 4)) is None
    assert tree.covers(root, (1,)) and not tree.covers(root, (1, 2)) and not tree.covers(root, (1, 2, 3))


@pytest.mark.parametrize("break_it", ["keys", "stamp", "table", "counter", "prefix"])
def test_check_sees_damage(break_it: str) -> None:
    tree = RadixTree(2)
    node = tree.insert(tree.root(""), (1, 2), 0)
    tree.set_idle(node, 1)
    if break_it == "keys":
        tree.root("").keys = []
    elif break_it == "stamp":
        tree._heap.clear()
    elif break_it == "table":
        tree._nodes.clear()
    elif break_it == "counter":
        tree.num_idle = 0
    else:
        tree.set_idle(tree.insert(tree.root(""), (1,), 1), 1)
    with pytest.raises(AssertionError):
        tree.check()
