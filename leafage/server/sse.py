"""Server-sent events: an answer as it grows."""

from __future__ import annotations

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
    """Sends what comes of running requests. They end when the client leaves; one that stays and takes nothing
    is cut off (see `http_server`)."""

    media_type = "text/event-stream"

    def __init__(self, running: Running, chunks: Chunks, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._running = running
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answers = self._running.answers
        with self._running.client(receive):

            async def send_body(body: bytes, more: bool = True) -> None:
                await send({"type": "http.response.body", "body": body, "more_body": more})

            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            num_open = answers.num_requests
            while ready := await answers.ready():
                body, error = b"", None
                for number, output in ready:
                    error = error or output.error
                    if error is None:
                        self._running.count(output)
                        body += self._chunks.of(number, output)
                        num_open -= output.finished
                if error is not None:
                    await send_body(body + event(api_error(error).body) + DONE, False)
                    return
                if body:
                    await send_body(body)
            if num_open == 0:
                await send_body(self._chunks.end(), False)
            elif self._running.error is not None:
                await send_body(event(self._running.error.body) + DONE, False)
