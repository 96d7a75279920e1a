"""Where the slots of the KV cache are: written, to be written, or lost to the way memory is given out.

The kinds of waste are those of Kwon et al., "Efficient Memory Management for Large Language Model Serving
with PagedAttention" (SOSP 2023), section 3.1, counted apart, with the same definitions for paged and for
reserved memory. A request is taken to produce all its `max_tokens`: what an earlier end leaves unwritten
counts as reservation while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from leafage.core.request import Request, Sequence

if TYPE_CHECKING:
    from leafage.core.block_store import BlockStore
    from leafage.core.kv_manager import KVManager


@dataclass(slots=True)
class Usage:
    """Slots (one per token) by what they are for; stored + reservation + internal + external + cached + free
    + pinned is the pool.

    Attributes:
        stored: written for running requests, as of the end of the current step; shared ones count once.
        reservation: held and not written yet; the request may still get there.
        internal: internal fragmentation: held, and no request will ever write them.
        external: external fragmentation: free, but outside the longest free run, where one run must hold a
            whole request. None when paged.
        cached: of blocks that only the prefix index keeps (or a copy of this step); a request that needs
            them gets them.
        free: all others.
        pinned: of blocks that no running request holds and pins keep.
        duplicates: of `stored`: full blocks that hold what another block holds as well. A prefix index
            merges them; it is not asked about sequences that publish no more since a step failed.
    """

    stored: float = 0
    reservation: float = 0
    internal: float = 0
    external: float = 0
    cached: float = 0
    free: float = 0
    pinned: float = 0
    duplicates: float = 0

    @property
    def held(self) -> float:
        """What running requests keep from others."""
        return self.stored + self.reservation + self.internal

    def add(self, seq: Sequence, capacity: int, longest: int) -> None:
        """Count a sequence that holds `capacity` slots alone and computes at most `longest` tokens."""
        written = max(seq.num_planned, seq.write_from)
        usable = min(capacity, longest)
        self.stored += written
        self.reservation += usable - written
        self.internal += capacity - usable


KINDS = tuple(field.name for field in fields(Usage))


def num_computable(request: Request) -> int:
    """Tokens of which a sequence of the request needs the K/V at most; that of a last token it never does."""
    return len(request.prompt_token_ids) + request.max_tokens - 1


def paged_usage(kv: KVManager, running: Iterable[Request]) -> Usage:
    """The usage of blocks. O(running sequences): what they share, they have written."""
    size = kv.block_size
    usage = Usage()
    unwritten = internal = 0  # every step comes here, so the loop is plain
    for request in running:
        if len(request.sequences) > 1:
            _add_gang(usage, request, size)
            continue
        seq = request.sequences[0]
        written = seq.num_planned
        if seq.write_from > written:
            written = seq.write_from
        held = len(seq.block_table) * size
        unwritten += held - written
        beyond = held - seq.num_prompt_tokens - request.max_tokens + 1
        if beyond > 0:
            internal += beyond
    usage.reservation += unwritten - internal
    usage.internal += internal
    _add_rest(usage, kv)
    return usage


def _add_rest(usage: Usage, kv: KVManager) -> None:
    """All that does not depend on single sequences, after `reservation` and `internal`."""
    store, size = kv.store, kv.block_size
    pinned, cached = store.num_only_pinned, 0
    if kv.copies:
        of_copies = {block for copy in kv.copies for block in (copy.src, copy.dst)}
        copied = [block for block in of_copies if _only_copied(store, block)]
        copied_pinned = sum(block in store.pinned for block in copied)
        pinned += copied_pinned
        cached = len(copied) - copied_pinned
    cached += kv.num_cached
    free = kv.num_free
    usage.pinned = pinned * size
    usage.cached = cached * size
    usage.free = free * size
    held = kv.num_blocks - free - cached - pinned
    usage.stored = held * size - usage.reservation - usage.internal  # shared ones once
    if kv.duplicates is not None:
        usage.duplicates = kv.duplicates.num_blocks * size


def advance_paged_usage(
    kv: KVManager, usage: Usage, num_written: int, grown: Iterable[tuple[Request, Sequence]]
) -> None:
    """Make the usage of a step that of the next one, in which running sequences wrote so many more slots and
    some got a block each. O(those)."""
    size = kv.block_size
    usage.reservation -= num_written
    for request, seq in grown:
        beyond = len(seq.block_table) * size - num_computable(request)
        lost = min(max(beyond, 0), size)
        usage.internal += lost
        usage.reservation += size - lost
    _add_rest(usage, kv)


def _only_copied(store: BlockStore, block: int) -> bool:
    """Whether no sequence holds a copied block: a cached source, or one whose sequence left since."""
    return store.owners(block) == (store.node_of(block) is not None) + (block in store.pinned)


def _add_gang(usage: Usage, request: Request, size: int) -> None:
    """Members also share blocks that are not full: between a fork and the copies, and while they resume."""
    longest = num_computable(request)
    members = [(seq.block_table, max(seq.num_planned, seq.write_from)) for seq in request.live]
    first = min(written for _, written in members) // size  # blocks before it are full
    blocks: dict[int, tuple[int, int]] = {}  # slots written, and slots that can be
    for table, written in members:
        for index in range(first, len(table)):
            here = min(max(written - index * size, 0), size)
            usable = min(max(longest - index * size, 0), size)
            blocks[table[index]] = (max(here, blocks.get(table[index], (0, 0))[0]), usable)
    for here, usable in blocks.values():
        usage.reservation += usable - here
        usage.internal += size - usable


class UsageSeconds:
    """Slot-seconds by kind: usage weighted by the time it lasted. They only grow, so windows are differences.

    Attributes:
        seconds: time accounted for.
        slot_seconds: by kind, in the order of KINDS.
        seq_seconds: the same of running sequences; over `seconds`, the mean batch.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slot_seconds = [0.0] * len(KINDS)
        self.seq_seconds = 0.0

    def add(self, usage: Usage, num_seqs: int, seconds: float) -> None:
        """`usage` lasted so long."""
        self.seconds += seconds
        self.seq_seconds += num_seqs * seconds
        sums = self.slot_seconds
        sums[0] += usage.stored * seconds
        sums[1] += usage.reservation * seconds
        sums[2] += usage.internal * seconds
        sums[3] += usage.external * seconds
        sums[4] += usage.cached * seconds
        sums[5] += usage.free * seconds
        sums[6] += usage.pinned * seconds
        sums[7] += usage.duplicates * seconds


