"""What a signature scheme does, and what all of them need."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from deliveryd.channels.signature_options import LEAST_SECRET
from deliveryd.model import SECOND
from deliveryd.receipts.request import ReceiptRequest

_MILLISECONDS_FROM = 100_000_000_000  # in seconds, this would be the year 5138

Key = TypeVar("Key")


class Forged(Exception):
    """A request isn't signed by the provider; the text has the reason, without values."""


class Untrusted(Forged):
    """The certificate of a signature isn't one of SNS: what it was fetched from is of no use now."""


class CertificateMissing(Exception):
    """The signature can be verified only with the certificate at `url`, which `learn` has to be given.

    `is_missing` is whether it still isn't known. `trust` takes one as it is, for a trial.
    """

    def __init__(
        self,
        url: str,
        learn: Callable[[bytes], None],
        is_missing: Callable[[], bool],
        trust: Callable[[bytes], None],
    ) -> None:
        super().__init__("the certificate of the signature isn't known")
        self.url = url
        self.learn = learn
        self.is_missing = is_missing
        self.trust = trust


class Subscription(NamedTuple):
    """A genuine request that no report is in: a request of the address confirms it."""

    url: str


class NoReport(NamedTuple):
    """A genuine request without a report."""


Verified = ReceiptRequest | Subscription | NoReport
"""A genuine request: usually with the report that it came with, or with the content of its envelope."""


class Covered(NamedTuple):
    """What a request with a good signature holds, and whether the signature covers its body and its query.

    Whoever names a part in what is signed, such as by its hash, covers it; the scheme has compared it.
    """

    content: Verified
    body: bool
    query: bool


class SignatureScheme(Protocol[Key]):
    """One scheme with its options."""

    def read_key(self, secret: str) -> Key:
        """Return the key that a secret is. Raises ValueError."""

    def verify(self, request: ReceiptRequest, keys: Sequence[Key], now: int) -> Covered:
        """Return what a request with a good signature holds. Raises Forged, CertificateMissing."""


def check_length(secret: str) -> str:
    """Return a secret that requests carry. Raises ValueError if it can be guessed."""
    if len(secret) < LEAST_SECRET:
        raise ValueError(f"the secret must have at least {LEAST_SECRET} characters: openssl rand -hex 32")
    return secret


def is_any(given: bytes, expected: Iterable[bytes]) -> bool:
    """Whether it equals one of several; the time taken doesn't depend on which, nor on how much is equal."""
    fits = [hmac.compare_digest(given, each) for each in expected]
    return any(fits)


def decode(text: str, encoding: str) -> bytes | None:
    """Return the bytes of a signature in hex or base64, or None."""
    try:
        return bytes.fromhex(text) if encoding == "hex" else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None


def read_time(text: str | None) -> int:
    """Return an instant given in seconds or milliseconds since 1970. Raises Forged."""
    try:
        value = float(text) if text is not None and len(text) <= 32 else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e14:
        raise Forged("the time of signing is missing or unreadable")
    return int((value / 1000 if value >= _MILLISECONDS_FROM else value) * SECOND)


def check_time(signed_at: int, now: int, tolerance: float) -> None:
    """Raise Forged if the time of signing is too far from now."""
    if abs(now - signed_at) > tolerance * SECOND:
        raise Forged(f"the time of signing is {abs(now - signed_at) // SECOND} s from now")


def header(request: ReceiptRequest, name: str) -> str:
    """Return a header. Raises Forged."""
    value = request.headers.get(name.lower())
    if not value:
        raise Forged(f"there is no header {name}")
    return value
