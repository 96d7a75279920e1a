"""The engine for asyncio: many streams on one event loop, one engine thread."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TypeVar

from leafage.core.sampling_params import SamplingParams
from leafage.engine.engine import Engine
from leafage.engine.engine_thread import EngineThread
from leafage.engine.inputs import InputProcessor, NewRequest, Prompt
from leafage.engine.output import OutputProcessor, RequestOutput, Sink
from leafage.engine.pins import Pin
from leafage.errors import LeafageError

T = TypeVar("T")


class Answers:
    """Outputs of requests that were submitted together, as `(number of the request, output)`.

    Leave it early (`close`, or the end of a `with` block) and the requests that still run are aborted. Where
    an iteration is cancelled nothing is lost: the next one goes on.
    """

    def __init__(self, thread: EngineThread, request_ids: list[str]) -> None:
        self._thread = thread
        self._request_ids = request_ids
        self.num_requests = len(request_ids)
        self._num_running = len(request_ids)
        self._outputs: deque[tuple[int, RequestOutput]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._accepted: Future[None] | None = None
        self._closed = False

    async def accepted(self) -> None:
        """Return when the engine has taken the requests.

        Raises:
            InvalidParameterError, RequestTooLargeError: it refused one, and so all of them.
        """
        assert self._accepted is not None
        await asyncio.shield(asyncio.wrap_future(self._accepted))

    def __aiter__(self) -> Answers:
        return self

    async def __anext__(self) -> tuple[int, RequestOutput]:
        while not self._outputs:
            if self._closed or not self._num_running:
                raise StopAsyncIteration
            await self._wait()
        return self._outputs.popleft()

    async def ready(self) -> list[tuple[int, RequestOutput]]:
        """Wait for the next output and return it with all others that are here; [] when none will come."""
        while not self._outputs:
            if self._closed or not self._num_running:
                return []
            await self._wait()
        ready, self._outputs = list(self._outputs), deque()
        return ready

    def close(self) -> None:
        """Abort what still runs; an iteration that waits ends."""
        if self._closed:
            return
        self._closed = True
        if self._num_running and self._accepted is not None:
            self._thread.abandon(self._accepted, self._request_ids)
        self._wake()

    def __enter__(self) -> Answers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def put(self, number: int, output: RequestOutput) -> None:
        """Take an output from the engine. On the event loop."""
        self._num_running -= output.finished
        self._outputs.append((number, output))
        self._wake()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


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
        self._arrived: deque[tuple[Answers, int, RequestOutput]] = deque()
        self._numbers = itertools.count()
        self._thread = EngineThread(engine, outputs, after_step=self._after_step)

    def new_request_id(self) -> str:
        """An id that no other request of this engine has."""
        return f"async-{next(self._numbers)}"

    def submit(self, requests: list[NewRequest], *, stream: bool = True) -> Answers:
        """Start requests together: the next step sees all of them, or, when one is refused, none.

        Args:
            stream: outputs hold what is new after each step; else each request gives one, at its end.
        """
        self._loop = asyncio.get_running_loop()
        answers = Answers(self._thread, [request.request_id for request in requests])
        sinks: list[Sink] = [partial(self._sink, answers, number) for number in range(len(requests))]
        answers._accepted = self._thread.submit(requests, sinks, stream=stream)
        return answers

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
        request_id = request_id or self.new_request_id()
        new = self._inputs.request(request_id, prompt, params or SamplingParams(), priority=priority)
        with self.submit([new]) as answers:
            await answers.accepted()
            async for _, output in answers:
                if output.error is not None:
                    raise output.error
                yield output

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with finish reason 'abort'."""
        await asyncio.shield(asyncio.wrap_future(self._thread.abort([request_id])))

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function between two steps, on the engine's thread, and return its result."""
        return await asyncio.shield(asyncio.wrap_future(self._thread.call(function)))

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

    @property
    def why_gone(self) -> LeafageError | None:
        """Why it takes no more requests; None while it does."""
        return self._thread.why_gone

    @property
    def step_age(self) -> float:
        """Seconds that the engine's thread has been at one step, see `EngineThread.step_age`."""
        return self._thread.step_age

    @property
    def num_submitted(self) -> int:
        """Requests that were submitted and that the engine has yet to see."""
        return self._thread.num_submitted

    def _sink(self, answers: Answers, number: int, output: RequestOutput) -> None:
        self._arrived.append((answers, number, output))

    def _after_step(self) -> None:
        if self._arrived and self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._arrived:
            answers, number, output = self._arrived.popleft()
            answers.put(number, output)
