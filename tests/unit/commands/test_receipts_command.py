"""`deliveryd receipts test`: what a provider sent, tried offline."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.terminal import Answered, command

CONFIG = """
[service]
base_url = "http://127.0.0.1:1"

[receipts]
public_url = "https://cb.example"

[channels]
order = ["sms", "messenger"]

[channels.sms.providers.twilio]
adapter = "http"
url = "http://127.0.0.1:1/sms"
json = { text = "{content.text}" }
secrets = { token = ["token", "next"] }
provider_id = "/sid"

[channels.sms.providers.twilio.receipt]
provider_id = "/MessageSid"
reference = "query:ref"
status = "/MessageStatus"
code = "/ErrorCode"
delivered = ["delivered"]
failed = ["undelivered"]
intermediate = { accepted = ["sent"] }
stopped = ["undelivered/21610"]
recipient = "/To"
answer = { status = 204 }
signature = { scheme = "twilio", secret = "token" }

[channels.sms.providers.plain]
adapter = "http"
url = "http://127.0.0.1:1/sms"
json = { text = "{content.text}" }
provider_id = "/id"
[channels.sms.providers.plain.receipt]
each = "/results"
provider_id = "/id"
status = "/status"
delivered = ["ok"]
reported_at = "/at"
answer = { body = "ACK" }

[channels.messenger]
adapter = "http"
url = "http://127.0.0.1:1/messenger"
json = { text = "{content.text}" }
secrets = { verify = "token" }
provider_id = "/id"
[channels.messenger.receipt]
provider_id = "/id"
status = "/status"
delivered = ["ok"]
reported_at = "/at"
challenge = { secret = "verify" }
signature = { header = "X-S", secret = "verify", signed = "{timestamp}.{body}", timestamp = "header:X-Time" }
"""
FORM = "POST {path} HTTP/1.1\r\nHost: other\r\nContent-Type: application/x-www-form-urlencoded\r\n"
SIGNED = "X-Twilio-Signature: mUKwsO46I4PBEOZDAGiaT1/CDLg=\r\n"
FIELDS = "MessageSid=SM11&MessageStatus=delivered&To=%2B447700900123"
AT = "2026-11-21T18:00:00.000000Z"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Two channels, one with two providers; the secret of the vector of Twilio's sheet."""
    for name, secret in (("token", "tok123"), ("next", "tok124")):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(secret)
    path = tmp_path / "config.toml"
    path.write_text(CONFIG + f'[journal]\nurl = "sqlite:///{tmp_path}/journal.db"\n')
    return path


def tried(config: Path, raw: str, *options: str) -> tuple[Answered, Any]:
    file = config.parent / "request"
    file.write_bytes(raw.encode())
    answered = command("receipts", "test", "--config", config, *options, "--at", AT, file, "--json")
    return answered, json.loads(answered.out or "null")


def twilio(config: Path, raw: str, *options: str) -> tuple[Answered, Any]:
    return tried(config, raw, "--channel", "sms", "--provider", "twilio", *options)


def test_a_signed_form_is_valid_and_read(config: Path) -> None:
    """The sample of the sheet, under the address that Twilio called."""
    raw = f"{FORM.format(path='/receipts/sms/twilio')}{SIGNED}\r\n{FIELDS}"
    answered, data = twilio(config, raw, "--url", "https://cb.example/tw?ref=01J9Z")
    assert answered.status == 0
    assert data == {
        "signature": "valid",
        "reports": [
            {
                "provider_id": "SM11",
                "reference": "01J9Z",
                "word": "delivered",
                "meaning": "delivered",
                "consent": None,
                "at": AT,
            }
        ],
        "answer": {"status": 204, "body": ""},
    }


@pytest.mark.parametrize(
    ("status", "meaning", "consent"),
    [
        ("sent", "intermediate", None),
        ("undelivered", "failed", None),
        ("undelivered&ErrorCode=21610", "failed", "stopped"),
        ("x", "none", None),
    ],
)
def test_reports_are_shown_though_the_signature_is_invalid(
    config: Path, status: str, meaning: str, consent: str | None
) -> None:
    """With the answer that it would get, which is the exit status, too."""
    fields = f"MessageSid=SM11&MessageStatus={status}&To=%2B447700900123"
    answered, data = twilio(config, f"{FORM.format(path='/receipts/sms/twilio')}{SIGNED}\r\n{fields}")
    assert answered.status == 1
    assert (data["signature"], data["answer"]["status"]) == ("invalid", 401)
    assert [(report["meaning"], report["consent"]) for report in data["reports"]] == [(meaning, consent)]


