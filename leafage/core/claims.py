"""Claims: who computes which block next, so that equal prompts in chunks are computed once."""

from __future__ import annotations

from leafage.core.prefix_index import Key, Node
from leafage.core.request import Sequence


class Claims:
    """At most one sequence per block that is not in the index yet, known by its parent node and its tokens.

    A sequence whose chunk ended claims the full block it will compute next. A sequence of a later gang that
    stands before the same block yields its turn, until the claimant passes (then the block is in the index)
    or leaves. An earlier gang never yields to a later one, it takes the claim over: the oldest progresses.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._holders: dict[tuple[int, Key], Sequence] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def held_by_earlier(self, seq: Sequence, node: Node, start: int) -> bool:
        """Whether an earlier gang claimed the block of `seq` at position `start`, below `node`."""
        if not self._holders:
            return False
        holder = self._holders.get((node.number, tuple(seq.tokens[start : start + self.block_size])))
        return holder is not None and holder.rank < seq.rank

    def take(self, seq: Sequence, node: Node, start: int) -> None:
        """Claim the block at `start` unless it is not full, cannot be published or an earlier gang has it."""
        end = start + self.block_size
        if end <= len(seq.tokens) and not node.detached and not self.held_by_earlier(seq, node, start):
            seq.claim = (node.number, tuple(seq.tokens[start:end]))
            self._holders[seq.claim] = seq

    def drop(self, seq: Sequence) -> None:
        if seq.claim is not None:
            if self._holders.get(seq.claim) is seq:
                del self._holders[seq.claim]
            seq.claim = None

    def holders(self) -> list[Sequence]:
        return list(self._holders.values())
