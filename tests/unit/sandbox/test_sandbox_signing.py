"""The sandbox's signatures against the vectors of the providers' fact sheets and of their own libraries."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from deliveryd.sandbox.impersonation import Outgoing, SigningForm, body_values, public_key, sign

AT = datetime.fromtimestamp(1795286400, UTC)


def report(url: str = "https://cb.example/x", body: bytes = b"", **fields: str) -> Outgoing:
    return Outgoing("POST", "http://127.0.0.1:1/x", url, {}, body, fields, AT)


def signed(how: SigningForm, secret: str, each: Outgoing) -> dict[str, str]:
    return sign(how, secret, each).headers


def test_twilio_signs_the_public_address_and_the_sorted_fields() -> None:
    each = report(
        "https://cb.example/tw?ref=01J9Z", MessageStatus="delivered", To="+447700900123", MessageSid="SM11"
    )
    headers = signed(SigningForm("twilio"), "tok123", each)
    assert headers == {"X-Twilio-Signature": "mUKwsO46I4PBEOZDAGiaT1/CDLg="}


def test_meta_signs_the_body() -> None:
    how = SigningForm("hmac", header="X-Hub-Signature-256", prefix="sha256=")
    each = report(body=b'{"object":"whatsapp_business_account"}')
    made = "sha256=ebe706fe0a7514f1d3d296d62ac89722740ed9d2b1118e8cda99f04d1f926260"
    assert signed(how, "app123", each) == {"X-Hub-Signature-256": made}


def test_sinch_signs_the_body_a_nonce_and_the_time() -> None:
    how = SigningForm(
        "hmac",
        header="x-sinch-webhook-signature",
        encoding="base64",
        signed="{body}.n01.{timestamp}",
        headers={"x-sinch-webhook-timestamp": "{timestamp}"},
    )
    headers = signed(how, "sec123", report(body=b'{"type":"recipient_delivery_report_sms"}'))
    assert headers["x-sinch-webhook-signature"] == "kJHPYf8b1nwpFPEf+9npuz6mqFKEtm/X/9wjxkIcnp4="
    assert headers["x-sinch-webhook-timestamp"] == "1795286400"


def test_mailgun_signs_in_the_body() -> None:
    made = body_values(SigningForm("mailgun"), "key123", AT)
    text = f"{made['signature.timestamp']}{made['signature.token']}"
    assert made["signature.hash"] == hmac.new(b"key123", text.encode(), "sha256").hexdigest()


def test_a_token_carries_the_hashes_of_body_and_address() -> None:
    claims = {"iat": "{now}", "payload_hash": "{payload}", "url_hash": "{url}"}
    how = SigningForm("jwt", header="Authorization", prefix="Bearer ", claims=claims)
    token = signed(how, "sec", report(body=b"{}"))["Authorization"].removeprefix("Bearer ")
    payload = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert payload == {
        "iat": 1795286400,
        "payload_hash": hashlib.sha256(b"{}").hexdigest(),
        "url_hash": hashlib.sha256(b"https://cb.example/x").hexdigest(),
    }


def test_standard_webhooks_sign_id_time_and_body() -> None:
    secret = "whsec_" + base64.b64encode(b"k" * 24).decode()
    headers = signed(SigningForm("standard-webhooks", prefix="svix-"), secret, report(body=b"{}"))
    text = f"{headers['svix-id']}.1795286400.{{}}"
    made = base64.b64encode(hmac.new(b"k" * 24, text.encode(), "sha256").digest()).decode()
    assert headers["svix-signature"] == f"v1,{made}"


def test_vonage_signs_the_sorted_fields_and_adds_its_signature_to_them() -> None:
    fields = {"messageId": "0A12", "status": "delivered", "client-ref": "a=b&c", "timestamp": "1795286400"}
    made = sign(SigningForm("vonage"), "sig123", replace(report(), fields=fields))
    vector = "4770cecd18ff68f8947d6040e205519af11ae987d03173948c03c15cb360f9eb"
    assert made.fields == {**fields, "sig": vector}
    assert parse_qs(made.body.decode()) == {name: [text] for name, text in made.fields.items()}


def test_sendgrid_signs_the_time_and_the_body_with_a_private_key() -> None:
    """Verified by the library of the algorithm; the preset's own cases have SendGrid's vectors."""
    how = SigningForm("ecdsa", header="X-Signature", headers={"X-Timestamp": "{timestamp}"})
    headers = signed(how, "secret", report(body=b"[]"))
    key = load_der_public_key(base64.b64decode(public_key("secret")))
    assert isinstance(key, EllipticCurvePublicKey)
    assert headers["X-Timestamp"] == "1795286400"
    key.verify(base64.b64decode(headers["X-Signature"]), b"1795286400[]", ECDSA(SHA256()))


def test_postmark_sends_user_name_and_password() -> None:
    headers = signed(SigningForm("basic", username="postmark"), "a:b", report())
    assert headers == {"Authorization": "Basic " + base64.b64encode(b"postmark:a:b").decode()}
