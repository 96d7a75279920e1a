"""Pins through the engine, its thread and asyncio: who is told what, and when they expire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from leafage.core.pins import PrefixPin
from leafage.engine.async_engine import AsyncEngine
from leafage.engine.engine_thread import EngineThread
from leafage.engine.metrics import engine_stats
from leafage.engine.pins import Pin
from leafage.errors import ExecutorError, InvalidParameterError, PinRefusedError, RequestError

MakeRig = Callable[..., Any]
WAIT = 20.0
PREFIX = [50 + i for i in range(10)]


class Clock:
    """Stands still until it is moved."""

    time = 0.0
    looks = 0

    def now(self) -> float:
        self.looks += 1
        return self.time


def ids(rig: Any) -> list[str]:
    return [pin.id for pin in rig.engine.pins.list(print)]


def test_the_waiting_are_told_once_when_it_holds(make_rig: MakeRig) -> None:
    rig = make_rig("hello", max_pinned_blocks=16)
    told: list[PrefixPin] = []
    pin_id = rig.engine.pin_prefix(PREFIX, on_end=told.append)
    assert not told
    assert rig.engine.step() == [] and [pin.pin_id for pin in told] == [pin_id] and told[0].held
    rig.engine.pin_prefix(PREFIX, on_end=told.append)
    assert len(told) == 2, "at once: it was computed"
    rig.run()
    assert len(told) == 2 and rig.metrics.of("x").first_token_time is None


def test_a_pin_that_is_released_before_it_holds_tells_who_waits(make_rig: MakeRig) -> None:
    rig = make_rig("hello", max_pinned_blocks=16)
    told: list[PrefixPin] = []
    pin_id = rig.engine.pin_prefix(PREFIX, ttl=5.0, on_end=told.append)
    assert rig.engine.unpin(pin_id) and not rig.engine.unpin(pin_id)
    assert [pin.pin_id for pin in told] == [pin_id] and "released before" in str(told[0].error)
    assert not rig.engine.has_unfinished and ids(rig) == []


def test_expiries_of_released_pins_are_not_kept(make_rig: MakeRig) -> None:
    rig = make_rig("hello", max_pinned_blocks=16)
    rig.engine.pin_prefix(PREFIX)
    rig.engine.step()
    for _ in range(500):
        rig.engine.unpin(rig.engine.pin_prefix(PREFIX, ttl=1e9))
    assert len(rig.engine.pins._expiries) < 100


def test_stats_and_list(make_rig: MakeRig) -> None:
    rig = make_rig("hello", max_pinned_blocks=16)
    first = rig.engine.pin_prefix(PREFIX, ttl=9.0, cache_salt="a")
    second = rig.engine.pin_prefix(PREFIX[:4])
    listed = rig.engine.pins.list(print)
    assert listed == [Pin(first, 10, 0, "a", 9.0, print), Pin(second, 4, 0, "", None, print)]
    rig.run()
    stats = engine_stats(rig.engine, rig.metrics)
    assert (stats["num_pins"], stats["kv_blocks_pinned"], stats["kv_slots_pinned"]) == (2, 4, 16)
    assert stats["kv_blocks_active"] == 4 and stats["generation_tokens"] == 0
    assert [(pin.num_tokens, pin.num_blocks) for pin in rig.engine.pins.list(print)] == [(10, 3), (4, 1)]
    assert rig.engine.unpin(first) and not rig.engine.unpin(first)
    assert ids(rig) == [second]


def test_a_pin_expires_by_the_clock_of_the_engine(make_rig: MakeRig) -> None:
    clock = Clock()
    rig = make_rig("hello", clock=clock, max_pinned_blocks=16)
    rig.engine.pin_prefix(PREFIX, ttl=5.0)
    clock.time = 100.0
    rig.run()  # its time begins now
    forever = rig.engine.pin_prefix([60, 61])
    long = rig.engine.pin_prefix(PREFIX[:8], ttl=50.0)
    clock.time = 104.9
    assert len(ids(rig)) == 3
    rig.engine.add_request("r", rig.tokenizer.encode("a"), rig_params())
    clock.time = 105.0
    rig.engine.step()
    rig.kv.check()
    assert rig.kv.pins.num_blocks == 3 and ids(rig) == [forever, long]
    assert rig.engine.unpin(long)
    clock.time = 1000.0
    rig.run()
    assert ids(rig) == [forever]


def test_without_expiry_nobody_looks_at_the_clock(make_rig: MakeRig) -> None:
    clock = Clock()
    rig = make_rig("hello", clock=clock, max_pinned_blocks=16)
    rig.engine.observer = None
    rig.engine.pin_prefix(PREFIX)
    rig.engine.step()
    assert clock.looks == 0


def test_a_pin_that_expires_while_requests_use_its_blocks(make_rig: MakeRig) -> None:
    clock = Clock()
    rig = make_rig("hello, this is long", clock=clock, max_pinned_blocks=16)
    rig.engine.pin_prefix(PREFIX, ttl=1.0)
    rig.engine.step()
    request = rig.engine.add_request("r", [*PREFIX, 77], rig_params())
    rig.engine.step()
    assert request.num_cached == 10
    clock.time = 2.0
    rig.engine.step()
    rig.kv.check()
    assert not ids(rig) and rig.kv.num_active == 3
    rig.run()
    assert rig.kv.num_active == 0


def rig_params() -> Any:
    from leafage.core.sampling_params import SamplingParams

    return SamplingParams(max_tokens=30)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "the prefix is empty"),
        (([999],), "prefix token id is outside the vocabulary; got 999"),
        ((PREFIX, 0), "ttl is out of range; got 0"),
        ((PREFIX, float("nan")), "ttl is out of range"),
        ((PREFIX, "1"), "ttl is out of range"),
    ],
)
def test_refused_by_name(make_rig: MakeRig, arguments: tuple[Any, ...], message: str) -> None:
    rig = make_rig("hello", max_pinned_blocks=16)
    prefix, *ttl = arguments
    with pytest.raises(InvalidParameterError, match=message):
        rig.engine.pin_prefix(prefix, ttl=ttl[0] if ttl else None)
    assert not ids(rig) and not rig.engine.has_unfinished


def test_thread_a_failed_step_is_told(make_rig: MakeRig) -> None:
    rig = make_rig("hello", max_pinned_blocks=16)
    rig.executor.fail_at = {1: ExecutorError("broken")}
    thread = EngineThread(rig.engine, rig.outputs)
    accepted, held = thread.pin(rig.inputs.prefix(PREFIX), None)
    assert accepted.result(WAIT).startswith("leafage-pin")
    with pytest.raises(ExecutorError, match="broken"):
        held.result(WAIT)
    assert thread.pins().result(WAIT) == []
    thread.close()


def test_thread_closing_ends_the_wait(make_rig: MakeRig) -> None:
    rig = make_rig("hello", max_num_batched_tokens=16, max_pinned_blocks=16)
    rig.executor.pace = 0.05
    thread = EngineThread(rig.engine, rig.outputs)
    accepted, held = thread.pin(rig.inputs.prefix([50] * 60), None)
    accepted.result(WAIT)
    thread.close()
    with pytest.raises(RequestError, match="closed"):
        held.result(WAIT)
    refused, _ = thread.pin(rig.inputs.prefix(PREFIX), None)
    with pytest.raises(RequestError, match="closed"):
        refused.result(WAIT)


def test_asyncio(make_rig: MakeRig) -> None:
    rig = make_rig("hello", max_num_batched_tokens=16, max_pinned_blocks=16)
    rig.executor.pace = 0.01

    async def main() -> None:
        engine = AsyncEngine(rig.engine, rig.outputs, rig.inputs)
        try:
            with await engine.pin_prefix("some text", cache_salt="a") as pin:
                assert (pin.num_tokens, pin.num_blocks, pin.cache_salt) == (9, 3, "a")
                assert [p.id for p in await engine.list_pins()] == [pin.id]
            assert await engine.list_pins() == []
            with pytest.raises(PinRefusedError):
                await engine.pin_prefix([50] * 80)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(engine.pin_prefix([50] * 60), 0.02)
            assert await engine.list_pins() == []
        finally:
            engine.close()

    asyncio.run(asyncio.wait_for(main(), WAIT))
    assert rig.kv.num_active == 0
