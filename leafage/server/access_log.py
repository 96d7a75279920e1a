"""A line for each request that was answered."""

from __future__ import annotations

import sys
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class AccessLog:
    """ASGI middleware: method, path, status, milliseconds, tokens of prompt and answer. No texts."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 499
        num_tokens = scope["leafage.num_tokens"] = [0, 0]

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            took = (time.perf_counter() - began) * 1e3
            tokens = f" {num_tokens[0]}+{num_tokens[1]} tokens" if any(num_tokens) else ""
            what = f"{scope['method']} {ascii(scope['path'][:200])[1:-1]}"
            when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            print(f"{when} {what} {status} {took:.1f} ms{tokens}", file=sys.stderr, flush=True)
