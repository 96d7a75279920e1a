"""KVManager: which block of the KV cache holds which tokens, for whom. All bookkeeping, no arrays.

The invariants, asserted by `check()`:

1. `ref_count[block]` = sequences that hold it + 1 if the index holds it + 1 if pins hold it + copies of the
   current step; a block is in the free list exactly when that is 0.
2. Every block is free, cached (only the index holds it) or active: free + cached + active = total.
3. Ancestors of a held node are held, so every cached block can be evicted, leaves first.
4. The first `num_published` entries of a sequence's table are the blocks of its path in the index, and the
   keys along the path are its tokens. A detached path is the exception: it left the index early.
5. A computed slot is never written. A block with several owners is written by nobody, except by its publisher
   in the step that publishes it, and by the leader of a resumed gang, whose members wait for it.
6. A copy starts from computed slots; no block is source and destination of copies in one step; between steps
   there are neither copies nor pending nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from leafage.core.batch import Copy
from leafage.core.block_map import paged_block_map
from leafage.core.block_pool import BlockPool
from leafage.core.block_store import BlockStore
from leafage.core.claims import Claims
from leafage.core.counters import KVCounters
from leafage.core.fitting import room_for, room_without
from leafage.core.hash_chain import HashChain
from leafage.core.invariants import check_kv
from leafage.core.pins import Pins
from leafage.core.prefix_index import OUTSIDE, Node, NoIndex
from leafage.core.protocols import PrefixIndex, SwapSpace
from leafage.core.radix_tree import RadixTree
from leafage.core.request import Request, Sequence
from leafage.core.swap import Swap, SwapSlots
from leafage.core.usage import Duplicates, Usage, advance_paged_usage, paged_usage
from leafage.errors import InvalidParameterError

INDEXES: dict[str, Callable[[int], PrefixIndex]] = {
    "radix": RadixTree,
    "radix-node": lambda block_size: RadixTree(block_size, eviction_unit="node"),
    "hash_chain": HashChain,
    "none": NoIndex,
}


class KVManager:
    """Attach, grow, fork, publish and release over one pool of blocks.

    Running sequences and the prefix cache share the pool: free memory is cache, and running requests take it
    back by evicting.

    Args:
        num_blocks: blocks in the pool.
        block_size: tokens per block.
        prefix_index: `radix`, `radix-node` (evicts whole leaves), `hash_chain`, `none`, or any PrefixIndex.
        max_pinned_blocks: blocks that pins may hold together; requests cannot count on them.
        block_order: the order in which the untouched pool hands its blocks out.
        swap_space: where blocks of preempted requests may wait.

    Raises:
        InvalidParameterError: for sizes below 1 or an unknown index.
    """

    counts_refusals = False

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_index: str | PrefixIndex = "radix",
        *,
        max_pinned_blocks: int = 0,
        block_order: list[int] | None = None,
        swap_space: SwapSpace | None = None,
    ) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise InvalidParameterError(f"{name} is out of range", value=value, limit="at least 1")
        if not 0 <= max_pinned_blocks < num_blocks:
            value, limit = max_pinned_blocks, f"0 to {num_blocks - 1}"
            raise InvalidParameterError("max_pinned_blocks is out of range", value=value, limit=limit)
        if isinstance(prefix_index, str):
            if prefix_index not in INDEXES:
                limit = " or ".join(INDEXES)
                raise InvalidParameterError("unknown prefix index", value=prefix_index, limit=limit)
            prefix_index = INDEXES[prefix_index](block_size)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_pinned_blocks = max_pinned_blocks
        self.index = prefix_index
        self.store = BlockStore(BlockPool(num_blocks, block_order), prefix_index)
        self.pins = Pins(self.store, block_size, max_pinned_blocks)
        self.swap = Swap(block_size, swap_space or SwapSlots(0))
        self.claims = Claims(block_size)
        self.duplicates = Duplicates(block_size) if isinstance(prefix_index, NoIndex) else None
        self._attached: dict[int, Sequence] = {}
        self._touched: dict[int, Sequence] = {}  # rely on what the current step computes or copies

    # -- counts ----------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return self.store.pool.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that only the index holds: evictable at once."""
        return self.index.num_idle

    @property
    def num_active(self) -> int:
        """Blocks that sequences, pins or copies of the current step hold."""
        return self.num_blocks - self.num_free - self.num_cached

    @property
    def num_available(self) -> int:
        """Free and cached blocks."""
        return self.store.num_available

    @property
    def counters(self) -> KVCounters:
        return self.store.counters

    @property
    def copies(self) -> list[Copy]:
        """Copies of the current step, for the batch."""
        return self.store.copies

    def attached(self) -> Iterable[Sequence]:
        """The sequences that hold blocks."""
        return self._attached.values()

    def claimants(self) -> Iterable[Sequence]:
        """The sequences for whose next block others may wait."""
        return self.claims.holders()

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def longest_output(self, num_prompt_tokens: int, n: int) -> int:
        """The largest max_tokens with which a gang of n can run alone; below 1 when its prompt cannot.

        At worst it holds the full prompt blocks once and all its others n times:
        `full + n * (blocks_for(prompt + max_tokens - 1) - full)`; K/V of a last token is never needed.
        """
        full = num_prompt_tokens // self.block_size
        each = full + (self.num_blocks - self.max_pinned_blocks - full) // n
        return each * self.block_size - num_prompt_tokens + 1

    def usage(self, running: Iterable[Request]) -> Usage:
        """Where the slots are."""
        return paged_usage(self, running)

    def advance_usage(self, usage: Usage, num_written: int, grown: list[tuple[Request, Sequence]]) -> None:
        """The same one decode step later, see `advance_paged_usage`."""
        advance_paged_usage(self, usage, num_written, grown)

    def block_map(self) -> bytes:
        """What each block is for, a letter each, see `core.block_map`."""
        return paged_block_map(self.store)

    def node_at(self, block: int) -> Node | None:
        """The index node whose K/V the block holds."""
        return self.store.node_of(block)

    def reset_prefix_cache(self) -> int:
        """Evict everything that only the index holds; returns how many blocks that freed."""
        before = self.num_free
        while self.num_cached:
            self.store.evict()
        return self.num_free - before

    # -- a step ----------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        self.store.begin(step)

    def commit(self, failed_transfers: Collection[int] = ()) -> None:
        """The step ran, but for the transfers of these seq_ids."""
        self.store.commit()
        self.swap.commit(failed_transfers)
        self._touched.clear()

    def undo(self) -> list[Sequence]:
        """The step failed: take back what it published. Returns the sequences that rely on its results."""
        self.store.undo()
        self.swap.undo()
        touched = list(self._touched.values())
        self._touched.clear()
        return touched

    def discard(self, seq: Sequence) -> list[Sequence]:
        """Un-publish what `seq` published and all that hangs below: its K/V cannot be trusted.

        To be called before `commit`. Returns the others that attached some of it in this very step; those
        that attached earlier go on with the blocks they hold.
        """
        if seq.index_node is not None:
            for node in seq.index_node.path():
                if node.publisher == seq.seq_id and not node.detached:
                    self.store.forget(node)
                    break
        others = (other for other in self._touched.values() if other is not seq)
        return [o for o in others if o.index_node is not None and o.index_node.detached]

    # -- attach ----------------------------------------------------------------------------------

    def admit(self, request: Request, *, limit: int | None = None, watermark: int = 0) -> bool:
        """Give all live sequences of a request the blocks of their known tokens, cached ones first.

        The members of a resumed gang share the full blocks of their prompt from the start: the first member,
        the leader, computes them and the others follow.

        Args:
            request: holds no blocks yet.
            limit: attach at most this many cached tokens per sequence; None means all.
            watermark: blocks that must stay available.

        Returns:
            Whether it fits. Nothing changes when it does not.
        """
        members = request.live
        leader = members[0]
        shared = leader.num_prompt_tokens // self.block_size if len(members) > 1 else 0
        matches, room = room_for(self, request, limit, watermark)
        if room < 0:
            return False
        partial = matches[0].partial
        if partial is not None and partial[0].stamp is not None and room == 0:
            partial = None  # there is no room to keep the source during the copy: compute instead
        for seq, match in zip(members, matches, strict=True):
            for node in match.nodes:
                self.store.hold(node.block)
                seq.block_table.append(node.block)
        if partial is not None:
            self.store.hold(partial[0].block)  # until the copy is listed
        for seq, match in zip(members, matches, strict=True):
            head = [] if seq is leader else leader.block_table[:shared]
            self.complete(seq, match.nodes, head)
        if partial is not None:
            self._copy_head(leader, *partial)
            self.store.drop(partial[0].block)
        return True

    def swap_in(self, request: Request, watermark: int) -> bool:
        """The same for a gang that was swapped out, see `Swap.take_in`."""
        return self.swap.take_in(self, request, watermark)

    def fits_without(
        self, others: list[Request], request: Request, limit: int | None, watermark: int
    ) -> bool:
        """Whether a request would get in if `others` had released all they hold."""
        return room_without(self, others, request, limit, watermark) >= 0

    def complete(self, seq: Sequence, nodes: list[Node], head: list[int]) -> None:
        """Fill the table behind the matched blocks: from the leader's head, then with fresh ones."""
        table = seq.block_table
        for block in head[len(table) :]:
            self.store.hold(block)
            table.append(block)
        for _ in range(self.blocks_for(len(seq.tokens)) - len(table)):
            table.append(self.store.take())
        self._attached[seq.seq_id] = seq
        self._stand(seq, nodes[-1] if nodes else None, len(nodes))
        if any(node.pending for node in nodes):
            self._touched[seq.seq_id] = seq

    def resume_at(self, seq: Sequence, num_computed: int) -> None:
        """The K/V of so many tokens comes back in this step."""
        seq.num_computed = seq.num_planned = seq.write_from = num_computed
        self._touched[seq.seq_id] = seq

    def _stand(self, seq: Sequence, node: Node | None, num_blocks: int) -> None:
        """The first `num_blocks` blocks, up to `node`, are attached: compute what follows them.

        When that is nothing, the last token runs once more, without writing its K/V.
        """
        seq.index_node = node
        seq.num_published = seq.num_offered = num_blocks
        seq.write_from = num_blocks * self.block_size
        seq.num_computed = seq.num_planned = min(seq.write_from, len(seq.tokens) - 1)

    def _copy_head(self, seq: Sequence, source: Node, run: int) -> None:
        """Token-granular hit: copy the first `run` slots of a block that differs later."""
        self.store.copy(source.block, seq.block_table[seq.num_published], run)
        seq.write_from += run
        seq.num_computed = seq.num_planned = seq.write_from
        self._touched[seq.seq_id] = seq

    def advance(self, seq: Sequence) -> int:
        """Attach whole blocks that others published behind what `seq` has; returns the tokens gained.

        Only at a block boundary. The blocks it replaces were its own and not yet written.
        """
        size = self.block_size
        index = seq.num_published
        tokens = seq.tokens
        before = seq.num_computed
        if before != index * size:
            return 0
        node = self.node_of(seq)
        while (index + 1) * size <= len(tokens):
            child = self.index.child(node, tuple(tokens[index * size : (index + 1) * size]))
            if child is None:
                break
            node = child
            self._replace(seq, index, node)
            index += 1
        if index > seq.num_published:
            self._stand(seq, node, index)
        return seq.num_computed - before

    def follow(self, seq: Sequence, leader: Sequence) -> bool:
        """Move `seq` over the prompt blocks that its gang's leader computes; False while it must wait."""
        shared = seq.num_prompt_tokens // self.block_size * self.block_size
        if seq.num_computed >= shared:
            return True
        seq.num_computed = seq.num_planned = max(seq.num_computed, min(shared, leader.num_planned))
        seq.write_from = seq.num_computed
        self._touched[seq.seq_id] = seq
        node = self.node_of(seq)
        for index in range(seq.num_published, seq.num_computed // self.block_size):
            key = tuple(seq.tokens[index * self.block_size : (index + 1) * self.block_size])
            child = self.index.child(node, key)
            if child is None or child.block != seq.block_table[index]:
                seq.index_node = OUTSIDE  # what the leader published was discarded: do not bring it back
                break
            seq.index_node = node = child
            seq.num_published = index + 1
        return seq.num_computed >= shared

    def must_yield(self, seq: Sequence) -> bool:
        """Whether an earlier gang is just computing the block that `seq` would compute next."""
        if seq.num_computed != seq.num_published * self.block_size:
            return False
        return self.claims.held_by_earlier(seq, self.node_of(seq), seq.num_computed)

    def knows_next(self, seq: Sequence) -> bool:
        """Whether the index has the next full block behind what `seq` published."""
        start, end = seq.num_published * self.block_size, (seq.num_published + 1) * self.block_size
        key = tuple(seq.tokens[start:end])
        return self.index.child(self.node_of(seq), key) is not None

    def claim(self, seq: Sequence, end: int) -> None:
        """`seq` stops at `end` in this step: let later gangs wait for the block it computes next."""
        self.claims.drop(seq)
        start = end // self.block_size * self.block_size
        if seq.num_published * self.block_size == start:
            self.claims.take(seq, self.node_of(seq), start)

    # -- grow, fork, publish, release --------------------------------------------------------------

    def can_grow(self, members: list[Sequence]) -> bool:
        """Whether all members can get room for all their known tokens, copies-on-write included."""
        need = 0
        writers: dict[int, int] = {}
        for seq in members:
            need += max(0, self.blocks_for(len(seq.tokens)) - len(seq.block_table))
            block = self._shared_block(seq)
            if block is not None:
                writers[block] = writers.get(block, 0) + 1
        for block, count in writers.items():
            need += count - (count == self.store.owners(block))  # the last owner writes in place
        return need <= self.num_available

    def grow(self, seq: Sequence, end: int) -> None:
        """Make the slots of positions `num_computed` to `end` exist and be this sequence's alone to write."""
        table = seq.block_table
        shared = self._shared_block(seq)
        if shared is not None:
            index, offset = divmod(seq.num_computed, self.block_size)
            table[index] = self.store.take()
            self.store.copy(shared, table[index], offset)
            self.store.drop(shared)
            self._touched[seq.seq_id] = seq
        while len(table) * self.block_size < end:
            table.append(self.store.take())

    def _shared_block(self, seq: Sequence) -> int | None:
        """The partly filled block that `seq` writes next, when others own it too.

        Full prompt blocks are never meant: one member computes them for the whole gang.
        """
        if len(seq.gang) == 1:
            return None
        index, offset = divmod(seq.num_computed, self.block_size)
        if offset == 0 or index < seq.num_prompt_tokens // self.block_size or index < seq.num_published:
            return None
        block = seq.block_table[index]
        return block if self.store.owners(block) > 1 else None

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """`child` shares all blocks of `parent`; the first write into a shared one copies it."""
        for block in parent.block_table:
            self.store.hold(block)
        child.block_table = list(parent.block_table)
        child.num_computed = child.num_planned = parent.num_computed
        child.write_from = parent.write_from
        child.num_published, child.num_offered = parent.num_published, parent.num_offered
        child.index_node = parent.index_node
        self._attached[child.seq_id] = child
        if self.duplicates is not None:
            self.duplicates.fork(parent, child)

    def publish(self, seq: Sequence, end: int) -> None:
        """Give the full blocks of `tokens[:end]` to the index, pending until `commit`.

        Where the index has the block already, the table entry becomes the index's own block and the duplicate
        is freed: the bits are equal. Such blocks precede all new ones, because a new node has no children; so
        one `write_from` says which slots still have to be written. (A second call for the same step must not
        come when `knows_next`: somebody may have published below the new nodes.)
        """
        size = self.block_size
        index = seq.num_published
        node = self.node_of(seq)
        seq.num_offered = end // size
        if self.duplicates is not None:
            self.duplicates.extend(seq, end)
        if node.detached:
            return
        while (index + 1) * size <= end:
            key = tuple(seq.tokens[index * size : (index + 1) * size])
            child = self.index.child(node, key)
            if child is None:
                child = self.store.insert(node, key, seq.block_table[index], seq.seq_id, pending=True)
            elif self._replace(seq, index, child):
                self.counters.merged_blocks += 1
                seq.write_from = max(seq.write_from, (index + 1) * size)
            node = child
            index += 1
        if index > seq.num_published:
            seq.num_published = index
            seq.index_node = node

    def release(self, seq: Sequence, *, keep_tail: bool) -> None:
        """Give all blocks back; published ones stay as cache.

        Args:
            keep_tail: hang the last, partly filled block in the index as well (a finished sequence).
        """
        self.claims.drop(seq)
        if keep_tail:
            self.hang_tail(seq)
        for block in reversed(seq.block_table):
            self.store.drop(block)
        seq.block_table = []
        seq.num_published = seq.num_offered = 0
        seq.index_node = None
        seq.write_from = 0
        del self._attached[seq.seq_id]
        if self.duplicates is not None:
            self.duplicates.remove(seq)

    def hang_tail(self, seq: Sequence) -> None:
        """Give the last, partly filled block to the index, where that adds something."""
        start = seq.num_published * self.block_size
        key = tuple(seq.tokens[start : seq.num_computed])
        node = self.node_of(seq)
        known = self.index.child(node, key) is not None or self.index.covers(node, key)
        if known or node.detached or not 0 < len(key) < self.block_size:
            return
        block = seq.block_table[seq.num_published]
        if self.store.owners(block) == 1:
            self.store.insert(node, key, block, seq.seq_id, pending=False)

    def node_of(self, seq: Sequence) -> Node:
        """Where in the index the sequence stands. Roots come and go, so they are looked up."""
        return seq.index_node if seq.index_node is not None else self.index.root(seq.cache_salt)

    def _replace(self, seq: Sequence, index: int, node: Node) -> bool:
        """Make entry `index` the node's block, in all tables of the gang that share it. False: it was."""
        old = seq.block_table[index]
        if old == node.block:
            return False
        for member in seq.gang:
            if member.block_table[index : index + 1] == [old]:
                self.store.hold(node.block)
                member.block_table[index] = node.block
                self.store.drop(old)
        if node.pending:
            self._touched[seq.seq_id] = seq
        return True

    def check(self) -> None:
        """Assert every invariant named at the head of this module. For tests: it looks at everything."""
        check_kv(self)
