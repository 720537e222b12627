"""Provider tokens of Apple's push service: signed here, each used for a while by all who have the key.

APNs rejects tokens that are older than an hour, and connections whose token changes more often than every 20
minutes. So a token is the same for all workers, and after a restart: its time is rounded, and its signature
depends on nothing else (RFC 6979).
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from deliveryd.http.authentication import OutgoingRequest
from deliveryd.http.oauth2 import read_signing_key
from deliveryd.http.wire import Headers
from deliveryd.model import SECOND, Clock
from deliveryd.runtime.secret_file import RenewedValue

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

USED_SECONDS = 40 * 60
"""Seconds for which a token is used: more than 20 minutes, and far less than an hour."""

_NUMBER_BYTES = 32


class ProviderKey(NamedTuple):
    """The private key that tokens are signed with."""

    key: EllipticCurvePrivateKey

    @staticmethod
    def read(text: str) -> ProviderKey:
        """Read a P-256 key in PEM. Raises ValueError."""
        found = read_signing_key(text)
        if found.algorithm != "ES256":
            raise ValueError("must be an EC key on P-256")
        return ProviderKey(found.key)  # type: ignore[arg-type]  # by its algorithm

    def token(self, key_id: str, team_id: str, issued_at: int) -> str:
        """Return the token of this instant, in seconds: always the same."""
        head = _part({"alg": "ES256", "kid": key_id})
        signed = f"{head}.{_part({'iss': team_id, 'iat': issued_at})}"
        algorithm = ECDSA(SHA256(), deterministic_signing=True)
        numbers = decode_dss_signature(self.key.sign(signed.encode(), algorithm))
        return f"{signed}.{_encoded(b''.join(number.to_bytes(_NUMBER_BYTES, 'big') for number in numbers))}"


def _part(named: dict[str, object]) -> str:
    return _encoded(json.dumps(named, separators=(",", ":")).encode())


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


class ProviderTokens:
    """Adds the present token to each request."""

    def __init__(self, key: RenewedValue[ProviderKey], key_id: str, team_id: str, clock: Clock) -> None:
        self._key = key
        self._ids = key_id, team_id
        self._clock = clock
        self._made: tuple[ProviderKey, int] | None = None
        self._headers: Headers = []
        self._token = ""

    async def headers(self, _request: OutgoingRequest) -> Headers:
        """Return the header with the token; it changes every 40 minutes, or with the key's file."""
        return self._present()

    def _present(self) -> Headers:
        now = self._clock.now() // SECOND
        made = self._key.current(), now - now % USED_SECONDS
        if made != self._made:
            self._made = made
            self._token = made[0].token(*self._ids, made[1])
            self._headers = [(b"authorization", b"bearer " + self._token.encode())]
        return self._headers

    async def renew(self, shown: Headers) -> bool:
        """Read the key again, since a token was rejected."""
        self._key.renew()
        return self._present() != shown

    def secrets(self) -> Iterable[str]:
        """Return the token."""
        return [self._token] if self._token else []

    async def aclose(self) -> None:
        """Nothing is open."""
