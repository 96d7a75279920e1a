"""Server-sent events: an answer as it grows."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from leafage.engine.output import RequestOutput
from leafage.errors import LeafageError
from leafage.server.errors import ApiError, api_error
from leafage.server.generation import Running

_log = logging.getLogger("leafage.server")

DONE = b"data: [DONE]\n\n"
quoted: Callable[[str], str] = json.encoder.encode_basestring
"""A text as a JSON string."""


class Chunks(Protocol):
    """Writes the events of one response."""

    def of(self, number: int, output: RequestOutput) -> bytes:
        """Those that an output of request `number` gives; b"" for none."""

    def end(self) -> bytes:
        """Those after all outputs: usage, and [DONE] where the endpoint has it."""

    def failed(self, error: Exception) -> bytes:
        """Those that tell of an error instead, after which nothing comes."""


class ChunkForm:
    """Writes chunks that are alike but for their one choice; what they share is made into JSON once.

    Args:
        head: the fields of a chunk but for `choices`.
        null_usage: `usage` is null where nothing else is said.
    """

    def __init__(self, head: Mapping[str, Any], *, null_usage: bool) -> None:
        text = _dumps(head)
        self._open = f'data: {text[:-1]},"choices":['
        self._null_usage = ',"usage":null' if null_usage else ""
        self._close = f"]{self._null_usage}}}\n\n"

    def write(self, choice: str) -> bytes:
        """A chunk of a choice that is JSON already."""
        return _utf8(self._open + choice + self._close)

    def chunk(
        self,
        choice: Mapping[str, Any],
        extra: Mapping[str, Any] | None = None,
        *,
        usage: Mapping[str, Any] | None = None,
    ) -> bytes:
        """A chunk of a choice.

        Args:
            extra: further fields of the chunk.
            usage: of the request so far.
        """
        end = self._null_usage if usage is None else f',"usage":{_dumps(usage)}'
        if extra:
            end += "," + _dumps(extra)[1:-1]
        return _utf8(f"{self._open}{_dumps(choice)}]{end}}}\n\n")

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        """The chunk at the end, which has no choice."""
        return f'{self._open}],"usage":{_dumps(usage)}}}\n\n'.encode()


def _utf8(text: str) -> bytes:
    """Events in bytes. Some clients take these three characters for ends of lines, so they are escaped."""
    if not text.isascii():
        text = text.replace("\x85", "\\u0085").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return text.encode(errors="replace")


def _dumps(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def error_event(error: Exception) -> bytes:
    """An error in the midst of a stream, in the form of chat completions and completions."""
    return event(api_error(error).body)


def event(data: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """One event; a name only where the endpoint's events have names."""
    text = _dumps(data)
    head = "" if name is None else f"event: {name}\n"
    return _utf8(f"{head}data: {text}\n\n")


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
                        try:
                            body += self._chunks.of(number, output)
                        except Exception as failure:
                            error = failure
                        num_open -= output.finished
                if error is not None:
                    await send_body(body + self._failed(error), False)
                    return
                if body:
                    await send_body(body)
            if num_open == 0:
                await send_body(self._chunks.end(), False)
            elif self._running.error is not None:
                await send_body(self._failed(self._running.error), False)

    def _failed(self, error: Exception) -> bytes:
        if not isinstance(error, ApiError | LeafageError):
            _log.error("a fault in Leafage", exc_info=error)
        return self._chunks.failed(error)
