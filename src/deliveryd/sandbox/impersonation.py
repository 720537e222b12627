"""A provider's own forms, as data: how its requests are read, its answers and its signed reports written.

Signing shares nothing with what verifies signatures.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from zoneinfo import ZoneInfo

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    derive_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from starlette.responses import Response

from deliveryd.sandbox.faults import StandInChannel
from deliveryd.sandbox.state import ReceivedMessage
from deliveryd.sandbox.wire import Call, UnknownAddressError, UnreadableError

Values = Mapping[str, str | int]

_PLACEHOLDER = re.compile(r"\{([a-z]+(?:\.[a-z]+)?)\}")


@dataclass(frozen=True, slots=True)
class Shape:
    """An answer or a report; strings in `headers`, `query` and the body have placeholders such as {id}."""

    status: int = 200
    method: Literal["POST", "GET"] = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    replace: Mapping[str, str] = field(default_factory=dict)
    json_body: Any = None
    form: Mapping[str, str] | None = None
    body: str = ""

    def written(self, values: Values) -> tuple[dict[str, str], bytes]:
        """Return the headers and the body with these values."""
        headers = {name.lower(): str(fill(text, values)) for name, text in self.headers.items()}
        if self.json_body is not None:
            headers.setdefault("content-type", "application/json")
            return headers, json.dumps(fill(self.json_body, values), separators=(",", ":")).encode()
        if self.form is not None:
            headers.setdefault("content-type", "application/x-www-form-urlencoded")
            return headers, urlencode(fill(dict(self.form), values)).encode()
        headers.setdefault("content-type", "text/plain; charset=utf-8")
        return headers, str(fill(self.body, values)).encode()


def fill(value: Any, values: Values) -> Any:
    """Fill the placeholders in a parsed value; a string that is exactly one keeps the value's type."""
    if isinstance(value, str):
        if (whole := _PLACEHOLDER.fullmatch(value)) and whole[1] in values:
            return values[whole[1]]
        return _PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), value)
    if isinstance(value, Mapping):
        return {name: fill(each, values) for name, each in value.items()}
    if isinstance(value, list):
        return [fill(each, values) for each in value]
    return value


SigningScheme = Literal[
    "hmac",
    "twilio",
    "vonage",
    "jwt",
    "standard-webhooks",
    "mailgun",
    "ecdsa",
    "basic",
    "token",
    "sns",
    "google-rcs",
]


