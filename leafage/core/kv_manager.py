"""KVManager: which block of the KV cache holds which tokens, for whom. All bookkeeping, no arrays.

The invariants, asserted by `check()`:

1. `ref_count[block]` = sequences holding it + 1 if the index holds it + pins + copies of the current step;
   a block is in the free list exactly when that is 0.
2. Every block is free, cached (only the index holds it) or active: free + cached + active = total.
3. Ancestors of a held node are held, so every cached block can be evicted, leaves first.
4. The first `num_published` entries of a sequence's table are the blocks of its path in the index, and the
   keys along the path are its tokens. Detached nodes are the exception: they left the index early.
5. A computed slot is never written: a block that several sequences hold is written by nobody, except by the
   one that publishes it, in the step that publishes it.
6. A pending node is never taken as the source of a copy, and no node is pending between steps. (A shared,
   partly filled block may be copied and then be filled and published by its last owner in the same step:
   copies come before the forward.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from leafage.core.batch import Copy
from leafage.core.block_pool import BlockPool
from leafage.core.claims import Claims
from leafage.core.counters import KVCounters
from leafage.core.invariants import check_kv
from leafage.core.protocols import PrefixIndex
from leafage.core.radix_tree import Node, NoIndex, RadixTree
from leafage.core.request import Request, Sequence
from leafage.errors import InvalidParameterError

INDEXES: dict[str, type[RadixTree]] = {"radix": RadixTree, "none": NoIndex}


@dataclass(slots=True)
class _Match:
    """What the cache holds of a sequence: whole blocks, then the head of one more, to be copied."""

    nodes: list[Node] = field(default_factory=list)
    partial: tuple[Node, int] | None = None


class KVManager:
    """Attach, grow, fork, publish, release and evict over one pool of blocks.

    Running sequences and the prefix cache share the pool: free memory is cache, and running requests take it
    back by evicting.

    Args:
        num_blocks: blocks in the pool.
        block_size: tokens per block.
        prefix_index: `radix`, `none`, or any PrefixIndex.
        max_pinned_blocks: blocks that pins may hold together; requests cannot count on them.
        block_order: see BlockPool.

    Raises:
        InvalidParameterError: for sizes below 1 or an unknown index.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_index: str | PrefixIndex = "radix",
        *,
        max_pinned_blocks: int = 0,
        block_order: list[int] | None = None,
    ) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise InvalidParameterError(f"{name} is out of range", value=value, limit="at least 1")
        if not 0 <= max_pinned_blocks < num_blocks:
            raise InvalidParameterError(
                "max_pinned_blocks is out of range", value=max_pinned_blocks, limit=f"0 to {num_blocks - 1}"
            )
        if isinstance(prefix_index, str):
            if prefix_index not in INDEXES:
                names = " or ".join(INDEXES)
                raise InvalidParameterError("unknown prefix index", value=prefix_index, limit=names)
            prefix_index = INDEXES[prefix_index](block_size)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_pinned_blocks = max_pinned_blocks
        self.index: PrefixIndex = prefix_index
        self.pool = BlockPool(num_blocks, block_order)
        self.counters = KVCounters()
        self.copies: list[Copy] = []
        """Copies of the current step, for the batch."""
        self._nodes: list[Node | None] = [None] * num_blocks
        self._pending: list[Node] = []
        self._touched: dict[int, Sequence] = {}
        self._claims = Claims(block_size)
        self._attached: dict[int, Sequence] = {}
        self._step = 0
        self._in_step = False

    # -- counts ----------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that only the index holds: evictable at once."""
        return self.index.num_idle

    @property
    def num_active(self) -> int:
        return self.num_blocks - self.pool.num_free - self.index.num_idle

    @property
    def num_available(self) -> int:
        """Blocks that can be had now: free ones and, by eviction, cached ones."""
        return self.pool.num_free + self.index.num_idle

    @property
    def in_step(self) -> bool:
        """Whether a step was begun and neither committed nor undone."""
        return self._in_step

    def attached(self) -> Iterable[Sequence]:
        """The sequences that hold blocks."""
        return self._attached.values()

    def claimants(self) -> Iterable[Sequence]:
        """The sequences for whose next block others may wait."""
        return self._claims.holders()

    def node_of(self, block: int) -> Node | None:
        """The index node whose K/V the block holds."""
        return self._nodes[block]

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def longest_output(self, num_prompt_tokens: int, n: int) -> int:
        """The largest max_tokens with which a gang of n can run alone; below 1 when not even its prompt fits.

        At worst it holds the full prompt blocks once and all its others n times:
        `full + n * (blocks_for(prompt + max_tokens - 1) - full)`; K/V of a last token is never needed.
        """
        full = num_prompt_tokens // self.block_size
        each = full + (self.num_blocks - self.max_pinned_blocks - full) // n
        return each * self.block_size - num_prompt_tokens + 1

    # -- a step ----------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """`step` stamps the blocks that become idle from now on."""
        assert not self._pending and not self.copies, "the previous step was neither committed nor undone"
        self._step = step
        self._in_step = True

    def commit(self) -> None:
        """The step ran: what was pending is computed, copies are done."""
        for node in self._pending:
            node.pending = False
        self._pending.clear()
        self._end_step()

    def undo(self) -> list[Sequence]:
        """The step failed: take back what it published. Returns the sequences that relied on it or on a copy."""
        for node in self._pending:
            if not node.detached:
                self._detach(node)
        self._pending.clear()
        touched = list(self._touched.values())
        self._end_step()
        return touched

    def discard(self, seq: Sequence) -> list[Sequence]:
        """Un-publish everything `seq` published and whatever hangs below: its K/V cannot be trusted.

        To be called before `commit`. Returns the sequences that attached some of it in this very step;
        those that attached earlier go on with the blocks they hold.
        """
        if seq.index_node is not None:
            for node in seq.index_node.path():
                if node.publisher == seq.seq_id and not node.detached:
                    self._detach(node)
                    break
        self._pending = [node for node in self._pending if not node.detached]
        return [
            other
            for other in self._touched.values()
            if other is not seq and other.index_node is not None and other.index_node.detached
        ]

    def _end_step(self) -> None:
        for copy in self.copies:
            self._drop(copy.src)
            self._drop(copy.dst)
        self.copies = []
        self._touched.clear()
        self._in_step = False

    # -- attach ----------------------------------------------------------------------------------

    def admit(self, request: Request, *, limit: int | None, watermark: int, reserve: int) -> bool:
        """Give all live sequences of a request the blocks of their known tokens, cached ones first.

        Args:
            request: holds no blocks yet.
            limit: attach at most this many cached tokens per sequence; None means all.
            watermark: blocks that must stay available.
            reserve: more of them, kept for the growth of others.

        Returns:
            Whether it fits. Nothing changes when it does not.
        """
        members = request.live
        leader = members[0]
        shared = leader.num_prompt_tokens // self.block_size if len(members) > 1 else 0
        matches = [self._match(seq, limit) for seq in members]
        need = self._first_fork_copies(request)
        idle: set[int] = set()
        for seq, match in zip(members, matches, strict=True):
            own = len(match.nodes) if seq is leader else max(shared, len(match.nodes))
            need += self.blocks_for(len(seq.tokens)) - own
            idle.update(node.block for node in match.nodes if node.stamp is not None)
        room = self.num_available - len(idle) - watermark - reserve - need
        if room < 0:
            return False
        partial = matches[0].partial
        if partial is not None and partial[0].stamp is not None and room == 0:
            matches[0].partial = None  # the source could not stay alive during the copy: compute instead
        for seq, match in zip(members, matches, strict=True):
            for node in match.nodes:
                self._hold(node.block)
                seq.block_table.append(node.block)
            if seq is not leader:
                match.partial = None
            elif match.partial is not None:
                self._hold(match.partial[0].block)
        for seq, match in zip(members, matches, strict=True):
            self._attach(seq, match, leader.block_table[:shared] if seq is not leader else [])
        return True

    def _first_fork_copies(self, request: Request) -> int:
        """Copies of the prompt's last, partly filled block that the first fork will make."""
        if len(request.sequences) > 1 or len(request.prompt_token_ids) % self.block_size == 0:
            return 0
        return request.params.n - 1

    def _match(self, seq: Sequence, limit: int | None) -> _Match:
        size = self.block_size
        tokens = seq.tokens
        limit = len(tokens) if limit is None else min(limit, len(tokens))
        nodes = self.index.match(seq.cache_salt, tokens, limit)
        start = len(nodes) * size
        end = min(start + size, limit, len(tokens) - 1)  # the last token is always run: its logits are needed
        if end <= start:
            return _Match(nodes)
        node = nodes[-1] if nodes else self.index.root(seq.cache_salt)
        if self._claims.held_by_earlier(seq, node, start):
            return _Match(nodes)  # someone is computing that block: wait for it instead of copying a part
        return _Match(nodes, self.index.longest_run(node, tuple(tokens[start:end])))

    def _attach(self, seq: Sequence, match: _Match, shared: list[int]) -> None:
        size = self.block_size
        table = seq.block_table
        for block in shared[len(table) :]:
            self._hold(block)
            table.append(block)
        for _ in range(self.blocks_for(len(seq.tokens)) - len(table)):
            table.append(self._take())
        seq.num_published = len(match.nodes)
        seq.index_node = match.nodes[-1] if match.nodes else None
        seq.write_from = seq.num_published * size
        if match.partial is not None:
            source, run = match.partial
            self._copy(source.block, table[seq.num_published], run)
            seq.write_from += run
            self._touched[seq.seq_id] = seq
        if any(node.pending for node in match.nodes):
            self._touched[seq.seq_id] = seq
        seq.num_computed = seq.num_planned = min(seq.write_from, len(seq.tokens) - 1)
        self._attached[seq.seq_id] = seq

    def advance(self, seq: Sequence) -> int:
        """Attach whole blocks that others published behind what `seq` has; returns the tokens gained.

        Only at a block boundary. The blocks it replaces were its own and not yet written.
        """
        size = self.block_size
        first = index = seq.num_published
        tokens = seq.tokens
        total = len(tokens)
        if seq.num_computed != index * size:
            return 0
        node = self._node(seq)
        while (index + 1) * size <= total:
            child = self.index.child(node, tuple(tokens[index * size : (index + 1) * size]))
            if child is None:
                break
            node = child
            self._replace(seq, index, node.block)
            if node.pending:
                self._touched[seq.seq_id] = seq
            index += 1
        if index == first:
            return 0
        before = seq.num_computed
        seq.index_node = node
        seq.num_published = index
        seq.write_from = index * size
        seq.num_computed = seq.num_planned = min(seq.write_from, total - 1)
        return seq.num_computed - before

    def follow(self, seq: Sequence, leader: Sequence) -> bool:
        """Move `seq` over the prompt blocks that it shares with its gang's leader; False while it must wait."""
        shared = seq.num_prompt_tokens // self.block_size * self.block_size
        if seq.num_computed >= shared:
            return True
        seq.num_computed = seq.num_planned = max(seq.num_computed, min(shared, leader.num_planned))
        seq.write_from = seq.num_computed
        self.publish(seq, seq.num_computed)
        self._touched[seq.seq_id] = seq
        return seq.num_computed >= shared

    def must_yield(self, seq: Sequence) -> bool:
        """Whether an earlier gang is just computing the block that `seq` would compute next."""
        if seq.num_computed != seq.num_published * self.block_size:
            return False
        return self._claims.held_by_earlier(seq, self._node(seq), seq.num_computed)

    def claim(self, seq: Sequence, end: int) -> None:
        """`seq` stops at `end` in this step: let later gangs wait for the block it computes next."""
        self._claims.drop(seq)
        start = end // self.block_size * self.block_size
        if seq.num_published * self.block_size == start:
            self._claims.take(seq, self._node(seq), start)

    def explain_miss(self, seq: Sequence) -> dict[str, int]:
        """Why the prompt's tokens behind `num_computed` are not cached, just after admission: tokens by reason.

        `below_block`: they match cached ones, but only part of a block, or the last token, which always runs.
        `evicted`: they were in the index until lately. `salt`: another cache_salt holds them (for the operator).
        What no reason explains is `no_match`.
        """
        size = self.block_size
        prompt = seq.tokens[: seq.num_prompt_tokens]
        start = seq.num_published * size
        node = self._node(seq)
        reasons: dict[str, int] = {}
        run = (
            self.index.longest_match(node, tuple(prompt[start : start + size])) if start < len(prompt) else 0
        )
        below = max(start + run, seq.write_from) - seq.num_computed
        if below > 0:
            reasons["below_block"] = below
        evicted = self.index.evicted_run(node, prompt, start)
        if evicted:
            reasons["evicted"] = evicted
        elsewhere = self.index.elsewhere(seq.cache_salt, prompt) - start - evicted
        if elsewhere > 0:
            reasons["salt"] = elsewhere
        return reasons

    # -- grow, fork, publish, release ----------------------------------------------------------------

    def can_grow(self, members: list[Sequence]) -> bool:
        """Whether all members can get room for all their known tokens, copies-on-write included."""
        if len(members) == 1 and len(members[0].gang) == 1:
            seq = members[0]
            return self.blocks_for(len(seq.tokens)) - len(seq.block_table) <= self.num_available
        need = 0
        writers: Counter[int] = Counter()
        for seq in members:
            need += max(0, self.blocks_for(len(seq.tokens)) - len(seq.block_table))
            block = self._shared_block(seq)
            if block is not None:
                writers[block] += 1
        for block, count in writers.items():
            need += count - (count == self._owners(block))  # the last owner writes in place
        return need <= self.num_available

    def grow(self, seq: Sequence, end: int) -> None:
        """Make the slots of positions `num_computed` to `end` exist and be this sequence's alone to write."""
        table = seq.block_table
        if len(seq.gang) > 1:
            block = self._shared_block(seq)
            if block is not None:
                fresh = self._take()
                index = seq.num_computed // self.block_size
                self._hold(block)
                self._copy(block, fresh, seq.num_computed % self.block_size)
                self._drop(block)
                table[index] = fresh
                self._touched[seq.seq_id] = seq
        while len(table) * self.block_size < end:
            table.append(self._take())

    def _shared_block(self, seq: Sequence) -> int | None:
        """The partly filled block that `seq` writes next, when others own it too.

        Full prompt blocks are never meant: one member computes them for the whole gang.
        """
        index, offset = divmod(seq.num_computed, self.block_size)
        if offset == 0 or index < seq.num_prompt_tokens // self.block_size or index < seq.num_published:
            return None
        block = seq.block_table[index]
        return block if self._owners(block) > 1 else None

    def _owners(self, block: int) -> int:
        """How many sequences and indexes own the block, copies aside."""
        return self.pool.ref_count[block] - sum((c.src == block) + (c.dst == block) for c in self.copies)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """`child` shares all blocks of `parent`; the first write into a shared one copies it."""
        for block in parent.block_table:
            self._hold(block)
        child.block_table = list(parent.block_table)
        child.num_computed = child.num_planned = parent.num_computed
        child.write_from = parent.write_from
        child.num_published = parent.num_published
        child.index_node = parent.index_node
        self._attached[child.seq_id] = child

    def publish(self, seq: Sequence, end: int) -> None:
        """Give the full blocks of `tokens[:end]` to the index, pending until `commit`.

        Where the index has the block already, the table entry becomes the index's own block and the
        duplicate is freed: the bits are equal. Such blocks precede all new ones, because a new node has no
        children yet; so one `write_from` says which slots still have to be written.
        """
        size = self.block_size
        index = seq.num_published
        node = self._node(seq)
        if node.detached:
            return
        while (index + 1) * size <= end:
            key = tuple(seq.tokens[index * size : (index + 1) * size])
            child = self.index.child(node, key)
            if child is None:
                child = self._insert(node, key, seq.block_table[index], seq.seq_id)
                child.pending = True
                self._pending.append(child)
            else:
                if self._replace(seq, index, child.block):
                    self.counters.merged_blocks += 1
                    if child.pending:
                        self._touched[seq.seq_id] = seq
                    seq.write_from = max(seq.write_from, (index + 1) * size)
            node = child
            index += 1
        seq.num_published = index
        seq.index_node = node

    def release(self, seq: Sequence, *, keep_tail: bool) -> None:
        """Give all blocks back; published ones stay as cache.

        Args:
            keep_tail: hang the last, partly filled block in the index as well (a finished sequence).
        """
        self._claims.drop(seq)
        if keep_tail:
            self._hang_tail(seq)
        for block in reversed(seq.block_table):
            self._drop(block)
        seq.block_table = []
        seq.num_published = 0
        seq.index_node = None
        seq.write_from = 0
        del self._attached[seq.seq_id]

    def _hang_tail(self, seq: Sequence) -> None:
        size = self.block_size
        start = seq.num_computed // size * size
        key = tuple(seq.tokens[start : seq.num_computed])
        if not key or seq.num_published * size != start:
            return
        node = self._node(seq)
        block = seq.block_table[seq.num_published]
        if not node.detached and self.pool.ref_count[block] == 1 and not self.index.covers(node, key):
            self._insert(node, key, block, seq.seq_id)

    # -- blocks and nodes ------------------------------------------------------------------------------

    def _node(self, seq: Sequence) -> Node:
        """Where in the index the sequence stands. Roots come and go, so depth 0 is looked up."""
        if seq.num_published == 0 or seq.index_node is None:
            return self.index.root(seq.cache_salt)
        return seq.index_node

    def _insert(self, parent: Node, key: tuple[int, ...], block: int, publisher: int) -> Node:
        shorter = self.index.superseded(parent, key)
        node = self.index.insert(parent, key, block)
        if shorter is not None:
            self._forget(shorter)
        node.publisher = publisher
        self.pool.hold(block)
        self._nodes[block] = node
        return node

    def _forget(self, node: Node) -> None:
        """A childless node leaves the index."""
        self.index.detach(node)
        self._nodes[node.block] = None
        self.pool.drop(node.block)

    def _detach(self, node: Node) -> None:
        for below in reversed(list(node.subtree())):
            self._forget(below)

    def reset_prefix_cache(self) -> int:
        """Evict every block that no sequence holds; returns how many. Not between `schedule` and `update`."""
        count = self.num_cached
        while self.num_cached:
            self._evict()
        return count

    def _evict(self) -> None:
        node = self.index.evict()
        self._nodes[node.block] = None
        self.pool.drop(node.block)
        self.counters.evicted_blocks += 1

    def _take(self) -> int:
        if self.pool.num_free == 0:
            self._evict()
        return self.pool.take()

    def _hold(self, block: int) -> None:
        if self.pool.hold(block) == 2:
            node = self._nodes[block]
            if node is not None:
                self.index.set_held(node)

    def _drop(self, block: int) -> None:
        if self.pool.drop(block) == 1:
            node = self._nodes[block]
            if node is not None:
                self.index.set_idle(node, self._step)

    def _copy(self, src: int, dst: int, num_slots: int) -> None:
        """List a copy, which owns both blocks until the step ends. The caller has taken hold of `src` for it."""
        node = self._nodes[src]
        assert node is None or not node.pending, f"block {src} is not computed yet"
        self._hold(dst)
        self.copies.append(Copy(src, dst, num_slots))
        self.counters.copied_blocks += 1

    def _replace(self, seq: Sequence, index: int, block: int) -> bool:
        """Put `block` into the table, also in those of the gang that share the old entry. False: it was there."""
        old = seq.block_table[index]
        if old == block:
            return False
        for member in seq.gang:
            if member.block_table[index : index + 1] == [old]:
                self._hold(block)
                member.block_table[index] = block
                self._drop(old)
        return True

    def check(self) -> None:
        """Assert every invariant named at the head of this module. O(everything): for tests and debugging."""
        check_kv(self)
