"""What all prefix indexes share: nodes, one root per cache salt, eviction in order of last use."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafage.core.prefix_watch import PrefixWatch

Key = tuple[int, ...]
Stamp = tuple[int, int, int]

EVICTED_RING = 4096
"""How many evicted blocks are remembered, by hash, to tell `evicted` from `no_match`."""
MAX_OTHER_ROOTS = 8
"""How many other salts are looked at when a miss is classified for the operator's metric."""
MAX_EMPTY_ROOTS = 1024
"""How many roots without nodes are kept: a root must be the same one for all who look in one step."""


class Node:
    """One block of tokens in a prefix index; the path from the root spells the prefix.

    Attributes:
        key: the block's tokens: block_size of them, or fewer in a leaf.
        block: the block that holds their K/V.
        parent: node of the tokens before, None for a root (depth 0, no block).
        children, keys: of a radix tree: nodes by their tokens, and the same tokens sorted.
        twin: of a hash chain: the next node whose path has the same hash.
        num_children: nodes right below.
        depth: blocks from the root.
        number: creation number, unique.
        hash: of the whole path, the salt included.
        publisher: seq_id of the sequence that computed it.
        pending: its K/V is being computed in this step.
        stamp: when only the index held it last (step, -depth, number); None while someone else does.
        detached: no longer in the index; nothing may be published under it.
    """

    __slots__ = (
        "block", "children", "depth", "detached", "hash", "key", "keys", "num_children", "number", "parent",
        "pending", "publisher", "stamp", "twin",
    )  # fmt: skip

    def __init__(self, key: Key, block: int, parent: Node | None, number: int, path_hash: int) -> None:
        self.key = key
        self.block = block
        self.parent = parent
        self.children: Mapping[Key, Node] = NO_CHILDREN
        self.keys: Sequence[Key] = ()
        self.twin: Node | None = None
        self.num_children = 0
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.number = number
        self.hash = path_hash
        self.publisher = -1
        self.pending = False
        self.stamp: Stamp | None = None
        self.detached = False

    def path(self) -> list[Node]:
        """The nodes from below the root to this one."""
        nodes = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


NO_CHILDREN: Mapping[Key, Node] = MappingProxyType({})

OUTSIDE = Node((), -1, None, 0, 0)
"""Where a sequence stands that must publish nothing."""
OUTSIDE.detached = True


