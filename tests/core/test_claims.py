"""Claims: who computes which block next."""

from __future__ import annotations

from leafage.core.claims import Claims
from leafage.core.prefix_index import NoIndex
from leafage.core.radix_tree import RadixTree
from leafage.core.request import Sequence


def make(seq_id: int, arrival: int, tokens: list[int]) -> Sequence:
    return Sequence(seq_id, 0, 0, tokens, len(tokens), rank=(0, arrival))


def test_a_later_gang_waits_and_an_earlier_one_takes_over() -> None:
    root = RadixTree(4).root("")
    claims = Claims(4)
    middle, late, early = (make(i, arrival, [1, 2, 3, 4, 5]) for i, arrival in enumerate((5, 9, 1)))
    claims.take(middle, root, 0)
    assert claims.held_by_earlier(late, root, 0)
    assert not claims.held_by_earlier(middle, root, 0) and not claims.held_by_earlier(early, root, 0)
    claims.take(late, root, 0)
    assert claims.holders() == [middle]
    claims.take(early, root, 0)
    assert claims.holders() == [early] and claims.held_by_earlier(middle, root, 0)
    claims.drop(middle)
    assert claims.holders() == [early], "a claim that was taken over is not dropped"
    claims.drop(early)
    assert len(claims) == 0 and not claims.held_by_earlier(late, root, 0)


def test_only_full_blocks_that_can_be_published_are_claimed() -> None:
    claims = Claims(4)
    seq = make(1, 1, [1, 2, 3])
    claims.take(seq, RadixTree(4).root(""), 0)
    claims.take(make(2, 1, [1, 2, 3, 4]), NoIndex(4).root(""), 0)
    assert len(claims) == 0 and seq.claim is None


def test_other_tokens_are_another_claim() -> None:
    root = RadixTree(2).root("")
    claims = Claims(2)
    claims.take(make(1, 1, [1, 2]), root, 0)
    assert not claims.held_by_earlier(make(2, 2, [1, 3]), root, 0)
