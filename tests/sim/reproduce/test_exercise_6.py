"""Exercise 6: both indexes."""

from __future__ import annotations

from leafage.cli.sim_reproduce import make_tools
from leafage.core.hash_chain import HashChain
from leafage.core.prefix_index import Key
from leafage.core.radix_tree import RadixTree
from leafage.sim.reproduce import exercise_6
from leafage.sim.reproduce.exercise_6 import HITS, evicted_at_once, finds_after_another_head, lookups
from tests.sim.reproduce.tools import assert_passed, run


def test_e6_every_verdict_and_number() -> None:
    outcome = run("exercise-6")
    assert_passed(outcome)
    granularity, match, eviction = outcome.tables
    assert [list(row) for row in match.rows] == [
        [1, 2000, 2000], [16, 125, 125], [64, 31, 31], [256, 7, 7],
    ]  # fmt: skip
    assert [row[-1] for row in eviction.rows] == [1, 1, 8]
    assert all(chain < tree for *_, chain, tree in granularity.rows if chain and tree)


def test_e6_a_hash_that_forgets_the_head_finds_what_it_must_not() -> None:
    """What the exercise asks for: without h_{j-1}, only the comparison of predecessors saves the answer."""

    class Forgetful(HashChain):
        def hash_of(self, value: str | tuple[int, Key]) -> int:
            return hash(value if isinstance(value, str) else value[1])

        def child(self, node, key):  # type: ignore[no-untyped-def]
            return self._table.get(self.hash_of((0, key)))

    assert finds_after_another_head(HashChain) == finds_after_another_head(RadixTree) == 0
    index = Forgetful(16)
    exercise_6.fill(index, [*range(16), *range(100, 116)])
    assert len(index.match("", list(range(100, 116)), 16)) == 1, "another prefix's K/V"


def test_e6_whole_leaves_go_only_where_they_are_the_unit() -> None:
    assert evicted_at_once(RadixTree(4)) == evicted_at_once(HashChain(4)) == 1
    assert evicted_at_once(RadixTree(4, eviction_unit="node")) == 8
    assert lookups(RadixTree(500)) == 4


def test_e6_the_tree_hits_to_the_token() -> None:
    tools = make_tools()
    assert HITS["few-shot", "radix", 256](tools) > HITS["few-shot", "hash_chain", 256](tools) + 0.1
