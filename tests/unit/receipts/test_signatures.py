"""Signatures of providers' reports: vectors of the providers and of their libraries, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from pydantic import ValidationError
from standardwebhooks import Webhook

from deliveryd.channels.signature_schemes import SCHEMES
from deliveryd.model import SECOND
from deliveryd.receipts.signatures.base import Forged
from deliveryd.receipts.verification import open_scheme, open_verifier, signed_content
from deliveryd.runtime import secret_file
from support.signed_requests import NOW, form, is_genuine, options, request

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


@pytest.mark.parametrize(
    ("table", "headers", "reason"),
    [
        ({"header": "X-Sig"}, {}, "there is no header X-Sig"),
        ({"header": "X-Sig"}, {"x_sig": "zz"}, "there is no usable signature in the header X-Sig"),
        ({"at": "query:sig"}, {}, "there is no usable signature in query:sig"),
    ],
)
def test_a_signature_that_is_missing_is_named(
    table: dict[str, Any], headers: dict[str, str], reason: str
) -> None:
    scheme = open_scheme(options(secret_file="/unused", **table))
    with pytest.raises(Forged) as forged:
        signed_content(scheme, request(b"{}", **headers), [b"key"], NOW * SECOND)
    assert str(forged.value) == reason


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
    keys = list(map(scheme.read_key, ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSx", STANDARD_KEY]))
    try:
        signed_content(scheme, sent, keys, (STANDARD_TIME + late) * SECOND)
    except Forged:
        assert not genuine
    else:
        assert genuine


@pytest.mark.parametrize(("others", "genuine", "hashed"), [(9, True, 1), (10, False, 0)])
def test_a_body_is_hashed_once_however_many_signatures_are_listed(
    others: int, genuine: bool, hashed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header may list thousands, from anybody: each would cost a hash of the whole body."""
    calls = []
    sign = Webhook.sign

    def counted(webhook: Webhook, *args: Any) -> str:
        calls.append(args)
        return sign(webhook, *args)

    monkeypatch.setattr(Webhook, "sign", counted)
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": str(STANDARD_TIME),
        "webhook-signature": "a " * others + STANDARD,
    }
    sent = request(b'{"test": 2432232314}', **headers)
    scheme = open_scheme(options(secret_file="/unused", scheme="standard-webhooks"))
    keys = list(map(scheme.read_key, [STANDARD_KEY]))
    with nullcontext() if genuine else pytest.raises(Forged, match="more than 10"):
        signed_content(scheme, sent, keys, STANDARD_TIME * SECOND)
    assert len(calls) == hashed


def test_standard_webhooks_with_a_public_key() -> None:
    """Ed25519, signed by a library."""
    private = ed25519.Ed25519PrivateKey.generate()
    raw = private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    signature = base64.b64encode(private.sign(b"m1.1795286400.{}")).decode()
    scheme = open_scheme(options(scheme="standard-webhooks", secret_file="/unused"))
    keys = [scheme.read_key(f"whpk_{base64.b64encode(raw).decode()}")]
    headers = {"webhook-id": "m1", "webhook-timestamp": "1795286400"}
    sent = request(b"{}", **headers, webhook_signature=f"v1a,{signature}")
    assert signed_content(scheme, sent, keys, NOW * SECOND) is sent
    with pytest.raises(Forged):
        signed_content(
            scheme, request(b"[]", **headers, webhook_signature=f"v1a,{signature}"), keys, NOW * SECOND
        )


@pytest.mark.parametrize("secret", ["whsec_", "whpk_AAAA", "whsec_é"])
def test_a_secret_of_standard_webhooks_that_is_none(secret: str) -> None:
    """The file is at fault, not the report."""
    scheme = open_scheme(options(scheme="standard-webhooks", secret_file="/unused"))
    with pytest.raises(ValueError, match="secret"):
        list(map(scheme.read_key, [secret]))


SENDGRID_KEY = (
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62gw+2fNNRaINXvVpig"
    "lSI8eNEc6wEA3F+g=="
)


# Logins and tokens


LOGIN = base64.b64encode(b"Aladdin:open sesame, please").decode()


@pytest.mark.parametrize(
    ("value", "genuine"),
    [
        (f"Basic {LOGIN}", True),
        (f"basic  {LOGIN}", True),
        ("Basic QWxhZGRpbjpvcGVuIHNlc2FtZg==", False),
        (f"Bearer {LOGIN}", False),
        ("Basic ?", False),
        ("", False),
    ],
)
def test_user_name_and_password(value: str, genuine: bool) -> None:
    """As in RFC 7617, with a longer password than its vector has."""
    table = {"scheme": "basic", "username": "Aladdin"}
    assert is_genuine(table, "open sesame, please", request(authorization=value)) is genuine


@pytest.mark.parametrize(
    ("at", "url", "header", "genuine"),
    [
        ("path", "https://x.example/receipts/sms/t%6Fken-0123456789", "", True),
        ("path", "https://x.example/receipts/sms", "", False),
        ("query:key", "https://x.example/receipts/sms?a=1&key=token-0123456789", "", True),
        ("query:key", "https://x.example/receipts/sms?a=1&key=other", "", False),
        ("query:key", "https://x.example/receipts/sms?a=%ff", "", False),
        ("header:X-Telegram-Bot-Api-Secret-Token", "https://x.example/", "token-0123456789", True),
        ("header:X-Telegram-Bot-Api-Secret-Token", "https://x.example/", "tokens", False),
        ("header:X-Telegram-Bot-Api-Secret-Token", "https://x.example/", "", False),
    ],
)
def test_a_secret_in_the_request(at: str, url: str, header: str, genuine: bool) -> None:
    """In the last part of the path, a parameter or a header."""
    sent = request(url=url, x_telegram_bot_api_secret_token=header)
    assert is_genuine({"scheme": "token", "at": at}, "token-0123456789", sent) is genuine


@pytest.mark.parametrize("table", [{"scheme": "basic", "username": "u"}, {"scheme": "token", "at": "path"}])
def test_a_secret_that_requests_carry_cannot_be_guessed(table: dict[str, Any], tmp_path: Path) -> None:
    """It needs 16 characters; a shorter one is a problem of the configuration, and doesn't come into use."""
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    given = options(**table, secret_file=str(file))
    for secret, is_good in (("x" * 15, False), ("x" * 16, True)):
        file.write_text(secret)
        assert (given.problems == []) is is_good
        with nullcontext() if is_good else pytest.raises(ValueError, match="at least 16 characters"):
            open_verifier(given)
    file.write_text("x" * 15)
    assert f"must have at least 16 characters: openssl rand -hex 32 >{file}" in given.problems


# Common to all


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "sns"])
def test_a_request_without_any_signature_is_forged(scheme: str) -> None:
    """Whatever the scheme, and however little comes."""
    table: dict[str, Any] = {"scheme": scheme}
    table |= {"header": "X-S"} if scheme == "hmac" else {}
    table |= {"username": "u"} if scheme == "basic" else {}
    table |= {"at": "path"} if scheme in ("token", "event-grid") else {}
    for sent in (request(), request(b"{}"), request(b"\xff"), form("a=%ff"), form("a=b")):
        secret = {"ecdsa": SENDGRID_KEY, "standard-webhooks": STANDARD_KEY}.get(scheme, LONG)
        opened = open_scheme(options(**{"secret_file": "/unused", **table}))
        with pytest.raises(Forged):
            signed_content(opened, sent, list(map(opened.read_key, [secret])), NOW * SECOND)


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
    assert secret_file.LOOK_EVERY >= 1
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
