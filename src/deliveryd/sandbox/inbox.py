"""The inbox page: every message as its customer sees it, beside its reported statuses."""

from __future__ import annotations

import ipaddress
import json
import secrets
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import HTMLResponse, Response

from deliveryd.sandbox.state import ReceivedMessage, SandboxState
from deliveryd.sandbox.wire import Call, Handler, UnreadableError, json_answer, problem

_DECODER = json.JSONDecoder()
_BETWEEN = " \t\r\n,:"


def elements(text: str) -> list[str]:
    """Return the text of each element of an array, or of each name and value of an object by turns."""
    inner = text.strip()[1:-1]
    found: list[str] = []
    position = 0
    while position < len(inner):
        if inner[position] in _BETWEEN:
            position += 1
            continue
        _, end = _DECODER.raw_decode(inner, position)
        found.append(inner[position:end])
        position = end
    return found


def members(text: str) -> dict[str, str]:
    """Return the text of each value of an object by its name."""
    parts = elements(text)
    return dict(zip(map(json.loads, parts[::2]), parts[1::2], strict=True))


CARDS = 500
_NONCE = "{{nonce}}"
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Inbox:
    """The page, its data, and an endpoint for adding messages to the queue."""

    def __init__(self, state: SandboxState) -> None:
        self._state = state
        self._html = resources.files("deliveryd.sandbox").joinpath("inbox.html").read_text(encoding="utf-8")

    def guarded(self, handler: Handler) -> Handler:
        """`handler` for requests by address, for `localhost` or for the name that the sandbox listens on.

        A page of another site whose name leads here (DNS rebinding) would read the inbox otherwise.
        """

        async def guard(call: Call) -> Response:
            own = urlsplit(self._state.base_url).hostname
            if not _is_here(call.headers.get("host", ""), own):
                return problem(421, "the inbox is shown by address or at localhost only")
            return await handler(call)

        return guard

    async def page(self, _call: Call) -> Response:
        """GET /: a page that loads nothing except `/inbox.json`."""
        nonce = secrets.token_urlsafe(16)
        return HTMLResponse(
            self._html.replace(_NONCE, nonce),
            headers={
                "content-security-policy": _POLICY.format(nonce=nonce),
                "cache-control": "no-store",
                "referrer-policy": "no-referrer",
                "x-content-type-options": "nosniff",
            },
        )

    async def messages(self, call: Call) -> Response:
        """GET /inbox.json: the newest cards; 204 when nothing changed since `?after=VERSION`."""
        with self._state.changed:
            if call.query.get("after") == str(self._state.version):
                return Response(status_code=204)
            return json_answer(
                {
                    "version": self._state.version,
                    "waiting": self._state.offers.waiting,
                    "cards": _cards(self._state),
                }
            )

    async def enqueue(self, call: Call) -> Response:
        """POST /enqueue: a message, an array of them, or `{"messages": [...], "settings": {id: {...}}}`."""
        origin = call.headers.get("origin")
        if origin is not None and origin != f"http://{call.headers.get('host', '')}":
            return problem(403, "other sites put nothing into this queue")
        try:
            messages, settings = _order(call.body.decode("utf-8"))
        except UnicodeDecodeError:
            return problem(400, "the body is not UTF-8")
        except UnreadableError as error:
            return problem(400, str(error))
        self._state.settings.update(settings)
        self._state.enqueue(*messages)
        return json_answer({"queued": len(messages)}, 202)


def _is_here(authority: str, own: str | None) -> bool:
    """Whether a Host header is an address, `localhost`, or the sandbox's own name."""
    try:
        host = urlsplit(f"//{authority}").hostname or ""
        return host in ("localhost", own) or bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _cards(state: SandboxState) -> list[dict[str, Any]]:
    """One card per message that reached a customer or ended in an error, newest first."""
    by_message: dict[int, list[ReceivedMessage]] = {}
    strangers: list[ReceivedMessage] = []
    for message in state.received:
        if message.message_id is None:
            strangers.append(message)
        else:
            by_message.setdefault(message.message_id, []).append(message)
    failed = (event["messageId"] for event in state.events if event["status"] == "error")
    newest = list(dict.fromkeys([*by_message, *failed]))[-CARDS:]
    cards = [_card(state, message_id, by_message.get(message_id, [])) for message_id in newest]
    cards += [_shown(message) for message in strangers[-CARDS:] if message.duplicate_of is None]
    return sorted(cards, key=lambda card: str(card["at"]), reverse=True)


