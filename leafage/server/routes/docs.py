"""The page at /docs, which shows the OpenAPI document at /openapi.json."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from leafage.server.page_files import page_file

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def page(request: Request) -> Response:
    """The page. It needs no key; what it sends does."""
    return page_file(request, "leafage.server.docs", "index.html")


@router.get("/docs/static/{name}")
async def static(request: Request, name: str) -> Response:
    """Its script and styles."""
    return page_file(request, "leafage.server.docs", name)
