"""RadixTree: from token prefixes to blocks whose K/V is computed. The default prefix index."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Literal

from leafage.core.prefix_index import Key, Node, NodeIndex


class RadixTree(NodeIndex):
    """A prefix tree whose edges are exactly one block, so nodes never split.

    Tokens are compared, never only hashed: children are a dict keyed by the block's tokens. One root per
    `cache_salt`. The last, partly filled block of a finished sequence hangs as a leaf whose key is shorter;
    it is dropped when a sibling extends it, so the key of a leaf that is not pinned is no prefix of a
    sibling's. After Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs"
    (NeurIPS 2024), section 3; there an edge is any run of tokens.

    Args:
        block_size: tokens per block.
        eviction_unit: what makes room. `block` takes one block off the end of the path that was used least
            recently; `node` takes, with it, all above it that nobody else needs, up to where the path
            branches: what SGLang's tree calls a leaf.
    """

    def __init__(self, block_size: int, eviction_unit: Literal["block", "node"] = "block") -> None:
        super().__init__(block_size)
        self.eviction_unit = eviction_unit

    # -- finding ---------------------------------------------------------------------------------

    def child(self, node: Node, key: Key) -> Node | None:
        return node.children.get(key)

    def longest_run(self, node: Node, tokens: Key) -> tuple[Node, int] | None:
        """The computed child that shares the longest run with `tokens`, and the run's length (> 0).

        Keys are sorted, so runs only shorten away from the bisection point: the answer is the nearest
        computed neighbour on one of the two sides.
        """
        keys = node.keys
        best: tuple[Node, int] | None = None
        point = bisect_left(keys, tokens)
        for side in (range(point, len(keys)), range(point - 1, -1, -1)):
            for i in side:
                run = common_run(keys[i], tokens)
                if run == 0 or (best is not None and run <= best[1]):
                    break
                child = node.children[keys[i]]
                if not child.pending:
                    best = (child, run)
                    break
        return best

    def nearest(self, node: Node, tokens: Key) -> tuple[int, int | None]:
        """The longest run that any child, pending or not, shares with `tokens`, and that child's next token.

        The token is None where the child ends there, or where there is none.
        """
        point = bisect_left(node.keys, tokens)
        best: tuple[int, int | None] = (-1, None)
        for key in node.keys[max(0, point - 1) : point + 1]:
            run = common_run(key, tokens)
            if run > best[0]:
                best = (run, key[run] if run < len(key) else None)
        return max(0, best[0]), best[1]

    def superseded(self, parent: Node, key: Key) -> Node | None:
        """The leaf whose tokens are a true prefix of `key`, if there is one.

        At most one of them is not pinned, and that is the longest, just before `key`.
        """
        point = bisect_left(parent.keys, key)
        if point == 0:
            return None
        before = parent.keys[point - 1]
        return parent.children[before] if key[: len(before)] == before else None

    def covers(self, parent: Node, key: Key) -> bool:
        """Whether a child's tokens begin with `key` and go on."""
        point = bisect_right(parent.keys, key)
        return point < len(parent.keys) and parent.keys[point][: len(key)] == key

    # -- changing --------------------------------------------------------------------------------

    def subtree(self, top: Node) -> list[Node]:
        """`top` and all below it, parents first."""
        nodes = [top]
        for node in nodes:  # grows as it goes
            nodes.extend(node.children.values())
        return nodes

    def evict(self) -> list[Node]:
        evicted = super().evict()
        while self.eviction_unit == "node":
            parent = evicted[-1].parent
            if parent is None or parent.stamp is None or parent.num_children:
                break
            self._evict(parent)
            evicted.append(parent)
        return evicted

    def _link(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None and node.key not in parent.children
        if not isinstance(parent.children, dict):
            parent.children, parent.keys = {}, []
        assert isinstance(parent.keys, list)
        parent.children[node.key] = node
        parent.keys.insert(bisect_left(parent.keys, node.key), node.key)

    def _unlink(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None and isinstance(parent.children, dict) and isinstance(parent.keys, list)
        del parent.children[node.key]
        del parent.keys[bisect_left(parent.keys, node.key)]

    # -- proof -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the shape of the tree, its counters and that every idle leaf can be found by `evict`."""
        found: dict[int, Node] = {}
        for root in self._roots.values():
            for node in self.subtree(root):
                assert list(node.keys) == sorted(node.children), f"keys of node {node.number} differ"
                for first, second in zip(node.keys, node.keys[1:], strict=False):
                    held = node.children[first].stamp is None  # by a pin, as Pins.check asserts
                    assert held or second[: len(first)] != first, f"{first} is a prefix of {second}"
                for key, child in node.children.items():
                    assert child.parent is node and child.key == key
                    assert len(key) == self.block_size or not child.children, "a partial node has children"
                    assert child.number not in found, f"node {child.number} hangs twice"
                    found[child.number] = child
        assert found == self._nodes, "the tree and its node table differ"
        super().check()


def common_run(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common head of two sequences."""
    run = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        run += 1
    return run
