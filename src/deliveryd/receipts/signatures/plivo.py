"""`plivo`: a signature over the address and a nonce. Version 3 covers query and form, version 2 neither.

A header may list several signatures: of the account and of its subaccounts.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from typing import Literal
from urllib.parse import urlsplit

from deliveryd.channels.signature_schemes import PlivoSignature
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Forged, decode, is_any

_PREFIX = "x-plivo-signature"
Version = Literal["v2", "v3"]


class Scheme:
    """The scheme with its options."""

    def __init__(self, options: PlivoSignature) -> None:
        self._versions: list[Version] = sorted(options.versions, reverse=True)

    def read_key(self, secret: str) -> bytes:
        """Return the auth token."""
        return secret.encode()

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], _now: int) -> ReceiptRequest:
        """Verify the highest accepted version that the request carries."""
        for version in self._versions:
            given = list(_given(request, version))
            nonce = request.headers.get(f"{_PREFIX}-{version}-nonce")
            if given and nonce:
                signed = _signed(request, version, nonce).encode("utf-8", "surrogateescape")
                expected = [hmac.digest(key, signed, "sha256") for key in keys]
                if not any(is_any(each, expected) for each in given):
                    raise Forged("the signature doesn't fit; it covers receipts.public_url")
                return request
        raise Forged(f"there is no signature of version {' or '.join(self._versions)}")


def _given(request: ReceiptRequest, version: Version) -> Iterable[bytes]:
    for name in (f"{_PREFIX}-{version}", f"{_PREFIX}-ma-{version}"):
        for text in request.headers.get(name, "").split(","):
            if signature := decode(text.strip(), "base64"):
                yield signature


def _signed(request: ReceiptRequest, version: Version, nonce: str) -> str:
    address = urlsplit(request.url)._replace(query="", fragment="").geturl()
    if version == "v2":
        return f"{address}{nonce}"
    if request.body and not request.is_form:
        raise Forged("version 3 doesn't cover a body that is no form")
    try:
        query = "&".join(f"{name}={value}" for name, value in sorted(request.query_pairs()))
        form = "".join(f"{name}{value}" for name, value in sorted(request.form_pairs()))
    except ValueError:
        raise Forged("the query or the form can't be read") from None
    dot = "." if query and form else ""
    mark = "?" if query or form else ""
    return f"{address}{mark}{query}{dot}{form}.{nonce}"
