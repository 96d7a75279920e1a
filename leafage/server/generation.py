"""Requests of a route on their way through the engine, until the end, the deadline, or the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.types import Receive

from leafage.engine.async_engine import Answers
from leafage.engine.inputs import NewRequest
from leafage.engine.output import RequestOutput
from leafage.server.context import context_of
from leafage.server.errors import ApiError


class ClientLeft(Exception):
    """Nobody reads the answer any more."""


class Running:
    """Requests that the engine has accepted, and the deadline they have.

    Attributes:
        answers: their outputs.
        expired: the deadline has passed; `answers` is closed.
    """

    def __init__(self, answers: Answers, timeout: float | None) -> None:
        self.answers = answers
        self.expired = False
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(timeout, self._expire)

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

    def close(self) -> None:
        """Abort what still runs."""
        if self._timer is not None:
            self._timer.cancel()
        self.answers.close()

    @property
    def why_closed(self) -> Exception:
        """What ended the outputs before the requests did."""
        if self.expired:
            return ApiError(
                "the request took longer than the server allows"
                f"; limit: {self._timeout:g} s. Ask for fewer tokens, or raise --request-timeout",
                status=504,
                code="timeout",
            )
        return ClientLeft()

    def _expire(self) -> None:
        self.expired = True
        self.answers.close()


async def start(request: Request, requests: list[NewRequest], *, stream: bool) -> Running:
    """Submit requests together and wait until they are accepted.

    Raises:
        InvalidParameterError, RequestTooLargeError: one was refused.
    """
    context = context_of(request)
    answers = context.engine.submit(requests, stream=stream)
    try:
        await answers.accepted()
    except BaseException:
        answers.close()
        raise
    return Running(answers, context.config.request_timeout)


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
            outputs[number] = output
    if len(outputs) < len(requests):
        raise running.why_closed
    return [outputs[number] for number in range(len(requests))]


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
