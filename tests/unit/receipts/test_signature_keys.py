"""Signatures by public keys, certificates and tokens: ECDSA, JSON Web Tokens, Amazon SNS."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from deliveryd.model import SECOND, parse_instant
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures import amazon as amazon_certificates
from deliveryd.receipts.signatures.base import CertificateMissing, Forged, NoReport, Subscription, Untrusted
from deliveryd.receipts.signatures.sns import SnsScheme
from deliveryd.receipts.verification import open_scheme, open_verifier, signed_content
from support.amazon_certificates import ISSUER, START, Authority
from support.signed_requests import is_genuine, options, request

# JSON Web Tokens


BIRD_KEY = "36efdd1aace2e26cd490f0d951138253bef2f7c6d34d18981da781555cc4cebb"


BIRD_NOW = parse_instant("2021-07-05T12:00:00+02:00") / SECOND


BIRD = {"scheme": "jwt", "header": "MessageBird-Signature-JWT", "covers": ["payload_hash", "url_hash"]}


HEAD = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9."


ROOT_TOKEN = (
    f"{HEAD}eyJpc3MiOiJNZXNzYWdlQmlyZCIsIm5iZiI6MTYyNTQ3OTIwMCwiZXhwIjoxNjI1NDc5MjYwLCJqdGkiOiI1OWEyNDRkYy1l"
    "OWFkLTRlMjMtOTc3OC0zNzFmYWEyMzhmNzIiLCJ1cmxfaGFzaCI6IjBmMTE1ZGIwNjJiN2MwZGQwMzBiMTY4NzhjOTlkZWE1YzM1NGI0"
    "OWRjMzdiMzhlYjg4NDYxNzljNzc4M2U5ZDcifQ.6Fp0rVOsRr1fj9S2GidXAfkmPVofKr8_RTffC6G6r2E"
)


QUERY_TOKEN = (
    f"{HEAD}eyJpc3MiOiJNZXNzYWdlQmlyZCIsIm5iZiI6MTYyNTQ3OTIwMCwiZXhwIjoxNjI1NDc5MjYwLCJqdGkiOiJjOTQ2YWY3Ny1l"
    "MTgyLTRlYWEtYjJmZi0xYTU0NWI1ZTk5MWEiLCJ1cmxfaGFzaCI6IjQxZjA1ZjBkZGQwYTIyYWIyMDlhYzQ2ZjQ3YzQ1NzJkOWNlZmEy"
    "NTdlZDc0YjI0MDA0YmFlNzUzZWNlNmMyNjAifQ.huo2ou6JDoDc7sV25d75UMWeYhBeavQlLsqIibSZuac"
)


BODY_TOKEN = (
    f"{HEAD}eyJpc3MiOiJNZXNzYWdlQmlyZCIsIm5iZiI6MTYyNTQ3OTIwMCwiZXhwIjoxNjI1NDc5MjYwLCJqdGkiOiI5M2U1NTAwNi1h"
    "MGU4LTQ1MjYtYTE5MC1mYTVmZjAwZWExMTYiLCJ1cmxfaGFzaCI6IjQxZjA1ZjBkZGQwYTIyYWIyMDlhYzQ2ZjQ3YzQ1NzJkOWNlZmEy"
    "NTdlZDc0YjI0MDA0YmFlNzUzZWNlNmMyNjAiLCJwYXlsb2FkX2hhc2giOiJkZmZkNjAyMWJiMmJkNWIwYWY2NzYyOTA4MDllYzNhNTMx"
    "OTFkZDgxYzdmNzBhNGIyODY4OGEzNjIxODI5ODZmIn0._H--TOuYFLpeEH39-rg5E3IHVkjHozBcaKVWPRC5m9I"
)


EARLY_TOKEN = (
    f"{HEAD}eyJpc3MiOiJNZXNzYWdlQmlyZCIsIm5iZiI6MTYyNTQ4MjgwMCwiZXhwIjoxNjI1NDgyODYwLCJqdGkiOiJmOWY4YzM4Mi0y"
    "NDQ5LTQzMTEtYjcyYi0xZGY3MTY4NzkzMWUiLCJ1cmxfaGFzaCI6IjBmMTE1ZGIwNjJiN2MwZGQwMzBiMTY4NzhjOTlkZWE1YzM1NGI0"
    "OWRjMzdiMzhlYjg4NDYxNzljNzc4M2U5ZDcifQ.ZELgDFNGhjZH9CffQKcq3sytBe2I0KciLxpBhcfstHQ"
)


LATE_TOKEN = (
    f"{HEAD}eyJpc3MiOiJNZXNzYWdlQmlyZCIsIm5iZiI6MTYyNTQ3NTYwMCwiZXhwIjoxNjI1NDc1NjYwLCJqdGkiOiI1ZjAyZjUyMi02"
    "MDMwLTQ2YzgtYjVhMy0wMTI0NjQ3OGQ4YmMiLCJ1cmxfaGFzaCI6IjBmMTE1ZGIwNjJiN2MwZGQwMzBiMTY4NzhjOTlkZWE1YzM1NGI0"
    "OWRjMzdiMzhlYjg4NDYxNzljNzc4M2U5ZDcifQ.45MSST3B_2PsjNUeiuW54_vUQgVw4rBXrdWrOUEz3lM"
)


OTHER_BODY_TOKEN = (
    f"{HEAD}eyJpc3MiOiJNZXNzYWdlQmlyZCIsIm5iZiI6MTYyNTQ3OTIwMCwiZXhwIjoxNjI1NDc5MjYwLCJqdGkiOiIxNDUwMTUzMi05"
    "NmYyLTQ2ODQtOTgzMi02OGYwOTUxYWUzNDIiLCJ1cmxfaGFzaCI6IjBmMTE1ZGIwNjJiN2MwZGQwMzBiMTY4NzhjOTlkZWE1YzM1NGI0"
    "OWRjMzdiMzhlYjg4NDYxNzljNzc4M2U5ZDciLCJwYXlsb2FkX2hhc2giOiJmYjYyZjAyYWNkYTdkNzQxNzdhNzAxYTFjZTAwNmU2YmFj"
    "ZDkwYzdkNGQ3YWI0ODE2OTJjMWRhNDdjODEwNzZiIn0.m79RCwO6dGa9pvzsQypkVuXQ6eM0CkRl6_U7MfWg6TM"
)


@pytest.mark.parametrize(
    ("token", "path", "body", "genuine"),
    [
        (ROOT_TOKEN, "", b"", True),
        (QUERY_TOKEN, "path?bar=1&foo=2", b"", True),
        (QUERY_TOKEN, "path?foo=2&bar=1", b"", False),
        (BODY_TOKEN, "path?bar=1&foo=2", b"Hello, World!", True),
        (BODY_TOKEN, "path?bar=1&foo=2", b"Hello, World?", False),
        (ROOT_TOKEN, "", b"Hello, World!", False),
        (OTHER_BODY_TOKEN, "", b"Hello, World!", False),
        (EARLY_TOKEN, "", b"", False),
        (LATE_TOKEN, "", b"", False),
        (ROOT_TOKEN[:-1] + "F", "", b"", False),
        (f"eyJhbGciOiJub25lIn0.{ROOT_TOKEN.split('.')[1]}.", "", b"", False),
        ("x", "", b"", False),
    ],
    ids=[
        "address", "with a query", "another query", "with a body", "another body", "a body without its hash",
        "the hash of another body", "not valid yet", "expired", "another signature", "no algorithm",
        "no token",
    ],
)  # fmt: skip
def test_json_web_tokens(token: str, path: str, body: bytes, genuine: bool) -> None:
    """The vectors of MessageBird's library."""
    sent = request(body, url=f"https://x.example/{path}", messagebird_signature_jwt=token)
    sent.base = "https://example.com"
    assert is_genuine(BIRD, BIRD_KEY, sent, BIRD_NOW) is genuine