class NodeIndex(ABC):
    """Nodes by number, their roots by `cache_salt`, and the order of eviction.

    Eviction takes leaves that nobody else holds, least recently used first; a heap with lazy deletion makes
    it O(log n). The KVManager counts references and tells the index when a node becomes idle or held. How a
    prefix finds its node is the business of the classes below.
    """

    whole_blocks_only = False

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.watch: PrefixWatch | None = None
        """Told of the nodes that come and go."""
        self.num_idle = 0
        """Nodes that only the index holds: the evictable blocks."""
        self._roots: dict[str, Node] = {}
        self._salts: dict[int, str] = {}
        self._number = 0
        self._nodes: dict[int, Node] = {}
        self._heap: list[Stamp] = []
        self._evicted: deque[int] = deque()
        self._evicted_count: dict[int, int] = {}

    def nodes(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def root(self, salt: str) -> Node:
        root = self._roots.get(salt)
        if root is None:
            if len(self._roots) > len(self._nodes) + MAX_EMPTY_ROOTS:
                self._drop_empty_roots()
            self._number += 1
            root = self._roots[salt] = Node((), -1, None, self._number, self.hash_of(salt))
            self._salts[root.number] = salt
        return root

    def _drop_empty_roots(self) -> None:
        """Those of salts that were asked for and have published nothing."""
        for salt, root in list(self._roots.items()):
            if not root.num_children:
                del self._roots[salt], self._salts[root.number]
                root.detached = True

    # -- finding ---------------------------------------------------------------------------------

    @abstractmethod
    def child(self, node: Node, key: Key) -> Node | None: ...

    def match(self, salt: str, tokens: Sequence[int], max_tokens: int) -> list[Node]:
        """Nodes of the longest run of whole blocks heading `tokens[:max_tokens]`, also pending ones."""
        nodes: list[Node] = []
        node = self._roots.get(salt)
        if node is None:
            return nodes
        size, child = self.block_size, self.child
        for end in range(size, max_tokens + 1, size):
            node = child(node, tuple(tokens[end - size : end]))
            if node is None:
                break
            nodes.append(node)
        return nodes

    def evicted_run(self, node: Node, tokens: Sequence[int], start: int) -> int:
        """How many tokens from `start`, right behind `node`, the index held until lately (whole blocks)."""
        size = self.block_size
        path_hash = node.hash
        end = start
        while self._evicted_count and end + size <= len(tokens):
            path_hash = self.hash_of((path_hash, tuple(tokens[end : end + size])))
            if path_hash not in self._evicted_count:
                break
            end += size
        return end - start

    def elsewhere(self, salt: str, tokens: Sequence[int]) -> int:
        """The longest whole-block match that other salts hold. For the operator only, never for a client."""
        best = 0
        looked = 0
        for other in reversed(self._roots):
            if other != salt:
                best = max(best, len(self.match(other, tokens, len(tokens))) * self.block_size)
                looked += 1
                if looked == MAX_OTHER_ROOTS:
                    break
        return best

    def hash_of(self, value: str | tuple[int, Key]) -> int:
        """The path hash of a salt's root, or of a node: (hash of its parent, its tokens)."""
        return hash(value)

    # -- changing --------------------------------------------------------------------------------

    @abstractmethod
    def subtree(self, top: Node) -> list[Node]:
        """`top` and all below it, parents first."""

    @abstractmethod
    def _link(self, node: Node) -> None:
        """Make a new node findable below its parent."""

    @abstractmethod
    def _unlink(self, node: Node) -> None:
        """Make it unfindable."""

    def insert(self, parent: Node, key: Key, block: int) -> Node:
        """Hang a new child below `parent`. It counts as held until `set_idle`."""
        assert not parent.detached
        self._number += 1
        node = Node(key, block, parent, self._number, self.hash_of((parent.hash, key)))
        self._link(node)
        parent.num_children += 1
        self._nodes[node.number] = node
        if self.watch is not None:
            self.watch.inserted(node)
        return node

    def set_idle(self, node: Node, step: int) -> None:
        """Only the index holds the node from now on."""
        assert node.stamp is None and not node.detached
        node.stamp = (step, -node.depth, node.number)
        self.num_idle += 1
        if not node.num_children:
            self._push(node.stamp)

    def set_held(self, node: Node) -> None:
        """Someone besides the index holds the node."""
        assert node.stamp is not None
        node.stamp = None
        self.num_idle -= 1

    def evict(self) -> list[Node]:
        """Remove the idle leaf that was used least recently; ties: deeper, then older first.

        Returns:
            What was removed, children first; a RadixTree may take more than the leaf.
        """
        while True:
            stamp = heapq.heappop(self._heap)
            node = self._nodes.get(stamp[2])
            if node is not None and node.stamp == stamp and not node.num_children:
                break
        self._evict(node)
        return [node]

    def _evict(self, node: Node) -> None:
        self.detach(node)
        self._remember(node)

    def detach(self, node: Node) -> None:
        """Remove a childless node from the index; its block is the caller's to drop."""
        assert not node.num_children and node.parent is not None
        parent = node.parent
        self._unlink(node)
        parent.num_children -= 1
        del self._nodes[node.number]
        node.detached = True
        node.pending = False
        if self.watch is not None:
            self.watch.detached(node)
        if node.stamp is not None:
            node.stamp = None
            self.num_idle -= 1
        if not parent.num_children:
            if parent.stamp is not None:
                self._push(parent.stamp)
            elif parent.parent is None:  # a root without nodes; `root` makes a new one when asked
                del self._roots[self._salts.pop(parent.number)]
                parent.detached = True

    def _push(self, stamp: Stamp) -> None:
        heapq.heappush(self._heap, stamp)
        if len(self._heap) > 2 * len(self._nodes) + 64:  # too many stale entries: start over
            self._heap = [n.stamp for n in self._nodes.values() if n.stamp is not None and not n.num_children]
            heapq.heapify(self._heap)

    def _remember(self, node: Node) -> None:
        if len(node.key) < self.block_size:
            return
        count = self._evicted_count
        self._evicted.append(node.hash)
        count[node.hash] = count.get(node.hash, 0) + 1
        if len(self._evicted) > EVICTED_RING:
            oldest = self._evicted.popleft()
            count[oldest] -= 1
            if not count[oldest]:
                del count[oldest]

    # -- proof -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that nodes hang together, the counters, and that every idle leaf is found by `evict`."""
        entries = set(self._heap)
        children: dict[int, int] = {}
        for root in self._roots.values():
            assert root.depth == 0 and not root.detached and root.stamp is None, "a root is wrong"
        for number, node in self._nodes.items():
            parent = node.parent
            assert parent is not None and number == node.number and not node.detached
            assert node.depth == parent.depth + 1 and 0 < len(node.key) <= self.block_size
            known = self._nodes.get(parent.number) or self._roots.get(self._salts.get(parent.number, ""))
            assert known is parent, f"the parent of node {number} left before it"
            children[parent.number] = children.get(parent.number, 0) + 1
            assert node.stamp is None or node.stamp[1:] == (-node.depth, number)
            assert node.stamp is not None or parent.stamp is None, f"node {number} is held below an idle one"
            idle_leaf = node.stamp is not None and not node.num_children
            assert not idle_leaf or node.stamp in entries, f"leaf {number} cannot be evicted"
        for node in [*self._nodes.values(), *self._roots.values()]:
            assert node.num_children == children.get(node.number, 0), f"node {node.number} miscounts children"
        idle = sum(node.stamp is not None for node in self._nodes.values())
        assert self.num_idle == idle, "num_idle is wrong"


class NoIndex:
    """The index that keeps nothing: every prompt is computed whole."""

    num_idle = 0
    whole_blocks_only = False

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.watch: PrefixWatch | None = None

    def nodes(self) -> Iterator[Node]:
        return iter(())

    def root(self, salt: str) -> Node:
        return OUTSIDE

    def match(self, salt: str, tokens: Sequence[int], max_tokens: int) -> list[Node]:
        return []

    def child(self, node: Node, key: Key) -> Node | None:
        return None

    def longest_run(self, node: Node, tokens: Key) -> tuple[Node, int] | None:
        return None

    def nearest(self, node: Node, tokens: Key) -> tuple[int, int | None]:
        return 0, None

    def covers(self, parent: Node, key: Key) -> bool:
        return True

    def superseded(self, parent: Node, key: Key) -> Node | None:
        return None

    def hash_of(self, value: str | tuple[int, Key]) -> int:
        return 0

    def evicted_run(self, node: Node, tokens: Sequence[int], start: int) -> int:
        return 0

    def elsewhere(self, salt: str, tokens: Sequence[int]) -> int:
        return 0

    def subtree(self, top: Node) -> list[Node]:
        return []

    def insert(self, parent: Node, key: Key, block: int) -> Node:
        raise AssertionError("nothing is published outside of an index")

    def detach(self, node: Node) -> None:
        raise AssertionError("this index has no nodes")

    def set_idle(self, node: Node, step: int) -> None:
        raise AssertionError("this index has no nodes")

    def set_held(self, node: Node) -> None:
        raise AssertionError("this index has no nodes")

    def evict(self) -> list[Node]:
        raise AssertionError("this index has no nodes")

    def check(self) -> None:
        pass
