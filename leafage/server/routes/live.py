"""The live page at /: its files, the events that it draws, and a closer look at one thing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from leafage.server.context import Context, context_of
from leafage.server.errors import ApiError
from leafage.server.limits import is_loopback
from leafage.server.live import inspect
from leafage.server.live.feed import Feed, Watcher
from leafage.server.page_files import page_file

LOOK_TIMEOUT = 5.0
"""Seconds that a look waits for the engine to end its step."""


@asynccontextmanager
async def _counting(app: FastAPI) -> AsyncIterator[None]:
    async with _feed(app).counting():
        yield


router = APIRouter(include_in_schema=False, lifespan=_counting)


def _feed(app: FastAPI) -> Feed:
    """The server's only one."""
    feed: Feed | None = getattr(app.state, "live_feed", None)
    if feed is None:
        feed = app.state.live_feed = Feed(app.state.context)
    return feed


@router.get("/")
async def page(request: Request) -> Response:
    """The page. It needs no key; what it shows does."""
    return _file(request, "index.html")


@router.get("/live/static/{name}")
async def static(request: Request, name: str) -> Response:
    """Its scripts and styles."""
    return _file(request, name)


@router.get("/live/events")
async def events(request: Request) -> Response:
    """What the engine does, as server-sent events.

    `hello` comes first: what is served, and the `second`s of the last minutes. Then a `second` every second
    (counters, and whether the engine gets on), and a `state` up to four times a second (`live.snapshot`).
    """
    return _Events(_feed(request.app), _facts(request))


@router.get("/live/inspect")
async def look(request: Request) -> Response:
    """One thing of a snapshot: `?edge=BLOCK&node=NODE&tokens=N`, `?block=N` or `?request=NUMBER`."""
    context = context_of(request)
    wanted = request.query_params
    if "edge" in wanted:
        asked = inspect.edge(_number(wanted, "edge"), _number(wanted, "node"), _number(wanted, "tokens"))
    elif "block" in wanted:
        asked = inspect.block(_number(wanted, "block"))
    elif "request" in wanted:
        asked = inspect.request(_number(wanted, "request"))
    else:
        raise ApiError("nothing to look at; give edge, block or request")
    try:
        found = await asyncio.wait_for(context.engine.call(lambda: asked(context.core)), LOOK_TIMEOUT)
    except asyncio.TimeoutError:
        raise ApiError(f"the engine was at one step for {LOOK_TIMEOUT:g} s; try again", status=503) from None
    if found is None:
        raise ApiError("it is gone", status=404)
    for field in ("tokens", "output"):
        if field in found:
            ends = found.pop(field)
            found["num_" + field] = sum(map(len, ends))
            if shows_texts(request):
                found[field.replace("tokens", "text")] = [_text(context, end) for end in ends]
    return JSONResponse(found, headers={"Cache-Control": "no-store"})


def shows_texts(request: Request) -> bool:
    """Whether the page may show what prompts and answers say.

    With `live_texts` 'auto': where only this machine can ask. The server listens at a loopback address, wants
    no keys (several users would read each other's), and this request came neither through a proxy nor by a
    name that a stranger's web page could have pointed here.
    """
    config = context_of(request).config
    if config.live_texts != "auto":
        return config.live_texts == "shown"
    forwarded = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "via", "x-real-ip"))
    is_local = is_loopback(config.host) and is_loopback(request.url.hostname or "")
    return is_local and not forwarded and not config.api_key


def _facts(request: Request) -> dict[str, Any]:
    """What does not change while the server runs."""
    context = context_of(request)
    model, config = context.model, context.config
    return {
        "version": request.app.version,
        "model": model.name,
        "started": model.created,
        "max_model_len": model.max_model_len,
        "stall_limit": config.stall_limit,
        "texts": shows_texts(request),
        **model.facts,
    }


def _number(wanted: Mapping[str, str], name: str) -> int:
    value = wanted.get(name, "")
    if not value.isascii() or not value.isdigit() or len(value) > 18:
        raise ApiError(f"{name} is no number", param=name)
    return int(value)


def _text(context: Context, token_ids: list[int]) -> str:
    return context.model.tokenizer.decode(token_ids, skip_special_tokens=False, continues=True)


def _file(request: Request, name: str) -> Response:
    return page_file(request, "leafage.server.live", name)


class _Events(Response):
    """Events until the page is closed; `http_server` closes one that takes nothing, and all when it ends."""

    media_type = "text/event-stream"

    def __init__(self, feed: Feed, facts: Mapping[str, Any]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed
        self._facts = facts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with self._feed.watch(self._facts) as watcher:
            tasks = [asyncio.ensure_future(self._send(watcher, send)), asyncio.ensure_future(_left(receive))]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, watcher: Watcher, send: Send) -> None:
        while True:
            body = await watcher.next()
            await send({"type": "http.response.body", "body": body, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
