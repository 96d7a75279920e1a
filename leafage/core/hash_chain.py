"""HashChain: cached blocks by the hash of everything up to them. The alternative to the radix tree."""

from __future__ import annotations

from collections.abc import Callable

from leafage.core.prefix_index import Key, Node, NodeIndex


class HashChain(NodeIndex):
    """One flat table from `h_j = hash(h_{j-1}, tokens_j)` to the block of `tokens_j`; `h_0` is the salt's.

    The way of vLLM's automatic prefix caching: whole blocks only, so neither the last, partly filled block
    of a finished sequence nor the head of a block that differs later can be used. A hash only says where to
    look: a hit compares the block's tokens and that its predecessor is the node matched before, hence by
    induction the whole prefix. Equal hashes of different prefixes cost a comparison and change nothing.

    Args:
        block_size: tokens per block.
        hash: of a salt, or of (hash of the path before, the block's tokens).
    """

    whole_blocks_only = True

    def __init__(self, block_size: int, hash: Callable[[str | tuple[int, Key]], int] = hash) -> None:
        super().__init__(block_size)
        self._table: dict[int, Node] = {}
        self._hash_function = hash

    def hash_of(self, value: str | tuple[int, Key]) -> int:
        return self._hash_function(value)

    # -- finding ---------------------------------------------------------------------------------

    def child(self, node: Node, key: Key) -> Node | None:
        if len(key) < self.block_size:
            return None
        found = self._table.get(self._hash_function((node.hash, key)))
        while found is not None and (found.parent is not node or found.key != key):
            found = found.twin
        return found

    def longest_run(self, node: Node, tokens: Key) -> tuple[Node, int] | None:
        """None: only whole blocks are shared."""
        return None

    def nearest(self, node: Node, tokens: Key) -> tuple[int, int | None]:
        """What lies inside of a block cannot be found by its hash."""
        return 0, None

    def superseded(self, parent: Node, key: Key) -> Node | None:
        """None: there are no partial nodes."""
        return None

    def covers(self, parent: Node, key: Key) -> bool:
        """Always: a partial node would add nothing, it could not be found."""
        return True

    # -- changing --------------------------------------------------------------------------------

    def subtree(self, top: Node) -> list[Node]:
        """`top` and all below it, parents first. O(all nodes) unless it is a leaf; only failures ask."""
        if not top.num_children:
            return [top]
        below = {top.number}
        for node in self._nodes.values():  # by age, so parents come first
            if node.parent is not None and node.parent.number in below:
                below.add(node.number)
        return [self._nodes[number] for number in sorted(below)]

    def _link(self, node: Node) -> None:
        assert len(node.key) == self.block_size
        node.twin = self._table.get(node.hash)
        self._table[node.hash] = node

    def _unlink(self, node: Node) -> None:
        other = self._table[node.hash]
        if other is node:
            if node.twin is None:
                del self._table[node.hash]
            else:
                self._table[node.hash] = node.twin
        else:
            while other.twin is not node:
                assert other.twin is not None
                other = other.twin
            other.twin = node.twin
        node.twin = None

    # -- proof -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that the table holds exactly the nodes, each where its hash says."""
        found: dict[int, Node] = {}
        for path_hash, first in self._table.items():
            node: Node | None = first
            while node is not None:
                assert node.hash == path_hash and node.number not in found
                assert node.parent is not None and node.hash == self.hash_of((node.parent.hash, node.key))
                assert len(node.key) == self.block_size and self.child(node.parent, node.key) is node
                found[node.number] = node
                node = node.twin
        assert found == self._nodes, "the hash table and the node table differ"
        super().check()
