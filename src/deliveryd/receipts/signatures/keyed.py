"""Schemes by keyed hashes of what the provider sends: `hmac`, and those of single providers."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from urllib.parse import urlsplit

from deliveryd.channels.signature_options import SIGNED_PARTS, HmacSignature
from deliveryd.channels.signature_schemes import MailgunSignature, VonageSignature
from deliveryd.http.finder import Document, Finder, compile_finder
from deliveryd.http.json_pointer import value_text
from deliveryd.journal.sql.own_values import SignedToken
from deliveryd.model import SECOND
from deliveryd.receipts.request import ReceiptRequest, Unreadable
from deliveryd.receipts.signatures.base import (
    Covered,
    Forged,
    Scheme,
    check_time,
    decode,
    has_hash,
    header,
    is_any,
)
from deliveryd.receipts.times import read_unix

_SEPARATORS = re.compile(r"[,;\s]+")

Part = Callable[[ReceiptRequest, str], bytes]


class HmacScheme(Scheme):
    """`hmac`: a keyed hash of the raw body, or of a template that contains it."""

    _options: HmacSignature

    def __init__(self, options: HmacSignature) -> None:
        super().__init__(options)
        self._algorithm = options.algorithm.removeprefix("hmac-")
        self._is_plain_body = options.signed == "{body}"
        self.signs_raw_body = "{body}" in options.signed
        self._parts = list(_compiled(options.signed))
        self._at = compile_finder(options.at) if options.at is not None else None
        self._timestamp = compile_finder(options.timestamp) if options.timestamp is not None else None

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], now: int) -> Covered:
        """Compare the signature with the hash under each key."""
        candidates = self._given(request)
        if not candidates:
            options = self._options
            where = options.at if options.header is None else f"the header {options.header}"
            raise Forged(f"there is no usable signature in {where}")
        signed = request.body if self._is_plain_body else self._signed(request, now)
        if not has_hash(candidates, keys, signed, self._algorithm):
            raise Forged("the signature doesn't fit")
        return Covered(request, self.signs_raw_body, self._options.covers_url)

    def _given(self, request: ReceiptRequest) -> list[bytes]:
        """Return the signatures that the request carries: one, or a list of which one must fit."""
        options = self._options
        if options.header is not None:
            text = header(request, options.header)
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
            check_time(read_unix(timestamp), now, self._options.tolerance)
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


_BODY_HASH = b"bodySHA256"
_PORTS = {"https": 443, "http": 80}


class TwilioScheme(Scheme):
    """`twilio`: X-Twilio-Signature, over the address that Twilio called and the sorted form.

    Twilio signs the address sometimes with and sometimes without the standard port, so both are tried. A JSON
    body isn't signed itself: its hash is in the query as `bodySHA256`.
    """

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], _now: int) -> Covered:
        """Compare the signature with the hash of each spelling of the address under each key."""
        given = decode(header(request, "X-Twilio-Signature"), "base64")
        if given is None:
            raise Forged("the signature isn't base64")
        form = _fields(request)
        signed = [url.encode("latin-1") + form for url in _spellings(request.url)]
        if not any(has_hash([given], keys, each, "sha1") for each in signed):
            raise Forged("the signature doesn't fit; it covers receipts.public_url and the form")
        named = dict(request.query_pairs()).get(_BODY_HASH)
        if named is not None and not is_any(
            named.lower(), [hashlib.sha256(request.body).hexdigest().encode()]
        ):
            raise Forged(f"the body doesn't fit {_BODY_HASH.decode()} of the query")
        return Covered(request, request.is_form or named is not None, query=True)


def _spellings(url: str) -> list[str]:
    """Return an address without its port, and with it."""
    parts = urlsplit(url)
    port = parts.port or _PORTS.get(parts.scheme, 0)
    host = parts.netloc.removesuffix(f":{port}")
    return [parts._replace(netloc=netloc).geturl() for netloc in (host, f"{host}:{port}")]


def _fields(request: ReceiptRequest) -> bytes:
    """Return the fields of the form, sorted by name; of a repeated one every value once, sorted."""
    values: defaultdict[bytes, set[bytes]] = defaultdict(set)
    for name, value in request.form_pairs():
        values[name].add(value)
    return b"".join(name + value for name in sorted(values) for value in sorted(values[name]))


_PLIVO_SIGNATURES = ("x-plivo-signature-v3", "x-plivo-signature-ma-v3")
_PLIVO_NONCE = "x-plivo-signature-v3-nonce"
_NONCE = re.compile(r"[A-Za-z0-9_-]+")
"""A nonce: it stands last in what is signed, so one with a dot could hold the form."""


class PlivoScheme(Scheme):
    """`plivo`: Plivo's signature of version 3, over the address with its query, the form and a nonce.

    A header may list several signatures: of the account and of its subaccounts. Version 2 isn't accepted: it
    covers neither query nor body.
    """

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], _now: int) -> Covered:
        """Compare the listed signatures with the hash under each key."""
        nonce = header(request, _PLIVO_NONCE)
        if not _NONCE.fullmatch(nonce):
            raise Forged("the nonce isn't one of Plivo's")
        signed = _with_nonce(request, nonce)
        if not has_hash(_listed(request), keys, signed, "sha256"):
            raise Forged("the signature doesn't fit; it covers receipts.public_url")
        return Covered(request, request.is_form, query=True)


def _listed(request: ReceiptRequest) -> Iterable[bytes]:
    for name in _PLIVO_SIGNATURES:
        for text in request.headers.get(name, "").split(","):
            if signature := decode(text.strip(), "base64"):
                yield signature


def _with_nonce(request: ReceiptRequest, nonce: str) -> bytes:
    address = urlsplit(request.url)._replace(query="", fragment="").geturl().encode("latin-1")
    query = b"&".join(name + b"=" + value for name, value in sorted(request.query_pairs()))
    form = b"".join(name + value for name, value in sorted(request.form_pairs()))
    dot = b"." if query and form else b""
    mark = b"?" if query or form else b""
    return b"".join((address, mark, query, dot, form, b".", nonce.encode()))


_SIG = b"sig"
_ESCAPED = bytes.maketrans(b"&=", b"__")


class VonageScheme(Scheme):
    """`vonage`: `sig` over the sorted parameters of the SMS API; the Messages API signs with `jwt`."""

    _options: VonageSignature

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], now: int) -> Covered:
        """Compare `sig`, in lower or upper case, with the hash of the other parameters under each key."""
        parameters = _parameters(request)
        given = decode(parameters.pop(_SIG, b"").decode("latin-1"), "hex")
        if not given:
            raise Forged("there is no usable sig")
        if self._options.tolerance is not None:
            check_time(
                read_unix(parameters.get(b"timestamp", b"").decode("latin-1")), now, self._options.tolerance
            )
        fields = (b"&%b=%b" % (name, value.translate(_ESCAPED)) for name, value in sorted(parameters.items()))
        signed = b"".join(fields)
        if not is_any(given, [self._hash(key, signed) for key in keys]):
            raise Forged("sig doesn't fit")
        return Covered(request, body=not request.is_empty, query=request.is_empty)

    def _hash(self, key: bytes, signed: bytes) -> bytes:
        if self._options.algorithm == "md5":
            return hashlib.md5(signed + key, usedforsecurity=False).digest()
        return hmac.digest(key, signed, self._options.algorithm.removeprefix("hmac-"))


def _parameters(request: ReceiptRequest) -> dict[bytes, bytes]:
    """Return the parameters of a query, a form or a flat JSON object. Raises Forged."""
    if request.is_empty or request.is_form:
        pairs = request.parameters()
        parameters = dict(pairs)
        if len(parameters) != len(pairs):
            raise Forged("a parameter is given twice")
        return parameters
    report = json.loads(request.body.decode("utf-8-sig"), parse_float=str)
    if not isinstance(report, dict):
        raise Forged("the body isn't an object")
    texts = {name: value_text(value) for name, value in report.items() if value is not None}
    if None in texts.values():
        raise Forged("the body has a list or an object, which sig doesn't cover")
    return {_encoded(name): _encoded(text) for name, text in texts.items() if text is not None}


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_REMEMBERED = 43200.0
"""Seconds for which a used token is kept at least: a reload may raise the tolerance."""

_MAILGUN_PLACES = {
    name: (compile_finder(f"/signature/{name}"), compile_finder(f"/{name}"))  # JSON, and the older form
    for name in ("timestamp", "token", "signature")
}


class MailgunScheme(Scheme):
    """`mailgun`: a signature in the body, over a time and a token.

    It doesn't cover the rest of the body. So a token counts for one body only: the same report may come
    again, another one under the same token is forged. The journal keeps the tokens until their times are too
    old, and for half a day at least.
    """

    _options: MailgunSignature

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], now: int) -> Covered:
        """Compare the signature, then check the time; the token of what is returned may have been used."""
        document = request.document()
        signed_at, token = _mailgun_value(document, "timestamp"), _mailgun_value(document, "token")
        signature = decode(_mailgun_value(document, "signature"), "hex") or b""
        signed = f"{signed_at}{token}".encode()
        if not has_hash([signature], keys, signed, "sha256"):
            raise Forged("the signature doesn't fit")
        at = read_unix(signed_at)
        check_time(at, now, self._options.tolerance)
        until = at + int(max(self._options.tolerance, _REMEMBERED) * SECOND)
        used = SignedToken(_digest(signed), _digest(request.body), until)
        return Covered(request.with_token(used), body=True, query=False)


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def _mailgun_value(document: Document, name: str) -> str:
    for finder in _MAILGUN_PLACES[name]:
        if (value := finder.find(document)) is not None:
            return value
    raise Forged(f"there is no {name}")
