"""The administrative pages (design 6): /livez, /readyz, /metrics, /status, and the status page."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from importlib import resources
from typing import Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from deliveryd.admin import page
from deliveryd.admin.actions import Actions
from deliveryd.admin.exposition import expose
from deliveryd.admin.hosts import HostGuard
from deliveryd.admin.viewers import FeedStream, RegionsFeed, TailStream, ViewerPlaces, WholeFeed
from deliveryd.delivery.tail import Tail, TailFilter
from deliveryd.metrics import Metrics
from deliveryd.telemetry.overview import Overview, Points, as_json

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PAGE_HEADERS = {
    **_HEADERS,
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}

_FILES = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "actions.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""What the page loads, all of it from here."""


class HealthSource(Protocol):
    """The worker's health. No method blocks."""

    def alive(self) -> tuple[bool, Sequence[tuple[str, float]]]:
        """Return whether all loops are turning, and each loop's name and seconds since its last turn.

        An outage of a provider or of the service doesn't make it false (design 6).
        """

    def ready(self) -> tuple[bool, str]:
        """Return whether messages are being taken, and the reason as a sentence."""

    def receiving(self) -> tuple[bool, str]:
        """Return whether providers may report here, and the reason as a sentence."""

    def tail(self, wanted: TailFilter) -> Tail:
        """Return a reader of what happens to messages, which begins with its `with` block."""

    def overview(self) -> Overview:
        """Return the state of the worker, without texts, names, addresses or secrets."""

    def hour(self) -> Points:
        """Return what was done in the last hour."""


def admin_app(
    health: HealthSource,
    metrics: Metrics,
    allowed_hosts: Collection[str] = (),
    actions: Actions | None = None,
) -> ASGIApp:
    """Build the pages on the health and the metrics of one worker.

    Requests must use an address, `localhost` or a name of `allowed_hosts` as their host. Without `actions`
    the pages only read.
    """
    extras = page.READS if actions is None else page.ORDERS
    drawn = _Drawn(health)
    places = ViewerPlaces()
    whole = WholeFeed(lambda: as_json(health.overview()))

    async def shown(_request: Request) -> Response:
        document = page.document(drawn.regions(), extras)
        # An adapter may give a reason with half a surrogate pair.
        body = document.encode("utf-8", "backslashreplace")
        return Response(body, headers=_PAGE_HEADERS, media_type="text/html")

    async def livez(_request: Request) -> Response:
        alive, turns = health.alive()
        lines = ["alive" if alive else "stuck", *(f"{loop} turned {ago:.1f} s ago" for loop, ago in turns)]
        return _answer("".join(f"{line}\n" for line in lines), 200 if alive else 503)

    async def numbers(request: Request) -> Response:
        body, content_type = expose(metrics, request.headers.get("accept", ""))
        return _answer(body, media_type=content_type)

    async def status(_request: Request) -> Response:
        return _answer(f"{json.dumps(as_json(health.overview()), indent=2)}\n", media_type=_JSON)

    async def history(_request: Request) -> Response:
        return _answer(f"{json.dumps(as_json(health.hour()))}\n", media_type=_JSON)

    pages = Starlette(
        routes=[
            Route("/", shown),
            Route("/livez", livez),
            Route("/readyz", _readiness(health.ready)),
            Route("/readyz/receipts", _readiness(health.receiving)),
            Route("/metrics", numbers),
            Route("/status", status),
            Route("/status/history", history),
            Route("/status/stream", FeedStream(whole, places), methods=["GET"]),
            Route("/tail", TailStream(health.tail, places), methods=["GET"]),
            Route("/page/stream", FeedStream(RegionsFeed(drawn.regions), places), methods=["GET"]),
            *(() if actions is None else (Route("/actions/{name}", actions.answer, methods=["POST"]),)),
            *(
                Route(f"/page/{name}", _file(name, media_type), methods=["GET"])
                for name, media_type in _FILES.items()
            ),
        ]
    )
    return HostGuard(pages, allowed_hosts)


def _readiness(look: Callable[[], tuple[bool, str]]) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers whether something is ready, with the sentence that gives the reason."""

    async def answer(_request: Request) -> Response:
        ready, sentence = look()
        return _answer(f"{'ready' if ready else 'not ready'}\n{sentence}\n", 200 if ready else 503)

    return answer


class _Drawn:
    """The regions of the page; the plots, which change seldom, are drawn when they do."""

    def __init__(self, health: HealthSource) -> None:
        self._health = health
        self._hour: Points | None = None
        self._plots: page.Regions = {}

    def regions(self) -> page.Regions:
        hour = self._health.hour()
        if hour is not self._hour:
            self._hour, self._plots = hour, page.plots(hour)
        return {**page.live_regions(self._health.overview()), **self._plots}


def _file(name: str, media_type: str) -> Response:
    body = resources.files("deliveryd.admin").joinpath("static", name).read_bytes()
    return Response(body, headers=_HEADERS, media_type=media_type)


def _answer(body: str | bytes, status: int = 200, media_type: str = _TEXT) -> Response:
    # Set as a header, since Starlette would add a second charset to that of the metrics.
    return Response(body, status, headers={**_HEADERS, "Content-Type": media_type})
