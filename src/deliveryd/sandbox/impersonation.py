"""A provider's own forms, as data: how its requests are read, its answers written, its reports made."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from zoneinfo import ZoneInfo

from starlette.responses import Response

from deliveryd.sandbox.answers import UnknownAddressError, UnreadableError
from deliveryd.sandbox.records import ReceivedMessage, StandInChannel
from deliveryd.sandbox.shapes import Shape, Values, fill
from deliveryd.sandbox.signing import Outgoing, SigningForm, body_values, sign
from deliveryd.sandbox.wire import Call

Mood = Literal["accepted", "refused", "busy", "stopped", "repeated"]
"""How a gateway answers a request."""


@dataclass(frozen=True, slots=True)
class SendOrder:
    """A request to send a message, whatever its form was."""

    channel: StandInChannel
    to: str
    reference: str | None
    key: str | None
    payload: Mapping[str, Any]

    @property
    def identity(self) -> tuple[str, str]:
        """Return what identifies a repeat: its reference, else its key, else its recipient."""
        return self.channel, self.reference or self.key or self.to


@dataclass(frozen=True, slots=True)
class LookupForm:
    """How a provider is asked for a message: a GET. `reference` is a JSON Pointer into its query."""

    reference: str
    found: Shape
    missing: Shape


@dataclass(frozen=True, slots=True)
class Impersonation:
    """One provider. `to`, `reference` and `callback` are JSON Pointers into a request, a form or a query.

    The sandbox's own gateways have no name. `answers` has at least accepted and refused; without `reports`
    the provider sends none. `path` is where its reports go if the request names no `callback`. `id` has one
    of {hex}, {number} and {reference}. `key_header` is the header with the key of a repeat.
    """

    name: str
    channel: StandInChannel
    paths: Sequence[re.Pattern[str]]
    to: str
    answers: Mapping[Mood, Shape]
    reference: str | None = None
    callback: str | None = None
    id: str = "{hex}"
    reports: Mapping[str, Shape] = field(default_factory=dict)
    signature: SigningForm | None = None
    secret: str = ""
    path: str = ""
    heeds_keys: bool = False
    key_header: str = "idempotency-key"
    lookup: LookupForm | None = None

    def order(self, call: Call) -> SendOrder:
        """Parse a request to send a message. Raises UnreadableError."""
        payload = read_payload(call)
        to = (text_at(payload, self.to) or "").strip()
        if not to:
            raise UnreadableError(f"missing recipient: {self.to}")
        reference = None if self.reference is None else text_at(payload, self.reference)
        key = call.headers.get(self.key_header) if self.heeds_keys else None
        return SendOrder(
            self.channel, to, reference, key, payload if isinstance(payload, dict) else {"": payload}
        )

    def check_address(self, call: Call) -> None:
        """Raise UnknownAddressError for an address that the provider doesn't have."""
        path = call.params.get("path", "")
        if not any(pattern.fullmatch(path) for pattern in self.paths):
            raise UnknownAddressError(f"{self.name} has no address {path}")

    def new_id(self, reference: str | None) -> str:
        """Return an ID as the provider makes them; some take over the message's reference."""
        made: Values = {
            "hex": secrets.token_hex(16),
            "number": secrets.randbelow(10**15),
            "reference": reference or "",
        }
        return str(fill(self.id, made))

    def answer(
        self, mood: Mood, provider_id: str, to: str, reference: str | None = None, error: str = ""
    ) -> Response:
        """Return the answer to a request; `error` says what is wrong, for gateways that say it."""
        shape = self.answers.get(mood) or (_BUSY if mood == "busy" else self.answers["refused"])
        return _response(shape, values_of(provider_id, to, reference, datetime.now(UTC)) | {"error": error})

    def report(self, message: ReceivedMessage, word: str, receipts: str, at: datetime) -> Outgoing | None:
        """Return a report to the receipts server at `receipts`; None: the provider sends none."""
        shape = self.reports.get(word)
        if shape is None:
            return None
        values = {**values_of(message.provider_id, message.to, message.reference, at), "secret": self.secret}
        if self.signature is not None:
            values |= body_values(self.signature, self.secret, at)
        named = None if self.callback is None else text_at(message.payload, self.callback)
        report = written_report(shape, values, named or self._path(), receipts, at)
        return report if self.signature is None else sign(self.signature, self.secret, report)

    def _path(self) -> str:
        """Return the address that stands in the provider's settings."""
        if self.signature is None or self.signature.scheme != "token":
            return self.path
        return f"{self.path}/{quote(self.secret, safe='')}"


