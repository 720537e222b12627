"""`ecdsa`: ECDSA with SHA-256 over the time of signing and the raw body, as SendGrid signs (cryptography)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from deliveryd.channels.signature_schemes import EcdsaSignature
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Covered, Forged, Scheme, check_time, decode, header
from deliveryd.receipts.times import read_unix


class EcdsaScheme(Scheme):
    """The scheme with its options."""

    signs_raw_body = True
    _options: EcdsaSignature

    def read_key(self, secret: str) -> EllipticCurvePublicKey:
        """Return the public key from base64 of its DER, as the provider shows it."""
        try:
            key = load_der_public_key(base64.b64decode(secret, validate=True))
        except (ValueError, binascii.Error, UnsupportedAlgorithm):
            raise ValueError("the public key isn't base64 of a DER key") from None
        if not isinstance(key, EllipticCurvePublicKey):
            raise ValueError("the public key isn't one of an elliptic curve")  # noqa: TRY004  # of a file
        return key

    def verify(self, request: ReceiptRequest, keys: Sequence[EllipticCurvePublicKey], now: int) -> Covered:
        """Verify the signature with each public key."""
        signature = decode(header(request, self._options.header), "base64")
        signed_at = header(request, self._options.timestamp_header)
        check_time(read_unix(signed_at), now, self._options.tolerance)
        signed = signed_at.encode("latin-1") + request.body
        if signature is None or not any(_fits(key, signature, signed) for key in keys):
            raise Forged("the signature doesn't fit")
        return Covered(request, body=True, query=False)


def _fits(key: EllipticCurvePublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        key.verify(signature, signed, ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True