@dataclass(frozen=True, slots=True)
class SigningForm:
    """How a provider signs. `header` and the others are used by the schemes that leave them open.

    With `token` the secret is the last part of the address, which whoever writes the report adds.

    `signed` is the text that the scheme hmac signs, with {body}, {nonce} and {timestamp}. `prefix` stands
    before a hash; with Standard Webhooks the names of the headers begin with it. `topic` is that of sns.
    """

    scheme: SigningScheme
    header: str = ""
    algorithm: str = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    prefix: str = ""
    signed: str = "{body}"
    username: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[str, Any] = field(default_factory=dict)
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A report as it is sent; `called` is the public address that it is sent to, which signatures cover."""

    method: str
    url: str
    called: str
    headers: dict[str, str]
    body: bytes
    fields: Mapping[str, str]
    at: datetime


def sign(how: SigningForm, secret: str, report: Outgoing) -> Outgoing:
    """Return the report with its signature; those of mailgun and of token are in it already."""
    if how.scheme == "vonage":
        return _with_sig(secret, report)
    if how.scheme == "sns":
        return _in_notification(how, secret, report)
    if how.scheme == "google-rcs":
        return _in_envelope(secret, report)
    if (headers := _SCHEMES.get(how.scheme)) is None:
        return report
    return replace(report, headers=report.headers | headers(how, secret, report))


def body_values(how: SigningForm, secret: str, at: datetime) -> Values:
    """Return the values of a signature that stands in the body, for its placeholders."""
    if how.scheme != "mailgun":
        return {}
    stamp, token = str(int(at.timestamp())), secrets.token_hex(25)
    made = _digest(secret.encode(), f"{stamp}{token}".encode(), "sha256", "hex")
    return {"signature.timestamp": stamp, "signature.token": token, "signature.hash": made}


def _digest(key: bytes, text: bytes, algorithm: str, encoding: str) -> str:
    made = hmac.new(key, text, algorithm).digest()
    return made.hex() if encoding == "hex" else base64.b64encode(made).decode()


def _hmac(how: SigningForm, secret: str, report: Outgoing) -> dict[str, str]:
    values = {"nonce": secrets.token_hex(8), "timestamp": str(int(report.at.timestamp()))}
    before, _, after = how.signed.partition("{body}")
    text = str(fill(before, values)).encode() + report.body + str(fill(after, values)).encode()
    headers = {name: str(fill(value, values)) for name, value in how.headers.items()}
    return headers | {how.header: how.prefix + _digest(secret.encode(), text, how.algorithm, how.encoding)}


def _twilio(_how: SigningForm, secret: str, report: Outgoing) -> dict[str, str]:
    text = report.called + "".join(name + report.fields[name] for name in sorted(report.fields))
    return {"X-Twilio-Signature": _digest(secret.encode(), text.encode(), "sha1", "base64")}


def _jwt(how: SigningForm, secret: str, report: Outgoing) -> dict[str, str]:
    now = int(report.at.timestamp())
    values: dict[str, str | int] = {
        "now": now, "soon": now + 60, "jti": secrets.token_hex(16),
        "payload": hashlib.sha256(report.body).hexdigest(),
        "url": hashlib.sha256(report.called.encode()).hexdigest(),
    }  # fmt: skip
    parts: list[dict[str, Any]] = [{"alg": "HS256", "typ": "JWT"}, fill(dict(how.claims), values)]
    text = ".".join(_url_base64(json.dumps(part, separators=(",", ":")).encode()) for part in parts)
    made = hmac.new(secret.encode(), text.encode(), "sha256").digest()
    return {how.header: f"{how.prefix}{text}.{_url_base64(made)}"}


def _url_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _standard_webhooks(how: SigningForm, secret: str, report: Outgoing) -> dict[str, str]:
    prefix = how.prefix or "webhook-"
    id_, stamp = f"msg_{secrets.token_hex(12)}", str(int(report.at.timestamp()))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    made = _digest(key, f"{id_}.{stamp}.".encode() + report.body, "sha256", "base64")
    return {f"{prefix}id": id_, f"{prefix}timestamp": stamp, f"{prefix}signature": f"v1,{made}"}


def _ecdsa(how: SigningForm, secret: str, report: Outgoing) -> dict[str, str]:
    stamp = str(int(report.at.timestamp()))
    made = _private_key(secret).sign(stamp.encode() + report.body, ECDSA(SHA256()))
    headers = {name: str(fill(value, {"timestamp": stamp})) for name, value in how.headers.items()}
    return headers | {how.header: base64.b64encode(made).decode()}


def _private_key(secret: str) -> EllipticCurvePrivateKey:
    return derive_private_key(int.from_bytes(hashlib.sha256(secret.encode()).digest()), SECP256R1())


def private_key() -> str:
    """Return an RSA key in PEM, for requests that the sandbox doesn't verify."""
    key = rsa.generate_private_key(65537, 2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def public_key(secret: str) -> str:
    """Return the public key for what is signed by ecdsa with a secret: base64 of its DER."""
    key = _private_key(secret).public_key()
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(der).decode()


def _basic(how: SigningForm, secret: str, _report: Outgoing) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{how.username}:{secret}'.encode()).decode()}"}


def _with_sig(secret: str, report: Outgoing) -> Outgoing:
    """Vonage's SMS API has its signature among the fields."""
    pairs = sorted(report.fields.items())
    text = "".join(f"&{name}={value.replace('&', '_').replace('=', '_')}" for name, value in pairs)
    fields = {**report.fields, "sig": _digest(secret.encode(), text.encode(), "sha256", "hex")}
    return replace(report, fields=fields, body=urlencode(fields).encode())


def _in_notification(how: SigningForm, secret: str, report: Outgoing) -> Outgoing:
    """Amazon SNS sends a text, whose JSON has the report as a text in it."""
    from deliveryd.sandbox.amazon import envelope  # noqa: PLC0415  # loads much, for few providers

    headers = {**report.headers, "content-type": "text/plain; charset=UTF-8"}
    return replace(report, headers=headers, body=envelope(how.topic, report.body, secret, report.at))


def _in_envelope(secret: str, report: Outgoing) -> Outgoing:
    """RCS for Business sends the report as base64, and signs what that stands for."""
    event = base64.b64encode(report.body).decode()
    headers = report.headers | {"X-Goog-Signature": _digest(secret.encode(), report.body, "sha512", "base64")}
    return replace(report, headers=headers, body=json.dumps({"message": {"data": event}}).encode())


_SCHEMES: Mapping[str, Callable[[SigningForm, str, Outgoing], dict[str, str]]] = {
    "hmac": _hmac,
    "twilio": _twilio,
    "jwt": _jwt,
    "standard-webhooks": _standard_webhooks,
    "ecdsa": _ecdsa,
    "basic": _basic,
}


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
class AccountForm:
    """How a provider is asked about the account: by a path, and by a query with these names alone."""

    method: str
    path: re.Pattern[str]
    query: frozenset[str]
    answer: Shape

    def is_asked_by(self, call: Call) -> bool:
        """Whether a request is that question, and sends nothing."""
        is_there = self.path.fullmatch(call.params.get("path", "")) is not None
        return is_there and call.method == self.method and call.query.keys() == self.query


@dataclass(frozen=True, slots=True)
class Impersonation:
    """One provider. `to`, `reference` and `callback` are JSON Pointers into a request, a form or a query.

    With `to` "path" the recipient is in the address, the group `to` of its pattern. The sandbox's own
    gateways have no name. `answers` has at least accepted and refused; without `reports` the provider sends
    none. `path` is where its reports go if the request names no `callback`. `id` has one of {hex}, {number}
    and {reference}. `key_header` is the header with the key of a repeat.
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
    account: AccountForm | None = None

    def order(self, call: Call) -> SendOrder:
        """Parse a request to send a message. Raises UnreadableError."""
        payload = read_payload(call)
        named = self._in_address(call) if self.to == "path" else text_at(payload, self.to)
        to = (named or "").strip()
        if not to:
            raise UnreadableError(f"missing recipient: {self.to}")
        reference = None if self.reference is None else text_at(payload, self.reference)
        key = call.headers.get(self.key_header) if self.heeds_keys else None
        return SendOrder(
            self.channel, to, reference, key, payload if isinstance(payload, dict) else {"": payload}
        )

    def _in_address(self, call: Call) -> str | None:
        path = call.params.get("path", "")
        found = filter(None, (pattern.fullmatch(path) for pattern in self.paths))
        return next((match["to"] for match in found if "to" in match.re.groupindex), None)

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
        """Return the answer to a request; `error` is what is wrong, for gateways that answer it."""
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


def account_answer(account: AccountForm) -> Response:
    """Return the answer of a provider whose account is good."""
    return _response(account.answer, values_of("", "", None, datetime.now(UTC)))


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
