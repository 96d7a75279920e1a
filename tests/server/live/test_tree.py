"""The tree as it is drawn, against the nodes of random worlds."""

from __future__ import annotations

import random
from typing import Any

import pytest

from leafage.core.prefix_index import Node
from leafage.core.protocols import PrefixIndex
from leafage.server.live.tree import TreeSummary, summarize
from tests.core.toy import Loop, numbers
from tests.core.world import World


def loop_with(*prompts: list[int], **options: Any) -> Loop:
    """One whose index has these, each as long as it says: an answer of one token leaves nothing."""
    loop = Loop(num_blocks=256, block_size=4, **options)
    for prompt in prompts:
        loop.add(prompt, max_tokens=1)
        loop.run()
    return loop


def draw(index: PrefixIndex, standing: list[Node] | None = None, max_edges: int = 1000) -> TreeSummary:
    return summarize(index, standing or [], [], max_edges)


def sizes(summary: TreeSummary) -> list[tuple[int, int]]:
    """(parent, tokens) of each edge."""
    return [(edge.parent, edge.num_tokens) for edge in summary.edges]


def test_an_unbranched_run_of_blocks_is_one_edge() -> None:
    loop = loop_with(numbers(18))
    summary = draw(loop.kv.index)
    assert sizes(summary) == [(-1, 18)]
    assert (summary.num_nodes, summary.num_edges, summary.num_tokens) == (5, 1, 18)


def test_edges_end_where_prefixes_part() -> None:
    loop = loop_with(numbers(16), numbers(8) + numbers(8, 50), numbers(4, 90))
    assert sizes(draw(loop.kv.index)) == [(-1, 8), (0, 8), (0, 8), (-1, 4)]


def test_an_edge_ends_where_a_sequence_stands_and_where_a_pin_ends() -> None:
    loop = loop_with(numbers(16))
    nodes = list(loop.kv.index.nodes())
    summary = summarize(loop.kv.index, [nodes[0], nodes[0]], [nodes[2]], 9)
    assert sizes(summary) == [(-1, 4), (0, 8), (1, 4)]
    assert summary.place == {nodes[0].number: 0}


def test_what_is_left_out_is_counted_where_it_hangs() -> None:
    head = numbers(8)
    loop = loop_with(head + numbers(12, 20), head + numbers(4, 40), head + numbers(8, 60), numbers(4, 80))
    summary = draw(loop.kv.index, max_edges=2)
    assert sizes(summary) == [(-1, 8), (0, 12)]
    top = summary.edges[0]
    assert (top.num_hidden, top.num_hidden_tokens) == (2, 12)
    assert (summary.num_hidden, summary.num_hidden_tokens) == (1, 4)
    assert summary.num_edges == 5


def test_the_way_to_a_sequence_is_kept_before_anything_larger() -> None:
    loop = loop_with(numbers(64), [7, 7, 7, 7])
    [small] = [node for node in loop.kv.index.nodes() if node.key == (7, 7, 7, 7)]
    summary = draw(loop.kv.index, [small], max_edges=1)
    assert sizes(summary) == [(-1, 4)] and summary.place == {small.number: 0}


def test_a_sequence_on_an_edge_left_out_stands_at_the_nearest_above() -> None:
    loop = loop_with(numbers(8) + numbers(8, 30), numbers(8) + numbers(4, 60))
    ends = [node for node in loop.kv.index.nodes() if node.num_children == 0]
    summary = draw(loop.kv.index, ends, max_edges=1)
    assert len(summary.edges) == 1
    assert {summary.place[node.number] for node in ends} == {0}
    assert draw(loop.kv.index, ends, max_edges=0).place[ends[0].number] == -1


@pytest.mark.parametrize("prefix_index", ["radix", "radix-node", "hash_chain", "none"])
@pytest.mark.parametrize("seed", range(4))
def test_no_token_is_lost_in_any_world(seed: int, prefix_index: str) -> None:
    world = World(random.Random(seed), prefix_index=prefix_index, check=False)
    kv = world.loop.kv
    for _ in range(80):
        world.step()
        standing = [s.index_node for s in kv.attached() if s.index_node and not s.index_node.detached]
        pinned = [pin.nodes[-1] for pin in kv.pins if pin.held]
        for max_edges in (1000, 3):
            summary = summarize(kv.index, standing, pinned, max_edges)
            nodes = list(kv.index.nodes())
            assert summary.num_tokens == sum(len(node.key) for node in nodes)
            assert summary.num_nodes == len(nodes)
            kept = sum(edge.num_tokens + edge.num_hidden_tokens for edge in summary.edges)
            assert kept + summary.num_hidden_tokens == summary.num_tokens
            num_kept = sum(1 + edge.num_hidden for edge in summary.edges)
            assert num_kept + summary.num_hidden == summary.num_edges
            assert len(summary.edges) == min(max_edges, summary.num_edges)
            for place, edge in enumerate(summary.edges):
                assert edge.parent < place
                _assert_is_a_run(summary, place)
            for node in standing:
                place = summary.place[node.number]
                assert max_edges == 3 or summary.edges[place].end is node


def _assert_is_a_run(summary: TreeSummary, place: int) -> None:
    """An edge's tokens are those between its end and its parent's."""
    edge = summary.edges[place]
    above = summary.edges[edge.parent].end.path() if edge.parent >= 0 else []
    path = edge.end.path()
    assert path[: len(above)] == above
    assert sum(len(node.key) for node in path[len(above) :]) == edge.num_tokens
