"""Bugs planted on purpose: each must be caught, by `check()` or by an answer that differs.

A net that never catches anything proves nothing. `BY_ANSWERS` run without any check, so that only the tokens
can tell.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from leafage.core import admission, kv_manager
from leafage.core.admission import Admission
from leafage.core.block_pool import BlockPool
from leafage.core.block_store import BlockStore
from leafage.core.claims import Claims
from leafage.core.hash_chain import HashChain
from leafage.core.kv_manager import KVManager
from leafage.core.pins import Pins, PrefixPin
from leafage.core.policy import KeyOrder
from leafage.core.prefix_index import Key, Node, NodeIndex
from leafage.core.prefix_watch import PrefixWatch
from leafage.core.radix_tree import RadixTree, common_run
from leafage.core.request import Request, RequestStatus, Sequence
from leafage.core.roster import Roster
from leafage.core.swap import Swap
from tests.core.world import Rates, World

RARE = [69, 90, 111, 28, 24, 19, 14]
"""Worlds that catch what few others do."""
SEEDS = [*RARE, *(seed for seed in range(150) if seed not in RARE)]
RATES = Rates(fail=0.03, swap=0.3)
Plant = Callable[[pytest.MonkeyPatch], None]


def fork_without_count(patch: pytest.MonkeyPatch) -> None:
    fork = KVManager.fork

    def bad(self: KVManager, parent: Sequence, child: Sequence) -> None:
        fork(self, parent, child)
        for block in child.block_table:
            self.store.drop(block)

    patch.setattr(KVManager, "fork", bad)


def lost_count(patch: pytest.MonkeyPatch) -> None:
    """An attached block is not counted."""
    patch.setattr(BlockStore, "hold", lambda self, block: None)


def leaked_count(patch: pytest.MonkeyPatch) -> None:
    """The copies of a step keep their source for ever."""

    def bad(self: BlockStore) -> None:
        self._pending.clear()
        for copy in self.copies:
            self.drop(copy.dst)
        self.copies = []
        self.in_step = False

    patch.setattr(BlockStore, "_end", bad)


def write_to_a_shared_block(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVManager, "_shared_block", lambda self, seq: None)


def stale_tree_entry(patch: pytest.MonkeyPatch) -> None:
    """An evicted block can still be found by its tokens."""

    def bad(self: RadixTree, node: Node) -> None:
        assert node.parent is not None
        children, keys = dict(node.parent.children), list(node.parent.keys)
        detach(self, node)
        node.parent.children, node.parent.keys = children, keys

    detach = RadixTree.detach
    patch.setattr(RadixTree, "detach", bad)


def double_free(patch: pytest.MonkeyPatch) -> None:
    release = KVManager.release

    def bad(self: KVManager, seq: Sequence, *, keep_tail: bool) -> None:
        last = seq.block_table[-1]
        release(self, seq, keep_tail=keep_tail)
        if self.store.pool.ref_count[last] == 0:
            self.store.pool._free.append(last)

    patch.setattr(KVManager, "release", bad)


def off_by_one_at_a_full_block(patch: pytest.MonkeyPatch) -> None:
    """A block is published one token before it is full."""
    publish = KVManager.publish

    def bad(self: KVManager, seq: Sequence, end: int) -> None:
        publish(self, seq, min(end + 1, len(seq.block_table) * self.block_size, len(seq.tokens)))

    patch.setattr(KVManager, "publish", bad)


def room_for_one_token_less(patch: pytest.MonkeyPatch) -> None:
    grow = KVManager.grow
    patch.setattr(KVManager, "grow", lambda self, seq, end: grow(self, seq, end - 1))


def copy_of_one_slot_too_many(patch: pytest.MonkeyPatch) -> None:
    copy_head = KVManager._copy_head
    patch.setattr(
        KVManager, "_copy_head", lambda self, seq, source, run: copy_head(self, seq, source, run + 1)
    )


def pending_block_copied(patch: pytest.MonkeyPatch) -> None:
    """A block that is being computed in this step serves as the source of a copy."""

    def bad(self: RadixTree, node: Node, tokens: tuple[int, ...]) -> tuple[Node, int] | None:
        runs = [(common_run(key, tokens), key) for key in node.keys]
        best = max(runs, default=(0, ()))
        return (node.children[best[1]], best[0]) if best[0] else None

    def copy(self: BlockStore, src: int, dst: int, num_slots: int) -> None:
        node, self._nodes[src] = self._nodes[src], None  # blind the assertion
        original(self, src, dst, num_slots)
        self._nodes[src] = node

    original = BlockStore.copy
    patch.setattr(RadixTree, "longest_run", bad)
    patch.setattr(BlockStore, "copy", copy)


def computed_slot_written_again(patch: pytest.MonkeyPatch) -> None:
    """A duplicate is replaced by the index's block, but its slots are written nevertheless."""
    publish = KVManager.publish

    def bad(self: KVManager, seq: Sequence, end: int) -> None:
        before = seq.write_from
        publish(self, seq, end)
        seq.write_from = before

    patch.setattr(KVManager, "publish", bad)


