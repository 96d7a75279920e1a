"""GET /metrics."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from leafage.server.context import context_of

router = APIRouter(tags=["operation"])


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Prometheus metrics; OpenMetrics when it is asked for."""
    text, content_type = await context_of(request).exposition.text(request.headers.get("accept", ""))
    return Response(text, headers={"content-type": content_type})
