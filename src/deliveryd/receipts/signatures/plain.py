"""Schemes by which a request carries the secret itself: `basic` and `token`."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from deliveryd.channels.signature_schemes import BasicSignature, TokenSignature
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Covered, Forged, Scheme, decode, header, is_any

_BASIC = "basic "


class BasicScheme(Scheme):
    """User name and password (RFC 7617), as in an address `https://user:password@…`."""

    _options: BasicSignature

    def read_key(self, secret: str) -> bytes:
        """Return the login with this password."""
        return f"{self._options.username}:{secret}".encode()

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], _now: int) -> Covered:
        """Compare the login."""
        value = header(request, "Authorization")
        login = decode(value[len(_BASIC) :].strip(), "base64") if value.lower().startswith(_BASIC) else None
        if login is None or not is_any(login, keys):
            raise Forged("user name or password are wrong")
        return Covered(request, body=True, query=True)


class TokenScheme(Scheme):
    """A secret in the path, the query or a header of each request."""

    _options: TokenSignature

    def read_key(self, secret: str) -> bytes:
        """Return the secret with the text before it."""
        return f"{self._options.prefix}{secret}".encode()

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], _now: int) -> Covered:
        """Compare what stands in the token's place."""
        if not is_any(self._given(request), keys):
            raise Forged("the token is missing or wrong")
        return Covered(request, body=True, query=True)

    def _given(self, request: ReceiptRequest) -> bytes:
        kind, _, name = self._options.at.partition(":")
        if kind == "path":
            return unquote_to_bytes(request.path.rstrip("/").rpartition("/")[2])
        if kind == "header":
            return header(request, name).encode("latin-1")
        return dict(request.query_pairs()).get(name.encode(), b"")
