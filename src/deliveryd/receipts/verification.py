"""Opens the scheme that a provider signs with, and verifies its requests with the secrets that are valid."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from deliveryd.channels.signature_options import Signature
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Forged, Scheme, Verified
from deliveryd.runtime.secret_file import RenewedValue

_SCHEMES = {
    "hmac": ("keyed", "HmacScheme"),
    "twilio": ("keyed", "TwilioScheme"),
    "plivo": ("keyed", "PlivoScheme"),
    "vonage": ("keyed", "VonageScheme"),
    "mailgun": ("keyed", "MailgunScheme"),
    "basic": ("plain", "BasicScheme"),
    "token": ("plain", "TokenScheme"),
    "jwt": ("jwt", "JwtScheme"),
    "ecdsa": ("ecdsa", "EcdsaScheme"),
    "standard-webhooks": ("standard_webhooks", "StandardWebhooksScheme"),
    "sns": ("sns", "SnsScheme"),
    "event-grid": ("event_grid", "EventGridScheme"),
    "google-rcs": ("google_rcs", "GoogleRcsScheme"),
}
"""The module of each scheme, and its class there."""


class Verifier:
    """One scheme and its keys, which are renewed with the files of the secrets."""

    def __init__(self, scheme: Scheme, keys: RenewedValue[list[Any]]) -> None:
        self.scheme = scheme
        self._keys = keys

    def verify(self, request: ReceiptRequest, now: int) -> Verified:
        """Return what a genuine request holds. Raises Forged, CertificateMissing.

        Before a request counts as forged, the files are looked at: its secret may have come this instant.
        """
        keys = self._keys.current()
        try:
            return signed_content(self.scheme, request, keys, now)
        except Forged:
            latest = self._keys.latest()
            if latest is keys:
                raise
        return signed_content(self.scheme, request, latest, now)


def signed_content(scheme: Scheme, request: ReceiptRequest, keys: Sequence[Any], now: int) -> Verified:
    """Return what a genuine request holds. Raises Forged, CertificateMissing.

    A report is read from the body, or without one from the query: the signature has to cover that. A good
    signature of something else would vouch for any report beside it.
    """
    try:
        covered = scheme.verify(request, keys, now)
    except (ValueError, RecursionError):
        raise Forged("what is signed can't be read") from None
    if not request.is_empty and not covered.body:
        raise Forged("the signature doesn't cover the body")
    if request.is_empty and not covered.query:
        raise Forged("there is no body, and the signature covers nothing else")
    return covered.content


def open_scheme(options: Signature) -> Scheme:
    """Load the module of a scheme."""
    module, name = _SCHEMES[getattr(options, "scheme", "")]
    scheme: Scheme = getattr(import_module(f"deliveryd.receipts.signatures.{module}"), name)(options)
    return scheme


def open_verifier(options: Signature) -> Verifier:
    """Read the keys, now and whenever their files are replaced. Raises ValueError."""
    scheme = open_scheme(options)
    paths = [secret.path for secret in options.secret_file]

    def keys() -> list[Any]:
        return [_key(scheme, path, secret) for path, secret in zip(paths, options.secrets(), strict=True)]

    return Verifier(scheme, RenewedValue(paths, keys))


def _key(scheme: Scheme, path: Path, secret: str) -> Any:
    try:
        return scheme.read_key(secret)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
