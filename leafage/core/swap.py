"""Swap: blocks of preempted gangs wait outside the KV cache, and come back instead of being computed again.

Bookkeeping only; the executor moves the data, in the order swap_out, swap_in, copies, forward. So a block can
be given away in the step that swaps it out, while a slot that is read stays taken until the step is done.
After Kwon et al. (SOSP 2023), section 4.5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leafage.core.batch import Transfer
from leafage.core.prefix_index import Node
from leafage.core.protocols import SwapSpace
from leafage.core.request import Request, Sequence

if TYPE_CHECKING:
    from leafage.core.kv_manager import KVManager


@dataclass(frozen=True, slots=True)
class RestoreCost:
    """What it costs to bring a preempted gang back, in seconds: plain numbers, the same in every run.

    Attributes:
        per_block: moving a block out and in again.
        per_transfer: overhead of one block's move, each way.
        per_token: computing a token again.
        per_pair: attention of one token to one earlier token.
    """

    per_block: float = 0.0
    per_transfer: float = 0.0
    per_token: float = 1.0
    per_pair: float = 0.0

    def swap(self, num_blocks: int) -> float:
        """Seconds for swapping so many blocks out and in."""
        return num_blocks * (self.per_block + 2 * self.per_transfer)

    def recompute(self, num_tokens: int) -> float:
        """Seconds for computing a sequence of so many tokens again."""
        return num_tokens * self.per_token + num_tokens * (num_tokens + 1) // 2 * self.per_pair


class SwapSlots:
    """A free list of slots outside the KV cache; the SwapSpace of the real engine and of the simulator.

    Args:
        num_slots: how many blocks fit. 0 means that nothing is ever swapped.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots))[::-1]
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """A free slot. The caller made sure that there is one."""
        slot = self._free.pop()
        self._taken.add(slot)
        return slot

    def free(self, slot: int) -> None:
        assert slot in self._taken, f"swap slot {slot} is freed twice"
        self._taken.remove(slot)
        self._free.append(slot)

    def check(self, used: set[int]) -> None:
        """Assert that exactly the slots in use are taken."""
        assert used == self._taken, f"slots {self._taken} are taken, {used} are in use"
        assert len(self._free) + len(self._taken) == self.num_slots, "a swap slot is lost"


@dataclass(slots=True)
class SwapCounters:
    """Totals since the start."""

    blocks_out: int = 0
    blocks_in: int = 0
    hits: int = 0
    """Blocks that need not be read back: the prefix index still had them."""
    refused: int = 0
    """Gangs that were to be swapped and did not fit."""
    lost: int = 0
    """Gangs whose transfer failed; they are computed again."""


