"""Files of the server's own pages: each page talks to nobody but this server."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from leafage.server.errors import ApiError

MEDIA_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
SHARED = "leafage.server"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page_file(request: Request, package: str, name: str) -> Response:
    """A file of the folder `static` of a page's package, or of the folder that all pages share.

    Raises:
        ApiError: there is none by that name.
    """
    if name not in _names(package):
        package = SHARED
    if name not in _names(package):
        raise ApiError(f"the page has no file {name[:100]!r}", status=404)
    body, tag = _read(package, name)
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "ETag": tag,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    if Headers(scope=request.scope).get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=MEDIA_TYPES[name.rpartition(".")[2]], headers=headers)


@cache
def _names(package: str) -> frozenset[str]:
    return frozenset(file.name for file in (files(package) / "static").iterdir())


@cache
def _read(package: str, name: str) -> tuple[bytes, str]:
    """The file, and its ETag. Only for names that are there, so that the cache is bounded."""
    body = (files(package) / "static" / name).read_bytes()
    return body, f'"{sha256(body).hexdigest()[:20]}"'