def _card(state: SandboxState, message_id: int, copies: list[ReceivedMessage]) -> dict[str, Any]:
    events = state.events_of(message_id)
    shown = next((copy for copy in reversed(copies) if copy.duplicate_of is None), None)
    element = state.enqueued.get(message_id)
    fields: Mapping[str, Any] = element.fields if element else {}
    return {
        **_shown(shown),
        "key": f"m{message_id}",
        "id": message_id,
        "at": shown.at if shown else max((event["timestamp"] for event in events), default=""),
        "note": state.notes.get(message_id, ""),
        "copies": sum(copy.duplicate_of is None for copy in copies),
        "events": [_event(event) for event in events],
        "customerId": fields.get("customerId"),
        "settingsId": fields.get("settingsId"),
    }


def _shown(message: ReceivedMessage | None) -> dict[str, Any]:
    """Return the card of a message that isn't of the queue, or what any card shows of one."""
    card: dict[str, Any] = {
        "id": None,
        "note": "",
        "copies": 1,
        "events": [],
        "customerId": None,
        "settingsId": None,
    }
    if message is None:
        return {**card, "channel": None, "to": "", "reference": None, "content": {}}
    return {
        **card,
        "key": f"s{message.seq}",
        "at": message.at,
        "channel": message.channel,
        "to": message.to,
        "reference": message.reference,
        "content": dict(message.payload),
    }


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    known = ("messageId", "timestamp", "status", "channel", "reportedAt")
    more = [value for name, value in event.items() if name not in known and isinstance(value, str)]
    return {
        "status": event["status"],
        "at": event.get("reportedAt", event["timestamp"]),
        "channel": event.get("channel"),
        "details": " ".join(more),
    }


def _order(text: str) -> tuple[list[str], dict[int, dict[str, Any]]]:
    """Return the raw texts of the messages, and the settings. Raises UnreadableError."""
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise UnreadableError(f"the body is not JSON: {error}") from error
    if isinstance(parsed, list):
        return _messages(elements(text), parsed), {}
    if not isinstance(parsed, dict):
        raise UnreadableError("the body must be a message, an array of messages, or an object with messages")
    settings = _settings(parsed.get("settings", {}))
    if "messages" in parsed:
        if not isinstance(parsed["messages"], list):
            raise UnreadableError("messages must be an array")
        return _messages(elements(members(text)["messages"]), parsed["messages"]), settings
    raw = members(text)
    raw.pop("settings", None)
    fields = {name: value for name, value in parsed.items() if name != "settings"}
    if not fields and settings:
        return [], settings
    single = "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in raw.items()) + "}"
    return _messages([single], [fields]), settings


def _messages(texts: Iterable[str], parsed: Iterable[Any]) -> list[str]:
    for position, message in enumerate(parsed):
        wrong = _wrong_with(message)
        if wrong:
            raise UnreadableError(f"message {position}: {wrong}")
    return list(texts)


def _wrong_with(message: Any) -> str:
    """Return the problems of this message (interface 2.1); empty if it is valid."""
    if not isinstance(message, dict):
        return "a message is an object"
    for name in ("id", "settingsId", "customerId"):
        if type(message.get(name)) is not int:
            return f"{name} must be an integer"
    variables = message.get("variables")
    if not isinstance(variables, dict):
        return "variables must be an object"
    for name, value in variables.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return f"variable {name!r} must be a string or a number"
    return ""


def _settings(value: Any) -> dict[int, dict[str, Any]]:
    if not isinstance(value, dict):
        raise UnreadableError("settings must be an object of settings by their id")
    found: dict[int, dict[str, Any]] = {}
    for name, settings in value.items():
        if not (name.isascii() and name.removeprefix("-").isdecimal()) or not isinstance(settings, dict):
            raise UnreadableError(f"settings {name!r}: an integer id and an object are required")
        found[int(name)] = settings
    return found
