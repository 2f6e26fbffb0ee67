"""The page at / and its files: plain HTML, CSS and JavaScript from the package's `page` folder.

They hold no data and need no key. Everything they load is their own: the policy below lets a
browser fetch nothing from elsewhere and run no inline script. All their addresses are relative, so
the page works behind a proxy's path too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from astrai.server.errors import ApiError

router = APIRouter()

_FOLDER = Path(__file__).parent / "page"
_INDEX = "index.html"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    # Kept by the browser, asked about each time: an upgrade shows at once, a 304 costs 200 bytes.
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str


@cache
def _files() -> dict[str, _File]:
    """Every file of the page by its name. Only these names are ever served."""
    files = {}
    for path in sorted(_FOLDER.iterdir()):
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        files[path.name] = _File(content, _MEDIA_TYPES[path.suffix], etag)
    return files


@router.get("/", include_in_schema=False)
async def index(request: Request) -> Response:
    return _answer(request, _INDEX)


@router.get("/static/{name:path}", include_in_schema=False)
async def static_file(request: Request, name: str) -> Response:
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    file = _files().get(name)
    if file is None:
        raise ApiError(404, "the page has no such file")
    headers = {**_HEADERS, "etag": file.etag}
    known = [
        tag.strip().removeprefix("W/")
        for tag in request.headers.get("if-none-match", "").split(",")
    ]
    if file.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