def test_a_token_may_come_as_bearer_and_names_its_issuer() -> None:
    """As Vonage sends it."""
    table = {"scheme": "jwt", "covers": ["url_hash"]}
    sent = request(url="https://x.example/", authorization=f"Bearer {ROOT_TOKEN}")
    sent.base = "https://example.com"
    assert is_genuine({**table, "issuer": "MessageBird"}, BIRD_KEY, sent, BIRD_NOW)
    assert not is_genuine({**table, "issuer": "Vonage"}, BIRD_KEY, sent, BIRD_NOW)


# ECDSA


SENDGRID_KEY = (
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62gw+2fNNRaINXvVpig"
    "lSI8eNEc6wEA3F+g=="
)


OTHER_KEY = (
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEqTxd43gyp8IOEto2LdIfjRQrIbsd4SXZkLW6jDutdhXSJCWHw8REntlo7aNDthvj+y7Gj"
    "UuFDb/R1NGe1OPzpA=="
)


SENDGRID_BODY = (
    b'[{"email":"hello@world.com","event":"dropped","reason":"Bounced Address","sg_event_id":'
    b'"ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA","sg_message_id":'
    b'"LRzXl_NHStOGhQ4kofSm_A.filterdrecv-p3mdw1-756b745b58-kmzbl-18-5F5FC76C-9.0","smtp-id":'
    b'"<LRzXl_NHStOGhQ4kofSm_A@ismtpd0039p1iad1.sendgrid.net>","timestamp":1600112492}]\r\n'
)


