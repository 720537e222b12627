"""Signatures of providers' reports: vectors of the providers and of their libraries, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa
from cryptography.x509.oid import NameOID
from pydantic import BaseModel, ConfigDict, ValidationError

from deliveryd.channels.signature_options import Signature, SignatureOptions
from deliveryd.channels.signature_schemes import SCHEMES
from deliveryd.model import SECOND, parse_instant
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures import mailgun
from deliveryd.receipts.signatures.base import CertificateMissing, Forged, NoReport, Subscription
from deliveryd.receipts.signatures.sns import Scheme as SnsScheme
from deliveryd.receipts.verification import open_scheme, open_verifier, read_keys
from deliveryd.runtime import renewal

NOW = 1_795_286_400
FORM = "application/x-www-form-urlencoded"


class Table(BaseModel):
    """A configuration table with a signature."""

    model_config = ConfigDict(extra="forbid")

    signature: SignatureOptions


def options(**table: Any) -> Signature:
    parsed: Signature = Table.model_validate({"signature": table}).signature
    return parsed


def request(
    body: bytes = b"", method: str = "POST", url: str = "https://cb.example/receipts/sms", **headers: str
) -> ReceiptRequest:
    """A request as it arrives: header names in lower case; `_` in their names stands for `-`."""
    address, _, query = url.partition("?")
    base, slash, path = address.partition("example/")
    raw = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
    return ReceiptRequest(
        method, f"{slash[-1:]}{path}", query.encode(), raw, body, base=f"{base}{slash[:-1]}"
    )


def form(text: str, **others: Any) -> ReceiptRequest:
    return request(text.encode(), content_type=FORM, **others)


def is_genuine(table: dict[str, Any], secret: str, sent: ReceiptRequest, now: float = NOW) -> bool:
    scheme = open_scheme(options(**{"secret_file": "/unused", **table}))
    try:
        scheme.verify(sent, read_keys(scheme, ["another-secret-xyz", secret]), int(now * SECOND))
    except Forged:
        return False
    return True


# hmac

JEFE = b"what do ya want for nothing?"
RFC = {
    "hmac-md5": "750c783e6ab0b503eaa86e310a5db738",
    "hmac-sha1": "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79",
    "hmac-sha256": "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    "hmac-sha384": "af45d2e376484031617f78d2b58a6b1b9c7ef464f5a01b47e42ec3736322445e"
    "8e2240ca5e69e2c78b3239ecfab21649",
    "hmac-sha512": "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea250554"
    "9758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737",
}


@pytest.mark.parametrize("algorithm", RFC)
def test_each_algorithm_by_the_vectors_of_its_rfc(algorithm: str) -> None:
    """RFC 2202 and 4231, second case."""
    table = {"header": "X-S", "algorithm": algorithm}
    assert is_genuine(table, "Jefe", request(JEFE, x_s=RFC[algorithm]))
    assert not is_genuine(table, "Jefe", request(JEFE + b"!", x_s=RFC[algorithm]))


@pytest.mark.parametrize(
    ("value", "genuine"),
    [
        ("sha256=RIGHT", True),
        ("sha256= RIGHT ", True),
        ("sha256=00, sha256=RIGHT", True),
        ("t=1 sha256=RIGHT", True),
        ("RIGHT", False),
        ("sha256=", False),
        ("sha256=zz", False),
        ("", False),
    ],
)
def test_a_header_may_list_several_signatures(value: str, genuine: bool) -> None:
    """One with the prefix must fit; Meta's vector of the sheet."""
    right = "ebe706fe0a7514f1d3d296d62ac89722740ed9d2b1118e8cda99f04d1f926260"
    table = {"header": "X-Hub-Signature-256", "prefix": "sha256="}
    sent = request(
        b'{"object":"whatsapp_business_account"}', x_hub_signature_256=value.replace("RIGHT", right)
    )
    assert is_genuine(table, "app123", sent) is genuine


