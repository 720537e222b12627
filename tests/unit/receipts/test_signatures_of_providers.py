"""Signatures with a scheme of their own: Twilio, Plivo, Vonage, Mailgun."""

from __future__ import annotations

import json

import pytest

from deliveryd.http.finder import TextFields, read_texts
from deliveryd.model import SECOND
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.verification import open_scheme, signed_content
from support.signed_requests import NOW, form, is_genuine, options, request

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


def test_a_signature_of_plivo_covers_no_body_but_a_form() -> None:
    """One that was seen with a query would fit any JSON beside it."""
    headers = {
        "x_plivo_signature_v3": "uKFYvGaiT6+/NlvXd7YU3bK1ffhpT2WJwf6caBoYuAQ=",
        "x_plivo_signature_v3_nonce": "nonce1",
    }
    url = "https://cb.example/pl?Status=delivered&MessageUUID=u-1"
    assert is_genuine({"scheme": "plivo"}, "tok123", request(b"", "GET", url, **headers))
    assert not is_genuine(
        {"scheme": "plivo"}, "tok123", request(b'{"Status": "failed"}', "POST", url, **headers)
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


# Mailgun


MAILGUN = {
    "timestamp": "1795286402",
    "token": "tok50",
    "signature": "439cfa381fe8fb458e3dc31aaccfdf5a5287778f88222b1f8c5360096554c155",
}


def mailgun_request(**event: object) -> ReceiptRequest:
    return request(json.dumps({"signature": MAILGUN, "event-data": event}).encode())


def test_mailgun_signs_a_token_which_counts_for_one_report() -> None:
    """The sheet's vector: the request is returned with the token and with what it is used for."""
    scheme = open_scheme(options(scheme="mailgun", secret_file="/unused"))
    keys = list(map(scheme.read_key, ["key123"]))
    found = []
    for event in ("delivered", "delivered", "failed"):
        verified = signed_content(scheme, mailgun_request(event=event), keys, NOW * SECOND)
        assert isinstance(verified, ReceiptRequest)
        assert verified.token is not None
        found.append(verified.token)
    assert found[0] == found[1]
    assert found[0].digest == found[2].digest
    assert found[0].body != found[2].body
    assert found[0].until == (1795286402 + 43_200) * SECOND


def test_a_report_of_mailgun_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the signature was found in is what is read; a large one holds up the loop once only."""
    parsed = []

    def read(encoded: bytes) -> TextFields:
        parsed.append(encoded)
        return read_texts(encoded)

    monkeypatch.setattr("deliveryd.receipts.request.read_texts", read)
    sent = form("&".join(f"{name}={value}" for name, value in MAILGUN.items()))
    scheme = open_scheme(options(scheme="mailgun", secret_file="/unused"))
    verified = signed_content(scheme, sent, [scheme.read_key("key123")], NOW * SECOND)
    assert isinstance(verified, ReceiptRequest)
    assert verified.document().tree == MAILGUN
    assert len(parsed) == 1
    assert verified.with_body(b'{"a": 1}').document().tree == {"a": 1}


@pytest.mark.parametrize(("tolerance", "seconds"), [("1s", 43_200), ("2d", 172_800)])
def test_a_token_of_mailgun_is_remembered_beyond_a_short_tolerance(tolerance: str, seconds: int) -> None:
    """Otherwise a reload that raises it would let the token count for another report."""
    scheme = open_scheme(options(scheme="mailgun", secret_file="/unused", tolerance=tolerance))
    verified = signed_content(
        scheme, mailgun_request(), list(map(scheme.read_key, ["key123"])), 1795286402 * SECOND
    )
    assert isinstance(verified, ReceiptRequest)
    assert verified.token is not None
    assert verified.token.until == (1795286402 + seconds) * SECOND


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
