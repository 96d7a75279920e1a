"""The application: routes, errors, the OpenAPI document."""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from leafage.errors import LeafageError
from leafage.server.access_log import AccessLog
from leafage.server.body import IGNORED_HEADER, SCHEMAS
from leafage.server.context import Context
from leafage.server.errors import ApiError, error_response, field_error
from leafage.server.generation import ClientLeft
from leafage.server.http_counters import CountRequests
from leafage.server.limits import Limits
from leafage.server.routes import (
    chat,
    completions,
    docs,
    health,
    live,
    metrics,
    models,
    refused,
    responses,
    tokens,
)

_log = logging.getLogger("leafage.server")


def create_app(context: Context) -> FastAPI:
    """The ASGI application over an engine that runs."""
    config = context.config
    app = FastAPI(
        title="Leafage",
        version=_version(),
        docs_url=None,
        openapi_url="/openapi.json" if config.docs else None,
        redoc_url=None,
    )
    app.state.context = context
    for routes in (chat, completions, responses, tokens, models, health, metrics, refused):
        app.include_router(routes.router)
    if config.docs:
        app.include_router(docs.router)
    if config.live:
        app.include_router(live.router)
    app.add_exception_handler(ApiError, _refuse)
    app.add_exception_handler(LeafageError, _refuse)
    app.add_exception_handler(ClientLeft, _client_left)
    app.add_exception_handler(ClientDisconnect, _client_left)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _wrong_path)
    app.add_exception_handler(Exception, _fault)
    for middleware, options in reversed(_middleware(context)):  # which FastAPI puts around what it has
        app.add_middleware(middleware, **options)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _middleware(context: Context) -> list[tuple[Any, dict[str, Any]]]:
    """The outermost first."""
    config = context.config
    found: list[tuple[Any, dict[str, Any]]] = [(Limits, {"context": context})]
    if config.cors_origin:
        cors = {
            "allow_origins": config.cors_origin,
            "allow_methods": ("GET", "POST", "DELETE"),
            "allow_headers": ("*",),
            "expose_headers": ("Retry-After", IGNORED_HEADER),
        }
        found.insert(0, (CORSMiddleware, cors))
    found.insert(0, (CountRequests, {"counters": context.http}))
    if config.access_log:
        found.insert(0, (AccessLog, {}))
    return found


def _version() -> str:
    try:
        return version("leafage")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        document.setdefault("components", {}).setdefault("schemas", {}).update(SCHEMAS)
        app.openapi_schema = document
    return app.openapi_schema


async def _refuse(request: Request, error: Exception) -> Response:
    body = getattr(request.state, "body", None)
    if isinstance(body, BaseModel):
        error = field_error(error, type(body).model_fields, getattr(body, "engine_names", {}))
    return error_response(error)


async def _client_left(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    message = {
        404: f"there is nothing at {path}. See /docs for what is",
        405: f"{path} does not take {request.method}. See /docs for what it takes",
    }.get(error.status_code, str(error.detail))
    return error_response(ApiError(message, status=error.status_code, headers=error.headers))


async def _wrong_path(request: Request, error: Exception) -> Response:
    return error_response(ApiError(str(error)))


async def _fault(request: Request, error: Exception) -> Response:
    _log.error("a fault in Leafage", exc_info=error)
    return error_response(error)
