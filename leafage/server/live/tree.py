"""The prefix index as it is drawn: unbranched runs of blocks are one edge, and only the heaviest are kept."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from leafage.core.prefix_index import Node
from leafage.core.protocols import PrefixIndex


@dataclass(slots=True)
class Edge:
    """A run of nodes: nothing branches before its end, and no sequence stands and no pin ends there.

    Attributes:
        end: its last node.
        parent: place of the edge above in `TreeSummary.edges`, -1 at a root.
        num_tokens: of the run.
        num_hidden, num_hidden_tokens: edges left out below, down to the next that is kept (none of them is),
            and their tokens.
    """

    end: Node
    parent: int
    num_tokens: int
    num_hidden: int = 0
    num_hidden_tokens: int = 0


@dataclass(slots=True)
class TreeSummary:
    """Edges to draw, parents first, and what was left out.

    Attributes:
        edges: kept are first those on the way to where sequences stand, then those with most tokens in their
            subtree.
        num_nodes, num_edges, num_tokens: of the whole index.
        num_hidden, num_hidden_tokens: edges left out that have no parent, all below them included.
        place: by node number, where in `edges` the edge is that ends there, or the nearest one above that was
            kept; -1 when none is. For edges on the way to where sequences stand.
    """

    edges: list[Edge]
    num_nodes: int
    num_edges: int
    num_tokens: int
    num_hidden: int
    num_hidden_tokens: int
    place: dict[int, int]


def summarize(
    index: PrefixIndex, standing: Collection[Node], pinned: Collection[Node], max_edges: int
) -> TreeSummary:
    """Draw up the edges of an index. About 0.1 us a node and 0.6 us an edge.

    Args:
        standing: where sequences stand: the nodes of the last blocks that they gave to the index.
        pinned: the last nodes of pins.
        max_edges: kept at most.
    """
    stops = {node.number for node in standing}
    stops.update(node.number for node in pinned)
    size = index.block_size
    nodes = list(index.nodes())  # by age: parents first
    ends = [node for node in nodes if node.num_children != 1 or node.number in stops]
    number_of = {node.number: i for i, node in enumerate(ends)}
    parents: list[int] = []
    tokens: list[int] = []
    for node in ends:
        above = node.parent
        assert above is not None
        while above.num_children == 1 and above.parent is not None and above.number not in stops:
            above = above.parent
        parents.append(number_of.get(above.number, -1))
        tokens.append((node.depth - above.depth - 1) * size + len(node.key))
    below = tokens[:]  # of the subtree, the edge itself included
    count = [1] * len(ends)
    for i in range(len(ends) - 1, -1, -1):
        parent = parents[i]
        if parent >= 0:
            below[parent] += below[i]
            count[parent] += count[i]
    on_the_way: set[int] = set()
    for node in standing:
        i = number_of[node.number]
        while i >= 0 and i not in on_the_way:
            on_the_way.add(i)
            i = parents[i]
    kept = _heaviest(below, on_the_way, max_edges)
    places = {i: place for place, i in enumerate(kept)}
    summary = TreeSummary([], len(nodes), len(ends), sum(tokens), 0, 0, {})
    for i in kept:
        parent = places.get(parents[i], -1)
        edge = Edge(ends[i], parent, tokens[i], count[i] - 1, below[i] - tokens[i])
        summary.edges.append(edge)
        if parent >= 0:
            summary.edges[parent].num_hidden -= count[i]
            summary.edges[parent].num_hidden_tokens -= below[i]
    tops = [i for i in kept if parents[i] < 0]
    summary.num_hidden = len(ends) - sum(count[i] for i in tops)
    summary.num_hidden_tokens = summary.num_tokens - sum(below[i] for i in tops)
    for i in sorted(on_the_way):
        above_place = summary.place.get(ends[parents[i]].number, -1) if parents[i] >= 0 else -1
        summary.place[ends[i].number] = places.get(i, above_place)
    return summary


def _heaviest(below: list[int], first: set[int], max_edges: int) -> list[int]:
    """Edges in ascending order, hence parents first. A parent's weight is above its children's, so with an
    edge all above it are kept."""
    if len(below) <= max_edges:
        return list(range(len(below)))
    total = sum(below) + 1
    weights = below[:]
    for i in first:
        weights[i] += total
    by_weight = sorted(range(len(weights)), key=weights.__getitem__, reverse=True)
    return sorted(by_weight[:max_edges])
