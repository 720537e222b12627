"""Signs reports as providers do, by their formulas; shares nothing with what verifies them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlencode

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

from deliveryd.sandbox.shapes import Values, fill

SigningScheme = Literal[
    "hmac", "twilio", "vonage", "jwt", "standard-webhooks", "mailgun", "ecdsa", "basic", "token"
]


@dataclass(frozen=True, slots=True)
class SigningForm:
    """How a provider signs. `header` and the others are used by the schemes that leave them open.

    With `token` the secret is the last part of the address, which whoever writes the report adds.

    `signed` is the text that the scheme hmac signs, with {body}, {nonce} and {timestamp}. `prefix` stands
    before a hash; with Standard Webhooks the names of the headers begin with it.
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


_SCHEMES: Mapping[str, Callable[[SigningForm, str, Outgoing], dict[str, str]]] = {
    "hmac": _hmac,
    "twilio": _twilio,
    "jwt": _jwt,
    "standard-webhooks": _standard_webhooks,
    "ecdsa": _ecdsa,
    "basic": _basic,
}
