"""`basic`: user name and password (RFC 7617), as in an address `https://user:password@…`."""

from __future__ import annotations

from collections.abc import Sequence

from deliveryd.channels.signature_schemes import BasicSignature
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Covered, Forged, check_length, decode, header, is_any

_BASIC = "basic "


class Scheme:
    """The scheme with its options."""

    def __init__(self, options: BasicSignature) -> None:
        self._username = options.username

    def read_key(self, secret: str) -> bytes:
        """Return the login with this password. Raises ValueError."""
        return f"{self._username}:{check_length(secret)}".encode()

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], _now: int) -> Covered:
        """Compare the login."""
        value = header(request, "Authorization")
        login = decode(value[len(_BASIC) :].strip(), "base64") if value.lower().startswith(_BASIC) else None
        if login is None or not is_any(login, keys):
            raise Forged("user name or password are wrong")
        return Covered(request, body=True, query=True)