class Duplicates:
    """Blocks whose whole prefix other blocks hold as well: what paging with a prefix index would store once.

    It spells the full blocks of sequences as paths of nodes; a node knows the blocks that hold it. Work per
    full block, none per token.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.num_blocks = 0
        """Blocks beyond the first of each node."""
        self._nodes: dict[tuple[int | str, tuple[int, ...]], _Node] = {}
        self._paths: dict[int, list[tuple[_Node, int]]] = {}
        self._next = 0

    def extend(self, seq: Sequence, end: int) -> None:
        """The blocks of `seq.tokens[:end]` that are full hold their K/V."""
        size, nodes = self.block_size, self._nodes
        path = self._paths.get(seq.seq_id)
        if path is None:
            path = self._paths[seq.seq_id] = []
        above: int | str = path[-1][0].number if path else seq.cache_salt
        for index in range(len(path), end // size):
            key = (above, tuple(seq.tokens[index * size : (index + 1) * size]))
            block = seq.block_table[index]
            node = nodes.get(key)
            if node is None:
                self._next = above = self._next + 1
                node = nodes[key] = _Node(above, key, block)
                path.append((node, block))
            else:
                above = node.number
                self._hold(path, node, block)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """`child` has the tokens of `parent`, in its own blocks or in the same ones."""
        path: list[tuple[_Node, int]] = []
        self._paths[child.seq_id] = path
        above = self._paths.get(parent.seq_id, [])
        for (node, _), block in zip(above, child.block_table, strict=False):
            self._hold(path, node, block)

    def remove(self, seq: Sequence) -> None:
        """The sequence gives its blocks back."""
        for node, block in self._paths.pop(seq.seq_id, ()):
            blocks = node.blocks
            count = blocks.pop(block) - 1
            if count:
                blocks[block] = count
            elif blocks:
                self.num_blocks -= 1
            else:
                del self._nodes[node.key]

    def _hold(self, path: list[tuple[_Node, int]], node: _Node, block: int) -> None:
        if block not in node.blocks:
            self.num_blocks += bool(node.blocks)
            node.blocks[block] = 0
        node.blocks[block] += 1
        path.append((node, block))


class _Node:
    """A full block of tokens behind a certain prefix, and who holds it: sequences by block."""

    __slots__ = ("blocks", "key", "number")

    def __init__(self, number: int, key: tuple[int | str, tuple[int, ...]], block: int) -> None:
        self.number = number
        self.key = key
        self.blocks = {block: 1}