SENDGRID_TIME = 1_600_112_502


SENDGRID = "MEUCIGHQVtGj+Y3LkG9fLcxf3qfI10QysgDWmMOVmxG0u6ZUAiEAyBiXDWzM+uOe5W0JuG+luQAbPIqHh89M15TluLtEZtM="


@pytest.mark.parametrize(
    ("keys", "body", "signature", "late", "genuine"),
    [
        ([SENDGRID_KEY], SENDGRID_BODY, SENDGRID, 0, True),
        ([OTHER_KEY, SENDGRID_KEY], SENDGRID_BODY, SENDGRID, 600, True),
        ([SENDGRID_KEY], SENDGRID_BODY, SENDGRID, 601, False),
        ([OTHER_KEY], SENDGRID_BODY, SENDGRID, 0, False),
        ([SENDGRID_KEY], SENDGRID_BODY.strip(), SENDGRID, 0, False),
        ([SENDGRID_KEY], SENDGRID_BODY, "MEUC", 0, False),
        ([SENDGRID_KEY], SENDGRID_BODY, "?", 0, False),
    ],
)
def test_ecdsa(keys: list[str], body: bytes, signature: str, late: int, genuine: bool) -> None:
    """The vector of SendGrid's library."""
    scheme = open_scheme(options(scheme="ecdsa", secret_file="/unused"))
    headers = {
        "X-Twilio-Email-Event-Webhook-Signature": signature,
        "X-Twilio-Email-Event-Webhook-Timestamp": str(SENDGRID_TIME),
    }
    try:
        at = (SENDGRID_TIME + late) * SECOND
        signed_content(scheme, request(body, **headers), list(map(scheme.read_key, keys)), at)
    except Forged:
        assert not genuine
    else:
        assert genuine


@pytest.mark.parametrize("key", ["?", "AAAA"])
def test_a_public_key_that_is_none(key: str) -> None:
    """The file is at fault."""
    scheme = open_scheme(options(scheme="ecdsa", secret_file="/unused"))
    with pytest.raises(ValueError, match="public key"):
        list(map(scheme.read_key, [key]))


# Amazon SNS


TOPIC = "arn:aws:sns:eu-west-1:123456789012:ses"


CERTIFICATE = (
    "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-7ff5318490ec183fbaddaa2a969abfda.pem"
)


NOTIFICATION = {
    "Type": "Notification",
    "MessageId": "m1",
    "TopicArn": TOPIC,
    "Message": '{"eventType":"Delivery"}',
    "Timestamp": "2026-11-22T00:00:00.000Z",
    "SignatureVersion": "1",
    "SigningCertURL": CERTIFICATE,
}


