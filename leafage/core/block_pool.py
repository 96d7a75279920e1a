"""BlockPool: which blocks of the KV cache are free, and how many owners each of the others has."""

from __future__ import annotations

from collections.abc import Sequence


class BlockPool:
    """A free list and one reference count per block; it knows nothing of what a block holds.

    Ownership is one number: `ref_count[block]` is the number of owners, 0 exactly when the block is in the
    free list. Paging after Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention" (SOSP 2023).

    Args:
        num_blocks: blocks in the pool, ids 0 .. num_blocks - 1.
        order: the order in which the untouched pool hands its blocks out; ascending when None.
    """

    __slots__ = ("_free", "num_blocks", "ref_count")

    def __init__(self, num_blocks: int, order: Sequence[int] | None = None) -> None:
        blocks = list(range(num_blocks)) if order is None else list(order)
        assert sorted(blocks) == list(range(num_blocks)), "order must name every block once"
        self.num_blocks = num_blocks
        self.ref_count = [0] * num_blocks
        self._free = blocks[::-1]  # a stack: the block freed last is still in the CPU's cache

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A free block, now with one owner. The caller made sure that there is one."""
        block = self._free.pop()
        self.ref_count[block] = 1
        return block

    def hold(self, block: int) -> int:
        """One owner more of a block in use; returns the new count."""
        count = self.ref_count[block] + 1
        assert count > 1, f"block {block} is free and cannot be held"
        self.ref_count[block] = count
        return count

    def drop(self, block: int) -> int:
        """One owner less; the last one frees the block. Returns the new count."""
        count = self.ref_count[block] - 1
        assert count >= 0, f"block {block} was freed twice"
        self.ref_count[block] = count
        if count == 0:
            self._free.append(block)
        return count

    def check(self) -> None:
        """Assert that free means unowned: no block is lost, none is free twice."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is in the free list twice"
        for block, count in enumerate(self.ref_count):
            assert count >= 0, f"block {block} has count {count}"
            assert (count == 0) == (block in free), f"block {block} has count {count}, free: {block in free}"
