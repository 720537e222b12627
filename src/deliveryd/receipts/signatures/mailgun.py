"""`mailgun`: a signature in the body, over a time and a token.

It doesn't cover the rest of the body. So a token counts for one body only: the same report may come again,
another one under the same token is forged. The journal keeps the tokens until their times are too old, and
for half a day at least.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from deliveryd.channels.signature_schemes import MailgunSignature
from deliveryd.http.finder import Document, compile_finder
from deliveryd.journal.sql.own_values import SignedToken
from deliveryd.model import SECOND
from deliveryd.receipts.request import ReceiptRequest, Unreadable
from deliveryd.receipts.signatures.base import Covered, Forged, check_time, decode, is_any, read_time

_REMEMBERED = 43200.0
"""Seconds for which a used token is kept at least: a reload may raise the tolerance."""

_PLACES = {
    name: (compile_finder(f"/signature/{name}"), compile_finder(f"/{name}"))  # JSON, and the older form
    for name in ("timestamp", "token", "signature")
}


class Scheme:
    """The scheme with its options."""

    def __init__(self, options: MailgunSignature) -> None:
        self._options = options

    def read_key(self, secret: str) -> bytes:
        """Return the webhook signing key."""
        return secret.encode()

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], now: int) -> Covered:
        """Compare the signature, then check the time; the token of what is returned may have been used."""
        try:
            document = request.document()
        except Unreadable:
            raise Forged("the body can't be read") from None
        signed_at, token = _value(document, "timestamp"), _value(document, "token")
        signature = decode(_value(document, "signature"), "hex") or b""
        signed = f"{signed_at}{token}".encode()
        if not is_any(signature, [hmac.digest(key, signed, "sha256") for key in keys]):
            raise Forged("the signature doesn't fit")
        at = read_time(signed_at)
        check_time(at, now, self._options.tolerance)
        until = at + int(max(self._options.tolerance, _REMEMBERED) * SECOND)
        used = SignedToken(_digest(signed), _digest(request.body), until)
        return Covered(request.with_token(used), body=True, query=False)


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def _value(document: Document, name: str) -> str:
    for finder in _PLACES[name]:
        if (value := finder.find(document)) is not None:
            return value
    raise Forged(f"there is no {name}")
