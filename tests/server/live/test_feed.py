"""The feed: one look for all who watch, none when nobody does, and never too many."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from leafage.core.sampling_params import SamplingParams
from leafage.engine.async_engine import AsyncEngine
from leafage.server.live import feed as feed_module
from leafage.server.live.feed import Feed, Watcher
from tests.engine.rig import Rig, make_rig


@pytest.fixture(autouse=True)
def _short_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "SECOND", 0.1)


class Server:
    """A feed over an engine without a model, on an event loop."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.engine = AsyncEngine(rig.engine, rig.outputs, rig.inputs)
        lifecycle = SimpleNamespace(draining=False)
        context: Any = SimpleNamespace(
            core=rig.engine, metrics=rig.metrics, engine=self.engine, lifecycle=lifecycle
        )
        self.feed = Feed(context)

    async def ask(self, max_tokens: int = 5) -> None:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        async for _ in self.engine.generate("hello there", params):
            pass


def serve(test: Callable[[Server], Awaitable[None]], pace: float = 0.0) -> Server:
    rig = make_rig(lambda prompt: [70] * 200, clock=SimpleNamespace(now=time.perf_counter))
    rig.executor.pace = pace
    server = Server(rig)

    async def run() -> None:
        async with server.feed.counting():
            await test(server)

    try:
        asyncio.run(asyncio.wait_for(run(), 20))
    finally:
        server.engine.close()
    return server


async def events(watcher: Watcher) -> dict[str, dict[str, Any]]:
    """The next ones, by name."""
    found = {}
    for event in (await watcher.next()).decode().strip().split("\n\n"):
        name, data = event.split("\n")
        found[name.removeprefix("event: ")] = json.loads(data.removeprefix("data: "))
    return found


async def until(watcher: Watcher, name: str, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first event of that name of which something is true."""
    while True:
        event = (await events(watcher)).get(name)
        if event is not None and true(event):
            return event


def test_nobody_looks_when_nobody_watches() -> None:
    async def test(server: Server) -> None:
        await server.ask()
        await asyncio.sleep(0.6)
        assert server.feed.num_snapshots == 0
        with server.feed.watch({}) as watcher:
            await until(watcher, "state", lambda state: True)
        await asyncio.sleep(0.4)
        num = server.feed.num_snapshots
        await asyncio.sleep(0.6)
        assert server.feed.num_snapshots == num and server.feed.num_watchers == 0

    serve(test)


def test_one_look_serves_all_and_at_most_four_a_second() -> None:
    async def test(server: Server) -> None:
        asking = asyncio.ensure_future(server.ask(100))  # two seconds
        began = time.monotonic()
        with server.feed.watch({}) as first, server.feed.watch({}) as second:
            for _ in range(3):
                states = [await until(w, "state", lambda state: True) for w in (first, second)]
                assert states[0] == states[1]
            assert server.feed.num_snapshots <= 1 + (time.monotonic() - began) / feed_module.INTERVAL
        asking.cancel()

    serve(test, pace=0.02)


def test_looks_take_a_small_share_of_the_engines_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[float, float]] = []

    def slow(*_: object) -> dict[str, Any]:
        began = time.monotonic()
        time.sleep(0.005)
        looks.append((began, time.monotonic() - began))
        return {"time": began}

    monkeypatch.setattr(feed_module, "snapshot", slow)

    async def test(server: Server) -> None:
        with server.feed.watch({}):
            while len(looks) < 3:
                await asyncio.sleep(0.01)

    serve(test)
    for (began, took), (next_began, _) in itertools.pairwise(looks):
        assert next_began - began > 0.98 * took / feed_module.MAX_SHARE > feed_module.INTERVAL


def test_a_state_that_has_not_changed_is_told_once() -> None:
    async def test(server: Server) -> None:
        with server.feed.watch({}) as watcher:
            await until(watcher, "state", lambda state: True)
            while server.feed.num_snapshots < 4:
                assert "state" not in await events(watcher)
            with server.feed.watch({}) as late:
                await until(late, "state", lambda state: True)

    serve(test)


def test_hello_tells_the_facts_and_the_seconds_so_far() -> None:
    async def test(server: Server) -> None:
        while not server.feed._history:
            await asyncio.sleep(0.01)
        await server.ask()
        while len(server.feed._history) < 3:
            await asyncio.sleep(0.01)
        with server.feed.watch({"model": "rig"}) as watcher:
            hello = (await events(watcher))["hello"]
        assert hello["model"] == "rig"
        rows = [dict(zip(hello["history"]["names"], row, strict=True)) for row in hello["history"]["rows"]]
        assert len(rows) >= 3
        generated = [row["generated"] for row in rows]  # how many of them saw none depends on the machine
        assert generated == sorted(generated) and generated[-1] == 5
        assert rows[-1]["finished"] == 1 and not rows[-1]["draining"]
        assert rows[-1]["free"] + rows[-1]["cached"] == rows[-1]["total"]

    serve(test)


def test_a_slow_watcher_gets_the_newest() -> None:
    watcher = Watcher()
    watcher.put("hello", b"h")
    watcher.put("state", b"old")
    watcher.put("second", b"s")
    watcher.put("state", b"new")
    assert asyncio.run(watcher.next()) == b"hsnew"


def test_requests_that_ended_are_told_and_handed_on() -> None:
    async def test(server: Server) -> None:
        with server.feed.watch({}) as watcher:
            await server.ask()
            state = await until(watcher, "state", lambda state: bool(state["ended"]))
            assert [row["state"] for row in state["ended"]] == ["length"]

    rig = make_rig("answer")
    told: list[str] = []
    rig.metrics.on_finished = lambda request, times: told.append(request.request_id)
    server = Server(rig)

    async def run() -> None:
        async with server.feed.counting():
            await test(server)

    asyncio.run(run())
    server.engine.close()
    assert len(told) == 1
    assert rig.metrics.on_finished is not None and rig.metrics.on_finished != server.feed._finished


def test_an_engine_that_is_stuck_or_dead_is_told_of() -> None:
    async def test(server: Server) -> None:
        with server.feed.watch({}) as watcher:
            await until(watcher, "state", lambda state: True)
            server.rig.executor.pace = 0.6
            asking = asyncio.ensure_future(server.ask(1))
            stuck = await until(watcher, "second", lambda second: second["step_age"] > 0.3)
            assert stuck["gone"] is None and stuck["running"] + stuck["waiting"] == 1
            server.rig.executor.pace = 0.0
            await asking
            await until(watcher, "second", lambda second: second["step_age"] == 0)
            server.engine.close()
            await until(watcher, "second", lambda second: second["gone"] is not None)

    serve(test)


def test_a_fault_in_a_snapshot_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feed_module, "RETRY", 0.05)
    good = feed_module.snapshot
    monkeypatch.setattr(feed_module, "snapshot", lambda *_: 1 / 0)

    async def test(server: Server) -> None:
        with server.feed.watch({}) as watcher:
            await asyncio.sleep(0.2)
            await server.ask()
            monkeypatch.setattr(feed_module, "snapshot", good)
            await until(watcher, "state", lambda state: True)

    with caplog.at_level(logging.ERROR, "leafage.server"):
        serve(test)
    assert "ZeroDivisionError" in caplog.text
