"""`plivo`: Plivo's signature of version 3, over the address with its query, the form and a nonce.

A header may list several signatures: of the account and of its subaccounts. Version 2 isn't accepted: it
covers neither query nor body.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from deliveryd.channels.signature_schemes import PlivoSignature
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Covered, Forged, decode, header, is_any

_SIGNATURES = ("x-plivo-signature-v3", "x-plivo-signature-ma-v3")
_NONCE = "x-plivo-signature-v3-nonce"
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
"""A nonce: it stands last in what is signed, so one with a dot could hold the form."""


class Scheme:
    """The scheme; it has no options."""

    def __init__(self, _options: PlivoSignature) -> None:
        pass

    def read_key(self, secret: str) -> bytes:
        """Return the auth token."""
        return secret.encode()

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], _now: int) -> Covered:
        """Compare the listed signatures with the hash under each key."""
        nonce = header(request, _NONCE)
        if not _PLAIN.fullmatch(nonce):
            raise Forged("the nonce isn't one of Plivo's")
        signed = _signed(request, nonce)
        expected = [hmac.digest(key, signed, "sha256") for key in keys]
        if not any(is_any(each, expected) for each in _given(request)):
            raise Forged("the signature doesn't fit; it covers receipts.public_url")
        return Covered(request, request.is_form, query=True)


def _given(request: ReceiptRequest) -> Iterable[bytes]:
    for name in _SIGNATURES:
        for text in request.headers.get(name, "").split(","):
            if signature := decode(text.strip(), "base64"):
                yield signature


def _signed(request: ReceiptRequest, nonce: str) -> bytes:
    address = urlsplit(request.url)._replace(query="", fragment="").geturl().encode("latin-1")
    try:
        query = b"&".join(name + b"=" + value for name, value in sorted(request.query_pairs()))
        form = b"".join(name + value for name, value in sorted(request.form_pairs()))
    except ValueError:
        raise Forged("the query or the form can't be read") from None
    dot = b"." if query and form else b""
    mark = b"?" if query or form else b""
    return b"".join((address, mark, query, dot, form, b".", nonce.encode()))
