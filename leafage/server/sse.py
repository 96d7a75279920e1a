"""Server-sent events: an answer as it grows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from leafage.engine.output import RequestOutput
from leafage.server.errors import api_error
from leafage.server.generation import Running

DONE = b"data: [DONE]\n\n"


class Chunks(Protocol):
    """Writes the events of one response."""

    def of(self, number: int, output: RequestOutput) -> bytes:
        """Those that an output of request `number` gives; b"" for none."""

    def end(self) -> bytes:
        """Those after all outputs: usage, and [DONE] where the endpoint has it."""


def event(data: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """One event; a name only where the endpoint's events have names."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {text}\n\n".encode(errors="replace")


class EventStream(Response):
    """Sends what comes of running requests. They end with it: when the client leaves, and when it takes
    nothing for `send_timeout` seconds."""

    media_type = "text/event-stream"

    def __init__(
        self,
        running: Running,
        chunks: Chunks,
        *,
        send_timeout: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._running = running
        self._chunks = chunks
        self._send_timeout = send_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answers = self._running.answers
        watch = _SlowClient(self._send_timeout)
        with self._running.client(receive), watch:

            async def send_body(body: bytes, more: bool = True) -> None:
                watch.began()
                await send({"type": "http.response.body", "body": body, "more_body": more})
                watch.ended()

            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            num_open = answers.num_requests
            while ready := await answers.ready():
                body, error = b"", None
                for number, output in ready:
                    error = error or output.error
                    if error is None:
                        body += self._chunks.of(number, output)
                        num_open -= output.finished
                if error is not None:
                    await send_body(body + event(api_error(error).body) + DONE, False)
                    return
                if body:
                    await send_body(body)
            if num_open == 0:
                await send_body(self._chunks.end(), False)
            elif self._running.expired:
                await send_body(event(api_error(self._running.why_closed).body) + DONE, False)


class _SlowClient:
    """Cancels the task that has been sending for too long. One timer for all that it sends."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: float | None = None
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None

    def began(self) -> None:
        self._since = self._loop.time()

    def ended(self) -> None:
        self._since = None

    def __enter__(self) -> None:
        self._timer = self._loop.call_later(self._timeout / 4, self._look)

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._since is not None and self._loop.time() - self._since > self._timeout:
            if self._task is not None:
                self._task.cancel()
            return
        self._timer = self._loop.call_later(self._timeout / 4, self._look)
