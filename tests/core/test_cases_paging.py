"""The worked examples of block tables and of sharing: which blocks, how many, how many copies."""

from __future__ import annotations

import numpy as np
import pytest

from leafage.core.batch import Batch
from leafage.core.request import derive
from tests.core.toy import Loop


def test_r3_2_two_sequences_grow_through_a_shuffled_pool() -> None:
    """20 and 24 prompt tokens, blocks of 8, 12 blocks in the order of default_rng(1): the tables by step."""
    order = np.random.default_rng(1).permutation(12).tolist()
    loop = Loop(12, 8, prefix_index="none", block_order=order)
    a, b = loop.add(range(20), max_tokens=20), loop.add(range(100, 124), max_tokens=20)
    expected = {  # decode steps done: (tokens, table, slots taken in the last block) of each, blocks free
        0: ((20, [8, 11, 4], 4), (24, [7, 5, 0], 8), 6),
        1: ((21, [8, 11, 4], 5), (25, [7, 5, 0, 1], 1), 5),
        5: ((25, [8, 11, 4, 9], 1), (29, [7, 5, 0, 1], 5), 4),
        12: ((32, [8, 11, 4, 9], 8), (36, [7, 5, 0, 1, 2], 4), 3),
    }
    for step in range(13):
        loop.step()
        if step in expected:
            rows = []
            for request_id in (a, b):
                [seq] = loop.requests[request_id].sequences
                rows.append((seq.num_computed, seq.block_table, (seq.num_computed - 1) % 8 + 1))
            assert (*rows, loop.kv.num_free) == expected[step]
    loop.run()
    loop.assert_undisturbed(a)
    loop.assert_undisturbed(b)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("shuffled", [False, True])
def test_r3_4_neither_the_block_size_nor_the_order_of_blocks_changes_a_token(
    block_size: int, shuffled: bool
) -> None:
    """6 requests that arrive at different steps, against each alone."""
    num_blocks = 512 // block_size
    order = np.random.default_rng(2).permutation(num_blocks).tolist() if shuffled else None
    loop = Loop(num_blocks, block_size, block_order=order)
    ids = []
    for arrival in (0, 0, 3, 4, 9, 15):
        while loop.scheduler.step < arrival:
            loop.step()
        number = len(ids)
        ids.append(
            loop.add(range(number, number + 7 + 5 * number), max_tokens=12, temperature=1.0, seed=number)
        )
    loop.run()
    for request_id in ids:
        loop.assert_undisturbed(request_id)


class Watched(Loop):
    """Counts blocks that are held at once, and copies."""

    def __init__(self, prefix_index: str) -> None:
        super().__init__(200, 8, prefix_index=prefix_index, vocab_size=100_000)
        self.most_blocks = 0
        self.num_copies = 0
        self.executor.before_execute = self._watch

    def _watch(self, batch: Batch) -> None:
        self.most_blocks = max(self.most_blocks, self.kv.num_active)
        self.num_copies += len(batch.copies)


@pytest.mark.parametrize(("n", "alone", "together"), [(2, 26, 19), (4, 52, 31), (8, 104, 55)])
@pytest.mark.parametrize("prefix_index", ["radix", "none"])
def test_r4_2_parallel_samples_share_the_prompt(n: int, alone: int, together: int, prefix_index: str) -> None:
    """Prompt 62, 40 outputs, block 8: 7 full blocks once, the rest for each; n - 1 copies."""
    params = {"max_tokens": 40, "temperature": 1.0}
    gang = Watched(prefix_index)
    samples = gang.add(range(62), n=n, seed=7, **params)
    gang.run()
    assert (gang.most_blocks, gang.num_copies) == (together, n - 1)

    apart = Watched("none")
    singles = [apart.add(range(62), seed=derive(7, i), **params) for i in range(n)]
    apart.run()
    assert (apart.most_blocks, apart.num_copies) == (alone, 0)
    assert [apart.tokens(single) for single in singles] == [gang.tokens(samples, i) for i in range(n)]


@pytest.mark.parametrize(("best_of", "together"), [(2, 19), (4, 31), (8, 55)])
def test_r4_2_the_candidates_of_best_of_share_the_prompt(best_of: int, together: int) -> None:
    """One answer is returned; the blocks are those of `best_of` sequences."""
    loop = Watched("radix")
    request_id = loop.add(range(62), n=1, best_of=best_of, seed=7, max_tokens=40, temperature=1.0)
    loop.run()
    assert (loop.most_blocks, loop.num_copies) == (together, best_of - 1)
    loop.assert_undisturbed(request_id)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_r4_2_a_prompt_that_fills_its_last_block_is_never_copied(n: int) -> None:
    loop = Watched("radix")
    request_id = loop.add(range(64), n=n, seed=7, max_tokens=40, temperature=1.0)
    loop.run()
    assert loop.num_copies == 0
    loop.assert_undisturbed(request_id)
