"""What must always hold of the KV bookkeeping, recomputed from scratch."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from leafage.core.prefix_index import OUTSIDE
from leafage.core.request import Sequence

if TYPE_CHECKING:
    from leafage.core.kv_manager import KVManager


def check_kv(kv: KVManager) -> None:
    """Assert the invariants that head `kv_manager.py`.

    Raises:
        AssertionError: saying which one is broken.
    """
    kv.store.pool.check()
    kv.index.check()
    owners: Counter[int] = Counter()
    active: set[int] = set()
    for seq in kv.attached():
        assert len(set(seq.block_table)) == len(seq.block_table), f"sequence {seq.seq_id} holds a block twice"
        owners.update(seq.block_table)
        active.update(seq.block_table)
    for copy in kv.copies:
        owners.update((copy.src, copy.dst))
        active.update((copy.src, copy.dst))
    owners.update(kv.store.pinned.keys())
    active.update(kv.store.pinned.keys())
    kv.pins.check()
    cached = 0
    for node in kv.index.nodes():
        assert kv.store.node_of(node.block) is node, f"block {node.block} and node {node.number} disagree"
        owners[node.block] += 1
        held = node.block in active
        assert held == (node.stamp is None), f"node {node.number} is held: {held}, idle since {node.stamp}"
        cached += not held
        parent = node.parent
        if held and parent is not None and parent.depth > 0:
            assert parent.stamp is None, f"node {node.number} is held, its parent is not"
    for block, count in enumerate(kv.store.pool.ref_count):
        assert count == owners[block], f"block {block} has count {count} and {owners[block]} owners"
        node_of = kv.store.node_of(block)
        assert node_of is None or not node_of.detached, f"block {block} belongs to a detached node"
    assert cached == kv.num_cached, f"{cached} blocks are cached, the counter says {kv.num_cached}"
    assert len(active) == kv.num_active, f"{len(active)} blocks are active, the counter says {kv.num_active}"
    assert kv.num_free + kv.num_cached + kv.num_active == kv.num_blocks
    for seq in kv.attached():
        _check_sequence(kv, seq)
    for seq in kv.claimants():
        assert seq.claim is not None and seq.block_table, f"sequence {seq.seq_id} left and kept its claim"
    pending = [node for node in kv.index.nodes() if node.pending]
    if not kv.store.in_step:
        assert not pending and not kv.copies, "a node is pending or a copy listed between steps"
    if kv.index.watch is not None:
        kv.index.watch.check()
    sources = {copy.src for copy in kv.copies}
    targets = [copy.dst for copy in kv.copies]
    assert len(set(targets)) == len(targets) and not sources & set(targets), "copies overlap"


def _check_sequence(kv: KVManager, seq: Sequence) -> None:
    size = kv.block_size
    name = f"sequence {seq.seq_id}"
    table = seq.block_table
    assert 0 <= seq.num_computed <= seq.num_planned <= len(seq.tokens), f"{name}: num_computed is wrong"
    assert seq.num_planned <= len(table) * size, f"{name}: computed tokens without a block"
    assert len(table) <= kv.blocks_for(len(seq.tokens)), f"{name}: holds more blocks than its tokens need"
    assert seq.num_published <= len(table), f"{name}: published more than it holds"
    node = seq.index_node
    assert (node is None) == (seq.num_published == 0) or node is OUTSIDE, f"{name}: wrong place in the index"
    if node is not None and not node.detached:
        path = node.path()
        top = path[0].parent if path else node
        assert top is kv.index.root(seq.cache_salt), f"{name}: shares with another cache_salt"
        assert len(path) == seq.num_published == node.depth, f"{name}: path and num_published differ"
        for i, step in enumerate(path):
            assert step.block == table[i], f"{name}: entry {i} is not the published block"
            expected = tuple(seq.tokens[i * size : (i + 1) * size])
            assert step.key == expected, f"{name}: node {i} has other tokens"
    shared_head = seq.num_prompt_tokens // size if len(seq.gang) > 1 else 0
    for i, block in enumerate(table[seq.num_published :], start=seq.num_published):
        if kv.store.node_of(block) is not None:  # published by the gang's leader; this one follows
            assert i < shared_head, f"{name}: entry {i} is published and not counted as such"
            continue
        holders = sum(block in member.block_table for member in seq.gang)
        copied = sum((copy.src == block) + (copy.dst == block) for copy in kv.copies)
        count = kv.store.pool.ref_count[block] - copied
        # A stranger may hold what a gang shares from the start only when it was published, then discarded.
        assert count == holders or i < shared_head, f"{name}: entry {i} has {count - holders} strangers"
        writes = max(seq.num_computed, i * size) < min(seq.num_planned, (i + 1) * size)
        assert not writes or count == 1 or i < shared_head, f"{name}: writes into shared block {block}"
