"""The certificates that Amazon SNS signs with: which are trusted, for which host, and until when.

The file at an address holds one certificate, without the one that issued it. That has an address of its own,
named in the first, where it is fetched from without TLS: a wrong one fits neither the first nor a root.
"""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.x509 import (
    AuthorityInformationAccess,
    Certificate,
    DNSName,
    ExtensionNotFound,
    UniformResourceIdentifier,
    load_der_x509_certificate,
    load_pem_x509_certificates,
)
from cryptography.x509.oid import AuthorityInformationAccessOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from deliveryd.receipts.signatures.base import Untrusted

REGION = r"[a-z]{2}(?:-[a-z]{2,12}){1,3}-[0-9]{1,2}"
HOST = rf"sns\.(?P<region>{REGION})\.amazonaws\.com(?P<china>\.cn)?"
_HOST = re.compile(HOST)
_ISSUER = re.compile(r"http://crt\.[a-z0-9]{1,20}\.amazontrust\.com/[a-z0-9]{1,20}\.cer")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # the library's times are UTC without a zone


class TrustedKey(NamedTuple):
    """A key that SNS signs with, and the instants in between which all certificates of its chain count."""

    key: RSAPublicKey
    begins: int
    ends: int


def read_certificates(page: bytes) -> Sequence[Certificate]:
    """Return the certificates of a file, as PEM or one as DER. Raises Untrusted."""
    try:
        return load_pem_x509_certificates(page) if b"-----" in page else [load_der_x509_certificate(page)]
    except ValueError:
        raise Untrusted("the certificate of the signature can't be read") from None


def issuer_address(certificate: Certificate) -> str | None:
    """Return where the certificate of the issuer is, on Amazon's host for them; None: nowhere."""
    try:
        access = certificate.extensions.get_extension_for_class(AuthorityInformationAccess).value
    except (ExtensionNotFound, ValueError):
        return None
    for each in access:
        if each.access_method == AuthorityInformationAccessOID.CA_ISSUERS and isinstance(
            each.access_location, UniformResourceIdentifier
        ):
            address = each.access_location.value
            return address if _ISSUER.fullmatch(address) else None
    return None


def trust(host: str, chain: Sequence[Certificate], roots: Sequence[Certificate], now: int) -> TrustedKey:
    """Return the key of a chain's first certificate. Raises Untrusted unless it is SNS's at this host."""
    policy = PolicyBuilder().store(Store(list(roots))).time(_EPOCH + timedelta(microseconds=now))
    reason = "it is for another name"
    for name in _names(host):
        try:
            path = policy.build_server_verifier(DNSName(name)).verify(chain[0], list(chain[1:]))
        except VerificationError as error:
            reason = str(error)
            continue
        key = _key(chain[0])
        begins = max(each.not_valid_before_utc.timestamp() for each in path)
        ends = min(each.not_valid_after_utc.timestamp() for each in path)
        return TrustedKey(key, int(begins * 1_000_000), int(ends * 1_000_000))
    raise Untrusted(f"the certificate of the signature isn't trusted: {reason[:200]}")


def as_given(page: bytes) -> TrustedKey:
    """Return the key of a certificate that another certificate vouches for: at any time, whoever issued it.

    Raises Untrusted if it can't be read.
    """
    return TrustedKey(_key(read_certificates(page)[0]), 0, sys.maxsize)


def _key(certificate: Certificate) -> RSAPublicKey:
    key = certificate.public_key()
    if not isinstance(key, RSAPublicKey):
        raise Untrusted("the certificate of the signature has no RSA key")
    return key


def _names(host: str) -> Iterator[str]:
    """Yield the names that SNS's certificates have: one for all old regions, or the region's own."""
    found = _HOST.fullmatch(host)
    if found is None:
        return
    region, china = found["region"], found["china"] or ""
    if not china and not region.startswith("us-gov-"):
        yield "sns.amazonaws.com"
    yield f"sns-signing.{region}.amazonaws.com{china}"
    yield host
    yield f"sns-{region}.amazonaws.com{china}"
    if region.startswith("us-gov-"):
        yield "sns-us-gov-west-1.amazonaws.com"


def trusted_roots() -> Sequence[Certificate]:
    """Return the authorities that the system trusts."""
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    folder = ssl.get_default_verify_paths().capath
    if not found and folder is not None:  # a folder is read only while a connection is made
        files = sorted(Path(folder).glob("*.0"))
        found = [ssl.PEM_cert_to_DER_cert(file.read_text("ascii")) for file in files]
    return list(_readable(found))


def _readable(found: Sequence[bytes]) -> Iterator[Certificate]:
    for each in found:
        try:
            yield load_der_x509_certificate(each)
        except ValueError:
            continue
