"""`token`: a secret in the path, the query or a header of each request."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from deliveryd.channels.signature_schemes import TokenSignature
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Covered, Forged, check_length, header, is_any


class Scheme:
    """The scheme with its options."""

    def __init__(self, options: TokenSignature) -> None:
        self._kind, _, self._name = options.at.partition(":")
        self._prefix = options.prefix

    def read_key(self, secret: str) -> bytes:
        """Return the secret with the text before it. Raises ValueError."""
        return f"{self._prefix}{check_length(secret)}".encode()

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], _now: int) -> Covered:
        """Compare what stands in the token's place."""
        if not is_any(self._given(request), keys):
            raise Forged("the token is missing or wrong")
        return Covered(request, body=True, query=True)

    def _given(self, request: ReceiptRequest) -> bytes:
        if self._kind == "path":
            return unquote_to_bytes(request.path.rstrip("/").rpartition("/")[2])
        if self._kind == "header":
            return header(request, self._name).encode("latin-1")
        try:
            return dict(request.query_pairs()).get(self._name.encode(), b"")
        except ValueError:
            raise Forged("the query can't be read") from None