SIGNED_NOTIFICATION = (
    'Message\n{"eventType":"Delivery"}\nMessageId\nm1\nTimestamp\n2026-11-22T00:00:00.000Z\n'
    f"TopicArn\n{TOPIC}\nType\nNotification\n"
)


CONFIRM = "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=x&Token=t1"


SNS_NOW = parse_instant("2026-11-22T00:00:10Z")


ROOT = Authority("Amazon Root CA 1")


@pytest.fixture(scope="module")
def amazon() -> Iterator[tuple[rsa.RSAPrivateKey, bytes]]:
    """A key, and its certificate as PEM, which one of the system's authorities issued."""
    key = rsa.generate_private_key(65537, 2048)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(amazon_certificates, "trusted_roots", lambda: [ROOT.certificate])
        yield key, ROOT.issue(key, ["sns.amazonaws.com"])


def enveloped(key: rsa.RSAPrivateKey, signed: str, **changes: str) -> ReceiptRequest:
    version = changes.get("SignatureVersion", "1")
    algorithm = hashes.SHA1() if version == "1" else hashes.SHA256()  # noqa: S303  # Amazon's version 1
    signature = base64.b64encode(key.sign(signed.encode(), padding.PKCS1v15(), algorithm)).decode()
    envelope = {**NOTIFICATION, "Signature": signature, **changes}
    return request(json.dumps(envelope).encode(), content_type="text/plain; charset=UTF-8")


def sns_scheme(certificate: bytes) -> SnsScheme:
    scheme = open_scheme(options(scheme="sns", topics=[TOPIC]))
    assert isinstance(scheme, SnsScheme)
    scheme.learn(CERTIFICATE, certificate)
    return scheme


@pytest.mark.parametrize("version", ["1", "2"])
def test_sns_returns_the_message_in_the_envelope(
    amazon: tuple[rsa.RSAPrivateKey, bytes], version: str
) -> None:
    """A signature over the envelope's lines, with SHA-1 or SHA-256."""
    sent = enveloped(amazon[0], SIGNED_NOTIFICATION, SignatureVersion=version)
    read = signed_content(sns_scheme(amazon[1]), sent, [], SNS_NOW)
    assert isinstance(read, ReceiptRequest)
    assert read.body == b'{"eventType":"Delivery"}'


def test_sns_names_the_certificate_that_it_misses(amazon: tuple[rsa.RSAPrivateKey, bytes]) -> None:
    """It has to be fetched before."""
    scheme = open_scheme(options(scheme="sns", topics=[TOPIC]))
    with pytest.raises(CertificateMissing) as missing:
        signed_content(scheme, enveloped(amazon[0], SIGNED_NOTIFICATION), [], SNS_NOW)
    assert missing.value.url == CERTIFICATE


@pytest.mark.parametrize(
    "changes",
    [
        {"TopicArn": f"{TOPIC}2"},
        {
            "SigningCertURL": "https://sns.eu-west-1.amazonaws.com.evil.example/SimpleNotificationService-7.pem"
        },
        {"SigningCertURL": "http://sns.eu-west-1.amazonaws.com/SimpleNotificationService-7.pem"},
        {"SigningCertURL": "https://evil.s3.amazonaws.com/SimpleNotificationService-7.pem"},
        {"SigningCertURL": "https://sns.eu-west-1.s3.amazonaws.com/SimpleNotificationService-7.pem"},
        {"SigningCertURL": "https://sns.s3.amazonaws.com/SimpleNotificationService-7.pem"},
        {
            "SigningCertURL": "https://sns.eu-west-1.amazonaws.com@evil.example/SimpleNotificationService-7.pem"
        },
        {"SigningCertURL": "https://sns.eu-west-1.amazonaws.com/../x/SimpleNotificationService-7.pem"},
        {"Message": '{"eventType":"Bounce"}'},
        {"Subject": "added"},
        {"SignatureVersion": "3"},
        {"Signature": "?"},
        {"Type": "Other"},
        {"Timestamp": "2026-11-21T00:00:00.000Z"},
    ],
)
def test_sns_refused(amazon: tuple[rsa.RSAPrivateKey, bytes], changes: dict[str, str]) -> None:
    """Other topics, hosts that aren't Amazon's, changed messages."""
    with pytest.raises(Forged):
        signed_content(
            sns_scheme(amazon[1]), enveloped(amazon[0], SIGNED_NOTIFICATION, **changes), [], SNS_NOW
        )


