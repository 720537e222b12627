"""`sns`: Amazon SNS. The message names the certificate that its signature fits, on Amazon's own hosts only.

Certificates are fetched once and remembered, and only for a message that could be genuine. A genuine
signature only shows that Amazon sent the message: whose topic it may be is in `topics`. With a secret, the
certificate of a stand-in for Amazon, only what that one signed is genuine, and nothing is fetched.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA1, SHA256, HashAlgorithm
from cryptography.x509 import Certificate

from deliveryd.channels.signature_schemes import SnsSignature
from deliveryd.model import parse_instant
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures import amazon
from deliveryd.receipts.signatures.base import (
    CertificateMissing,
    Covered,
    Forged,
    NoReport,
    Scheme,
    Subscription,
    Untrusted,
    Verified,
    check_time,
    decode,
)

_CERTIFICATE = re.compile(
    rf"https://(?P<host>{amazon.HOST})/SimpleNotificationService-[A-Za-z0-9]{{1,64}}\.pem"
)
_PEM_LINES = re.compile("-----(?:BEGIN|END) CERTIFICATE-----")
_SUBSCRIBE = re.compile(rf"https://{amazon.HOST}/\?[!-~]{{1,2000}}")
_NOTIFICATION = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_CONFIRMATION = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
_SIGNED = {
    "Notification": _NOTIFICATION,
    "SubscriptionConfirmation": _CONFIRMATION,
    "UnsubscribeConfirmation": _CONFIRMATION,
}
_MOST_CERTIFICATES = 16
"""Those that are kept though no message was genuine by them; an issuer's is one of them."""


class SnsScheme(Scheme):
    """The scheme with its options, and the certificates fetched so far."""

    _options: SnsSignature

    def __init__(self, options: SnsSignature) -> None:
        super().__init__(options)
        self._certificates: dict[str, Sequence[Certificate]] = {}
        self._trusted: dict[str, amazon.TrustedKey] = {}
        self._proven: set[str] = set()
        self._roots: Sequence[Certificate] | None = None

    def learn(self, url: str, page: bytes) -> None:
        """Remember the certificates at an address, if they can be read.

        Anybody can name addresses of certificates, so those of which a message was genuine stay.
        """
        try:
            found = amazon.read_certificates(page)
        except Untrusted:
            return
        if len(self._certificates) - len(self._proven) >= _MOST_CERTIFICATES:
            for unproven in self._certificates.keys() - self._proven:
                del self._certificates[unproven]
                self._trusted.pop(unproven, None)
        self._certificates[url] = found

    def trust(self, url: str, page: bytes) -> None:
        """Take a certificate for the one at an address, without a look at who issued it, as a trial does.

        Raises Untrusted if it can't be read.
        """
        self._trusted[url] = amazon.as_given(page)

    def read_key(self, secret: str) -> RSAPublicKey:
        """Return the key of a stand-in's certificate. Raises ValueError."""
        try:
            return amazon.as_given(base64.b64decode(_PEM_LINES.sub("", secret), validate=True)).key
        except (ValueError, Untrusted):
            raise ValueError("must be a certificate in PEM with an RSA key") from None

    def verify(self, request: ReceiptRequest, keys: Sequence[RSAPublicKey], now: int) -> Covered:
        """Verify the envelope, and return the request with the message in it."""
        envelope = _envelope(request.body)
        kind, url = _text(envelope, "Type"), _text(envelope, "SigningCertURL")
        if envelope.get("TopicArn") not in self._options.topics:
            raise Forged("the topic isn't among topics")
        if kind not in _SIGNED:
            raise Forged("the message has an unknown type")
        address = _CERTIFICATE.fullmatch(url)
        if address is None and not keys:
            raise Forged("the certificate isn't on a host of Amazon SNS")
        _check_readable(envelope, kind)
        check_time(parse_instant(_text(envelope, "Timestamp")), now, self._options.tolerance)
        if address is None or keys:
            _check(keys, envelope, kind)
        else:
            _check([self._key(url, address["host"], now)], envelope, kind)
            self._proven.add(url)
        return Covered(_content(request, envelope, kind), body=True, query=False)

    def unverified(self, request: ReceiptRequest) -> Verified:
        """Return what an envelope holds. Raises Forged if there is none."""
        envelope = _envelope(request.body)
        return _content(request, envelope, _text(envelope, "Type"))

    def _key(self, url: str, host: str, now: int) -> RSAPublicKey:
        """Return the key at an address. Raises Untrusted, CertificateMissing."""
        trusted = self._trusted.get(url)
        if trusted is None or not trusted.begins <= now <= trusted.ends:
            trusted = self._trusted[url] = self._examined(url, host, now)
        return trusted.key

    def _examined(self, url: str, host: str, now: int) -> amazon.TrustedKey:
        """Examine the certificate alone, then its chain. Raises Untrusted, CertificateMissing.

        If the chain is wrong then, so is the issuer's: it came without TLS, and is to be fetched again.
        """
        chain = self._found(url)
        issuer = amazon.issuer_address(chain[0]) if len(chain) == 1 else None
        if self._roots is None:
            self._roots = amazon.trusted_roots()
        try:
            if issuer is None:
                return amazon.trust(host, chain, self._roots, now)
            amazon.trust(host, chain, chain, now)
        except Untrusted:
            del self._certificates[url]
            self._proven.discard(url)
            raise
        try:
            return amazon.trust(host, [*chain, *self._found(issuer)], self._roots, now)
        except Untrusted:
            del self._certificates[issuer]
            raise self._missing(issuer) from None

    def _found(self, url: str) -> Sequence[Certificate]:
        """Return the certificates at an address. Raises CertificateMissing."""
        if url not in self._certificates:
            raise self._missing(url)
        return self._certificates[url]

    def _missing(self, url: str) -> CertificateMissing:
        return CertificateMissing(
            url,
            partial(self.learn, url),
            lambda: url not in self._certificates,
            partial(self.trust, url),
        )


