"""`standard-webhooks`: Standard Webhooks, also with the names of Svix (library standardwebhooks).

The library makes what a signature must be; the time is checked here, by the worker's clock. Public keys
(`whpk_`) are Ed25519.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from standardwebhooks import Webhook
from standardwebhooks.webhooks import EmptyWebhookSecretError

from deliveryd.channels.signature_schemes import StandardWebhooksSignature
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import (
    Covered,
    Forged,
    Scheme,
    check_time,
    decode,
    header,
    is_any,
)
from deliveryd.receipts.times import read_unix

_PUBLIC = "whpk_"
_SECONDS = re.compile(r"[0-9]{1,12}")
_MOST_LISTED = 10
"""Listed signatures: a provider has one for each of its keys."""

Check = Callable[[Sequence[str], str, str, str], bool]
"""Whether one of the listed signatures, such as "v1,…", fits an id, a time and a body."""


class StandardWebhooksScheme(Scheme):
    """The scheme with its options."""

    signs_raw_body = True
    _options: StandardWebhooksSignature

    def read_key(self, secret: str) -> Check:
        """Return a check with a secret (`whsec_`) or a public key (`whpk_`)."""
        try:
            return _by_public_key(secret) if secret.startswith(_PUBLIC) else _by_secret(secret)
        except (ValueError, binascii.Error, EmptyWebhookSecretError):
            raise ValueError("the secret isn't base64 after whsec_ or whpk_") from None

    def verify(self, request: ReceiptRequest, keys: Sequence[Check], now: int) -> Covered:
        """Verify the listed signatures; one that fits is enough."""
        prefix = self._options.prefix
        id_, at = header(request, f"{prefix}id"), header(request, f"{prefix}timestamp")
        if not _SECONDS.fullmatch(at):
            raise Forged("the time of signing is unreadable")
        check_time(read_unix(at), now, self._options.tolerance)
        listed = header(request, f"{prefix}signature").split()
        if len(listed) > _MOST_LISTED:
            raise Forged(f"more than {_MOST_LISTED} signatures are listed")
        body = request.body.decode()
        fits = [check(listed, id_, at, body) for check in keys]
        if not any(fits):
            raise Forged("no listed signature fits")
        return Covered(request, body=True, query=False)


def _by_secret(secret: str) -> Check:
    webhook = Webhook(secret)

    def check(listed: Sequence[str], id_: str, at: str, body: str) -> bool:
        expected = webhook.sign(id_, datetime.fromtimestamp(int(at), UTC), body).encode()
        return is_any(expected, [entry.encode("latin-1") for entry in listed])

    return check


def _by_public_key(secret: str) -> Check:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415  # only for public keys
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(secret.removeprefix(_PUBLIC), validate=True))

    def check(listed: Sequence[str], id_: str, at: str, body: str) -> bool:
        signed = f"{id_}.{at}.{body}".encode()
        return any(fits(entry, signed) for entry in listed)

    def fits(entry: str, signed: bytes) -> bool:
        version, _, text = entry.partition(",")
        signature = decode(text, "base64")
        if version != "v1a" or signature is None:
            return False
        try:
            key.verify(signature, signed)
        except InvalidSignature:
            return False
        return True

    return check
