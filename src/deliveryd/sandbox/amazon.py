"""Stands in for Amazon SNS: envelopes signed by a certificate of the sandbox's own."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from functools import cache
from uuid import uuid4

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import (
    RSAPrivateKey,
    RSAPrivateNumbers,
    RSAPublicNumbers,
    rsa_crt_dmp1,
    rsa_crt_dmq1,
    rsa_crt_iqmp,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

_EXPONENT = 65537
_PRIME_BITS = 1024
_BEGINS, _ENDS = datetime(2020, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)
_SIGNED = ("Message", "MessageId", "Timestamp", "TopicArn", "Type")


def envelope(topic: str, message: bytes, secret: str, at: datetime) -> bytes:
    """Return a notification of a topic, signed by the key that a secret stands for."""
    fields = {
        "Type": "Notification",
        "MessageId": str(uuid4()),
        "TopicArn": topic,
        "Message": message.decode(),
        "Timestamp": f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z",
        "SignatureVersion": "2",
        "SigningCertURL": "https://sandbox.invalid/certificate.pem",
    }
    signed = "".join(f"{name}\n{fields[name]}\n" for name in _SIGNED)
    made = _private_key(secret).sign(signed.encode(), PKCS1v15(), SHA256())
    return json.dumps({**fields, "Signature": base64.b64encode(made).decode()}).encode()


@cache
def certificate(secret: str) -> str:
    """Return the certificate of that key, in PEM."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "deliveryd sandbox")])
    key = _private_key(secret)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(_BEGINS).not_valid_after(_ENDS)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM).decode()


@cache
def _private_key(secret: str) -> RSAPrivateKey:
    """Return the same key for the same secret, so that a folder's files fit after a restart."""
    p, q = (_prime(f"{name} {secret}".encode()) for name in "pq")
    d = pow(_EXPONENT, -1, (p - 1) * (q - 1))
    public = RSAPublicNumbers(_EXPONENT, p * q)
    return RSAPrivateNumbers(
        p, q, d, rsa_crt_dmp1(d, p), rsa_crt_dmq1(d, q), rsa_crt_iqmp(p, q), public
    ).private_key()


def _prime(seed: bytes) -> int:
    """Return the first number from where the seed leads that passes Fermat's test."""
    number = int.from_bytes(hashlib.shake_256(seed).digest(_PRIME_BITS // 8)) | 3 << _PRIME_BITS - 2 | 1
    while pow(2, number - 1, number) != 1:
        number += 2
    return number
