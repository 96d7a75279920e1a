"""Requests of a route on their way through the engine, until the end, the deadline, or the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Receive

from leafage.engine.async_engine import Answers
from leafage.engine.inputs import NewRequest
from leafage.engine.output import RequestOutput, sampled_tokens
from leafage.server.context import Context, context_of
from leafage.server.errors import ApiError

T = TypeVar("T")

LONG_BODY = 8192
"""Bytes from which its texts are encoded beside the event loop."""


LONG_LOGPROBS = 2000
"""Log-probabilities of an answer, all told, from which it is written beside the event loop."""


class ClientLeft(Exception):
    """Nobody reads the answer any more."""


class Running:
    """Requests that the engine has been given, and the deadline they have.

    Attributes:
        answers: their outputs.
        error: why the server ended them: the deadline, or its own end. `answers` is closed then.
        num_tokens: of prompts and of answers so far, where somebody counts them.
    """

    def __init__(self, context: Context, answers: Answers, num_tokens: list[int] | None) -> None:
        self.answers = answers
        self.error: ApiError | None = None
        self.num_tokens = num_tokens
        self._context = context
        self._timeout = context.config.request_timeout
        self._accepting: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        context.lifecycle.add(self)
        if self._timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(self._timeout, self._expire)

    async def accepted(self) -> None:
        """Return when the engine has taken the requests.

        Raises:
            InvalidParameterError, RequestTooLargeError: it refused one, and so all of them.
            ApiError: the server ended them first.
        """
        self._accepting = asyncio.ensure_future(self.answers.accepted())
        try:
            await self._accepting
        except asyncio.CancelledError:
            if self.error is None:
                raise
            raise self.error from None
        finally:
            self._accepting = None

    @contextmanager
    def client(self, receive: Receive) -> Iterator[None]:
        """While the client is served: when it leaves, the requests are aborted."""
        listener = asyncio.ensure_future(_left(receive))
        listener.add_done_callback(lambda _: self.answers.close())
        try:
            yield
        finally:
            listener.cancel()
            self.close()

    def count(self, output: RequestOutput) -> None:
        """Of an output that goes to the client."""
        if self.num_tokens is not None:
            self.num_tokens[1] += sum(len(one.token_ids) for one in output.outputs)

    def end(self, error: ApiError) -> None:
        """Abort what still runs and tell the client why."""
        self.error = error
        self.close()
        if self._accepting is not None:
            self._accepting.cancel()

    def close(self) -> None:
        """Abort what still runs."""
        if self._timer is not None:
            self._timer.cancel()
        if self._context.lifecycle.remove(self):
            self._context.admission.ended(self.answers.num_requests)
        self.answers.close()

    @property
    def why_closed(self) -> Exception:
        """What ended the outputs before the requests did."""
        return self.error or ClientLeft()

    def _expire(self) -> None:
        self._context.rejections["timeout"] += 1
        self.end(
            ApiError(
                "the request took longer than the server allows"
                f"; limit: {self._timeout:g} s. Ask for fewer tokens, or raise --request-timeout",
                status=504,
                code="timeout",
            )
        )


async def start(request: Request, requests: list[NewRequest], *, stream: bool) -> Running:
    """Submit requests together and wait until they are accepted.

    Raises:
        InvalidParameterError, RequestTooLargeError: one was refused.
        ApiError: too many wait, a prompt is too long, or the server ends.
    """
    context = context_of(request)
    context.admission.check(requests)
    tracing = context.tracing
    with nullcontext() if tracing is None else tracing.tracing(request.url.path, request.headers, requests):
        answers = context.engine.submit(requests, stream=stream)
        try:
            num_tokens: list[int] | None = request.scope.get("leafage.num_tokens")
            if num_tokens is not None:
                num_tokens[0] += sum(len(new.prompt_token_ids) for new in requests)
            running = Running(context, answers, num_tokens)
        except BaseException:
            answers.close()
            raise
        try:
            await running.accepted()
        except BaseException:
            running.close()
            raise
    return running


async def complete(request: Request, requests: list[NewRequest]) -> list[RequestOutput]:
    """Run requests to their end: one output each, in their order.

    Raises:
        ClientLeft: nobody waits; they are aborted.
        LeafageError: one was refused, or ended with an error.
    """
    running = await start(request, requests, stream=False)
    outputs: dict[int, RequestOutput] = {}
    with running.client(request.receive):
        async for number, output in running.answers:
            if output.error is not None:
                raise output.error
            running.count(output)
            outputs[number] = output
    if len(outputs) < len(requests):
        raise running.why_closed
    return [outputs[number] for number in range(len(requests))]


async def encoded(request: Request, encode: Callable[[], T]) -> T:
    """What `encode` makes of the texts of a request whose body was read. Long ones hold up nobody else."""
    if len(await request.body()) < LONG_BODY:
        return encode()
    return await asyncio.get_running_loop().run_in_executor(context_of(request).encoders, encode)


async def written(request: Request, outputs: list[RequestOutput], write: Callable[[], T]) -> T:
    """What `write` makes of whole outputs. Where they have many log-probabilities it holds up nobody else."""
    num_entries = 0
    for output in outputs:
        for one in output.outputs:
            if one.logprobs is not None:
                tokens = sampled_tokens(one.logprobs)
                num_entries += len(tokens) * (1 + len(tokens[0].top) if tokens else 0)
    if num_entries < LONG_LOGPROBS:
        return write()
    return await asyncio.get_running_loop().run_in_executor(context_of(request).encoders, write)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
