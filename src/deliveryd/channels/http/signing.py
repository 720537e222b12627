"""Signs requests, so that the receiver can verify their sender: Standard Webhooks, or a JSON Web Token."""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from deliveryd.channels.base import Dispatch
from deliveryd.http.client import raw_header
from deliveryd.http.wire import Header
from deliveryd.model import SECOND

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

LIFETIME = 15 * 60
"""Seconds for which a token is valid, as in Vonage's client libraries; another is made after half of them."""

_SHORTEST_RSA = 2048
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
    from cryptography.hazmat.primitives.serialization import load_der_private_key  # noqa: PLC0415  # as above

    try:
        key = load_der_private_key(b64decode("".join(secret.split("-----")[2:3]) or secret), None)
    except (ValueError, TypeError):
        raise ValueError("must be an RSA private key in PEM, without a passphrase") from None
    if not isinstance(key, RSAPrivateKey) or key.key_size < _SHORTEST_RSA:
        raise ValueError(f"must be an RSA private key of at least {_SHORTEST_RSA} bits")
    return key


class HeaderSigner(Protocol):
    """Makes the headers by which a receiver verifies where a request is from."""

    def headers(self, dispatch: Dispatch, body: bytes) -> list[Header]:
        """Return the headers of one request."""


class Bearer:
    """Makes the header of a JSON Web Token by RS256, which is used until half of its lifetime is over."""

    def __init__(self, key: RSAPrivateKey, claims: Mapping[str, str]) -> None:
        self._key = key
        self._claims = claims
        self._issued = 0
        self._headers: list[Header] = []

    def headers(self, dispatch: Dispatch, _body: bytes) -> list[Header]:
        """Return the header, by the attempt's clock."""
        now = dispatch.clock.now() // SECOND
        if not self._headers or not 0 <= now - self._issued < LIFETIME // 2:
            self._headers = [raw_header("Authorization", f"Bearer {self._token(now)}")]
            self._issued = now
        return self._headers

    def _token(self, now: int) -> str:
        import jwt  # noqa: PLC0415  # only for jwt

        claims = {**self._claims, "iat": now, "exp": now + LIFETIME, "jti": str(uuid4())}
        return jwt.encode(claims, self._key, "RS256")


class MaskedBearer:
    """Makes the same header for a preview, with a mask in place of the token."""

    def __init__(self, mask: str) -> None:
        self._mask = mask

    def headers(self, _dispatch: Dispatch, _body: bytes) -> list[Header]:
        """Return the header as it may be shown."""
        return [raw_header("Authorization", f"Bearer {self._mask}")]


class Signer:
    """Makes the three headers of Standard Webhooks, with one signature for each key."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys

    def headers(self, dispatch: Dispatch, body: bytes) -> list[Header]:
        """Return the headers of one request: the message's key is its id."""
        at = str(dispatch.clock.now() // SECOND)
        signed = f"{dispatch.key}.{at}.".encode() + body
        signatures = " ".join(f"v1,{_signature(key, signed)}" for key in self._keys)
        return _headers(dispatch.key, at, signatures)


class MaskedSigner:
    """Makes the same headers for a preview, with a mask in place of signatures."""

    def __init__(self, mask: str) -> None:
        self._mask = mask

    def headers(self, dispatch: Dispatch, _body: bytes) -> list[Header]:
        """Return the headers as they may be shown."""
        return _headers(dispatch.key, str(dispatch.clock.now() // SECOND), f"v1,{self._mask}")


def _signature(key: bytes, signed: bytes) -> str:
    return b64encode(hmac.digest(key, signed, "sha256")).decode("ascii")


def _headers(id_: str, at: str, signatures: str) -> list[Header]:
    return [
        raw_header("webhook-id", id_),
        raw_header("webhook-timestamp", at),
        raw_header("webhook-signature", signatures),
    ]
