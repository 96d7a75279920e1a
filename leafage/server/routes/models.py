"""What is served: /v1/models and /version."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from leafage.server.body import operation
from leafage.server.context import Context, context_of
from leafage.server.protocol.answers import to_json

router = APIRouter(tags=["models"])


class Model(TypedDict):
    """A name that requests may call the model by. `root`: the one that answers carry."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["leafage"]
    root: str
    max_model_len: int


class ModelList(TypedDict):
    """All of them."""

    object: Literal["list"]
    data: list[Model]


class Version(TypedDict):
    """Leafage's version."""

    version: str


@router.get("/v1/models", openapi_extra=operation(None, ModelList, statuses=(401,)))
async def list_models(request: Request) -> Response:
    """The names that requests may call the model by."""
    context = context_of(request)
    models = [_model(context, name) for name in context.model.names]
    answer: ModelList = {"object": "list", "data": models}
    return Response(to_json(answer), media_type="application/json")


@router.get("/v1/models/{name:path}", openapi_extra=operation(None, Model, statuses=(401, 404)))
async def get_model(request: Request, name: str) -> Response:
    """One of them."""
    context = context_of(request)
    context.model.check_name(name)
    return Response(to_json(_model(context, name)), media_type="application/json")


@router.get("/version", openapi_extra=operation(None, Version, statuses=(401,)))
async def version(request: Request) -> Response:
    """Leafage's version."""
    answer: Version = {"version": request.app.version}
    return Response(to_json(answer), media_type="application/json")


def _model(context: Context, name: str) -> Model:
    return {
        "id": name,
        "object": "model",
        "created": context.model.created,
        "owned_by": "leafage",
        "root": context.model.name,
        "max_model_len": context.model.max_model_len,
    }
