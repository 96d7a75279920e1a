"""Plain counters of the HTTP side."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

STATUS_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
OPERATORS_PATHS = ("/metrics", "/health")
"""Asked by machines every few seconds; not counted."""


@dataclass(slots=True)
class HttpCounters:
    """Requests of clients. On the event loop.

    Attributes:
        responses: that began, by class of their status.
    """

    num_in_flight: int = 0
    responses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUS_CLASSES, 0))

    def respond(self, status: int) -> None:
        """Count a response."""
        self.responses[f"{status // 100}xx"] += 1


class CountRequests:
    """ASGI middleware that keeps `HttpCounters`; the outermost of ours, so that it sees every answer."""

    def __init__(self, app: ASGIApp, counters: HttpCounters) -> None:
        self.app = app
        self.counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(OPERATORS_PATHS):
            await self.app(scope, receive, send)
            return
        began = False

        async def counted(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                self.counters.respond(message["status"])
            await send(message)

        self.counters.num_in_flight += 1
        try:
            await self.app(scope, receive, counted)
        except Exception:
            if not began:
                self.counters.respond(500)  # which somebody further out sends
            raise
        finally:
            self.counters.num_in_flight -= 1
