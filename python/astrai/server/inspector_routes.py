"""GET /debug/inspector: what the page's inspector shows.

It tells prompts (the prefix tree's text), so it answers only with a key or, on a server without
keys, to this machine itself.
"""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from starlette.responses import Response

from astrai.engine import Inspection
from astrai.engine import errors as engine_errors
from astrai.engine.inspection import RequestView
from astrai.engine.step_log import StepRecord
from astrai.server.engine_link import EngineLink
from astrai.server.errors import ApiError, bad_request
from astrai.server.protocol import require_engine
from astrai.server.sse import encode_json

router = APIRouter()


_SINCE = {"name": "since", "in": "query", "schema": {"type": "integer", "minimum": 0}}


@router.get("/debug/inspector", openapi_extra={"parameters": [_SINCE]})
async def inspector(request: Request) -> Response:
    """Requests, pages, prefix tree and the steps after `?since=` (0 for all that are kept)."""
    link = require_engine(request)
    _refuse_strangers(request, link)
    since = request.query_params.get("since", "0")
    if not (since.isascii() and since.isdigit() and len(since) < 20):
        raise bad_request("since must be the number of a step", param="since")
    try:
        look = await link.inspector.latest()
    except engine_errors.EngineError as error:
        raise ApiError(503, str(error), code="engine_dead") from None
    body = await link.run(_render, look, int(since), link)
    headers = {"cache-control": "no-store"}
    return Response(body, headers=headers, media_type="application/json")


def _refuse_strangers(request: Request, link: EngineLink) -> None:
    """A server with keys has checked one already. Without, both ends must be this machine: the
    peer's address, and the name that the browser was led by (else any web page whose own name
    points here could read the answer). A proxy's headers mean that the peer is someone else, a
    foreign origin that another site's page asks, which --cors-origin may let read the API."""
    if link.settings.api_keys:
        return
    headers = request.headers
    peer = request.client.host if request.client is not None else ""
    is_forwarded = "x-forwarded-for" in headers or "forwarded" in headers
    origin = headers.get("origin")  # a page's own GET requests have none
    is_foreign = origin is not None and urlsplit(origin).netloc != headers.get("host")
    is_local = _is_loopback(peer) and _is_loopback(request.url.hostname or "")
    if is_forwarded or is_foreign or not is_local:
        raise ApiError(
            403,
            "the inspector shows prompts: open it on the server's own machine by a loopback "
            "address, or start the server with --api-key and give the key",
            code="inspector_forbidden",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _render(look: Inspection, since: int, link: EngineLink) -> bytes:
    pages = look.pages
    return encode_json(
        {
            "now_s": look.taken_at,
            "last_step": look.steps[-1].idx if look.steps else 0,
            "running": look.n_running,
            "waiting": look.n_waiting,
            "requests": [_request(view) for view in look.requests],
            "pages": {
                "total": pages.total,
                "free": pages.free,
                "cached": pages.cached,
                "held": pages.held,
                "page_size": pages.page_size,
            },
            "tree": {
                "n_edges": look.n_edges,
                "edges": [_edge(edge, link) for edge in look.edges],
            },
            "steps": [_step(step) for step in look.steps if step.idx > since],
        }
    )


def _request(view: RequestView) -> dict[str, Any]:
    state = "waiting"
    if view.is_running:
        state = "prefill" if view.n_written < view.n_prefill else "decode"
    return {
        "id": view.request_id,
        "state": state,
        "prompt_tokens": view.n_prompt,
        "cached_tokens": view.n_cached,
        "written_tokens": view.n_written,
        "output_tokens": view.n_output,
        "max_tokens": view.max_tokens,
        "preemptions": view.n_preemptions,
        "age_s": view.age_s,
    }


def _edge(edge: Any, link: EngineLink) -> dict[str, Any]:
    """An edge with its ids as text. A character that two edges share shows as U+FFFD in both."""
    spelled = link.token_bytes()
    raw = b"".join(spelled[token_id] for token_id in edge["token_ids"])
    return {
        "node": edge["node"],
        "parent": edge["parent"],
        "ref_count": edge["ref_count"],
        "n_tokens": edge["n_tokens"],
        "text": raw.decode("utf-8", errors="replace"),
        "is_cut": edge["n_tokens"] > len(edge["token_ids"]),
        "namespace": edge["namespace"],
    }


def _step(step: StepRecord) -> dict[str, Any]:
    return {
        "idx": step.idx,
        "ended_s": step.ended_at,
        "duration_s": step.duration_s,
        "prefill_tokens": step.n_prefill_tokens,
        "decode_rows": step.n_decode,
        "sampled_tokens": step.n_sampled,
        "itl_s": step.itl_s,
        "ttft_s": step.ttft_s,
    }