def test_why_it_cant_be_read_is_shown_though_the_signature_is_invalid(config: Path) -> None:
    """Both verdicts, and the answer that the worker would give."""
    raw = f"{FORM.format(path='/receipts/sms/twilio')}{SIGNED}\r\nMessageSid=SM11"
    answered, data = twilio(config, raw)
    assert (answered.status, data["signature"], data["reports"]) == (1, "invalid", [])
    assert data["unreadable"] == [
        {"raw": "MessageSid=SM11", "reason": "there is no usable status at /MessageStatus"}
    ]
    assert data["answer"] == {"status": 401, "body": "the signature doesn't fit"}
    shown = command(
        "receipts", "test", "--config", config, "--channel", "sms/twilio", config.parent / "request"
    )
    assert shown.out.splitlines() == [
        "signature  invalid: the signature doesn't fit; it covers receipts.public_url and the form",
        "report     none",
        "unreadable there is no usable status at /MessageStatus: MessageSid=SM11",
        "answer     401 the signature doesn't fit",
    ]


def test_a_list_is_shown_with_what_cant_be_read(config: Path) -> None:
    """Nothing is signed there."""
    results = [{"id": "a", "status": "ok", "at": AT}, {"id": "b"}]
    raw = f"POST /receipts/sms/plain HTTP/1.1\r\nHost: x\r\n\r\n{json.dumps({'results': results})}"
    options = ("--channel", "sms", "--provider", "plain")
    answered, data = tried(config, raw, *options)
    assert answered.status == 0
    assert data["signature"] == "unchecked"
    assert [(each["provider_id"], each["at"]) for each in data["reports"]] == [("a", AT)]
    assert data["unreadable"] == [{"raw": '{"id":"b"}', "reason": "there is no usable status at /status"}]
    assert data["answer"] == {"status": 200, "body": "ACK"}
    answered = command("receipts", "test", "--config", config, *options, config.parent / "request")
    assert answered.out.splitlines() == [
        "signature  unchecked: no signature is configured",
        f"report     ok: delivered, at {AT}, id a",
        'unreadable there is no usable status at /status: {"id":"b"}',
        "answer     200 ACK",
    ]


PLAIN = ("--channel", "sms", "--provider", "plain")
REPORT = json.dumps({"results": [{"id": "a", "status": "ok", "at": AT}]}).encode()


SENT = [
    ("POST /receipts/sms/plain", REPORT, 200),
    ("POST /receipts/sms/plain/", REPORT, 200),
    ("GET /receipts/sms/plain?x=1", b"", 400),
    ("POST /receipts/sms/plain", b" " * (64 << 10) + REPORT, 413),
    ("POST /receipts/sms/twilio", REPORT, 404),
    ("POST /receipts/sms", REPORT, 404),
    ("POST /receipts/smss/plain/", REPORT, 404),
    ("POST /receipt/sms/plain", REPORT, 404),
    ("POST /", REPORT, 404),
    ("PUT /receipts/sms/plain", REPORT, 405),
    ("HEAD /receipts/sms/plain", b"", 405),
    ("POST /receipts/sms/plain\nContent-Encoding: gzip", gzip.compress(REPORT), 200),
    ("POST /receipts/sms/plain\nContent-Encoding: x-gzip, identity", gzip.compress(REPORT), 200),
    ("POST /receipts/sms/plain\nContent-Encoding: gzip", gzip.compress(REPORT)[:-9], 400),
    ("POST /receipts/sms/plain\nContent-Encoding: gzip", gzip.compress(b" " * (64 << 10) + REPORT), 413),
    ("POST /receipts/sms/plain\nContent-Encoding: br", b"\x0b\x01\x80ok\x03", 415),
    ("POST /receipts/sms/plain\nContent-Encoding: utf-8", REPORT, 200),
    ("POST /receipts/sms/plain\nContent-Encoding: ", REPORT, 200),
]


@pytest.mark.parametrize(("head", "body", "status"), SENT, ids=map(str, range(len(SENT))))
def test_the_answer_is_the_workers(config: Path, head: str, body: bytes, status: int) -> None:
    """The same endpoint decides: an address, a method, a size or a coding that the worker refuses."""
    first, _, header = head.partition("\n")
    lines = [f"{first} HTTP/1.1", "Host: x", *filter(None, [header]), "", ""]
    file = config.parent / "request"
    file.write_bytes("\r\n".join(lines).encode() + body)
    answered = command("receipts", "test", "--config", config, *PLAIN, "--at", AT, file, "--json")
    assert answered.data["answer"]["status"] == status
    assert answered.status == (0 if status == 200 else 1)
    assert len(answered.data["reports"]) == (1 if status == 200 else 0)


def test_what_the_endpoint_refuses_is_said_and_what_has_no_time_too(config: Path) -> None:
    """One line each, for people."""
    file = config.parent / "request"
    file.write_bytes(b"POST /receipts/sms/twilio HTTP/1.1\r\n\r\n" + REPORT)
    answered = command("receipts", "test", "--config", config, *PLAIN, file)
    assert answered.out.splitlines() == [
        "signature  unchecked: no provider of this name has receipts; this one's are /receipts/sms/plain",
        "report     none",
        "answer     404 no provider of this name has receipts",
    ]
    file.write_bytes(b"POST /receipts/sms/plain HTTP/1.1\r\n\r\n" + REPORT.replace(AT.encode(), b"bananas"))
    answered = command("receipts", "test", "--config", config, *PLAIN, file)
    assert "report     ok: delivered, undated, id a" in answered.out.splitlines()