def test_sns_refuses_an_old_message(amazon: tuple[rsa.RSAPrivateKey, bytes]) -> None:
    """An hour is the limit."""
    sent = enveloped(amazon[0], SIGNED_NOTIFICATION)
    with pytest.raises(Forged, match="time of signing"):
        signed_content(sns_scheme(amazon[1]), sent, [], SNS_NOW + 3600 * SECOND)


def test_sns_asks_for_the_confirmation_of_a_subscription(amazon: tuple[rsa.RSAPrivateKey, bytes]) -> None:
    """On Amazon's own host only; what holds no report says so."""
    key, certificate = amazon
    changes = {"Type": "SubscriptionConfirmation", "Message": "You chose", "Token": "t1"}

    def signed(url: str) -> str:
        return (
            f"Message\nYou chose\nMessageId\nm1\nSubscribeURL\n{url}\nTimestamp\n2026-11-22T00:00:00.000Z\n"
            f"Token\nt1\nTopicArn\n{TOPIC}\nType\nSubscriptionConfirmation\n"
        )

    scheme = sns_scheme(certificate)
    good = enveloped(key, signed(CONFIRM), SubscribeURL=CONFIRM, **changes)
    assert signed_content(scheme, good, [], SNS_NOW) == Subscription(CONFIRM)
    evil = "https://evil.example/?Action=ConfirmSubscription"
    with pytest.raises(Forged, match="SubscribeURL"):
        signed_content(scheme, enveloped(key, signed(evil), SubscribeURL=evil, **changes), [], SNS_NOW)
    greeting = SIGNED_NOTIFICATION.replace('{"eventType":"Delivery"}', "Successfully validated")
    sent = enveloped(key, greeting, Message="Successfully validated")
    assert signed_content(scheme, sent, [], SNS_NOW) == NoReport()


def test_sns_of_a_stand_in_is_genuine_by_its_certificate_alone(
    amazon: tuple[rsa.RSAPrivateKey, bytes], tmp_path: Path
) -> None:
    """Wherever the message says that its certificate is, and nothing is fetched: not Amazon's either."""
    stand_in = rsa.generate_private_key(65537, 2048)
    file = tmp_path / "certificate"
    file.touch(0o600)
    file.write_bytes(Authority("A stand-in").issue(stand_in, ["localhost"]))
    verifier = open_verifier(options(scheme="sns", topics=[TOPIC], secret_file=str(file)))
    for place in (CERTIFICATE, "http://localhost:4566/certificate.pem"):
        sent = enveloped(stand_in, SIGNED_NOTIFICATION, SigningCertURL=place)
        read = verifier.verify(sent, SNS_NOW)
        assert isinstance(read, ReceiptRequest)
        assert read.body == b'{"eventType":"Delivery"}'
    for sent in (
        enveloped(amazon[0], SIGNED_NOTIFICATION),
        enveloped(stand_in, SIGNED_NOTIFICATION, TopicArn=f"{TOPIC}2"),
        enveloped(stand_in, SIGNED_NOTIFICATION, Message='{"eventType":"Bounce"}'),
    ):
        with pytest.raises(Forged):
            verifier.verify(sent, SNS_NOW)
    file.write_text("no certificate")
    with pytest.raises(ValueError, match="must be a certificate in PEM with an RSA key"):
        open_verifier(options(scheme="sns", topics=[TOPIC], secret_file=str(file)))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b"{"])
def test_sns_needs_an_envelope(amazon: tuple[rsa.RSAPrivateKey, bytes], body: bytes) -> None:
    """Anything else is forged."""
    with pytest.raises(Forged):
        signed_content(sns_scheme(amazon[1]), request(body), [], SNS_NOW)


