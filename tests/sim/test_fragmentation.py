"""Wastes of contiguous memory, counted with the engine's allocators."""

from __future__ import annotations

import pytest

from leafage.core.block_pool import BlockPool
from leafage.sim.fragmentation import MEMORIES, Paged, end_of_request, fragmentation


def test_the_paged_memory_is_the_block_pool_of_the_engine() -> None:
    memory = Paged(64)
    assert isinstance(memory.pool, BlockPool)
    piece = memory.allocate(33)
    assert piece is not None and len(piece) == 3 and memory.num_free == 16
    assert memory.allocate(17) is None
    memory.free(piece)
    assert memory.num_free == 64


def test_what_is_held_at_the_end_of_a_request() -> None:
    """Prompt 20 and 12 answers: 31 slots are written."""
    rows = end_of_request([(20, 12)], max_model_len=64, block_sizes=[16, 32])
    held = {row.system: row.held for row in rows}
    paged = {"paged, block 16": 32, "paged, block 32": 32}
    assert held == {"reserved-max": 64, "reserved-pow2": 36, "reserved-oracle": 31, **paged}
    assert all(row.utilisation == 31 / row.held for row in rows)


@pytest.mark.parametrize("system", MEMORIES)
def test_only_pieces_fail_with_enough_free_memory(system: str) -> None:
    run = fragmentation(MEMORIES[system], num_tokens=1024, num_events=2000, mean=100, sigma=0.9, seed=1)
    assert run.failures > 20, "too few to prove anything"
    assert (run.enough_free > 0) == (system != "paged")
    assert 0.3 < run.used < 1
