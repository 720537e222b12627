"""Keys that providers issue: service accounts of Google, keys of AWS, Azure and Apple, one for Web Push."""

from __future__ import annotations

import json
from functools import cache

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from deliveryd.sandbox.impersonation import public_key


@cache
def service_account() -> str:
    """The key of an account that exists nowhere, as JSON."""
    key = rsa.generate_private_key(65537, 2048)
    named = {
        "type": "service_account",
        "client_email": "a@example.com",
        "private_key_id": "1",
        "private_key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        "token_uri": "https://oauth2.googleapis.com/token",
    }
    return json.dumps(named)


@cache
def p256_key() -> str:
    """A key on P-256, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def issued(name: str) -> str | None:
    """What a secret's file of this name holds in the documents, if it has a form."""
    match name:
        case "fcm-key" | "rcs-key":
            return service_account()
        case "apns-key" | "vapid-key":
            return p256_key()
        case "sendgrid-webhook_key":
            return public_key("a webhook")
        case "azure-key":
            return "c2VjcmV0IGtleQ=="
        case "aws-access-key":
            return "AKIAIOSFODNN7EXAMPLE"
        case "aws-secret-key":
            return "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    return None