def test_a_certificate_that_is_none(amazon: tuple[rsa.RSAPrivateKey, bytes]) -> None:
    """What a host answers instead of one: the certificate is still missing."""
    with pytest.raises(CertificateMissing):
        signed_content(sns_scheme(b"<html>"), enveloped(amazon[0], SIGNED_NOTIFICATION), [], SNS_NOW)


OTHER_ROOT = Authority("Another Root")
AT_HOST = "sns.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("authority", "names", "start", "genuine"),
    [
        (ROOT, ["sns.amazonaws.com"], START, True),
        (ROOT, ["sns-signing.eu-west-1.amazonaws.com", AT_HOST], START, True),
        (ROOT, ["sns-signing.af-south-1.amazonaws.com"], START, False),
        (ROOT, ["evil.example"], START, False),
        (ROOT, ["evil.example", "s3.amazonaws.com"], START, False),
        (OTHER_ROOT, ["sns.amazonaws.com"], START, False),
        (None, ["sns.amazonaws.com"], START, False),
        (ROOT, ["sns.amazonaws.com"], datetime(2025, 1, 1, tzinfo=UTC), False),
        (ROOT, ["sns.amazonaws.com"], datetime(2026, 12, 1, tzinfo=UTC), False),
    ],
    ids=[
        "old region", "own region", "another region", "another name", "a bucket", "another authority",
        "self-signed", "expired", "not yet valid",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("amazon")
def test_the_certificate_of_sns_is_examined(
    authority: Authority | None, names: list[str], start: datetime, genuine: bool
) -> None:
    """Its chain, its name and its dates; the signature itself always fits."""
    issuer = authority or Authority("sns.amazonaws.com")
    key = issuer.key if authority is None else rsa.generate_private_key(65537, 2048)
    page = (
        issuer.certificate.public_bytes(serialization.Encoding.PEM)
        if authority is None
        else issuer.issue(key, names, start)
    )
    scheme = sns_scheme(page)
    with nullcontext() if genuine else pytest.raises(Untrusted):
        signed_content(scheme, enveloped(key, SIGNED_NOTIFICATION), [], SNS_NOW)


@pytest.mark.usefixtures("amazon")
def test_a_certificate_that_was_good_is_examined_again_when_it_expires() -> None:
    """A worker runs for months."""
    key = rsa.generate_private_key(65537, 2048)
    scheme = sns_scheme(ROOT.issue(key, ["sns.amazonaws.com"], datetime(2025, 10, 25, tzinfo=UTC)))
    signed_content(scheme, enveloped(key, SIGNED_NOTIFICATION), [], SNS_NOW)
    later = "2026-11-25T00:00:00.000Z"
    late = enveloped(key, SIGNED_NOTIFICATION.replace(NOTIFICATION["Timestamp"], later), Timestamp=later)
    with pytest.raises(Untrusted):
        signed_content(scheme, late, [], parse_instant(later))


@pytest.mark.usefixtures("amazon")
@pytest.mark.parametrize("address", [ISSUER, "http://evil.example/r2m01.cer"])
def test_the_issuers_certificate_is_fetched_from_amazon(address: str) -> None:
    """The file of SNS holds its own certificate only; without the issuer's, nothing leads to a root."""
    between, key = Authority("Amazon RSA 2048 M01", ROOT), rsa.generate_private_key(65537, 2048)
    scheme = sns_scheme(between.issue(key, ["sns.amazonaws.com"], issuer=address))
    sent = enveloped(key, SIGNED_NOTIFICATION)
    if address != ISSUER:
        with pytest.raises(Untrusted):
            signed_content(scheme, sent, [], SNS_NOW)
        return
    with pytest.raises(CertificateMissing) as missing:
        signed_content(scheme, sent, [], SNS_NOW)
    assert missing.value.url == ISSUER
    missing.value.learn(between.certificate.public_bytes(serialization.Encoding.DER))
    assert isinstance(signed_content(scheme, sent, [], SNS_NOW), ReceiptRequest)