def test_what_cant_be_read_gets_400(config: Path) -> None:
    """One report where a list is configured."""
    raw = "POST /receipts/sms/plain HTTP/1.1\r\n\r\n[]"
    answered, data = tried(config, raw, "--channel", "sms", "--provider", "plain")
    assert (answered.status, data["reports"], data["answer"]["status"]) == (1, [], 400)


@pytest.mark.parametrize(
    ("token", "status", "body"), [("tok123", 200, "12345"), ("other", 403, "wrong token")]
)
def test_the_verification_of_an_address(config: Path, token: str, status: int, body: str) -> None:
    """Meta's, by GET."""
    query = f"hub.mode=subscribe&hub.verify_token={token}&hub.challenge=12345"
    raw = f"GET /receipts/messenger?{query} HTTP/1.1\r\nHost: x\r\n\r\n"
    answered, data = tried(config, raw, "--channel", "messenger")
    assert (answered.status, data["answer"]) == (int(status != 200), {"status": status, "body": body})


@pytest.mark.parametrize(("at", "signature"), [(AT, "valid"), ("2026-11-21T18:06:00Z", "invalid")])
def test_the_clock_can_be_set(config: Path, at: str, signature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input as well as a file; another spelling of `--at` and the text for people."""
    body = json.dumps({"id": "m1", "status": "ok", "at": AT})
    time = "1795284000"
    value = hmac.new(b"tok123", f"{time}.{body}".encode(), hashlib.sha256).hexdigest()
    raw = f"POST /receipts/messenger HTTP/1.1\nX-S: {value}\nX-Time: {time}\n\n{body}".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    answered = command("receipts", "test", "--config", config, "--channel", "messenger", "--at", at, "-")
    assert answered.out.splitlines()[0].split(":")[0] == f"signature  {signature}"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--channel", "sms"), "name one of sms's providers with --provider: twilio, plain"),
        (("--channel", "smss"), "there is no channel smss"),
        (("--channel", "sms", "--provider", "twillio"), "sms has no provider twillio"),
    ],
)
def test_a_provider_that_isnt_there_is_told(config: Path, options: tuple[str, ...], told: str) -> None:
    """One line, exit status 2."""
    answered, _ = tried(config, "POST / HTTP/1.1\r\n\r\n{}", *options)
    assert answered.status == 2
    assert told in answered.err


def test_a_file_that_is_no_request_is_told(config: Path) -> None:
    """What is expected."""
    answered, _ = twilio(config, "{}")
    assert answered.status == 1
    assert ": line 1: expected a request line" in answered.err
    missing = command(
        "receipts", "test", "--config", config, "--channel", "messenger", config.parent / "missing"
    )
    assert "can't be read: No such file" in missing.err


@pytest.mark.parametrize(
    ("path", "host", "url", "told"),
    [
        ("/receipts/sms", "[::1", (), "https://[::1 is no address"),
        ("/receipts/sms", "cb.example:99999", (), "https://cb.example:99999 is no address"),
        ("//[x", "cb.example", (), "line 1: expected a request line"),
        ("/receipts/sms", "cb.example", ("--url", "https://cb.example:99999/x"), "is no address"),
    ],
)
def test_an_address_that_cant_be_is_told(
    tmp_path: Path, path: str, host: str, url: tuple[str, ...], told: str
) -> None:
    token, file = tmp_path / "token", tmp_path / "request"
    token.touch(mode=0o600)
    token.write_text("tok123")
    file.write_text(f"POST {path} HTTP/1.1\r\nHost: {host}\r\nX-Twilio-Signature: AAAA\r\n\r\nx")
    keys = ("--set", "account=AC1", "--set", "from=+447700900999", "--secret", f"token={token}")
    answered = command("receipts", "test", "--preset", "twilio", *keys, *url, file)
    assert (answered.status, told in answered.err) == (1, True), answered


def test_a_preset_alone_reads_a_request(config: Path) -> None:
    """The vector of Twilio's sheet, by the preset and its secret, without a configuration."""
    file = config.parent / "request"
    file.write_bytes((FORM.format(path="/tw?ref=01J9Z") + SIGNED + "\r\n" + FIELDS).encode())
    answered = command(
        "receipts", "test", "--preset", "twilio", "--set", "account=AC0001", "--secret",
        f"token={config.parent / 'token'}", "--url", "https://cb.example", "--at", AT, "--json", file,
    )  # fmt: skip
    assert (answered.status, answered.data["signature"]) == (0, "valid")
    assert answered.data["reports"] == [
        {
            "provider_id": "SM11",
            "reference": "01J9Z",
            "word": "delivered",
            "meaning": "delivered",
            "consent": None,
            "at": AT,
        }
    ]
