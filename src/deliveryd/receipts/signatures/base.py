"""What a signature scheme does, and what all of them need."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from deliveryd.model import SECOND
from deliveryd.receipts.request import ReceiptRequest

LONGEST_ECHO = 256
"""Characters of what a handshake may ask for in return."""


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
    """A genuine request without a report; `answer` is what the provider needs in return, if anything."""

    answer: str | None = None
    content_type: str = "text/plain; charset=utf-8"


Verified = ReceiptRequest | Subscription | NoReport
"""A genuine request: usually with the report that it came with, or with the content of its envelope."""


class Covered(NamedTuple):
    """What a request with a good signature holds, and whether the signature covers its body and its query.

    Whoever names a part in what is signed, such as by its hash, covers it; the scheme has compared it.
    """

    content: Verified
    body: bool
    query: bool


class Scheme:
    """One scheme with its options; a key is the secret's text as UTF-8, unless it says otherwise.

    `signs_raw_body`: a signature is over all bytes of the body, whatever they are. Other schemes read what
    they sign from the body.
    """

    signs_raw_body = False

    def __init__(self, options: Any) -> None:
        self._options = options

    def read_key(self, secret: str) -> Any:
        """Return the key that a secret is. Raises ValueError."""
        return secret.encode()

    def verify(self, request: ReceiptRequest, keys: Sequence[Any], now: int) -> Covered:
        """Return what a request with a good signature holds. Raises Forged, CertificateMissing.

        Raises ValueError or RecursionError for what can't be read, which is forged as well.
        """
        raise NotImplementedError

    def unverified(self, request: ReceiptRequest) -> Verified:
        """Return what a request holds although its sender isn't known, for a trial. Raises Forged."""
        return request


def is_any(given: bytes, expected: Iterable[bytes]) -> bool:
    """Whether it equals one of several; the time taken doesn't depend on which, nor on how much is equal."""
    fits = [hmac.compare_digest(given, each) for each in expected]
    return any(fits)


def has_hash(given: Iterable[bytes], keys: Iterable[bytes], signed: bytes, algorithm: str) -> bool:
    """Whether one of the given signatures is the keyed hash under one of the keys."""
    expected = [hmac.digest(key, signed, algorithm) for key in keys]
    return any(is_any(each, expected) for each in given)


def decode(text: str, encoding: str) -> bytes | None:
    """Return the bytes of a signature in hex or base64, or None."""
    try:
        return bytes.fromhex(text) if encoding == "hex" else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None


def check_time(signed_at: int, now: int, tolerance: float) -> None:
    """Raise Forged if the time of signing is too far from now."""
    if abs(now - signed_at) > tolerance * SECOND:
        raise Forged(f"the time of signing is {abs(now - signed_at) // SECOND} s from now")


def echoed(text: str) -> str:
    """Return what a handshake asks for in return. Raises Forged for what no provider asks for."""
    if not (text.isascii() and text.isprintable() and len(text) <= LONGEST_ECHO):
        raise Forged("what is to be returned is no code")
    return text


def header(request: ReceiptRequest, name: str) -> str:
    """Return a header. Raises Forged."""
    value = request.headers.get(name.lower())
    if not value:
        raise Forged(f"there is no header {name}")
    return value
