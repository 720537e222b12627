"""`mailgun`: a signature in the body, over a time and a token.

It doesn't cover the rest of the body. So a token counts for one body only: the same report may come again,
another one under the same token is forged. The tokens of the latest reports are remembered.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Sequence

from deliveryd.channels.signature_schemes import MailgunSignature
from deliveryd.http.finder import Document, compile_finder
from deliveryd.receipts.request import ReceiptRequest, Unreadable
from deliveryd.receipts.signatures.base import Forged, check_body, check_time, decode, is_any, read_time

MOST_TOKENS = 50_000
"""Remembered tokens: some megabytes."""

_PLACES = {
    name: (compile_finder(f"/signature/{name}"), compile_finder(f"/{name}"))  # JSON, and the older form
    for name in ("timestamp", "token", "signature")
}


class Scheme:
    """The scheme with its options, and the tokens seen."""

    def __init__(self, options: MailgunSignature) -> None:
        self._options = options
        self._seen: OrderedDict[str, bytes] = OrderedDict()

    def read_key(self, secret: str) -> bytes:
        """Return the webhook signing key."""
        return secret.encode()

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], now: int) -> ReceiptRequest:
        """Compare the signature, then check the time and that the token has no other body."""
        check_body(request)
        try:
            document = request.document()
        except Unreadable:
            raise Forged("the body can't be read") from None
        signed_at, token = _value(document, "timestamp"), _value(document, "token")
        signature = decode(_value(document, "signature"), "hex") or b""
        signed = f"{signed_at}{token}".encode()
        if not is_any(signature, [hmac.digest(key, signed, "sha256") for key in keys]):
            raise Forged("the signature doesn't fit")
        check_time(read_time(signed_at), now, self._options.tolerance)
        self._remember(token, hashlib.sha256(request.body).digest())
        return request

    def _remember(self, token: str, body: bytes) -> None:
        if self._seen.setdefault(token, body) != body:
            raise Forged("the token was used for another report")
        while len(self._seen) > MOST_TOKENS:
            self._seen.popitem(last=False)


def _value(document: Document, name: str) -> str:
    for finder in _PLACES[name]:
        if (value := finder.find(document)) is not None:
            return value
    raise Forged(f"there is no {name}")