def _check(keys: Sequence[RSAPublicKey], envelope: dict[str, Any], kind: str) -> None:
    """Raise Forged unless one of the keys signed the envelope."""
    version = _text(envelope, "SignatureVersion")
    hashes: dict[str, HashAlgorithm] = {"1": SHA1(), "2": SHA256()}  # noqa: S303  # Amazon's default
    signature = decode(_text(envelope, "Signature"), "base64")
    if version not in hashes or signature is None:
        raise Forged("the signature can't be read")
    for key in keys:
        with suppress(InvalidSignature):
            key.verify(signature, _signed(envelope, kind), PKCS1v15(), hashes[version])
            return
    raise Forged("the signature doesn't fit")


def _envelope(body: bytes) -> dict[str, Any]:
    try:
        envelope = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        envelope = None
    if not isinstance(envelope, dict):
        raise Forged("the body is no message of Amazon SNS")
    return envelope


def _text(envelope: dict[str, Any], name: str) -> str:
    value = envelope.get(name)
    if not isinstance(value, str):
        raise Forged(f"there is no {name}")
    return value


def _signed(envelope: dict[str, Any], kind: str) -> bytes:
    lines = [(name, _text(envelope, name)) for name in _SIGNED[kind] if envelope.get(name) is not None]
    return "".join(f"{name}\n{value}\n" for name, value in lines).encode("utf-8", "surrogatepass")


def _check_readable(envelope: dict[str, Any], kind: str) -> None:
    """Raise Forged for what no certificate would make genuine, before one is fetched."""
    _signed(envelope, kind)
    signature = decode(_text(envelope, "Signature"), "base64")
    if _text(envelope, "SignatureVersion") not in ("1", "2") or not signature:
        raise Forged("the signature can't be read")


def _content(request: ReceiptRequest, envelope: dict[str, Any], kind: str) -> Verified:
    if kind == "SubscriptionConfirmation":
        url = _text(envelope, "SubscribeURL")
        if not _SUBSCRIBE.fullmatch(url):
            raise Forged("SubscribeURL isn't on a host of Amazon SNS")
        return Subscription(url)
    message = _text(envelope, "Message")
    if kind == "UnsubscribeConfirmation" or not message.lstrip().startswith("{"):
        return NoReport()  # such as Amazon's greeting to a new topic
    return request.with_body(message.encode("utf-8", "surrogatepass"))
