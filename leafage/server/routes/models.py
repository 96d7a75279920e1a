"""What is served: /v1/models and /version."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from leafage.server.context import Context, context_of

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The names that requests may call the model by."""
    context = context_of(request)
    return {"object": "list", "data": [_model(context, name) for name in context.model.names]}


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> dict[str, Any]:
    """One of them."""
    context = context_of(request)
    context.model.check_name(name)
    return _model(context, name)


@router.get("/version")
async def version(request: Request) -> dict[str, Any]:
    """Leafage's version."""
    return {"version": request.app.version}


def _model(context: Context, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": context.model.created,
        "owned_by": "leafage",
        "root": context.model.name,
        "max_model_len": context.model.max_model_len,
    }
