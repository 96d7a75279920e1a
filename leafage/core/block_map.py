"""What each block of the pool is for, one letter a block: for those who watch a KV manager."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from leafage.core.request import Sequence

if TYPE_CHECKING:
    from leafage.core.block_store import BlockStore

FREE, CACHED, PRIVATE, SHARED, PINNED, RESERVED = b".cpskr"
"""Letters of a block map:

`.` free; `c` cached: only the prefix index holds it; `p` private: one sequence holds it, whether the index
has it or not; `s` shared: several do; `k` pinned: pins keep it, whoever else holds it; `r` reserved for a
sequence that has not got there. All but `.` and `c` are active.
"""

_HELD = bytes([FREE, PRIVATE]) + bytes([SHARED]) * 254  # by number of holders that are not the index


def paged_block_map(store: BlockStore) -> bytes:
    """Letters of the blocks of a KVManager, in the order of their ids. O(blocks), about 0.1 us each.

    Between two steps: within one, copies hold blocks as well.
    """
    counts = store.pool.ref_count
    try:
        letters = bytearray(bytes(counts).translate(_HELD))
    except ValueError:  # more than 255 holders of some block
        letters = bytearray(bytes([min(count, 255) for count in counts]).translate(_HELD))
    for node in store.index.nodes():
        if node.stamp is not None:
            letters[node.block] = CACHED
        elif counts[node.block] == 2:
            letters[node.block] = PRIVATE
    for block in store.pinned:
        letters[block] = PINNED
    return bytes(letters)


def reserved_block_map(
    num_blocks: int, free_runs: Iterable[tuple[int, int]], attached: Iterable[Sequence]
) -> bytes:
    """Letters of the blocks of a ReservedKVManager.

    Args:
        free_runs: (start, length) of the free blocks.
        attached: the sequences that hold blocks.
    """
    letters = bytearray([RESERVED]) * num_blocks
    for start, length in free_runs:
        letters[start : start + length] = bytes([FREE]) * length
    for seq in attached:
        for block in seq.block_table:
            letters[block] = PRIVATE
    return bytes(letters)
