"""The administrative pages: /livez, /readyz, /metrics, /status and a plain index of them (design 6)."""

from __future__ import annotations

import json
from collections.abc import Collection

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from deliveryd.admin.base import HealthSource
from deliveryd.admin.exposition import expose
from deliveryd.admin.hosts import HostGuard
from deliveryd.metrics import Metrics
from deliveryd.overview import as_json

_TEXT = "text/plain; charset=utf-8"

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_INDEX = """\
deliveryd

/livez    200 while all loops are turning
/readyz   200 while messages are being taken
/metrics  metrics for Prometheus
/status   the worker's state, as JSON
"""


def admin_app(health: HealthSource, metrics: Metrics, allowed_hosts: Collection[str] = ()) -> ASGIApp:
    """Build the read-only pages on the health and the metrics of one worker.

    Requests must use an address, `localhost` or a name of `allowed_hosts` as their host.
    """

    async def index(_request: Request) -> Response:
        return _answer(_INDEX)

    async def livez(_request: Request) -> Response:
        alive, turns = health.alive()
        lines = ["alive" if alive else "stuck", *(f"{loop} turned {ago:.1f} s ago" for loop, ago in turns)]
        return _answer("".join(f"{line}\n" for line in lines), 200 if alive else 503)

    async def readyz(_request: Request) -> Response:
        ready, sentence = health.ready()
        return _answer(f"{'ready' if ready else 'not ready'}\n{sentence}\n", 200 if ready else 503)

    async def numbers(request: Request) -> Response:
        body, content_type = expose(metrics, request.headers.get("accept", ""))
        return _answer(body, media_type=content_type)

    async def status(_request: Request) -> Response:
        return _answer(f"{json.dumps(as_json(health.overview()), indent=2)}\n", media_type="application/json")

    pages = Starlette(
        routes=[
            Route("/", index),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", numbers),
            Route("/status", status),
        ]
    )
    return HostGuard(pages, allowed_hosts)


def _answer(body: str | bytes, status: int = 200, media_type: str = _TEXT) -> Response:
    # Set as a header, since Starlette would add a second charset to that of the metrics.
    return Response(body, status, headers={**_HEADERS, "Content-Type": media_type})