def evict_in_use(patch: pytest.MonkeyPatch) -> None:
    """A node that a sequence attaches stays evictable."""

    def bad(self: NodeIndex, node: Node) -> None:
        assert node.stamp is not None

    patch.setattr(NodeIndex, "set_held", bad)
    patch.setattr(NodeIndex, "set_idle", lambda self, node, step: node.stamp or set_idle(self, node, step))


set_idle = NodeIndex.set_idle


def failed_step_stays_published(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockStore, "undo", BlockStore.commit)


def bad_row_stays_published(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVManager, "discard", lambda self, seq: [])


def victim_had_its_turn(patch: pytest.MonkeyPatch) -> None:
    """A gang whose rows are already listed loses its blocks."""
    victim_for = admission.victim_for

    def bad(requester: Request, running: list[Request], step: int, most: int) -> Request:
        first = running[0]
        return first if first.visited == step else victim_for(requester, running, step, most)

    patch.setattr(admission, "victim_for", bad)


def claims_outlive_their_holder(patch: pytest.MonkeyPatch) -> None:
    drop = Claims.drop

    def bad(self: Claims, seq: Sequence) -> None:
        if seq.num_computed < seq.num_prompt_tokens // 2:
            drop(self, seq)

    patch.setattr(Claims, "drop", bad)


def salts_share(patch: pytest.MonkeyPatch) -> None:
    match = RadixTree.match

    def bad(self: RadixTree, salt: str, tokens: list[int], max_tokens: int) -> list[Node]:
        return max((match(self, other, tokens, max_tokens) for other in ("", "other")), key=len)

    patch.setattr(RadixTree, "match", bad)


def a_hash_is_taken_for_a_prefix(patch: pytest.MonkeyPatch) -> None:
    """A hash chain with a short hash that compares no tokens."""

    def bad(self: HashChain, node: Node, key: Key) -> Node | None:
        return self._table.get(self.hash_of((node.hash, key))) if len(key) == self.block_size else None

    patch.setattr(HashChain, "child", bad)
    patch.setitem(kv_manager.INDEXES, "radix", lambda size: HashChain(size, lambda value: hash(value) & 15))


def overdue_requests_are_passed(patch: pytest.MonkeyPatch) -> None:
    """The bound on overtaking is not kept."""
    patch.setattr(KeyOrder, "_goes_first", lambda self, request: False)


def watcher_is_not_told(patch: pytest.MonkeyPatch) -> None:
    """A waiting request does not hear that the block it stands on was evicted."""
    patch.setattr(PrefixWatch, "detached", lambda self, node: None)


def preempted_request_is_lost(patch: pytest.MonkeyPatch) -> None:
    stop = Roster.stop

    def bad(self: Roster, request: Request) -> None:
        stop(self, request)
        self.waiting.remove(request)

    patch.setattr(Roster, "stop", bad)


def follower_runs_ahead(patch: pytest.MonkeyPatch) -> None:
    """A member of a resumed gang does not wait for the leader that computes their prompt."""

    def bad(self: KVManager, seq: Sequence, leader: Sequence) -> bool:
        shared = seq.num_prompt_tokens // self.block_size * self.block_size
        if seq.num_computed < shared:
            seq.num_computed = seq.num_planned = seq.write_from = shared
        return True

    patch.setattr(KVManager, "follow", bad)


def free_block_handed_out_twice(patch: pytest.MonkeyPatch) -> None:
    def bad(self: BlockPool) -> int:
        block = self._free[-1]
        if random.Random(block + len(self._free)).random() < 0.95 or len(self._free) == 1:
            self._free.pop()
        self.ref_count[block] = 1
        return block

    patch.setattr(BlockPool, "take", bad)


def wrong_swap_mapping(patch: pytest.MonkeyPatch) -> None:
    """The blocks of a swapped gang come back in another order."""
    out = Swap.out

    def bad(self: Swap, request: Request) -> bool:
        moved = out(self, request)
        for seq in request.live:
            seq.swap_slots = seq.swap_slots[::-1]
        return moved

    patch.setattr(Swap, "out", bad)


def lost_transfer_is_trusted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Swap, "_lose", lambda self, sequences: None)


def swap_slots_leak(patch: pytest.MonkeyPatch) -> None:
    """An aborted request keeps its slots."""

    def bad(self: Swap, members: Iterable[Sequence]) -> None:
        for seq in members:
            seq.swap_slots = []

    patch.setattr(Swap, "drop", bad)