def test_a_signature_may_stand_in_the_query() -> None:
    """Viber's, which it sends as a parameter, too."""
    secret = "445da6az1s345z78-dazcczb2542zv51a-e0vc5fva17480im9"
    right = "6352bc8b22459e316464708d4b1d7708c3e98b3a01b7ef0d98df16c98ec344f8"
    url = f"https://cb.example/receipts/viber?sig={right}"
    assert is_genuine({"at": "query:sig"}, secret, request(b'{"event":"delivered"}', url=url))
    assert is_genuine(
        {"header": "X-Viber-Content-Signature"},
        secret,
        request(b'{"event":"delivered"}', x_viber_content_signature=right),
    )


SINCH = {
    "header": "x-sinch-webhook-signature",
    "encoding": "base64",
    "signed": "{body}.{header:x-sinch-webhook-signature-nonce}.{timestamp}",
    "timestamp": "header:x-sinch-webhook-signature-timestamp",
}


@pytest.mark.parametrize(
    ("late", "nonce", "genuine"),
    [(0, "n01", True), (299, "n01", True), (301, "n01", False), (0, "n02", False)],
)
def test_a_template_with_a_nonce_and_a_time(late: int, nonce: str, genuine: bool) -> None:
    """Sinch's; its time may differ by five minutes."""
    sent = request(
        b'{"type":"recipient_delivery_report_sms"}',
        x_sinch_webhook_signature="kJHPYf8b1nwpFPEf+9npuz6mqFKEtm/X/9wjxkIcnp4=",
        x_sinch_webhook_signature_nonce=nonce,
        x_sinch_webhook_signature_timestamp=str(NOW),
    )
    assert is_genuine(SINCH, "sec123", sent, NOW + late) is genuine


# Standard Webhooks

