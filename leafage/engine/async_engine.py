"""The engine for asyncio: many streams on one event loop, one engine thread."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

from leafage.core.sampling_params import SamplingParams
from leafage.engine.engine import Engine
from leafage.engine.engine_thread import EngineThread
from leafage.engine.inputs import InputProcessor, Prompt
from leafage.engine.output import OutputProcessor, RequestOutput
from leafage.engine.pins import Pin


class AsyncEngine:
    """Streams of outputs for asyncio. Use it from one event loop.

    A stream that is left early (cancelled, closed, its task gone) aborts its request at once. However many
    streams there are, a step wakes the event loop once.

    Args:
        engine, outputs, inputs: as `build.build_engine` gives them; this object takes them over.
    """

    def __init__(self, engine: Engine, outputs: OutputProcessor, inputs: InputProcessor) -> None:
        self._inputs = inputs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready: deque[tuple[asyncio.Queue[RequestOutput], RequestOutput]] = deque()
        self._numbers = itertools.count()
        self._thread = EngineThread(engine, outputs, after_step=self._after_step)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Yield what is new after each step; the last output has `finished` set.

        Raises:
            InvalidParameterError, RequestTooLargeError: the request was refused.
            LeafageError: an accepted request ended with an error.
        """
        self._loop = asyncio.get_running_loop()
        if request_id is None:
            request_id = f"async-{next(self._numbers)}"
        new = self._inputs.request(request_id, prompt, params or SamplingParams(), priority=priority)
        queue: asyncio.Queue[RequestOutput] = asyncio.Queue()
        accepted = self._thread.submit([new], [partial(self._sink, queue)], stream=True)
        finished = False
        try:
            await asyncio.shield(asyncio.wrap_future(accepted))
            while not finished:
                output = await queue.get()
                finished = output.finished
                if output.error is not None:
                    raise output.error
                yield output
        finally:
            if not finished:
                self._thread.abandon(accepted, [request_id])

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with finish reason 'abort'."""
        await asyncio.shield(asyncio.wrap_future(self._thread.abort([request_id])))

    async def pin_prefix(
        self, prompt: Prompt, ttl: float | None = None, cache_salt: str = "", *, priority: int = 0
    ) -> Pin:
        """Keep a prefix cached, see `LLM.pin_prefix`. Cancelled while it is computed, it pins nothing."""
        prefix = self._inputs.prefix(prompt, cache_salt=cache_salt, priority=priority)
        accepted, held = self._thread.pin(prefix, ttl)
        try:
            await asyncio.shield(asyncio.wrap_future(accepted))
            return await asyncio.wrap_future(held)
        except BaseException:
            self._thread.abandon_pin(accepted)
            raise

    async def list_pins(self) -> list[Pin]:
        """All pins, the oldest first."""
        return await asyncio.shield(asyncio.wrap_future(self._thread.pins()))

    def close(self) -> None:
        """Stop the engine thread; streams that still run end with an error."""
        self._thread.close()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive

    def _sink(self, queue: asyncio.Queue[RequestOutput], output: RequestOutput) -> None:
        self._ready.append((queue, output))

    def _after_step(self) -> None:
        if self._ready and self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._ready:
            queue, output = self._ready.popleft()
            queue.put_nowait(output)
