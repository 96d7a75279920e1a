"""Admission order: which waiting request is tried next.

Classes come first: a request of a higher class (a lower `priority`) is tried before all of a lower one, under
every policy. A policy orders the requests of a class. Whatever it says, the scheduler lets nothing pass a
preempted gang of the same or a higher class that arrived earlier, and it stops at the first request that does
not fit into the KV cache (`first_fit` goes on).

**The bound on overtaking.** A request is passed when one of its class that arrived later is admitted while it
waits; `Request.passed` counts. One that was passed `max_passes` times is overdue: the policies that reorder
by what requests are like (`longest_prefix`, `depth_first`, `shortest_prompt`) put overdue requests before all
others of the class, in order of arrival, and `first_fit` skips them no more. So nobody is passed more often.
It is enough to look at the head of the class: who arrived earlier has been passed at least as often. `fair`
has a bound of its own, in service.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from leafage.core.prefix_watch import PrefixWatch
from leafage.core.protocols import KV
from leafage.core.request import Request, RequestStatus
from leafage.errors import InvalidParameterError

MAX_PASSES = 48
"""How often a waiting request may be passed; chosen with benchmarks/ageing.py."""

PROMPT_COST, OUTPUT_COST = 1, 2
"""What `fair` charges per token, as Sheng et al. do. Cached prompt tokens are free."""


class Policy(ABC):
    """An order of admission over the waiting requests, kept up to date as they come and go.

    Args:
        kv: the blocks, for policies that look at what is cached.
        max_passes: the bound on overtaking.
    """

    skips_blocked = False
    """Whether others are tried when the first one does not fit, unless it was passed too often."""

    steady = False
    """Whether the order stays as it is while nobody comes or goes, whatever is computed and cached."""

    def __init__(self, kv: KV, max_passes: int = MAX_PASSES) -> None:
        self.kv = kv
        self.max_passes = max_passes

    def add(self, request: Request) -> None:  # noqa: B027 (optional)
        """A request waits from now on: it is new, or was preempted."""

    def remove(self, request: Request) -> None:  # noqa: B027 (optional)
        """It no longer waits: it is being admitted, or it ended."""

    @abstractmethod
    def order(self, waiting: Sequence[Request]) -> Iterator[Request]:
        """In which order to try the waiting requests, which are sorted by priority, then arrival.

        Nothing may be added or removed while the result is being read.
        """


class Fcfs(Policy):
    """First come, first served. Nothing is ever passed: all wait behind a request that does not fit yet."""

    steady = True

    def order(self, waiting: Sequence[Request]) -> Iterator[Request]:
        return iter(waiting)


class FirstFit(Fcfs):
    """The oldest that fits: small requests may pass one that waits for much memory, so often and no more."""

    skips_blocked = True


class KeyOrder(Policy):
    """Smallest key first, then arrival; overdue requests before all others of their class.

    A sorted list is kept, so a step pays for what changed and not for the length of the queue.
    """

    def __init__(self, kv: KV, max_passes: int = MAX_PASSES) -> None:
        super().__init__(kv, max_passes)
        self._entries: list[tuple[int, Any, int, Request]] = []
        self._entry_of: dict[int, tuple[int, Any, int, Request]] = {}

    @abstractmethod
    def key(self, request: Request) -> Any: ...

    def add(self, request: Request) -> None:
        entry = (request.priority, self.key(request), request.arrival, request)
        self._entry_of[request.arrival] = entry
        insort(self._entries, entry)

    def remove(self, request: Request) -> None:
        entry = self._entry_of.pop(request.arrival)
        del self._entries[bisect_left(self._entries, entry)]

    def order(self, waiting: Sequence[Request]) -> Iterator[Request]:
        for start, end in _classes(waiting):
            first = 0  # how many go before all others
            while start + first < end and self._goes_first(waiting[start + first]):
                yield waiting[start + first]
                first += 1
            done = set(waiting[start : start + first])
            for i in self.places(start, end):
                request = self._entries[i][3]
                if request not in done:
                    yield request

    def places(self, start: int, end: int) -> Iterator[int]:
        """In which order to take the sorted entries of a class, which are those from `start` to `end`."""
        return iter(range(start, end))

    def _goes_first(self, request: Request) -> bool:
        return request.passed >= self.max_passes or request.status is RequestStatus.PREEMPTED


class LongestPrefix(KeyOrder):
    """The longest cached prefix first, in whole blocks: who finds most in the cache uses it before it goes.

    After Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs" (NeurIPS 2024),
    section 3; there without a bound on overtaking.
    """

    def __init__(self, kv: KV, max_passes: int = MAX_PASSES) -> None:
        super().__init__(kv, max_passes)
        self._watch = PrefixWatch(kv.index, kv.block_size)

    def key(self, request: Request) -> int:
        return -self._watch.matched(request)

    def add(self, request: Request) -> None:
        self._watch.add(request)
        super().add(request)

    def remove(self, request: Request) -> None:
        super().remove(request)
        self._watch.remove(request)

    def order(self, waiting: Sequence[Request]) -> Iterator[Request]:
        for request in self._watch.changed():
            super().remove(request)
            super().add(request)
        return super().order(waiting)


class DepthFirst(KeyOrder):
    """Depth first through the tree of the waiting prompts, which their lexicographic order is.

    Goes on from the request that was taken last to the next one, and from the end to the start, so requests
    with a common prefix follow each other. Optimal for a fixed set of requests (Zheng et al., theorem 3.1).
    """

    steady = True

    def __init__(self, kv: KV, max_passes: int = MAX_PASSES) -> None:
        super().__init__(kv, max_passes)
        self._last: dict[int, tuple[int, Any, int, Request]] = {}

    def key(self, request: Request) -> tuple[str, list[int]]:
        return request.cache_salt, request.prompt_token_ids

    def remove(self, request: Request) -> None:
        self._last[request.priority] = self._entry_of[request.arrival]
        super().remove(request)

    def places(self, start: int, end: int) -> Iterator[int]:
        last = self._last.get(self._entries[start][0])
        middle = start if last is None else bisect_left(self._entries, last, start, end)
        yield from range(middle, end)
        yield from range(start, middle)


class ShortestPrompt(KeyOrder):
    """The shortest prompt first."""

    steady = True

    def key(self, request: Request) -> int:
        return len(request.prompt_token_ids)


class Fair(Policy):
    """The tenant that was served least goes first; first come, first served within a tenant.

    The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024),
    algorithm 2: a tenant's counter grows with the tokens computed for it. A tenant that comes back is lifted
    to the least counter of those that wait (or to that of the tenant served last), so idle time earns
    nothing. Two tenants that both have requests waiting are never further apart in service than twice the
    larger of what one prompt costs and what all running requests can be given.
    """

    def __init__(self, kv: KV, max_passes: int = MAX_PASSES) -> None:
        super().__init__(kv, max_passes)
        self._settled: dict[str, int] = {}  # by tenant: lifts, and the service of ended requests
        self._waiting: Counter[str] = Counter()
        self._admitted: dict[int, Request] = {}
        self._last = ""

    def add(self, request: Request) -> None:
        tenant = request.tenant
        if not self._waiting[tenant]:
            served = self.served()
            behind = self._floor(served) - served[tenant]
            if behind > 0:
                self._settled[tenant] = self._settled.get(tenant, 0) + behind
        self._waiting[tenant] += 1

    def remove(self, request: Request) -> None:
        tenant = request.tenant
        self._waiting[tenant] -= 1
        self._last = tenant
        self._admitted[request.arrival] = request

    def order(self, waiting: Sequence[Request]) -> Iterator[Request]:
        served = self.served()
        for start, end in _classes(waiting):
            yield from sorted(islice(waiting, start, end), key=lambda request: served[request.tenant])

    def served(self) -> Counter[str]:
        """The counters: tokens computed for each tenant, weighted, and lifts."""
        ended = [r for r in self._admitted.values() if r.status is RequestStatus.FINISHED]
        for request in ended:
            del self._admitted[request.arrival]
            self._settled[request.tenant] = self._settled.get(request.tenant, 0) + _service(request)
        served = Counter(self._settled)
        for request in self._admitted.values():
            served[request.tenant] += _service(request)
        if ended:
            self._forget(served)
        return served

    def _floor(self, served: Counter[str]) -> int:
        waiting = [served[tenant] for tenant, count in self._waiting.items() if count]
        return min(waiting, default=served[self._last])

    def _forget(self, served: Counter[str]) -> None:
        """Tenants without requests that would be lifted anyway need no counter."""
        active = {request.tenant for request in self._admitted.values()} | {self._last}
        if len(self._waiting) <= 2 * len(active) + 64:
            return
        floor = self._floor(served)
        for tenant in [t for t, count in self._waiting.items() if not count and t not in active]:
            if served[tenant] <= floor:
                del self._waiting[tenant]
                self._settled.pop(tenant, None)


class Static(Policy):
    """Static batches, first come, first served: nothing is admitted while an earlier batch runs.

    A batch is what waits when nothing runs. It is admitted as memory and the token budget allow, until the
    first of it ends; all others wait until all of it ended. So FasterTransformer is served behind a scheduler
    that batches (Kwon et al., SOSP 2023, section 6.1): a baseline. Padding, and that answers come out only
    with the whole batch, are not modelled.
    """

    steady = True

    def __init__(self, kv: KV, max_passes: int = MAX_PASSES) -> None:
        super().__init__(kv, max_passes)
        self._batch: list[Request] = []  # admitted so far
        self._last = -1  # the latest arrival that may join

    def remove(self, request: Request) -> None:
        self._batch.append(request)

    def order(self, waiting: Sequence[Request]) -> Iterator[Request]:
        running = sum(request.status is RequestStatus.RUNNING for request in self._batch)
        if running == 0:
            self._batch = []
            self._last = max((request.arrival for request in waiting), default=-1)
        elif running < len(self._batch):
            return iter(())
        return (request for request in waiting if request.arrival <= self._last)


def _service(request: Request) -> int:
    if request.num_cached is None:
        return 0
    prompt = len(request.prompt_token_ids) - request.num_cached
    return PROMPT_COST * prompt + OUTPUT_COST * sum(seq.num_output_tokens for seq in request.sequences)


def _classes(waiting: Sequence[Request]) -> Iterator[tuple[int, int]]:
    """Where each class starts and ends."""
    end = 0
    while end < len(waiting):
        start = end
        end = bisect_right(waiting, waiting[start].priority, lo=start, key=lambda request: request.priority)
        yield start, end


PolicyMaker = Callable[[KV, int], Policy]
POLICIES: dict[str, PolicyMaker] = {
    "fcfs": Fcfs,
    "first_fit": FirstFit,
    "longest_prefix": LongestPrefix,
    "depth_first": DepthFirst,
    "shortest_prompt": ShortestPrompt,
    "fair": Fair,
    "static": Static,
}


def make_policy(policy: str | PolicyMaker, kv: KV, max_passes: int) -> Policy:
    """A policy by its name in `POLICIES`, or by what makes it.

    Raises:
        InvalidParameterError: an unknown name.
    """
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise InvalidParameterError("unknown policy", value=policy, limit=" or ".join(POLICIES))
        policy = POLICIES[policy]
    return policy(kv, max_passes)
