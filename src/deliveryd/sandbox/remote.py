"""The remote service: queue, events, settings, customers and entity configurations (interface 4)."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from starlette.datastructures import QueryParams
from starlette.responses import Response

from deliveryd.sandbox.faults import StandInEndpoint
from deliveryd.sandbox.state import CUSTOMER_GROUPS, Group, SandboxState
from deliveryd.sandbox.wire import StandInRequest, UnreadableError, json_answer, json_response, problem

ADDRESSES: Mapping[StandInEndpoint, tuple[str, str]] = {
    "queue": ("GET", "/queue"),
    "events": ("POST", "/events"),
    "settings": ("GET", "/settings/{id}"),
    "customers": ("GET", "/customers/{id}/all"),
    "entities": ("GET", "/api/v4/{group}/{id}/{segment}/{language}"),
}
"""The method and the path of each endpoint, as Starlette writes them."""

PAGED_GROUPS = frozenset({"merchants", "offers", "privileges", "rewards"})
DEFAULT_TAKE = 10
SEGMENT = 1
CACHE_CONTROL = "public, max-age=60"
STATUSES = frozenset({"dequeued", "sending", "accepted", "sent", "delivered", "error"})

# The token contains every character that breaks an address without encoding.
_TOKEN = "{group}&={offset}%+/ ü"  # noqa: S105 - a place in a list, no secret
_TOKEN_PATTERN = re.compile(r"(?P<group>[a-z]+)&=(?P<offset>\d+)%\+/ ü", re.ASCII)

_MICROSECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


class RemoteService:
    """The endpoints of the interface over one state, whichever way a request came."""

    def __init__(self, state: SandboxState) -> None:
        self._state = state
        self._handlers = {
            "queue": self._queue,
            "events": self._events,
            "settings": self._settings,
            "customers": self._customer,
            "entities": self._entity,
        }

    def answer(self, endpoint: StandInEndpoint, request: StandInRequest) -> Response:
        """Answer a request; 401 without the bearer token, if the state has one. Entities are open to all."""
        token = self._state.token
        sent = request.headers.get("authorization", "")
        is_open = token is None or endpoint == "entities"
        if not is_open and not hmac.compare_digest(sent.encode(), f"Bearer {token}".encode()):
            return problem(401, "a bearer token is required")
        return self._handlers[endpoint](request)

    def _queue(self, request: StandInRequest) -> Response:
        """GET /queue (interface 4.1). The array is joined from the elements' own texts."""
        take = request.query.get("take", str(DEFAULT_TAKE))
        if not (take.isascii() and take.isdecimal()):
            return problem(400, "take must be a whole number that is not negative")
        return json_response("[" + ",".join(self._state.take(int(take))) + "]")

    def _events(self, request: StandInRequest) -> Response:
        """POST /events (interface 4.2, 6): a batch is stored completely or not at all."""
        try:
            events = json.loads(request.body.decode())
        except ValueError:
            return self._refuse("the body is not JSON", [])
        if not isinstance(events, list):
            return self._refuse("the body is not an array", [])
        bad = [
            {"index": index, "field": field, "problem": text}
            for index, event in enumerate(events)
            for field, text in _faults_in(event).items()
        ]
        if bad:
            return self._refuse("events are not as they must be", bad)
        if any(self._state.reject_event(event) for event in events):
            return self._refuse("an event was refused", [])
        self._state.record_events(events)
        return json_answer({"accepted": len(events)})

    def _settings(self, request: StandInRequest) -> Response:
        """GET /settings/{id} (interface 4.3)."""
        settings_id = _identifier(request.params["id"])
        if settings_id is None:
            return problem(400, "the settings id must be an integer of 64 bits")
        settings = self._state.read_settings(settings_id)
        if settings is None:
            return problem(404, "no settings with this id")
        return json_answer(settings) if isinstance(settings, dict) else json_response(settings)

    def _customer(self, request: StandInRequest) -> Response:
        """GET /customers/{customer_id}/all (interface 4.4)."""
        customer_id = _identifier(request.params["id"])
        groups = None if customer_id is None else self._state.customers.get(customer_id)
        if groups is None:
            return problem(404, "no customer with this id")
        language = request.query.get("language", "*")
        value: dict[str, Any] = {}
        for group in CUSTOMER_GROUPS:
            try:
                asked = _asked(request.query, group)
            except UnreadableError as error:
                return problem(400, str(error))
            if asked is not None:
                value[group] = self._page(group, groups.get(group, []), asked, language)
        return json_answer({"value": value})

    def _entity(self, request: StandInRequest) -> Response:
        """GET a configuration address (interface 4.5), with an ETag for clients with a cache."""
        entity_id = _identifier(request.params["id"])
        texts = None if entity_id is None else self._state.entities.get((request.params["group"], entity_id))
        language = request.params["language"]
        if texts is None or (language != "*" and language not in texts):
            return problem(404, "no configuration at this address")
        answer = json_answer({"value": texts[language] if language != "*" else next(iter(texts.values()))})
        tag = f'"{hashlib.sha256(bytes(answer.body)).hexdigest()[:16]}"'
        caching = {"etag": tag, "cache-control": CACHE_CONTROL}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=caching)
        answer.headers.update(caching)
        return answer

    def _page(
        self, group: Group, entities: list[dict[str, Any]], offset: int, language: str
    ) -> dict[str, Any]:
        size = self._state.page_size if group in PAGED_GROUPS else len(entities)
        page = entities[offset : offset + size]
        answer: dict[str, Any] = {"list": [self._with_address(group, entity, language) for entity in page]}
        if offset + size < len(entities):
            answer["continuationToken"] = _TOKEN.format(group=group, offset=offset + size)
        return answer

    def _with_address(self, group: Group, entity: dict[str, Any], language: str) -> dict[str, Any]:
        path = f"/api/v4/{group}/{entity['id']}/{SEGMENT}/{quote(language, safe='*')}"
        return {"configUrl": f"{self._state.base_url}{path}", **entity}

    def _refuse(self, reason: str, bad: list[dict[str, Any]]) -> Response:
        self._state.refuse_batch(f"{reason} {bad}" if bad else reason)
        return problem(400, reason, events=bad)


