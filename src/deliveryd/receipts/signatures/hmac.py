"""`hmac`: a keyed hash of the raw body, or of a template that contains it."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterator, Sequence

from deliveryd.channels.signature_options import SIGNED_PARTS, HmacSignature
from deliveryd.http.finder import Document, Finder, compile_finder
from deliveryd.receipts.request import ReceiptRequest, Unreadable
from deliveryd.receipts.signatures.base import (
    Covered,
    Forged,
    check_time,
    decode,
    header,
    is_any,
    read_time,
)

_SEPARATORS = re.compile(r"[,;\s]+")

Part = Callable[[ReceiptRequest, str], bytes]


class Scheme:
    """The scheme with its options."""

    def __init__(self, options: HmacSignature) -> None:
        self._options = options
        self._algorithm = options.algorithm.removeprefix("hmac-")
        self._is_plain_body = options.signed == "{body}"
        self._has_body = "{body}" in options.signed
        self._parts = list(_compiled(options.signed))
        self._at = compile_finder(options.at) if options.at is not None else None
        self._timestamp = compile_finder(options.timestamp) if options.timestamp is not None else None

    def read_key(self, secret: str) -> bytes:
        """Return the secret's text as UTF-8."""
        return secret.encode()

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], now: int) -> Covered:
        """Compare the signature with the hash under each key."""
        candidates = self._given(request)
        if not candidates:
            raise Forged("there is no usable signature")
        signed = request.body if self._is_plain_body else self._signed(request, now)
        expected = [hmac.digest(key, signed, self._algorithm) for key in keys]
        if not any(is_any(candidate, expected) for candidate in candidates):
            raise Forged("the signature doesn't fit")
        return Covered(request, self._has_body, self._options.covers_url)

    def _given(self, request: ReceiptRequest) -> list[bytes]:
        """Return the signatures that the request carries: one, or a list of which one must fit."""
        options = self._options
        if options.header is not None:
            text = request.headers.get(options.header.lower(), "")
        else:
            text = self._value(request, self._at) or ""
        whole = self._decoded(text)
        if whole is not None:
            return [whole]
        found = (self._decoded(part) for part in _SEPARATORS.split(text))
        return [each for each in found if each is not None]

    def _decoded(self, text: str) -> bytes | None:
        prefix = self._options.prefix
        if not text.startswith(prefix):
            return None
        return decode(text.removeprefix(prefix).strip(), self._options.encoding) or None

    def _signed(self, request: ReceiptRequest, now: int) -> bytes:
        timestamp = ""
        if self._timestamp is not None:
            timestamp = self._value(request, self._timestamp) or ""
            check_time(read_time(timestamp), now, self._options.tolerance)
        return b"".join(part(request, timestamp) for part in self._parts)

    def _value(self, request: ReceiptRequest, finder: Finder | None) -> str | None:
        try:
            return finder.find(request.document()) if finder is not None else None
        except Unreadable:
            return finder.find(Document(b"", request.headers)) if finder is not None else None


def _compiled(template: str) -> Iterator[Part]:
    """Split a template into what gives the bytes of each part of it."""
    position = 0
    for found in SIGNED_PARTS.finditer(template):
        if literal := template[position : found.start()]:
            yield _literal(literal.encode())
        yield _part(found[1])
        position = found.end()
    if rest := template[position:]:
        yield _literal(rest.encode())


def _literal(text: bytes) -> Part:
    return lambda _request, _timestamp: text


def _part(name: str) -> Part:
    if name.startswith("header:"):
        return lambda request, _timestamp: header(request, name.removeprefix("header:")).encode("latin-1")
    return {
        "body": lambda request, _timestamp: request.body,
        "url": lambda request, _timestamp: request.url.encode("latin-1"),
        "method": lambda request, _timestamp: request.method.encode(),
        "timestamp": lambda _request, timestamp: timestamp.encode(),
    }[name]