def slot_reused_in_its_step(patch: pytest.MonkeyPatch) -> None:
    """A gang that is read back frees its slots at once."""
    swap_in = KVManager.swap_in

    def bad(self: KVManager, request: Request, watermark: int) -> bool:
        fits = swap_in(self, request, watermark)
        slots = [seq.swap_slots for seq in request.live]
        self.swap.drop(request.live)
        for seq, kept in zip(request.live, slots, strict=True):
            seq.swap_slots = kept if fits else []
        return fits

    patch.setattr(KVManager, "swap_in", bad)


def resume_order(patch: pytest.MonkeyPatch) -> None:
    """A preempted request goes behind those that wait already."""

    def bad(self: Roster, request: Request) -> None:
        self.running.remove(request)
        request.status = RequestStatus.PREEMPTED
        self.num_seqs -= request.params.num_sequences
        self._preempted.append(request)
        self.waiting.append(request)

    patch.setattr(Roster, "stop", bad)


def child_of_another_beam(patch: pytest.MonkeyPatch) -> None:
    """The blocks of a forked beam are those of its gang's first."""
    fork = Admission.fork

    def bad(self: Admission, request: Request, parent: Sequence) -> Sequence:
        return fork(self, request, request.sequences[0])

    patch.setattr(Admission, "fork", bad)


def beams_out_of_step(patch: pytest.MonkeyPatch) -> None:
    """A resumed beam draws before the others have got so far."""
    patch.setattr(Request, "end_of", lambda self, seq: len(seq.tokens))


def pin_leak(patch: pytest.MonkeyPatch) -> None:
    """A released pin keeps its last block."""
    let_go = Pins._let_go

    def bad(self: Pins, pin: PrefixPin) -> None:
        self._store.pinned[pin.nodes[-1].block] += 1  # type: ignore[union-attr]
        let_go(self, pin)

    patch.setattr(Pins, "_let_go", bad)


def pin_without_count(patch: pytest.MonkeyPatch) -> None:
    """A pinned block has no owner more: it is evicted all the same."""

    def pin(self: BlockStore, block: int) -> None:
        self.pinned[block] += 1

    def unpin(self: BlockStore, block: int) -> None:
        self.pinned[block] -= 1
        if not self.pinned[block]:
            del self.pinned[block]

    patch.setattr(BlockStore, "pin", pin)
    patch.setattr(BlockStore, "unpin", unpin)


def pinned_leaf_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """A leaf that a sibling extends leaves the index under its pin."""
    insert = BlockStore.insert

    def bad(self: BlockStore, parent: Node, key: Key, block: int, publisher: int, *, pending: bool) -> Node:
        shorter = self.index.superseded(parent, key)
        node = insert(self, parent, key, block, publisher, pending=pending)
        if shorter is not None and not shorter.detached:
            self.forget(shorter)
        return node

    patch.setattr(BlockStore, "insert", bad)


BY_CHECK: list[Plant] = [
    fork_without_count,
    lost_count,
    leaked_count,
    write_to_a_shared_block,
    stale_tree_entry,
    double_free,
    off_by_one_at_a_full_block,
    room_for_one_token_less,
    copy_of_one_slot_too_many,
    pending_block_copied,
    computed_slot_written_again,
    evict_in_use,
    failed_step_stays_published,
    bad_row_stays_published,
    victim_had_its_turn,
    claims_outlive_their_holder,
    salts_share,
    a_hash_is_taken_for_a_prefix,
    overdue_requests_are_passed,
    watcher_is_not_told,
    preempted_request_is_lost,
    follower_runs_ahead,
    free_block_handed_out_twice,
    wrong_swap_mapping,
    lost_transfer_is_trusted,
    swap_slots_leak,
    slot_reused_in_its_step,
    resume_order,
    child_of_another_beam,
    beams_out_of_step,
    pin_leak,
    pin_without_count,
    pinned_leaf_is_dropped,
]
BY_ANSWERS: list[Plant] = [
    fork_without_count,
    write_to_a_shared_block,
    stale_tree_entry,
    double_free,
    off_by_one_at_a_full_block,
    copy_of_one_slot_too_many,
    pending_block_copied,
    evict_in_use,
    failed_step_stays_published,
    bad_row_stays_published,
    a_hash_is_taken_for_a_prefix,
    follower_runs_ahead,
    wrong_swap_mapping,
    lost_transfer_is_trusted,
    child_of_another_beam,
]


def caught(**options: Any) -> BaseException | None:
    """What stops one of many random worlds, if anything does."""
    for seed in SEEDS:
        try:
            World(random.Random(seed), RATES, **options).run(60)
        except (AssertionError, LookupError, ValueError) as error:
            return error
    return None


@pytest.mark.parametrize("plant", BY_CHECK, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert caught() is not None


@pytest.mark.parametrize("plant", BY_ANSWERS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_changes_an_answer(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert caught(strict=False, check=False) is not None


def test_without_a_bug_nothing_is_caught() -> None:
    assert caught(strict=False, check=False) is None
