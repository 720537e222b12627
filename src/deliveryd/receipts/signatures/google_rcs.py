"""`google-rcs`: RCS for Business. An event is the base64 in an envelope, and its hash is in a header."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import (
    Covered,
    Forged,
    NoReport,
    Scheme,
    Verified,
    decode,
    echoed,
    has_hash,
    header,
    is_any,
)


class GoogleRcsScheme(Scheme):
    """The scheme; a key is a client token."""

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], _now: int) -> Covered:
        """Verify the hash of the event; the secret of a handshake with a right token is to be returned."""
        envelope = _envelope(request)
        token, secret = envelope.get("clientToken"), envelope.get("secret")
        if isinstance(token, str) and isinstance(secret, str):
            if not is_any(token.encode("utf-8", "surrogatepass"), keys):
                raise Forged("the client token doesn't fit")
            return Covered(NoReport(echoed(secret)), body=True, query=False)
        event = _event(envelope)
        given = decode(header(request, "X-Goog-Signature"), "base64")
        if given is None or not has_hash([given], keys, event, "sha512"):
            raise Forged("the signature doesn't fit")
        return Covered(request.with_body(event), body=True, query=False)

    def unverified(self, request: ReceiptRequest) -> Verified:
        """Return the event in the envelope. Raises Forged if there is none."""
        return request.with_body(_event(_envelope(request)))


def _envelope(request: ReceiptRequest) -> dict[str, Any]:
    try:
        envelope = json.loads(request.body)
    except (ValueError, RecursionError):
        envelope = None
    if not isinstance(envelope, dict):
        raise Forged("the body is no envelope of RCS for Business")
    return envelope


def _event(envelope: dict[str, Any]) -> bytes:
    message = envelope.get("message")
    data = message.get("data") if isinstance(message, dict) else None
    if not isinstance(data, str):
        raise Forged("there is no event in the envelope")
    try:
        return base64.b64decode(data.encode("ascii"))
    except ValueError:
        raise Forged("the event in the envelope can't be read") from None