class Swap:
    """Moves whole gangs between a KVManager and a swap space.

    A block that several members hold takes one slot and is read once.
    """

    def __init__(self, block_size: int, space: SwapSpace) -> None:
        self.block_size = block_size
        self.space = space
        self.counters = SwapCounters()
        self.outgoing: list[Transfer] = []
        self.incoming: list[Transfer] = []
        self._left: list[Sequence] = []  # swapped out in the current step
        self._returned: list[Sequence] = []  # swapped in in the current step

    def num_blocks(self, request: Request) -> int:
        """Distinct blocks with computed tokens that the gang holds."""
        return len({block for seq in request.live for block in self._computed(seq)})

    def out(self, request: Request) -> bool:
        """List the transfers of a gang that is about to give its blocks back.

        False: there is no room for them, or nothing to move.
        """
        num_blocks = self.num_blocks(request)
        if num_blocks == 0:
            return False  # it has computed nothing
        if num_blocks > self.space.num_free:
            self.counters.refused += 1
            return False
        blocks: dict[int, int] = {}
        for seq in request.live:
            for block in self._computed(seq):
                if block not in blocks:
                    blocks[block] = self.space.allocate()
                    self.outgoing.append(Transfer(seq.seq_id, block, blocks[block]))
            seq.swap_slots = [blocks[block] for block in self._computed(seq)]
            self._left.append(seq)
        self.counters.blocks_out += len(blocks)
        return True

    def take_in(self, kv: KVManager, request: Request, watermark: int) -> bool:
        """Give a swapped gang blocks for all its known tokens, and list the transfers of those that the index
        lacks; from the next step on it goes on where it was. Nothing changes when it does not fit."""
        size = kv.block_size
        members = request.live
        leader = members[0]
        shared = leader.num_prompt_tokens // size if len(members) > 1 else 0
        matches = [kv.index.match(seq.cache_salt, seq.tokens, seq.num_lost) for seq in members]
        wanted: set[int] = set()
        idle: set[int] = set()
        need = 0
        for seq, nodes in zip(members, matches, strict=True):
            wanted.update(seq.swap_slots[len(nodes) :])
            idle.update(node.block for node in nodes if node.stamp is not None)
            need += max(0, kv.blocks_for(len(seq.tokens)) - self._num_head(seq, leader, nodes, shared))
        need += len(wanted) + self._num_copies(members, size)
        if kv.num_available - len(idle) - watermark < need:
            return False
        for seq, nodes in zip(members, matches, strict=True):
            for node in nodes:
                kv.store.hold(node.block)
                seq.block_table.append(node.block)
        blocks: dict[int, int] = {}
        for seq, nodes in zip(members, matches, strict=True):
            self.counters.hits += min(len(nodes), len(seq.swap_slots))
            for slot in seq.swap_slots[len(nodes) :]:
                if slot in blocks:
                    kv.store.hold(blocks[slot])
                else:
                    blocks[slot] = kv.store.take()
                    self.incoming.append(Transfer(seq.seq_id, blocks[slot], slot))
                seq.block_table.append(blocks[slot])
            kv.complete(seq, nodes, leader.block_table[:shared] if seq is not leader else [])
            kv.resume_at(seq, seq.num_lost)
            if kv.duplicates is not None:
                kv.duplicates.extend(seq, seq.num_lost)
            self._returned.append(seq)
        self.counters.blocks_in += len(blocks)
        if not blocks:  # the index had all of it: no step to wait for
            self.drop(members)
        return True

    def drop(self, members: Iterable[Sequence]) -> None:
        """Free the slots of a gang."""
        for slot in {slot for seq in members for slot in seq.swap_slots}:
            self.space.free(slot)
        for seq in members:
            seq.swap_slots = []

    def commit(self, failed: Collection[int]) -> None:
        """The step ran. What came in gives its slots back; what did not get out is computed again.

        Args:
            failed: seq_ids of failed transfers.
        """
        if failed:
            self._lose([seq for seq in self._left + self._returned if seq.seq_id in failed])
        self.drop(self._returned)
        self._end()

    def undo(self) -> None:
        """The step failed: nothing that it moved can be relied on."""
        self._lose(self._left + self._returned)
        self._end()

    def _lose(self, sequences: list[Sequence]) -> None:
        gangs = {id(seq.gang): seq.gang for seq in sequences}
        for gang in gangs.values():
            self.drop(gang)
            self.counters.lost += 1

    def _end(self) -> None:
        self.outgoing, self.incoming = [], []  # new lists: the old ones belong to the batch
        self._left, self._returned = [], []

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Assert that the slots taken are those of these sequences, all there are."""
        slots = [seq.swap_slots for seq in sequences]
        self.space.check({slot for each in slots for slot in each})

    def _computed(self, seq: Sequence) -> list[int]:
        return seq.block_table[: -(-seq.num_computed // self.block_size)]

    @staticmethod
    def _num_head(seq: Sequence, leader: Sequence, nodes: list[Node], shared: int) -> int:
        """Leading blocks of the table that are matched, read back, or the leader's."""
        return max(len(nodes), len(seq.swap_slots), 0 if seq is leader else shared)

    @staticmethod
    def _num_copies(members: list[Sequence], size: int) -> int:
        """Copies that the next step makes of partly filled blocks which several members are to write."""
        tails = [seq.swap_slots[-1] for seq in members if seq.swap_slots and seq.num_lost % size]
        return len(tails) - len(set(tails))
