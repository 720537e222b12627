"""Signs requests by Standard Webhooks, so that the receiver knows where they are from."""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence

from deliveryd.channels.base import Dispatch
from deliveryd.http.client import raw_header
from deliveryd.http.wire import Header
from deliveryd.model import SECOND

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
