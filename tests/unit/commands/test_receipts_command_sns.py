"""`deliveryd receipts test` with messages of Amazon SNS: the envelope is opened in any case."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate

from support.amazon_certificates import Authority
from support.terminal import Answered, command

TOPIC = "arn:aws:sns:eu-west-1:123456789012:ses"
CERTIFICATE = "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-7ff5318490ec183f.pem"
CONFIRM = "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=x&Token=t1"
AT = "2026-11-22T00:00:10Z"
CONFIG = f"""
[service]
base_url = "http://127.0.0.1:1"
[receipts]
public_url = "https://cb.example"
[channels.email]
adapter = "http"
url = "http://127.0.0.1:1/email"
json = {{ text = "{{content.body}}" }}
provider_id = "/MessageId"
[channels.email.receipt]
provider_id = "/mail/messageId"
status = "/eventType"
code = "/bounce/bounceType"
delivered = ["Delivery"]
failed = ["Bounce"]
stopped = ["Bounce/Permanent"]
recipient = "/mail/destination/0"
signature = {{ scheme = "sns", topics = ["{TOPIC}"] }}
[journal]
url = "sqlite:///journal.db"
"""
BOUNCE = {
    "eventType": "Bounce",
    "mail": {"messageId": "0102", "destination": ["u@x.org"]},
    "bounce": {"bounceType": "Permanent"},
}
READ = [("0102", "failed", "stopped")]


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture
def folder(tmp_path: Path, key: rsa.RSAPrivateKey) -> Path:
    """A configuration, and a certificate that no authority of the system issued."""
    (tmp_path / "config.toml").write_text(CONFIG, encoding="utf-8")
    page = Authority("nobody").issue(key, ["sns.amazonaws.com"])
    (tmp_path / "signing.pem").write_bytes(page)
    (tmp_path / "signing.der").write_bytes(load_pem_x509_certificate(page).public_bytes(Encoding.DER))
    return tmp_path


def envelope(key: rsa.RSAPrivateKey, message: str, **changes: str) -> dict[str, str]:
    """A signed notification."""
    lines = {
        "Message": message, "MessageId": "m1", "Timestamp": "2026-11-22T00:00:00.000Z", "TopicArn": TOPIC,
        "Type": "Notification",
    }  # fmt: skip
    signed = "".join(f"{name}\n{value}\n" for name, value in lines.items())
    signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    return {
        **lines, "SignatureVersion": "2", "Signature": base64.b64encode(signature).decode(),
        "SigningCertURL": CERTIFICATE, **changes,
    }  # fmt: skip


def tried(folder: Path, body: str, *options: object) -> tuple[Answered, Any]:
    (folder / "request").write_text(
        f"POST /receipts/email HTTP/1.1\nHost: x\nContent-Type: text/plain; charset=UTF-8\n\n{body}",
        encoding="utf-8",
    )
    given = (
        "receipts",
        "test",
        "--config",
        folder / "config.toml",
        "--channel",
        "email",
        "--at",
        AT,
        "--json",
    )
    answered = command(*given, *options, folder / "request")
    return answered, json.loads(answered.out or "null")


def read(data: Any) -> list[tuple[str, str, str]]:
    return [(each["provider_id"], each["meaning"], each["consent"]) for each in data["reports"]]


@pytest.mark.parametrize("file", ["signing.pem", "signing.der"])
def test_the_certificate_can_be_given(folder: Path, key: rsa.RSAPrivateKey, file: str) -> None:
    """Nothing is fetched; who issued it isn't looked at, and the trial says so."""
    body = json.dumps(envelope(key, json.dumps(BOUNCE)))
    answered, data = tried(folder, body, "--certificate", folder / file)
    assert (answered.status, data["signature"], read(data)) == (0, "valid", READ)
    shown = command(
        "receipts", "test", "--config", folder / "config.toml", "--channel", "email", "--at", AT,
        "--certificate", folder / file, folder / "request",
    )  # fmt: skip
    assert shown.out.splitlines()[0] == (
        "signature  valid: by the given certificate; who issued it isn't checked"
    )


def test_without_the_certificate_the_message_is_read_all_the_same(
    folder: Path, key: rsa.RSAPrivateKey
) -> None:
    """What the worker would do first is said."""
    answered, data = tried(folder, json.dumps(envelope(key, json.dumps(BOUNCE))))
    assert (answered.status, data["signature"], read(data)) == (0, "unchecked", READ)


@pytest.mark.parametrize(
    "changes",
    [
        {"TopicArn": f"{TOPIC}2"},
        {"SigningCertURL": "https://evil.example/SimpleNotificationService-7.pem"},
        {"Timestamp": "2026-11-20T00:00:00.000Z"},
        {"Signature": "AAAA"},
        {"Subject": "added"},
    ],
)
def test_a_forged_message_is_refused_and_read(
    folder: Path, key: rsa.RSAPrivateKey, changes: dict[str, str]
) -> None:
    """Another topic, another host, an old message, another signature: what it would mean is shown."""
    body = json.dumps(envelope(key, json.dumps(BOUNCE), **changes))
    answered, data = tried(folder, body, "--certificate", folder / "signing.pem")
    assert (answered.status, data["signature"], data["answer"]["status"]) == (1, "invalid", 401)
    assert read(data) == READ


def test_why_the_inner_message_cant_be_read_is_shown(folder: Path, key: rsa.RSAPrivateKey) -> None:
    """The message, not the envelope around it."""
    answered, data = tried(folder, json.dumps(envelope(key, '{"mail": {"messageId": "0102"}}')))
    assert (answered.status, data["signature"]) == (1, "unchecked")
    assert data["unreadable"] == [
        {"raw": '{"mail": {"messageId": "0102"}}', "reason": "there is no usable status at /eventType"}
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"Message": "Successfully validated SNS topic for Amazon SES event publishing."},
        {"Type": "SubscriptionConfirmation", "SubscribeURL": CONFIRM, "Token": "t1"},
    ],
)
def test_what_holds_no_report_is_none(folder: Path, key: rsa.RSAPrivateKey, body: dict[str, str]) -> None:
    """Amazon's greeting, and the confirmation of a subscription."""
    _, data = tried(folder, json.dumps(envelope(key, "{}") | body))
    assert (data["reports"], "unreadable" in data) == ([], False)


def test_a_message_without_an_envelope_is_read_as_it_is(folder: Path) -> None:
    """Raw message delivery, which leaves the signature out: refused, and what it says is shown."""
    answered, data = tried(folder, json.dumps(BOUNCE))
    assert (answered.status, data["signature"], read(data)) == (1, "invalid", READ)


def test_a_certificate_is_for_sns_alone(folder: Path) -> None:
    """Another scheme has none, and a file that is none is told."""
    answered, data = tried(
        folder, json.dumps({"Type": "Notification"}), "--certificate", folder / "config.toml"
    )
    assert (answered.status, data["signature"]) == (1, "invalid")
    config = folder / "config.toml"
    unsigned = "\n".join(line for line in CONFIG.splitlines() if not line.startswith("signature"))
    config.write_text(unsigned, encoding="utf-8")
    answered, _ = tried(folder, "{}", "--certificate", folder / "signing.pem")
    assert answered.status == 2
    assert "--certificate is for the scheme sns" in answered.err
