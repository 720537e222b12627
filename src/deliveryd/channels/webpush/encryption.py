"""Encrypts a message for one subscription of a browser: aes128gcm with its keys (RFC 8291, RFC 8188)."""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64decode
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDH,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from deliveryd.channels.mapping import Unfit

RECORD_SIZE = 4096
"""Bytes of the one record, which a push service needn't exceed (RFC 8291, 4)."""

MOST_BYTES = RECORD_SIZE - 86 - 17
"""Bytes of a message: beside them are the header, the end of the record, and the tag."""

_AUTH_BYTES = 16
_SALT_BYTES = 16
_END = b"\x02"  # of the last record


class PushSubscription(NamedTuple):
    """What a browser gave the issuer: where its messages go, and its keys."""

    endpoint: str
    key: bytes
    auth: bytes


def read_subscription(text: str) -> PushSubscription:
    """Read a subscription as `PushSubscription.toJSON` writes it. Raises Unfit, without its values."""
    try:
        given = json.loads(text)
        keys = given["keys"]
        key, auth = unpadded(keys["p256dh"]), unpadded(keys["auth"])
        browser_key(key)
    except (AttributeError, ValueError, TypeError, KeyError, RecursionError):
        raise Unfit("the subscription isn't one that a browser makes") from None
    endpoint = given.get("endpoint")
    if not isinstance(endpoint, str) or len(auth) != _AUTH_BYTES:
        raise Unfit("the subscription isn't one that a browser makes")
    return PushSubscription(endpoint, key, auth)


def unpadded(text: str) -> bytes:
    """Decode base64url, whether it is padded or not. Raises ValueError, TypeError."""
    return urlsafe_b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4))


def browser_key(point: bytes) -> EllipticCurvePublicKey:
    """Read an uncompressed point of P-256. Raises ValueError."""
    return EllipticCurvePublicKey.from_encoded_point(SECP256R1(), point)


def encrypted(
    message: bytes,
    to: PushSubscription,
    key: EllipticCurvePrivateKey | None = None,
    salt: bytes | None = None,
) -> bytes:
    """Encrypt a message, with a key and a salt that are used once. Raises Unfit if it is too large."""
    if len(message) > MOST_BYTES:
        raise Unfit(f"the message has {len(message)} bytes; a push service takes {MOST_BYTES}")
    key, salt = key or generate_private_key(SECP256R1()), salt or os.urandom(_SALT_BYTES)
    own = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    shared = key.exchange(ECDH(), browser_key(to.key))
    input_key = _derived(shared, to.auth, b"WebPush: info\x00" + to.key + own, 32)
    content_key = _derived(input_key, salt, b"Content-Encoding: aes128gcm\x00", 16)
    nonce = _derived(input_key, salt, b"Content-Encoding: nonce\x00", 12)
    header = salt + RECORD_SIZE.to_bytes(4, "big") + bytes([len(own)]) + own
    return header + AESGCM(content_key).encrypt(nonce, message + _END, None)


def _derived(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt, info).derive(secret)
