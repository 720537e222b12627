"""The forms that gateways speak: JSON, lines of text, and those of real providers."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import QueryParams
from starlette.responses import PlainTextResponse, Response

from deliveryd.sandbox.answers import UnknownAddressError, UnreadableError, json_answer, problem
from deliveryd.sandbox.impersonation import Impersonation, read_payload, text_at
from deliveryd.sandbox.providers import Mood, SendOrder
from deliveryd.sandbox.records import ReceivedMessage, StandInChannel
from deliveryd.sandbox.signing import Outgoing, SigningForm, sign
from deliveryd.sandbox.state import SandboxState
from deliveryd.sandbox.wire import Call

FORM = "application/x-www-form-urlencoded"
MOOD_STATUSES: Mapping[Mood, int] = {"refused": 400, "stopped": 400, "repeated": 400, "busy": 503}

_SIGNATURE = SigningForm("hmac", header="X-Signature")


class JsonVoice:
    """Answers as JSON: `{"id": ...}` or `{"error": ...}`; reports as signed JSON."""

    def __init__(self, state: SandboxState) -> None:
        self._state = state

    def order(self, channel: StandInChannel, call: Call) -> SendOrder:
        """Parse a request. Raises UnreadableError."""
        payload = _payload(call)
        to = payload.get("to")
        if not isinstance(to, str | int) or not str(to).strip():
            raise UnreadableError("missing recipient: to")
        reference = payload.get("reference")
        return SendOrder(
            channel=channel,
            to=str(to).strip(),
            reference=None if reference is None else str(reference),
            key=call.headers.get("idempotency-key"),
            payload=payload,
        )

    def new_id(self, order: SendOrder) -> str:
        """Return an ID for an accepted message."""
        return f"{order.channel}-{secrets.token_hex(6)}"

    def accepted(self, message: ReceivedMessage) -> Response:
        """Return the response for an accepted message."""
        return json_answer({"id": message.provider_id})

    def found(self, _call: Call) -> Response | None:
        """Every request sends a message."""
        return None

    def rejects_repeats(self) -> bool:
        """A repeat is accepted again; its key says that it is one."""
        return False

    def refused(self, mood: Mood, error: str, _to: str) -> Response:
        """Return the response for a message that isn't accepted."""
        return problem(MOOD_STATUSES[mood], error)

    def report(self, message: ReceivedMessage, word: str, at: datetime) -> Outgoing | None:
        """Return a report about a message; None: there is nowhere to send one."""
        target = self._state.receipt_targets.get(message.channel)
        if target is None:
            return None
        told = {"id": message.provider_id, "status": word, "at": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        headers = {"content-type": "application/json"}
        report = Outgoing("POST", target, target, headers, json.dumps(told).encode(), {}, at)
        return sign(_SIGNATURE, self._state.receipt_secret, report)


class PlainVoice(JsonVoice):
    """Answers with a line of text: `OK id=...` or `ERROR ...`, like old gateways."""

    def accepted(self, message: ReceivedMessage) -> Response:
        """Return the response for an accepted message."""
        return PlainTextResponse(f"OK id={message.provider_id}")

    def refused(self, mood: Mood, error: str, _to: str) -> Response:
        """Return the response for a message that isn't accepted."""
        return PlainTextResponse(f"ERROR {error}", MOOD_STATUSES[mood])


class ProviderVoice:
    """Speaks as a real provider."""

    def __init__(self, provider: Impersonation, state: SandboxState) -> None:
        self._provider = provider
        self._state = state

    def order(self, channel: StandInChannel, call: Call) -> SendOrder:
        """Parse a request. Raises UnreadableError."""
        self._check_path(call)
        payload = read_payload(call)
        to = text_at(payload, self._provider.to)
        if to is None:
            raise UnreadableError(f"missing recipient: {self._provider.to}")
        named = self._provider.reference
        reference = None if named is None else text_at(payload, named)
        key = call.headers.get(self._provider.key_header) if self._provider.heeds_keys else None
        return SendOrder(channel, to, reference, key, payload if isinstance(payload, dict) else {"": payload})

    def found(self, call: Call) -> Response | None:
        """Return the response to a lookup of this provider; None: the request is no lookup.

        Raises UnreadableError.
        """
        lookup = self._provider.lookup
        if lookup is None or call.method != "GET":
            return None
        self._check_path(call)
        reference = text_at(dict(call.query), lookup.reference)
        message = self._state.accepted_as(self._provider.channel, reference)
        return _response(*self._provider.found(lookup, message))

    def _check_path(self, call: Call) -> None:
        path = call.params["path"]
        if not any(pattern.fullmatch(path) for pattern in self._provider.paths):
            raise UnknownAddressError(f"{self._provider.name} has no address {path}")

    def rejects_repeats(self) -> bool:
        """Whether the provider has an answer for a reference that came before."""
        return "repeated" in self._provider.answers

    def new_id(self, order: SendOrder) -> str:
        """Return an ID for an accepted message."""
        return self._provider.new_id(order.reference)

    def accepted(self, message: ReceivedMessage) -> Response:
        """Return the response for an accepted message."""
        return _response(
            *self._provider.answer("accepted", message.provider_id, message.to, message.reference)
        )

    def refused(self, mood: Mood, _error: str, to: str) -> Response:
        """Return the response for a message that isn't accepted."""
        return _response(*self._provider.answer(mood, self._provider.new_id(None), to))

    def report(self, message: ReceivedMessage, word: str, at: datetime) -> Outgoing | None:
        """Return a report about a message; None: there is nowhere to send one."""
        receipts = self._state.receipts_server
        return None if receipts is None else self._provider.report(message, word, receipts, at)


def _response(status: int, headers: dict[str, str], body: bytes) -> Response:
    return Response(body, status, headers)


def _payload(call: Call) -> dict[str, Any]:
    if call.method == "GET":
        return dict(call.query)
    if call.headers.get("content-type", "").split(";")[0].strip().lower() == FORM:
        return dict(parse_qsl(call.body.decode("utf-8"), keep_blank_values=True))
    try:
        payload = json.loads(call.body)
    except ValueError as error:
        raise UnreadableError("the body is not JSON") from error
    if not isinstance(payload, dict):
        raise UnreadableError("the body is not an object")
    return payload | _extra(call.query)


def _extra(query: QueryParams) -> dict[str, Any]:
    return dict(query) if query else {}