STANDARD_KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
STANDARD_TIME = 1_614_265_330
STANDARD = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("prefix", ["webhook-", "svix-"])
@pytest.mark.parametrize(
    ("listed", "at", "late", "genuine"),
    [
        (STANDARD, STANDARD_TIME, 0, True),
        (f"v1,AAAA v2,BBBB {STANDARD} junk", STANDARD_TIME, 0, True),
        (STANDARD, STANDARD_TIME, 301, False),
        (STANDARD, STANDARD_TIME, -301, False),
        (STANDARD.replace("v1", "v2"), STANDARD_TIME, 0, False),
        ("v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc=", STANDARD_TIME, 0, False),
        (STANDARD, f"{STANDARD_TIME}.5", 0, False),
    ],
)
def test_standard_webhooks(prefix: str, listed: str, at: object, late: int, genuine: bool) -> None:
    """The vector of its libraries, under both sets of names."""
    headers = {
        f"{prefix}id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        f"{prefix}timestamp": str(at),
        f"{prefix}signature": listed,
    }
    sent = request(b'{"test": 2432232314}', **headers)
    table = {"scheme": "standard-webhooks", "prefix": prefix}
    scheme = open_scheme(options(secret_file="/unused", **table))
    keys = read_keys(scheme, ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSx", STANDARD_KEY])
    try:
        scheme.verify(sent, keys, (STANDARD_TIME + late) * SECOND)
    except Forged:
        assert not genuine
    else:
        assert genuine


def test_standard_webhooks_with_a_public_key() -> None:
    """Ed25519, signed by a library."""
    private = ed25519.Ed25519PrivateKey.generate()
    raw = private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    signature = base64.b64encode(private.sign(b"m1.1795286400.{}")).decode()
    scheme = open_scheme(options(scheme="standard-webhooks", secret_file="/unused"))
    keys = read_keys(scheme, [f"whpk_{base64.b64encode(raw).decode()}"])
    headers = {"webhook-id": "m1", "webhook-timestamp": "1795286400"}
    sent = request(b"{}", **headers, webhook_signature=f"v1a,{signature}")
    assert scheme.verify(sent, keys, NOW * SECOND) is sent
    with pytest.raises(Forged):
        scheme.verify(request(b"[]", **headers, webhook_signature=f"v1a,{signature}"), keys, NOW * SECOND)


@pytest.mark.parametrize("secret", ["whsec_", "whpk_AAAA", "whsec_é"])
def test_a_secret_of_standard_webhooks_that_is_none(secret: str) -> None:
    """The file is at fault, not the report."""
    scheme = open_scheme(options(scheme="standard-webhooks", secret_file="/unused"))
    with pytest.raises(ValueError, match="secret"):
        read_keys(scheme, [secret])


# Twilio

TWILIO_URL = "https://mycompany.example/myapp.php?foo=1&bar=2"
CALL = "CallSid=CA1234567890ABCDE&Digits=1234&From=%2B14158675309&To=%2B18005551212&Caller=%2B14158675309"


def twilio(sent: ReceiptRequest, host: str, secret: str = "12345") -> bool:
    sent.base = host
    return is_genuine({"scheme": "twilio"}, secret, sent)


@pytest.mark.parametrize(
    ("host", "signature", "genuine"),
    [
        ("https://mycompany.com", "RSOYDt4T1cUTdK1PDd93/VVr8B8=", True),
        ("https://mycompany.com:1234", "RSOYDt4T1cUTdK1PDd93/VVr8B8=", True),
        ("http://mycompany.com:1234", "Zmvh+3yNM1Phv2jhDCwEM3q5ebU=", True),
        ("https://mycompany.com", "kvajT1Ptam85bY51eRf/AJRuM3w=", True),
        ("http://mycompany.com", "0ZXoZLH/DfblKGATFgpif+LLRf4=", True),
        ("https://mycompany.org", "RSOYDt4T1cUTdK1PDd93/VVr8B8=", False),
        ("https://mycompany.com", "RSOYDt4T1cUTdK1PDd93/VVr8B4=", False),
        ("https://mycompany.com", "?", False),
    ],
)
def test_twilio_with_and_without_port(host: str, signature: str, genuine: bool) -> None:
    """The vectors of Twilio's library."""
    assert twilio(form(CALL, url=TWILIO_URL, x_twilio_signature=signature), host) is genuine


def test_twilio_sorts_repeated_fields() -> None:
    """The vector of Twilio's library, and the sheet's."""
    fields = "Sid=CA123&SidAccount=AC123&Digits=5678&Digits=1234"
    sent = form(fields, url=TWILIO_URL, x_twilio_signature="IK+Dwps556ElfBT0I3Rgjkr1wJU=")
    assert twilio(sent, "https://mycompany.com")
    sheet = form(
        "MessageSid=SM11&MessageStatus=delivered&To=%2B447700900123",
        url="https://cb.example/tw?ref=01J9Z",
        x_twilio_signature="mUKwsO46I4PBEOZDAGiaT1/CDLg=",
    )
    assert is_genuine({"scheme": "twilio"}, "tok123", sheet)


def test_twilio_covers_a_json_body_by_its_hash() -> None:
    """The vector of Twilio's library; another body, and none of the hash, are refused."""
    body = b'{"property": "value", "boolean": true}'
    hash_ = "0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620"
    url = f"{TWILIO_URL}&bodySHA256={hash_}"
    signature = "a9nBmqA0ju/hNViExpshrM61xv4="
    host = "https://mycompany.com"
    assert twilio(request(body, url=url, x_twilio_signature=signature), host)
    assert not twilio(request(b"{}", url=url, x_twilio_signature=signature), host)


# Plivo


@pytest.mark.parametrize(
    ("method", "query", "fields", "signature"),
    [
        ("POST", "", "Status=delivered&MessageUUID=u-1&To=%2B447700900123",
         "qWSvO4xfxn030fO0Me8hQh8Y4g3wOaWKccINo9pw6q4="),
        ("POST", "?b=2&a=x%20y", "Status=delivered&MessageUUID=u-1",
         "G/J4/aYfez48e6w2Ji+uXB8EOJsUSRPmqUPkRU6fvb4="),
        ("GET", "?Status=delivered&MessageUUID=u-1", "", "uKFYvGaiT6+/NlvXd7YU3bK1ffhpT2WJwf6caBoYuAQ="),
        ("POST", "", "", "ug0YP0S67jcOBa0YcSSKr6trnfox+xgBEyUB+j6fswM="),
    ],
)  # fmt: skip
@pytest.mark.parametrize("header", ["x_plivo_signature_v3", "x_plivo_signature_ma_v3"])
def test_plivo_version_3(method: str, query: str, fields: str, signature: str, header: str) -> None:
    """Signed by Plivo's library; under the account's or a subaccount's name."""
    table = {"scheme": "plivo"}

    def sent(text: str) -> ReceiptRequest:
        return form(
            text,
            method=method,
            url=f"https://cb.example/pl{query}",
            x_plivo_signature_v3_nonce="nonce1",
            **{header: f"AAAA,{signature}"},
        )

    assert is_genuine(table, "tok123", sent(fields))
    assert not is_genuine(table, "tok123", sent(f"{fields}&x=1"))


def test_plivo_version_2() -> None:
    """The sheet's vector; refused where only version 3 counts, and beside a version 3 that doesn't fit."""
    signature = "wWCT6fR3uCkwp4j5O+D6NdZ/esxtMr5WHAtqLaSrSts="
    headers = {"x_plivo_signature_v2": signature, "x_plivo_signature_v2_nonce": "nonce1"}
    sent = request(b"", "POST", "https://cb.example/pl?x=1", **headers)
    assert is_genuine({"scheme": "plivo"}, "tok123", sent)
    assert not is_genuine({"scheme": "plivo", "versions": ["v3"]}, "tok123", sent)
    both = {**headers, "x_plivo_signature_v3": signature, "x_plivo_signature_v3_nonce": "nonce1"}
    assert not is_genuine(
        {"scheme": "plivo"}, "tok123", request(b"", "POST", "https://cb.example/pl?x=1", **both)
    )


# Vonage

VONAGE = "4770cecd18ff68f8947d6040e205519af11ae987d03173948c03c15cb360f9eb"
VONAGE_FIELDS = "messageId=0A12&status=delivered&client-ref=a%3Db%26c&timestamp=1795286400&sig="


@pytest.mark.parametrize("sig", [VONAGE, VONAGE.upper()])
def test_vonage_by_form_query_and_json(sig: str) -> None:
    """The sheet's vector; the account decides how reports come."""
    table = {"scheme": "vonage"}
    report = {"messageId": "0A12", "status": "delivered", "client-ref": "a=b&c", "timestamp": 1795286400}
    url = f"https://cb.example/receipts/sms?{VONAGE_FIELDS}{sig}"
    sent = [
        form(f"{VONAGE_FIELDS}{sig}"),
        request(method="GET", url=url),
        request(json.dumps({**report, "sig": sig}).encode(), content_type="application/json"),
    ]
    assert [is_genuine(table, "sig123", each) for each in sent] == [True, True, True]
    late = {**table, "tolerance": "5m"}
    assert [is_genuine(late, "sig123", sent[0], NOW + after) for after in (300, 301)] == [True, False]


@pytest.mark.parametrize(
    "fields", [f"{VONAGE_FIELDS}00", VONAGE_FIELDS, f"status=x&{VONAGE_FIELDS}{VONAGE}", "a=%ff", "x=1"]
)
def test_vonage_refused(fields: str) -> None:
    """Another hash, none, a parameter that is given twice, no text, no sig."""
    assert not is_genuine({"scheme": "vonage"}, "sig123", form(fields))


def test_vonage_by_plain_md5() -> None:
    """The mode "MD5 hash": of "&a=1" and the secret, by openssl."""
    table = {"scheme": "vonage", "algorithm": "md5"}
    assert is_genuine(table, "sig123", form("a=1&sig=MD5".replace("MD5", MD5_OF_A1_SIG123)))


MD5_OF_A1_SIG123 = "ff08c57fdc5bb5778b742177a5198b1f"


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
        scheme.verify(request(body, **headers), read_keys(scheme, keys), (SENDGRID_TIME + late) * SECOND)
    except Forged:
        assert not genuine
    else:
        assert genuine


@pytest.mark.parametrize("key", ["?", "AAAA"])
def test_a_public_key_that_is_none(key: str) -> None:
    """The file is at fault."""
    scheme = open_scheme(options(scheme="ecdsa", secret_file="/unused"))
    with pytest.raises(ValueError, match="public key"):
        read_keys(scheme, [key])


# Mailgun

MAILGUN = {
    "timestamp": "1795286402",
    "token": "tok50",
    "signature": "439cfa381fe8fb458e3dc31aaccfdf5a5287778f88222b1f8c5360096554c155",
}


def mailgun_request(**event: object) -> ReceiptRequest:
    return request(json.dumps({"signature": MAILGUN, "event-data": event}).encode())


def test_mailgun_signs_a_token_which_counts_for_one_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sheet's vector: the same report may come again, another one under its token is forged."""
    monkeypatch.setattr(mailgun, "MOST_TOKENS", 1)
    scheme = open_scheme(options(scheme="mailgun", secret_file="/unused"))
    keys = read_keys(scheme, ["key123"])
    for _ in range(2):
        scheme.verify(mailgun_request(event="delivered"), keys, NOW * SECOND)
    with pytest.raises(Forged, match="token"):
        scheme.verify(mailgun_request(event="failed"), keys, NOW * SECOND)


def test_mailgun_by_form_and_out_of_time() -> None:
    """The older form has the values as fields; half a day is the limit."""
    fields = "&".join(f"{name}={value}" for name, value in MAILGUN.items())
    table = {"scheme": "mailgun"}
    assert is_genuine(table, "key123", form(fields))
    assert not is_genuine(table, "key123", form(fields), NOW + 43_300)
    assert not is_genuine(table, "key124", form(fields))
    assert not is_genuine(table, "key123", form(fields.replace("tok50", "tok51")))
    assert not is_genuine(table, "key123", request(b"{"))
    assert not is_genuine(table, "key123", request(b"{}"))


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


@pytest.fixture(scope="module")
def amazon() -> tuple[rsa.RSAPrivateKey, bytes]:
    """A key, and its certificate as PEM."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sns.amazonaws.com")])
    start = datetime(2026, 1, 1, tzinfo=UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    return key, certificate.public_bytes(serialization.Encoding.PEM)


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
    read = sns_scheme(amazon[1]).verify(sent, [], SNS_NOW)
    assert isinstance(read, ReceiptRequest)
    assert read.body == b'{"eventType":"Delivery"}'


def test_sns_names_the_certificate_that_it_misses(amazon: tuple[rsa.RSAPrivateKey, bytes]) -> None:
    """It has to be fetched before."""
    scheme = open_scheme(options(scheme="sns", topics=[TOPIC]))
    with pytest.raises(CertificateMissing) as missing:
        scheme.verify(enveloped(amazon[0], SIGNED_NOTIFICATION), [], SNS_NOW)
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
        sns_scheme(amazon[1]).verify(enveloped(amazon[0], SIGNED_NOTIFICATION, **changes), [], SNS_NOW)


def test_sns_refuses_an_old_message(amazon: tuple[rsa.RSAPrivateKey, bytes]) -> None:
    """An hour is the limit."""
    sent = enveloped(amazon[0], SIGNED_NOTIFICATION)
    with pytest.raises(Forged, match="time of signing"):
        sns_scheme(amazon[1]).verify(sent, [], SNS_NOW + 3600 * SECOND)


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
    assert scheme.verify(good, [], SNS_NOW) == Subscription(CONFIRM)
    evil = "https://evil.example/?Action=ConfirmSubscription"
    with pytest.raises(Forged, match="SubscribeURL"):
        scheme.verify(enveloped(key, signed(evil), SubscribeURL=evil, **changes), [], SNS_NOW)
    greeting = SIGNED_NOTIFICATION.replace('{"eventType":"Delivery"}', "Successfully validated")
    sent = enveloped(key, greeting, Message="Successfully validated")
    assert scheme.verify(sent, [], SNS_NOW) == NoReport()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b"{"])
def test_sns_needs_an_envelope(amazon: tuple[rsa.RSAPrivateKey, bytes], body: bytes) -> None:
    """Anything else is forged."""
    with pytest.raises(Forged):
        sns_scheme(amazon[1]).verify(request(body), [], SNS_NOW)


def test_a_certificate_that_is_none() -> None:
    """What a host answers instead of one."""
    with pytest.raises(Forged, match="certificate"):
        sns_scheme(b"<html>")


# Logins and tokens


@pytest.mark.parametrize(
    ("value", "genuine"),
    [
        ("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", True),
        ("basic  QWxhZGRpbjpvcGVuIHNlc2FtZQ==", True),
        ("Basic QWxhZGRpbjpvcGVuIHNlc2FtZg==", False),
        ("Bearer QWxhZGRpbjpvcGVuIHNlc2FtZQ==", False),
        ("Basic ?", False),
        ("", False),
    ],
)
def test_user_name_and_password(value: str, genuine: bool) -> None:
    """The vector of RFC 7617."""
    table = {"scheme": "basic", "username": "Aladdin"}
    assert is_genuine(table, "open sesame", request(authorization=value)) is genuine


@pytest.mark.parametrize(
    ("at", "url", "header", "genuine"),
    [
        ("path", "https://x.example/receipts/sms/t%6Fken", "", True),
        ("path", "https://x.example/receipts/sms", "", False),
        ("query:key", "https://x.example/receipts/sms?a=1&key=token", "", True),
        ("query:key", "https://x.example/receipts/sms?a=1&key=other", "", False),
        ("query:key", "https://x.example/receipts/sms?a=%ff", "", False),
        ("header:X-Telegram-Bot-Api-Secret-Token", "https://x.example/", "token", True),
        ("header:X-Telegram-Bot-Api-Secret-Token", "https://x.example/", "tokens", False),
        ("header:X-Telegram-Bot-Api-Secret-Token", "https://x.example/", "", False),
    ],
)
def test_a_secret_in_the_request(at: str, url: str, header: str, genuine: bool) -> None:
    """In the last part of the path, a parameter or a header."""
    sent = request(url=url, x_telegram_bot_api_secret_token=header)
    assert is_genuine({"scheme": "token", "at": at}, "token", sent) is genuine


# Common to all


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "sns"])
def test_a_request_without_any_signature_is_forged(scheme: str) -> None:
    """Whatever the scheme, and however little comes."""
    table: dict[str, Any] = {"scheme": scheme}
    table |= {"header": "X-S"} if scheme == "hmac" else {}
    table |= {"username": "u"} if scheme == "basic" else {}
    table |= {"at": "path"} if scheme == "token" else {}
    for sent in (request(), request(b"{}"), request(b"\xff"), form("a=%ff"), form("a=b")):
        secret = {"ecdsa": SENDGRID_KEY, "standard-webhooks": STANDARD_KEY}.get(scheme, "secret")
        opened = open_scheme(options(**{"secret_file": "/unused", **table}))
        with pytest.raises(Forged):
            opened.verify(sent, read_keys(opened, [secret]), NOW * SECOND)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"scheme": "sha256"}, "unknown scheme; use one of hmac, standard-webhooks"),
        ({"header": "X-S"}, "needs one of secret_file and secret"),
        ({"header": "X-S", "secret_file": "a", "secret": "b"}, "needs one of secret_file and secret"),
        ({"secret_file": "a"}, "needs one of header and at"),
        ({"secret_file": "a", "header": "X-S", "signed": "{body}{nonce}"}, "{nonce} isn't known here"),
        ({"secret_file": "a", "header": "X-S", "signed": "{timestamp}"}, r"must contain {body} or {url}"),
        ({"secret_file": "a", "header": "X-S", "signed": "{body}{timestamp}"}, "need each other"),
        ({"secret_file": "a", "header": "X-S", "timestamp": "/t"}, "need each other"),
        ({"scheme": "token", "secret_file": "a", "at": "body"}, 'expected "path"'),
        ({"scheme": "basic", "secret_file": "a", "username": "a:b"}, "should match"),
        ({"scheme": "sns", "topics": []}, "at least 1"),
    ],
)
def test_what_is_no_signature_is_told(table: dict[str, Any], problem: str) -> None:
    """Every mistake at its key."""
    with pytest.raises(ValidationError) as raised:
        options(**table)
    assert problem in str(raised.value)


def test_a_secret_may_be_named_among_the_providers(tmp_path: Path) -> None:
    """Its files take the place of the name; an unknown name is an error."""
    named = options(header="X-S", secret="token")
    other = options(header="X-S", secret_file=[str(tmp_path / "a"), str(tmp_path / "b")])
    assert named.with_secrets({"token": other.secret_file}).secret_file == other.secret_file
    assert other.with_secrets({}) is other
    with pytest.raises(ValueError, match="there is no token in secrets"):
        named.with_secrets({})


def test_a_new_secret_counts_from_the_instant_it_is_there(tmp_path: Path) -> None:
    """The files are looked at before a report counts as forged, not only once a second."""
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    file.write_text("Jefe-old")
    verifier = open_verifier(options(header="X-S", secret_file=[str(file)]))
    sent = request(JEFE, x_s=RFC["hmac-sha256"])
    with pytest.raises(Forged):
        verifier.verify(sent, NOW * SECOND)
    assert renewal.LOOK_EVERY >= 1
    file.write_text("Jefe")
    assert verifier.verify(sent, NOW * SECOND) is sent


LONG = "a-secret-that-is-long-enough-for-the-library"


def test_signature_of_a_body_does_not_fit_a_query() -> None:
    """A signed empty body, such as that of a trial, must not vouch for reports in any query."""
    forged = "https://cb.example/receipts/sms?id=7&status=delivered"
    signed = hmac.digest(b"secret", b"", "sha256").hex()
    assert not is_genuine(
        {"scheme": "hmac", "header": "X-Sig"}, "secret", request(method="GET", url=forged, X_Sig=signed)
    )
    for claims in ({"iat": NOW}, {"iat": NOW, "payload_hash": hashlib.sha256(b"{}").hexdigest()}):
        token = jwt.encode(claims, LONG, algorithm="HS256")
        assert not is_genuine(
            {"scheme": "jwt"}, LONG, request(method="GET", url=forged, Authorization=f"Bearer {token}")
        )


def test_token_of_mailgun_vouches_for_no_query() -> None:
    token = "t" * 50
    signature = hmac.digest(b"secret", f"{NOW}{token}".encode(), "sha256").hex()
    query = f"timestamp={NOW}&token={token}&signature={signature}&event=delivered"
    for reference in ("1", "2"):
        sent = request(method="GET", url=f"https://cb.example/receipts/sms?{query}&ref={reference}")
        assert not is_genuine({"scheme": "mailgun"}, "secret", sent)


def test_half_a_surrogate_pair_in_parameters_is_forged() -> None:
    sent = request(b'{"messageId":"\\ud83d","sig":"00"}', content_type="application/json")
    assert not is_genuine({"scheme": "vonage"}, "secret", sent)
