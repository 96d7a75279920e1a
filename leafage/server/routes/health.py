"""Whether the server makes progress: /health/live, /health/ready."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from leafage.server.context import Context, context_of

router = APIRouter(tags=["operation"])

_ANSWERS: dict[int | str, dict[str, Any]] = {503: {"description": "It does not; `reason` says why."}}


@router.get("/health/live", responses=_ANSWERS)
@router.get("/health", responses=_ANSWERS)
async def live(request: Request) -> Response:
    """Whether the engine makes progress, or has nothing to do. If not, restart the server."""
    return _answer(_fault(context_of(request)))


@router.get("/health/ready", responses=_ANSWERS)
async def ready(request: Request) -> Response:
    """Whether new requests are taken. If not, send them elsewhere."""
    context = context_of(request)
    return _answer(_fault(context) or _unready(context))


def _fault(context: Context) -> dict[str, Any] | None:
    """What is wrong with the engine. Looked at from outside: its thread is asked nothing, it may hang."""
    gone = context.engine.why_gone
    if gone is not None:
        return {"status": "dead", "reason": str(gone)}
    age, limit = context.engine.step_age, context.config.stall_limit
    if age > limit:
        reason = f"the engine has been at one step for {age:.1f} s; limit: {limit:g} s. Restart the server"
        return {"status": "stalled", "reason": reason, "last_step_age_seconds": round(age, 3), "limit": limit}
    return None


def _unready(context: Context) -> dict[str, Any] | None:
    if context.lifecycle.draining:
        return {"status": "draining", "reason": "the server is about to stop and takes no new requests"}
    return None


def _answer(fault: dict[str, Any] | None) -> Response:
    status = 200 if fault is None else 503
    body = json.dumps({"status": "ok"} if fault is None else fault)
    return Response(body, status_code=status, media_type="application/json")
