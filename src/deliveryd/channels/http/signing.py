"""Signs requests, so that the receiver can verify their sender: Standard Webhooks, or a JSON Web Token."""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from deliveryd.channels.base import Dispatch
from deliveryd.channels.filling import MappingContext
from deliveryd.channels.http.request_options import SignOptions
from deliveryd.http.client import raw_header
from deliveryd.http.wire import Header
from deliveryd.model import SECOND

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

_Key = TypeVar("_Key")

LIFETIME = 15 * 60
"""Seconds for which a token is valid, as in Vonage's client libraries; another is made after half of them."""

_PREFIX = "whsec_"
_SHORTEST, _LONGEST = 16, 64


def read_key(secret: str) -> bytes:
    """Return the key of a secret such as `whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw`. Raises ValueError."""
    text = secret.removeprefix(_PREFIX)
    try:
        key = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise ValueError("a key of Standard Webhooks must be base64") from None
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise ValueError(f"a key of Standard Webhooks must have {_SHORTEST} to {_LONGEST} bytes")
    return key


def read_private_key(secret: str) -> RSAPrivateKey:
    """Return the RSA key of a secret in PEM, the lines of which may be one. Raises ValueError."""
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey  # noqa: PLC0415  # only for jwt

    from deliveryd.http.oauth2 import SHORTEST_RSA, read_signing_key  # noqa: PLC0415  # as above

    key, algorithm = read_signing_key(secret)
    if algorithm != "RS256" or not isinstance(key, RSAPrivateKey):
        raise ValueError(f"must be an RSA key of at least {SHORTEST_RSA} bits")
    return key


MoreHeaders = Callable[[Dispatch, bytes], list[Header]]
"""Returns further headers of a request with this body."""


def open_signing(sign: SignOptions, context: MappingContext) -> MoreHeaders:
    """Return what signs requests, or writes the mask instead. Raises ValueError for an unusable key."""
    mask = context.mask
    if sign.scheme == "jwt":
        if mask is not None:
            return lambda *_: [_bearer(mask)]
        (name,) = sign.names
        return Bearer(_key(name, context.secrets[name], read_private_key), sign.claims).headers
    if mask is not None:
        return lambda dispatch, _body: _webhook_headers(dispatch, f"v1,{mask}")
    secrets = [
        (name, secret)
        for name in sign.names
        for secret in (context.secrets[name], *context.older_secrets.get(name, ()))
    ]
    return partial(signed_headers, [_key(name, secret, read_key) for name, secret in secrets])


def _key(name: str, secret: str, read: Callable[[str], _Key]) -> _Key:
    try:
        return read(secret)
    except ValueError as error:
        raise ValueError(f"secrets.{name}: {error}") from None


def signed_headers(keys: Sequence[bytes], dispatch: Dispatch, body: bytes) -> list[Header]:
    """Return the headers of Standard Webhooks: the message's key is the id, and each key signs."""
    signed = f"{dispatch.key}.{_seconds(dispatch)}.".encode() + body
    signatures = (b64encode(hmac.digest(key, signed, "sha256")).decode("ascii") for key in keys)
    return _webhook_headers(dispatch, " ".join(f"v1,{signature}" for signature in signatures))


def _webhook_headers(dispatch: Dispatch, signatures: str) -> list[Header]:
    return [
        raw_header("webhook-id", dispatch.key),
        raw_header("webhook-timestamp", str(_seconds(dispatch))),
        raw_header("webhook-signature", signatures),
    ]


def _bearer(token: str) -> Header:
    return raw_header("Authorization", f"Bearer {token}")


def _seconds(dispatch: Dispatch) -> int:
    return dispatch.clock.now() // SECOND


class Bearer:
    """Makes the header of a JSON Web Token by RS256, which is used until half of its lifetime is over."""

    def __init__(self, key: RSAPrivateKey, claims: Mapping[str, str]) -> None:
        self._key = key
        self._claims = claims
        self._issued = 0
        self._headers: list[Header] = []

    def headers(self, dispatch: Dispatch, _body: bytes) -> list[Header]:
        """Return the header, by the attempt's clock."""
        now = _seconds(dispatch)
        if not self._headers or not 0 <= now - self._issued < LIFETIME // 2:
            self._headers = [_bearer(self._token(now))]
            self._issued = now
        return self._headers

    def _token(self, now: int) -> str:
        import jwt  # noqa: PLC0415  # only for jwt

        claims = {**self._claims, "iat": now, "exp": now + LIFETIME, "jti": str(uuid4())}
        return jwt.encode(claims, self._key, "RS256")
