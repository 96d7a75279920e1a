"""RadixTree: from token prefixes to blocks whose K/V is computed. The default prefix index."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence

Key = tuple[int, ...]
Stamp = tuple[int, int, int]

EVICTED_RING = 4096
"""How many evicted blocks are remembered, by hash, to tell `evicted` from `no_match`."""
MAX_OTHER_ROOTS = 8
"""How many other salts are looked at when a miss is classified for the operator's metric."""


class Node:
    """One block of tokens in a prefix index; the path from the root spells the prefix.

    Attributes:
        key: the block's tokens: block_size of them, or fewer in a leaf.
        block: the block that holds their K/V.
        parent: node of the tokens before, None for a root (depth 0, no block).
        children, keys: nodes by their tokens, and the same tokens sorted.
        depth: blocks from the root.
        number: creation number, unique.
        hash: of the whole path; only to remember evicted blocks, never to compare.
        publisher: seq_id of the sequence that computed it.
        pending: its K/V is being computed in this step.
        stamp: when only the index held it last (step, -depth, number); None while someone else does.
        detached: no longer in the index; nothing may be published under it.
    """

    __slots__ = (
        "block", "children", "depth", "detached", "hash", "key", "keys", "number", "parent", "pending",
        "publisher", "stamp",
    )  # fmt: skip

    def __init__(self, key: Key, block: int, parent: Node | None, number: int, path_hash: int) -> None:
        self.key = key
        self.block = block
        self.parent = parent
        self.children: dict[Key, Node] = {}
        self.keys: list[Key] = []
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

    def subtree(self) -> Iterator[Node]:
        """This node and all below it, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


OUTSIDE = Node((), -1, None, 0, 0)
"""Where a sequence stands that must publish nothing."""
OUTSIDE.detached = True


class RadixTree:
    """A prefix tree whose edges are exactly one block, so nodes never split.

    Tokens are compared, never only hashed: children are a dict keyed by the block's tokens. One root per
    `cache_salt`. The last, partly filled block of a finished sequence hangs as a leaf whose key is shorter;
    it is dropped when a sibling extends it, so no leaf's key is a prefix of a sibling's. After Zheng et al.,
    "SGLang: Efficient Execution of Structured Language Model Programs" (NeurIPS 2024), section 3; there an
    edge is any run of tokens.

    Eviction takes leaves that nobody else holds, least recently used first; a heap with lazy deletion makes
    it O(log n). The KVManager counts references and tells the tree when a node becomes idle or held.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
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
            self._number += 1
            root = self._roots[salt] = Node((), -1, None, self._number, hash(salt))
            self._salts[root.number] = salt
        return root

    # -- finding ---------------------------------------------------------------------------------

    def match(self, salt: str, tokens: Sequence[int], max_tokens: int) -> list[Node]:
        """Nodes of the longest run of whole blocks heading `tokens[:max_tokens]`, also pending ones."""
        size = self.block_size
        nodes: list[Node] = []
        node = self._roots.get(salt)
        if node is None:
            return nodes
        for end in range(size, max_tokens + 1, size):
            node = node.children.get(tuple(tokens[end - size : end]))
            if node is None:
                break
            nodes.append(node)
        return nodes

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

    def longest_match(self, node: Node, tokens: Key) -> int:
        """The longest run that any child, pending or not, shares with `tokens`."""
        point = bisect_left(node.keys, tokens)
        return max((common_run(key, tokens) for key in node.keys[max(0, point - 1) : point + 1]), default=0)

    def evicted_run(self, node: Node, tokens: Sequence[int], start: int) -> int:
        """How many tokens from `start`, right behind `node`, the index held until lately (whole blocks)."""
        size = self.block_size
        path_hash = node.hash
        end = start
        while self._evicted_count and end + size <= len(tokens):
            path_hash = hash((path_hash, tuple(tokens[end : end + size])))
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

    # -- changing --------------------------------------------------------------------------------

    def insert(self, parent: Node, key: Key, block: int) -> Node:
        """Hang a new child below `parent`. It counts as held until `set_idle`."""
        assert key not in parent.children and not parent.detached
        self._number += 1
        node = Node(key, block, parent, self._number, hash((parent.hash, key)))
        parent.children[key] = node
        parent.keys.insert(bisect_left(parent.keys, key), key)
        self._nodes[node.number] = node
        return node

    def superseded(self, parent: Node, key: Key) -> Node | None:
        """The leaf whose tokens are a true prefix of `key`, if there is one: at most one, just before it."""
        point = bisect_left(parent.keys, key)
        if point == 0:
            return None
        before = parent.keys[point - 1]
        return parent.children[before] if key[: len(before)] == before else None

    def covers(self, parent: Node, key: Key) -> bool:
        """Whether a child's tokens begin with `key`."""
        point = bisect_left(parent.keys, key)
        return point < len(parent.keys) and parent.keys[point][: len(key)] == key

    def set_idle(self, node: Node, step: int) -> None:
        """Only the index holds the node from now on."""
        assert node.stamp is None and not node.detached
        node.stamp = (step, -node.depth, node.number)
        self.num_idle += 1
        if not node.children:
            self._push(node.stamp)

    def set_held(self, node: Node) -> None:
        """Someone besides the index holds the node."""
        assert node.stamp is not None
        node.stamp = None
        self.num_idle -= 1

    def evict(self) -> list[Node]:
        """Remove and return the idle leaf that was used least recently; ties: deeper, then older first."""
        while True:
            stamp = heapq.heappop(self._heap)
            node = self._nodes.get(stamp[2])
            if node is not None and node.stamp == stamp and not node.children:
                break
        self.detach(node)
        self._remember(node)
        return [node]

    def detach(self, node: Node) -> None:
        """Remove a childless node from the index; its block is the caller's to drop."""
        assert not node.children and node.parent is not None
        parent = node.parent
        del parent.children[node.key]
        del parent.keys[bisect_left(parent.keys, node.key)]
        del self._nodes[node.number]
        node.detached = True
        node.pending = False
        if node.stamp is not None:
            node.stamp = None
            self.num_idle -= 1
        if not parent.children:
            if parent.stamp is not None:
                self._push(parent.stamp)
            elif parent.parent is None:  # a root without nodes; `root` makes a new one when asked
                del self._roots[self._salts.pop(parent.number)]
                parent.detached = True

    def _push(self, stamp: Stamp) -> None:
        heapq.heappush(self._heap, stamp)
        if len(self._heap) > 2 * len(self._nodes) + 64:  # too many stale entries: start over
            self._heap = [n.stamp for n in self._nodes.values() if n.stamp is not None and not n.children]
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
        """Assert the shape of the tree, its counter and that every idle leaf can be found by `evict`."""
        found: dict[int, Node] = {}
        entries = set(self._heap)
        for salt, root in self._roots.items():
            assert root.depth == 0 and not root.detached and root.stamp is None, f"root {salt!r} is wrong"
            for node in root.subtree():
                assert node.keys == sorted(node.children), (
                    f"keys of node {node.number} differ from its children"
                )
                for first, second in zip(node.keys, node.keys[1:], strict=False):
                    assert second[: len(first)] != first, f"{first} is a prefix of its sibling {second}"
                for key, child in node.children.items():
                    assert child.parent is node and child.key == key and child.depth == node.depth + 1
                    assert not child.detached and 0 < len(key) <= self.block_size
                    assert len(key) == self.block_size or not child.children, "a partial node has children"
                    assert child.number not in found, f"node {child.number} hangs twice"
                    found[child.number] = child
                    if child.stamp is not None:
                        assert child.stamp[1:] == (-child.depth, child.number)
                        assert child.children or child.stamp in entries, (
                            f"leaf {child.number} cannot be evicted"
                        )
                        assert all(c.stamp is not None for c in child.children.values()), "idle above held"
        assert found == self._nodes, "the tree and its node table differ"
        assert self.num_idle == sum(node.stamp is not None for node in found.values()), "num_idle is wrong"


class NoIndex(RadixTree):
    """The index that keeps nothing."""

    def root(self, salt: str) -> Node:
        return OUTSIDE


def common_run(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common head of two sequences."""
    run = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        run += 1
    return run
