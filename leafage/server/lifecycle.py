"""From SIGTERM to the end: which requests are still to be answered, and whether new ones are taken."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leafage.server.errors import ApiError

if TYPE_CHECKING:
    from leafage.server.generation import Running

LAST_WORDS_SECONDS = 2.0
"""For the answers of requests that were ended: a short error each."""


class Lifecycle:
    """On the event loop.

    Attributes:
        draining: no new requests are taken; those that are here are answered.
        num_open: requests with a body that are being answered.
    """

    def __init__(self) -> None:
        self.draining = False
        self.num_open = 0
        self._until = math.inf
        self._running: set[Running] = set()
        self._done: asyncio.Future[None] | None = None

    @contextmanager
    def answering(self) -> Iterator[None]:
        """While a request is answered."""
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1
            if not self.num_open and self._done is not None and not self._done.done():
                self._done.set_result(None)

    def add(self, running: Running) -> None:
        """It computes something. Raises ApiError 503 when the time to drain is over."""
        if self.draining and asyncio.get_running_loop().time() >= self._until:
            raise self.refusal()
        self._running.add(running)

    def remove(self, running: Running) -> bool:
        """It has ended. False when that was known."""
        if running not in self._running:
            return False
        self._running.remove(running)
        return True

    def refusal(self) -> ApiError:
        """What a request is told that comes too late."""
        left = max(1, math.ceil(self._until - asyncio.get_running_loop().time()))
        return ApiError(
            "the server is about to end and takes no new requests. Ask another one, or come again when it "
            "was started anew",
            status=503,
            code="draining",
            headers={"Retry-After": str(left), "Connection": "close"},
        )

    async def drain(self, timeout: float) -> int:
        """Take no new requests and wait until those that are here have been answered.

        Args:
            timeout: seconds, after which the rest ends with an error.

        Returns:
            How many of them were ended.
        """
        loop = asyncio.get_running_loop()
        self.draining = True
        self._until = loop.time() + timeout
        await self._answered(timeout)
        ended = list(self._running)
        error = ApiError(
            f"the server ended before the request did; limit: {timeout:g} s after it was told to. Ask again, "
            "or raise --drain-timeout",
            status=503,
            code="draining",
            headers={"Retry-After": "1", "Connection": "close"},
        )
        for running in ended:
            running.end(error)
        await self._answered(LAST_WORDS_SECONDS if ended else 0.0)
        return len(ended)

    async def _answered(self, timeout: float) -> None:
        if self.num_open and timeout > 0:
            self._done = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._done,), timeout=timeout)
            self._done = None
