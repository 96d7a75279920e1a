"""The live page's events: one look at the engine serves all who watch, and nobody looks when nobody does."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from leafage.core.request import Request
from leafage.engine.metrics import RequestMetrics
from leafage.errors import LeafageError
from leafage.server.context import Context
from leafage.server.live.snapshot import counters_of, ended, snapshot
from leafage.server.sse import event

INTERVAL = 0.25
"""Seconds between two snapshots, at least."""
MAX_SHARE = 0.01
"""Of the engine's time that snapshots may take: where one is slow, there are fewer."""
SECOND = 1.0
"""Seconds between two readings of the counters."""
HISTORY = 300
"""Readings that a page sees when it opens."""
MAX_ENDED = 16
"""Requests that ended lately, listed."""
RETRY = 1.0
"""Seconds after a look at an engine that has ended."""

Second = dict[str, Any]

_log = logging.getLogger("leafage.server")


class Watcher:
    """One page that is open. It gets the newest of each kind of event; what it was too slow for is lost."""

    def __init__(self) -> None:
        self._events: dict[str, bytes] = {}
        self._ready = asyncio.Event()

    def put(self, name: str, event: bytes) -> None:
        self._events.pop(name, None)
        self._events[name] = event
        self._ready.set()

    async def next(self) -> bytes:
        """Wait for events, and return all there are."""
        await self._ready.wait()
        self._ready.clear()
        events, self._events = self._events, {}
        return b"".join(events.values())


class Feed:
    """Snapshots of the core and the counters of each second, for any number of watchers.

    Snapshots are made by the engine's thread between two steps, while somebody watches. The counters are
    read once a second, watched or not, from this thread: they are plain numbers. So a page that opens sees
    the last minutes, and one whose engine is stuck is told.

    Args:
        context: the server's.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._watchers: set[Watcher] = set()
        self._history: deque[Second] = deque(maxlen=HISTORY)
        self._looking: asyncio.Task[None] | None = None
        self._state: dict[str, Any] = {}
        self._ended: deque[dict[str, Any]] = deque(maxlen=MAX_ENDED)
        self._next = context.metrics.on_finished
        self.num_snapshots = 0
        self.cost = 0.0
        """Seconds of the engine's thread that the last snapshot took."""

    @property
    def num_watchers(self) -> int:
        return len(self._watchers)

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[None]:
        """While the server runs: count the seconds, and remember who ended."""
        metrics = self._context.metrics
        self._next = metrics.on_finished
        metrics.on_finished = self._finished
        task = asyncio.create_task(self._count())
        try:
            yield
        finally:
            if metrics.on_finished == self._finished:  # else somebody came later, and hands on to this
                metrics.on_finished = self._next
            task.cancel()
            if self._looking is not None:
                self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await task

    @contextmanager
    def watch(self, facts: Mapping[str, Any]) -> Iterator[Watcher]:
        """One watcher more, while the block lasts.

        Args:
            facts: what it is told first, with the history.
        """
        watcher = Watcher()
        watcher.put("hello", event({**facts, "history": self.history()}, name="hello"))
        self._watchers.add(watcher)
        self._state = {}  # the next snapshot is told even if it is the same
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def history(self) -> dict[str, Any]:
        """The seconds so far, the oldest first: the names of their fields, and a row for each."""
        seconds = [*self._history, self.second()]
        return {"names": list(seconds[-1]), "rows": [list(second.values()) for second in seconds]}

    def second(self) -> Second:
        """The counters now, and how the engine does. It is not asked, so a stuck one can be told of."""
        context = self._context
        scheduler = context.core.scheduler
        kv = scheduler.kv
        gone = context.engine.why_gone
        return {
            "time": round(time.monotonic(), 3),
            "gone": None if gone is None else str(gone),
            "step_age": round(context.engine.step_age, 1),
            "draining": context.lifecycle.draining,
            "running": scheduler.num_running,
            "waiting": scheduler.num_waiting,
            "total": kv.num_blocks,
            "free": kv.num_free,
            "cached": kv.num_cached,
            "rss": resident_bytes(),
            "watchers": len(self._watchers),
            **counters_of(scheduler.counters, kv),
        }

    async def _count(self) -> None:
        while True:
            self._history.append(self.second())
            if self._watchers:
                self._tell("second", self._history[-1])
            await asyncio.sleep(SECOND)

    async def _look(self) -> None:
        """Take snapshots as long as somebody watches."""
        loop = asyncio.get_running_loop()
        while self._watchers:
            began = loop.time()
            try:
                state = await self._context.engine.call(self._take)
            except LeafageError:  # the engine has ended; the seconds tell
                await asyncio.sleep(RETRY)
                continue
            except Exception:
                _log.exception("a fault in the live page's snapshot")
                await asyncio.sleep(RETRY)
                continue
            self.num_snapshots += 1
            if {**state, "time": 0} != self._state:
                self._state = {**state, "time": 0}
                self._tell("state", {**state, "cost": round(self.cost, 6)})
            pause = max(INTERVAL, self.cost / MAX_SHARE)
            await asyncio.sleep(max(0.0, began + pause - loop.time()))

    def _take(self) -> dict[str, Any]:
        began = time.perf_counter()
        state = snapshot(self._context.core, self._context.metrics)
        state["ended"] = list(self._ended)[::-1]
        self.cost = time.perf_counter() - began
        return state

    def _finished(self, request: Request, times: RequestMetrics) -> None:
        """On the engine's thread."""
        self._ended.append(ended(request, times))
        if self._next is not None:
            self._next(request, times)

    def _tell(self, name: str, data: Mapping[str, Any]) -> None:
        told = event(data, name=name)
        for watcher in self._watchers:
            watcher.put(name, told)


def resident_bytes() -> int | None:
    """Memory of this process that is in RAM; None where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
