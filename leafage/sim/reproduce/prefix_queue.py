"""The harness of the lecture's cache-aware runs: the prefix index alone, one request at a time.

Requests wait in a window; one is chosen, matched, inserted with its answer, and then the index evicts until
it is within its capacity. There is no engine here: no batch, no pool that running requests share, no time but
steps. What the engine's own scheduler does with the same orders is in `exercise_9`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from leafage.core.prefix_index import Node
from leafage.core.radix_tree import RadixTree
from leafage.sim.simulation import Arrivals
from leafage.sim.workload import SimRequest, Workload

WINDOW = 32
BLOCK_SIZE = 20
"""It divides the lengths of all shared prefixes, and heads of blocks are shared too: hits, evictions and the
capacity are those of an index with one token a block, at a twentieth of the work."""


@dataclass(slots=True)
class Waiting:
    """A request in the window.

    Attributes:
        since: the step in which it came into the window.
        node: the deepest one that its prompt matched when it was last looked at.
    """

    request: SimRequest
    prompt: list[int]
    since: int
    node: Node | None = None


class PrefixCache:
    """A radix tree with a capacity in tokens, between requests; it evicts whole leaves, as SGLang's does."""

    def __init__(self, capacity: float, block_size: int = BLOCK_SIZE) -> None:
        self.capacity = capacity
        self.num_tokens = 0
        self._size = block_size
        self._tree = RadixTree(block_size, eviction_unit="node")
        self._step = 0

    def matched(self, waiting: Waiting) -> int:
        """Leading tokens of its prompt that are cached.

        Where it was last time is looked at first: if that node is still there, so is all above it.
        """
        tree, size, prompt = self._tree, self._size, waiting.prompt
        node = waiting.node
        child: Node | None = tree.root("") if node is None or node.detached else node
        while child is not None:
            node = child
            start = node.depth * size
            child = tree.child(node, tuple(prompt[start : start + size]))
        assert node is not None
        waiting.node = node
        start = node.depth * size
        partial = tree.longest_run(node, tuple(prompt[start : start + size]))
        return min(start, len(prompt)) + (partial[1] if partial else 0)

    def serve(self, waiting: Waiting) -> int:
        """Match a prompt, insert it with its answer, evict what is above the capacity.

        Returns:
            Tokens of the prompt that were cached.
        """
        tree, size = self._tree, self._size
        self._step += 1
        cached = self.matched(waiting)
        tokens = [*waiting.prompt, *waiting.request.output]
        path = tree.match("", tokens, len(tokens))
        for node in path:
            tree.set_held(node)
        node = path[-1] if path else tree.root("")
        for start in range(len(path) * size, len(tokens), size):
            key = tuple(tokens[start : start + size])
            known = tree.child(node, key)  # only the end of the very same tokens: blocks were matched
            if known is None and tree.covers(node, key):
                break
            if known is None:
                node = self._insert(node, key)
            else:
                tree.set_held(known)
                node = known
            path.append(node)
        for node in path:
            tree.set_idle(node, self._step)
        while self.num_tokens > self.capacity:
            self.num_tokens -= sum(len(node.key) for node in tree.evict())
        return cached

    def _insert(self, parent: Node, key: tuple[int, ...]) -> Node:
        tree = self._tree
        shorter = tree.superseded(parent, key)
        node = tree.insert(parent, key, block=0)
        self.num_tokens += len(key)
        if shorter is not None:
            tree.detach(shorter)
            self.num_tokens -= len(shorter.key)
        return node

    def check(self) -> None:
        """Assert the index's own invariants, and that everything in it is idle and counted."""
        self._tree.check()
        nodes = list(self._tree.nodes())
        assert self._tree.num_idle == len(nodes)
        assert self.num_tokens == sum(len(node.key) for node in nodes)


Choice = Callable[[PrefixCache, list[Waiting], int], int]
"""(cache, window in order of arrival, step) -> place of the one that is served next."""


def fcfs(cache: PrefixCache, window: list[Waiting], step: int) -> int:
    """First come, first served."""
    return 0


def longest_prefix(*, alpha: float = 0.0, max_wait: int | None = None, first: int | None = None) -> Choice:
    """The longest cached prefix first (LSPF), and what makes it fairer.

    Args:
        alpha: tokens that each step of waiting counts as (ageing).
        max_wait: who has waited so many steps goes first, in order of arrival.
        first: only so many of the window, the oldest, are compared.
    """

    def choose(cache: PrefixCache, window: list[Waiting], step: int) -> int:
        if max_wait is not None and step - window[0].since >= max_wait:
            return 0
        candidates = range(len(window) if first is None else min(first, len(window)))
        scores = [cache.matched(window[i]) + alpha * (step - window[i].since) for i in candidates]
        return scores.index(max(scores))

    return choose


@dataclass(slots=True)
class QueueResult:
    """What a run gave, in the order of service.

    Attributes:
        request_ids: whom it served.
        prompts: (tokens, cached tokens) of each prompt.
        waits: steps from the window to service.
    """

    request_ids: list[str] = field(default_factory=list)
    prompts: list[tuple[int, int]] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        """Share of all prompt tokens that were cached."""
        return sum(cached for _, cached in self.prompts) / sum(tokens for tokens, _ in self.prompts)

    @property
    def max_wait(self) -> int:
        return max(self.waits)


def simulate(
    workload: Workload,
    capacity: float,
    choose: Choice = fcfs,
    *,
    window: int = WINDOW,
    block_size: int = BLOCK_SIZE,
) -> QueueResult:
    """Serve a workload whose times are steps, one request a step.

    Args:
        capacity: tokens that stay cached between requests; infinity: all.
        window: most requests that the order looks at; others wait outside, first come, first served.
    """
    cache = PrefixCache(capacity, block_size)
    result = QueueResult()
    arrivals = Arrivals(workload)
    outside: deque[SimRequest] = deque()
    waiting: list[Waiting] = []
    step = 0
    while True:
        outside.extend(arrivals.until(step))
        while outside and len(waiting) < window:
            request = outside.popleft()
            waiting.append(Waiting(request, list(request.prompt), step))
        if not waiting:
            if arrivals.next_time == math.inf:
                break
            step = max(step + 1, math.ceil(arrivals.next_time))
            continue
        chosen = waiting.pop(choose(cache, waiting, step))
        cached = cache.serve(chosen)
        result.request_ids.append(chosen.request.request_id)
        result.prompts.append((len(chosen.prompt), cached))
        result.waits.append(step - chosen.since)
        step += 1
        arrivals.follow(workload.finished(chosen.request, step))
    cache.check()
    return result
