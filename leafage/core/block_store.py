"""BlockStore: the pool and the prefix index, kept consistent. Who owns a block, and what a step did to it."""

from __future__ import annotations

from collections import Counter

from leafage.core.batch import Copy
from leafage.core.block_pool import BlockPool
from leafage.core.counters import KVCounters
from leafage.core.prefix_index import Key, Node
from leafage.core.protocols import BlockWatch, PrefixIndex


class BlockStore:
    """Reference counts and index nodes move together: a node is idle exactly while only the index owns it.

    Within a step it lists the copies, which own their two blocks until the step ends, and the pending nodes,
    whose K/V the step computes.

    Attributes:
        pinned: how many pins hold each pinned block, all together as one owner. The index owns it, too.
        num_only_pinned: pinned blocks that nothing else but the index owns.
        watch: told what becomes of cached blocks.
    """

    def __init__(self, pool: BlockPool, index: PrefixIndex) -> None:
        self.pool = pool
        self.index = index
        self.counters = KVCounters()
        self.copies: list[Copy] = []
        self.in_step = False
        self.pinned: Counter[int] = Counter()
        self.num_only_pinned = 0
        self.watch: BlockWatch | None = None
        self._published = [0] * pool.num_blocks  # of each block that the index has, the step of it
        self._idle_since = [0] * pool.num_blocks  # and the last one in which its last other owner left
        self._pending: list[Node] = []
        self._nodes: list[Node | None] = [None] * pool.num_blocks
        self._step = 0

    @property
    def num_available(self) -> int:
        """Blocks that can be had now: free ones and, by eviction, cached ones."""
        return self.pool.num_free + self.index.num_idle

    def node_of(self, block: int) -> Node | None:
        """The index node whose K/V the block holds."""
        return self._nodes[block]

    def owners(self, block: int) -> int:
        """Sequences, index and pins that own the block; copies do not count."""
        return self.pool.ref_count[block] - sum((c.src == block) + (c.dst == block) for c in self.copies)

    # -- blocks ----------------------------------------------------------------------------------

    def take(self) -> int:
        """A block with one owner, by eviction when none is free. The caller made sure that there is one."""
        if self.pool.num_free == 0:
            self.evict()
        return self.pool.take()

    def evict(self) -> None:
        """The index drops what was used least recently; its blocks are free."""
        for node in self.index.evict():
            if self.watch is not None:
                self.watch.evicted(self._published[node.block], self._idle_since[node.block])
            self._nodes[node.block] = None
            self.pool.drop(node.block)
            self.counters.evicted_blocks += 1

    def hold(self, block: int) -> None:
        """One owner more."""
        count = self.pool.hold(block)
        if count == 2:
            node = self._nodes[block]
            if node is not None:
                self.index.set_held(node)
                if self.watch is not None:
                    self.watch.reused(self._idle_since[block])
        elif count == 3 and block in self.pinned:
            self.num_only_pinned -= 1

    def drop(self, block: int) -> None:
        """One owner less. A block whose last owner is the index becomes evictable."""
        count = self.pool.drop(block)
        if count == 1:
            node = self._nodes[block]
            if node is not None:
                self.index.set_idle(node, self._step)
                self._idle_since[block] = self._step
        elif count == 2 and block in self.pinned:
            self.num_only_pinned += 1

    def pin(self, block: int) -> None:
        """A pin more of a block that the index has."""
        if block not in self.pinned:
            self.hold(block)
            self.num_only_pinned += self.pool.ref_count[block] == 2
        self.pinned[block] += 1

    def unpin(self, block: int) -> None:
        """A pin less."""
        self.pinned[block] -= 1
        if not self.pinned[block]:
            del self.pinned[block]
            self.num_only_pinned -= self.pool.ref_count[block] == 2
            self.drop(block)

    def copy(self, src: int, dst: int, num_slots: int) -> None:
        """List a copy of computed slots."""
        node = self._nodes[src]
        assert node is None or not node.pending, f"block {src} is not computed yet"
        self.hold(src)
        self.hold(dst)
        self.copies.append(Copy(src, dst, num_slots))
        self.counters.copied_blocks += 1

    # -- nodes -------------------------------------------------------------------------------------

    def insert(self, parent: Node, key: Key, block: int, publisher: int, *, pending: bool) -> Node:
        """The index becomes an owner of `block`. A leaf that `key` extends is dropped unless pinned."""
        shorter = self.index.superseded(parent, key)
        node = self.index.insert(parent, key, block)
        if shorter is not None and shorter.block not in self.pinned:
            self.forget(shorter)
        node.publisher = publisher
        node.pending = pending
        if pending:
            self._pending.append(node)
        self.pool.hold(block)
        self._nodes[block] = node
        self._published[block] = self._step
        return node

    def forget(self, top: Node) -> None:
        """A node and all below it leave the index, pins or not; blocks that nobody else owns are free."""
        for node in reversed(self.index.subtree(top)):
            while node.block in self.pinned:
                self.unpin(node.block)
            self.index.detach(node)
            self._nodes[node.block] = None
            self.pool.drop(node.block)

    # -- steps -------------------------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """`step` stamps the blocks that become idle from now on."""
        assert not self.in_step, "the previous step was neither committed nor undone"
        self._step = step
        self.in_step = True

    def commit(self) -> None:
        """The step ran: pending nodes are computed, copies are done."""
        for node in self._pending:
            node.pending = False
        self._end()

    def undo(self) -> None:
        """The step failed: what it published leaves the index."""
        for node in reversed(self._pending):  # children first
            if not node.detached:
                self.forget(node)
        self._end()

    def _end(self) -> None:
        self._pending.clear()
        for copy in self.copies:
            self.drop(copy.src)
            self.drop(copy.dst)
        self.copies = []  # a new list: the old one belongs to the batch
        self.in_step = False