def lookup_answer(lookup: LookupForm, message: ReceivedMessage | None) -> Response:
    """Return the answer to a lookup that found this message, or none."""
    now = datetime.now(UTC)
    if message is None:
        return _response(lookup.missing, values_of("", "", None, now))
    return _response(lookup.found, values_of(message.provider_id, message.to, message.reference, now))


def _response(shape: Shape, values: Values) -> Response:
    headers, body = shape.written(values)
    return Response(body, shape.status, headers)


_LONDON = ZoneInfo("Europe/London")
_BUSY = Shape(status=503, body="try again later")


def written_report(shape: Shape, values: Values, target: str, receipts: str, at: datetime) -> Outgoing:
    """Write a report to `target`, a path or a public address, for the receipts server at `receipts`."""
    headers, body = shape.written(values)
    for text, replacement in shape.replace.items():
        target = target.replace(text, quote(str(fill(replacement, values)), safe=""))
    address = urlsplit(target)
    query = "&".join(filter(None, (address.query, urlencode(fill(dict(shape.query), values)))))
    tail = f"{address.path}{'?' if query else ''}{query}"
    public = f"{address.scheme}://{address.netloc}" if address.netloc else receipts
    fields = {name: str(value) for name, value in fill(dict(shape.form or {}), values).items()}
    if shape.method == "GET":
        headers, body = {}, b""
    return Outgoing(shape.method, receipts + tail, public + tail, headers, body, fields, at)


def values_of(provider_id: str, to: str, reference: str | None, at: datetime) -> dict[str, str | int]:
    """Return the values of the placeholders that every shape has."""
    values: dict[str, str | int] = {
        "hex": secrets.token_hex(16),
        "id": provider_id,
        "to": to,
        "to.digits": "".join(filter(str.isdecimal, to)),
        "reference": reference or "",
        "at.iso": at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}" + at.strftime("%z"),
        "at.unix": int(at.timestamp()),
        "at.text": str(int(at.timestamp())),
        "at.ms": int(at.timestamp() * 1000),
        "at.utc": f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z",
        "at.plain": f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
        "at.london": f"{at.astimezone(_LONDON):%Y-%m-%d %H:%M:%S}",
    }
    numbers = {"id": provider_id, "to": to}
    return values | {f"{name}.number": int(text) for name, text in numbers.items() if text.isdecimal()}


def read_payload(call: Call) -> Any:
    """Parse a request: its JSON, its form, or else its query. Raises UnreadableError."""
    kind = call.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not call.body:
        return dict(call.query)
    if kind == "application/x-www-form-urlencoded":
        return dict(parse_qsl(call.body.decode("utf-8"), keep_blank_values=True))
    try:
        return json.loads(call.body)
    except ValueError as error:
        raise UnreadableError("the body is not JSON") from error


def text_at(payload: Any, pointer: str) -> str | None:
    """Return the text or number at a JSON Pointer, or None."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(payload, Mapping):
            payload = payload.get(name)
        elif isinstance(payload, list) and name.isdecimal() and int(name) < len(payload):
            payload = payload[int(name)]
        else:
            return None
    return str(payload) if isinstance(payload, str | int) and payload != "" else None