def _faults_in(event: Any) -> dict[str, str]:
    """Return the problem of each field of this event (interface 6); empty if it is valid."""
    if not isinstance(event, dict):
        return {"": "the event is not an object"}
    found: dict[str, str] = {}
    if type(event.get("messageId")) is not int:
        found["messageId"] = "an integer is required"
    if event.get("status") not in STATUSES:
        found["status"] = f"one of {', '.join(sorted(STATUSES))} is required"
    _check_instant(event, "timestamp", found)
    if event.get("status") == "delivered":
        _check_instant(event, "reportedAt", found)
        if not isinstance(event.get("channel"), str) or not event["channel"]:
            found["channel"] = "a delivered event names its channel"
    return found


def _check_instant(event: dict[str, Any], field: str, found: dict[str, str]) -> None:
    value = event.get(field)
    if not isinstance(value, str) or not _MICROSECONDS.fullmatch(value):
        found[field] = "YYYY-MM-DDTHH:MM:SS.ffffffZ is required"
        return
    try:
        datetime.fromisoformat(value)
    except ValueError:
        found[field] = "there is no such instant"


def _identifier(text: str) -> int | None:
    """Parse a 64-bit integer; return None for any other text."""
    if not re.fullmatch(r"-?\d{1,19}", text, re.ASCII):
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


def _asked(query: QueryParams, group: Group) -> int | None:
    """From which entity on `group` is asked for, None when it is not, which may be unreadable."""
    include = query.get(f"{group}.include", "false")
    token = query.get(f"{group}.continuationToken")
    if include not in ("true", "false"):
        raise UnreadableError(f"{group}.include must be true or false")
    if include == "false":
        if token is not None:
            raise UnreadableError(f"{group}.continuationToken needs {group}.include=true")
        return None
    if token is None:
        return 0
    match = _TOKEN_PATTERN.fullmatch(token)
    if match is None or match["group"] != group:
        raise UnreadableError(f"{group}.continuationToken is not one that was given for {group}")
    return int(match["offset"])
