from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leafage.core.sampling_params import SamplingParams
from leafage.engine.async_engine import AsyncEngine
from leafage.errors import InvalidParameterError, RequestError

MakeRig = Callable[..., Any]
PARAMS = SamplingParams(max_tokens=20)


def run(rig: Any, main: Callable[[AsyncEngine], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        engine = AsyncEngine(rig.engine, rig.outputs, rig.inputs)
        try:
            await asyncio.wait_for(main(engine), 30)
        finally:
            engine.close()

    asyncio.run(body())


def endless(make_rig: MakeRig) -> Any:
    """An answer of ten seconds."""
    rig = make_rig(lambda prompt: [100] * 10_000, max_model_len=10_000, num_blocks=4000)
    rig.executor.pace = 0.001
    return rig


async def collect(engine: AsyncEngine, prompt: Any, **settings: Any) -> str:
    return "".join([out.outputs[0].text async for out in engine.generate(prompt, PARAMS, **settings)])


def test_many_streams_at_once(make_rig: MakeRig) -> None:
    async def main(engine: AsyncEngine) -> None:
        assert await asyncio.gather(*[collect(engine, f"p{i}") for i in range(20)]) == ["hello"] * 20

    run(make_rig("hello"), main)


def test_the_last_output_says_so(make_rig: MakeRig) -> None:
    async def main(engine: AsyncEngine) -> None:
        outputs = [out async for out in engine.generate("p", PARAMS)]
        assert [out.finished for out in outputs] == [False] * 5 + [True]

    run(make_rig("hello"), main)


def test_refused_requests_raise(make_rig: MakeRig) -> None:
    async def main(engine: AsyncEngine) -> None:
        with pytest.raises(InvalidParameterError, match="999"):
            await collect(engine, [999])
        assert await collect(engine, "p") == "hello"

    run(make_rig("hello"), main)


def test_s03_a_cancelled_stream_frees_its_blocks(make_rig: MakeRig) -> None:
    rig = endless(make_rig)

    async def main(engine: AsyncEngine) -> None:
        started = asyncio.Event()

        async def reader() -> None:
            async for _ in engine.generate("p", SamplingParams(max_tokens=9000), request_id="r"):
                started.set()

        task = asyncio.create_task(reader())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.abort("other")  # commands run in order: the abort before this one has run
        assert rig.kv.num_active == 0
        assert rig.engine.scheduler.counters.finished["abort"] == 1

    run(rig, main)


def test_a_stream_left_by_break_is_aborted_when_closed(make_rig: MakeRig) -> None:
    rig = endless(make_rig)

    async def main(engine: AsyncEngine) -> None:
        stream = engine.generate("p", SamplingParams(max_tokens=9000))
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        await engine.abort("other")
        assert rig.kv.num_active == 0

    run(rig, main)


def test_s02_a_normal_end_aborts_nothing(make_rig: MakeRig) -> None:
    rig = make_rig("hello")

    async def main(engine: AsyncEngine) -> None:
        for i in range(5):
            await collect(engine, f"p{i}")
        await engine.abort("none")
        assert rig.engine.scheduler.counters.finished == {"stop": 5}

    run(rig, main)


def test_abort_by_id_ends_the_stream(make_rig: MakeRig) -> None:
    rig = endless(make_rig)

    async def main(engine: AsyncEngine) -> None:
        reasons = []
        async for out in engine.generate("p", SamplingParams(max_tokens=9000), request_id="r"):
            reasons.append(out.outputs[0].finish_reason)
            await engine.abort("r")
        assert reasons[-1] == "abort"

    run(rig, main)


def test_a_duplicate_id_is_refused_and_leaves_the_first_alone(make_rig: MakeRig) -> None:
    rig = endless(make_rig)

    async def main(engine: AsyncEngine) -> None:
        stream = engine.generate("p", SamplingParams(max_tokens=200), request_id="r")
        count = len((await anext(stream)).outputs[0].token_ids)
        with pytest.raises(InvalidParameterError, match="in use"):
            await collect(engine, "q", request_id="r")
        async for out in stream:
            count += len(out.outputs[0].token_ids)
        assert count == 200

    run(rig, main)


def test_close_ends_streams_with_an_error(make_rig: MakeRig) -> None:
    rig = endless(make_rig)

    async def main(engine: AsyncEngine) -> None:
        stream = engine.generate("p", SamplingParams(max_tokens=9000))
        await anext(stream)
        await asyncio.get_running_loop().run_in_executor(None, engine.close)
        with pytest.raises(RequestError, match="closed"):
            async for _ in stream:
                pass
        assert not engine.is_alive

    run(rig, main)


def test_a_closed_event_loop_does_not_stop_the_engine(make_rig: MakeRig) -> None:
    """`asyncio.run` ended with a stream open; the next one goes on with the same engine."""
    rig = endless(make_rig)
    engine = AsyncEngine(rig.engine, rig.outputs, rig.inputs)

    async def leave() -> None:
        await anext(engine.generate("p", SamplingParams(max_tokens=9000)))

    async def use() -> None:
        params = SamplingParams(max_tokens=3)
        assert len([out async for out in engine.generate("q", params)]) == 3

    asyncio.run(leave())
    asyncio.run(asyncio.wait_for(use(), 30))
    engine.close()
