"""PrefixWatch: how much of each waiting prompt the index holds, without asking again and again."""

from __future__ import annotations

from dataclasses import dataclass

from leafage.core.prefix_index import Node
from leafage.core.protocols import PrefixIndex
from leafage.core.request import Request


@dataclass(slots=True, eq=False)
class _Watcher:
    """A prompt, the deepest node that it matches (None: none), and the path hash of the block behind it."""

    request: Request
    node: Node | None = None
    depth: int = 0
    wanted: int | None = None


class PrefixWatch:
    """Watches prompts. The whole match is made once, in `add`; after that a prompt is looked at again only
    when its deepest node left the index, or when a node came that may extend it.

    The index tells of both; nothing is looked up until `changed` asks, so however many blocks of a
    prefix come or go in a step, each prompt behind it moves once.

    Args:
        index: from now on it tells this watch, and no other.
    """

    def __init__(self, index: PrefixIndex, block_size: int) -> None:
        self._index = index
        index.watch = self
        self._block_size = block_size
        self._watchers: dict[str, _Watcher] = {}
        self._standing: dict[int, dict[_Watcher, None]] = {}  # by the number of their node
        self._wanting: dict[int, dict[_Watcher, None]] = {}  # by the hash of the node they would go on to
        self._told: dict[_Watcher, None] = {}
        self.num_looks = 0
        """Prompts that were looked at again so far."""

    def add(self, request: Request) -> None:
        """Watch a request's prompt. O(prompt)."""
        watcher = self._watchers[request.request_id] = _Watcher(request)
        prompt = request.prompt_token_ids
        nodes = self._index.match(request.cache_salt, prompt, len(prompt))
        self._stand(watcher, nodes[-1] if nodes else None)

    def remove(self, request: Request) -> None:
        watcher = self._watchers.pop(request.request_id)
        self._leave(watcher)
        self._told.pop(watcher, None)

    def matched(self, request: Request) -> int:
        """Tokens of the prompt that the index holds, whole blocks only, as of the last `changed`."""
        return self._watchers[request.request_id].depth * self._block_size

    def changed(self) -> list[Request]:
        """The requests whose match is another one than at the last call."""
        if not self._told:
            return []
        told, self._told = self._told, {}
        self.num_looks += len(told)
        return [watcher.request for watcher in told if self._look(watcher)]

    # -- told by the index --------------------------------------------------------------------

    def inserted(self, node: Node) -> None:
        """A node came into the index."""
        self._told.update(self._wanting.get(node.hash, ()))

    def detached(self, node: Node) -> None:
        """A node left it."""
        self._told.update(self._standing.get(node.number, ()))

    # -- inside ----------------------------------------------------------------------------------

    def _look(self, watcher: _Watcher) -> bool:
        """Go up to the first node that is still there, then down as far as the prompt matches."""
        before = watcher.depth
        self._leave(watcher)
        node = watcher.node
        while node is not None and node.detached:
            node = node.parent
        if node is not None and node.depth == 0:
            node = None
        prompt, size = watcher.request.prompt_token_ids, self._block_size
        if node is None:  # roots come and go: only the index knows today's
            first = self._index.match(watcher.request.cache_salt, prompt, size)
            node = first[0] if first else None
        while node is not None and (node.depth + 1) * size <= len(prompt):
            key = tuple(prompt[node.depth * size : (node.depth + 1) * size])
            child = self._index.child(node, key)
            if child is None:
                break
            node = child
        self._stand(watcher, node)
        return watcher.depth != before

    def _stand(self, watcher: _Watcher, node: Node | None) -> None:
        request, size, index = watcher.request, self._block_size, self._index
        watcher.node = node
        watcher.depth = depth = 0 if node is None else node.depth
        watcher.wanted = None
        if node is not None:
            self._standing.setdefault(node.number, {})[watcher] = None
        if (depth + 1) * size <= len(request.prompt_token_ids):
            path_hash = index.hash_of(request.cache_salt) if node is None else node.hash
            key = tuple(request.prompt_token_ids[depth * size : (depth + 1) * size])
            watcher.wanted = index.hash_of((path_hash, key))
            self._wanting.setdefault(watcher.wanted, {})[watcher] = None

    def _leave(self, watcher: _Watcher) -> None:
        if watcher.node is not None:
            _remove(self._standing, watcher.node.number, watcher)
        if watcher.wanted is not None:
            _remove(self._wanting, watcher.wanted, watcher)

    def check(self) -> None:
        """Assert that everyone who was not told of a change stands where a fresh match ends."""
        for watcher in self._watchers.values():
            prompt = watcher.request.prompt_token_ids
            nodes = self._index.match(watcher.request.cache_salt, prompt, len(prompt))
            here = watcher.node is (nodes[-1] if nodes else None)
            assert here or watcher in self._told, f"{watcher.request.request_id} was not told of a change"


def _remove(table: dict[int, dict[_Watcher, None]], key: int, watcher: _Watcher) -> None:
    del table[key][watcher]
    if not table[key]:
        del table[key]
