"""Shows push services who sends: a signed token for each of them (VAPID, RFC 8292)."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, derive_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from deliveryd.channels.webpush.encryption import unpadded
from deliveryd.http.oauth2 import read_signing_key
from deliveryd.http.wire import Header
from deliveryd.model import SECOND, Clock

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

VAPID_LIFETIME = 12 * 3600
"""Seconds for which a token is valid; at most 24 hours are allowed (RFC 8292, 2)."""

RENEWED_BEFORE = 3600
"""Seconds before its end from which a token isn't used any more."""

MOST_PUSH_SERVICES = 100
"""Push services whose tokens are kept: far more than there are."""

_RAW_BYTES = 32


def read_vapid_key(text: str) -> EllipticCurvePrivateKey:
    """Read a P-256 key: PEM, or base64url of its number as tools for Web Push write it. Raises ValueError."""
    if "-----" not in text:
        try:
            raw = unpadded(text)
            if len(raw) == _RAW_BYTES:
                return derive_private_key(int.from_bytes(raw, "big"), SECP256R1())
        except ValueError:
            pass
    key = read_signing_key(text)
    if key.algorithm != "ES256":
        raise ValueError("must be an EC key on P-256")
    return key.key  # type: ignore[return-value]  # by its algorithm


class _Token(NamedTuple):
    header: Header
    ends_at: int


class Vapid:
    """Signs with one key, for whom `subject` names: an address to write to, `mailto:` or `https:`."""

    def __init__(self, key: EllipticCurvePrivateKey, subject: str) -> None:
        self._key = key
        self._subject = subject
        point = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        self.public_key = urlsafe_b64encode(point).rstrip(b"=").decode()
        self._tokens: dict[str, _Token] = {}

    def header(self, origin: str, clock: Clock) -> Header:
        """Return the header for a push service with this origin; a token is used again until near its end."""
        now = clock.now() // SECOND
        token = self._tokens.get(origin)
        if token is None or not 0 <= token.ends_at - now - RENEWED_BEFORE <= VAPID_LIFETIME:
            if len(self._tokens) >= MOST_PUSH_SERVICES:
                self._tokens.clear()
            token = self._tokens[origin] = self._signed(origin, now + VAPID_LIFETIME)
        return token.header

    def _signed(self, origin: str, ends_at: int) -> _Token:
        claims = {"aud": origin, "exp": ends_at, "sub": self._subject}
        signed = jwt.encode(claims, self._key, "ES256")
        return _Token((b"Authorization", f"vapid t={signed}, k={self.public_key}".encode()), ends_at)
