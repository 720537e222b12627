"""One rule for all signatures: a report is read only from what the signature covers."""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import json
import struct
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import jwt
import pytest
from pydantic import ValidationError

from deliveryd.channels.presets.catalogue import Catalogue, Preset
from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.commands.providers.preset_cases import Given
from deliveryd.commands.providers.preset_running import OpenedCase
from deliveryd.commands.sandbox.sandbox_files import SECRET, chosen_presets, impersonation, provider_table
from deliveryd.model import SECOND
from deliveryd.receipts.inlet import Inlet
from deliveryd.receipts.reading import at_once
from deliveryd.receipts.request import ReceiptRequest, Unreadable
from deliveryd.receipts.signatures.base import Forged
from deliveryd.sandbox.impersonation import Outgoing
from deliveryd.sandbox.state import ReceivedMessage
from support.signed_requests import FORM, NOW, form, is_genuine, request

PUBLIC = "https://receipts.example"
KEY = "a-secret-that-is-long-enough-for-all"
AT = datetime.fromtimestamp(NOW, UTC)
BOUND_TO_NOTHING = ("basic", "token", "event-grid")
"""Schemes that sign nothing: whoever knows the secret may report anything."""


def reporting() -> list[str]:
    """The presets of the package whose providers report."""
    found = [each for name in Catalogue().names() if (each := Catalogue().find(name)) is not None]
    return [each.name for each in found if each.file.promises.receipts]


def inlet_of(preset: Preset, folder: Path) -> Inlet:
    """What a worker with this preset verifies with, its secrets as the sandbox has them."""
    _lines, files = provider_table(preset, "http://127.0.0.1:1")
    secrets = {name: [files[f"{preset.name}-{name}"]] for name in preset.file.secrets}
    keys = {name: each.example for name, each in preset.file.keys.items() if each.required}
    if (certificate := files.get(f"{preset.name}-certificate")) is not None:
        file = folder / "certificate"
        file.touch(0o600)
        file.write_text(certificate)
        keys["certificate_file"] = str(file)
    given = Given(keys=keys, secrets=secrets)
    receipt = OpenedCase(preset, given, folder).options().receipt
    assert receipt is not None
    return Inlet(receipt)


def reported(name: str) -> tuple[Preset, Outgoing]:
    """A preset, and the report of a delivery that its provider would send."""
    [preset] = chosen_presets(name)
    provider = impersonation(preset)
    in_path = f"/{SECRET}" if preset.file.table["receipt"]["signature"].get("at") == "path" else ""
    callback = f"{PUBLIC}{provider.path}{in_path}?ref=m-1&token={SECRET}"
    payload: Any = {}
    for step in reversed((provider.callback or "").split("/")[1:]):
        payload = [payload or callback] if step == "0" else {step: payload or callback}
    message = ReceivedMessage(
        1, "", provider.channel, "123", 1, "m-1", None, "447700900123", payload, headers={}
    )
    report = provider.report(message, "delivered", PUBLIC, AT)
    assert report is not None
    return preset, report


def arriving(report: Outgoing, **changes: Any) -> ReceiptRequest:
    """A report as it arrives, with another method, body or query."""
    url = urlsplit(report.called)
    headers = [(name.lower().encode(), value.encode()) for name, value in report.headers.items()]
    arrived = {"method": report.method, "query": url.query.encode(), "body": report.body, **changes}
    return ReceiptRequest(
        arrived["method"], url.path, arrived["query"], headers, arrived["body"], base=PUBLIC
    )


def refused(inlet: Inlet, requests: Sequence[ReceiptRequest]) -> list[bool]:
    """Whether each request is refused."""
    found = []
    for each in requests:
        try:
            inlet.verify(each, NOW * SECOND)
        except Forged:
            found.append(True)
        else:
            found.append(False)
    return found


@pytest.mark.parametrize("name", reporting())
def test_no_presets_signature_vouches_for_another_report(name: str, tmp_path: Path) -> None:
    """The genuine report is accepted; its signature with another body, or with none, isn't."""
    preset, report = reported(name)
    inlet = inlet_of(preset, tmp_path)
    assert refused(inlet, [arriving(report)]) == [False]
    scheme = preset.file.table["receipt"]["signature"]["scheme"]
    if scheme in BOUND_TO_NOTHING:
        return
    other = arriving(report, method="POST", body=b'{"status": "failed"}')
    another_form = arriving(report, method="POST", body=b"status=failed")
    as_query = arriving(report, method="GET", body=b"", query=b"id=7&status=failed")
    if scheme == "mailgun":  # its signature is in the body, and counts for one body
        assert refused(inlet, [as_query]) == [True]
        tokens = [inlet.verify(each, NOW * SECOND) for each in (arriving(report), changed(report))]
        first, second = (each.token for each in tokens if isinstance(each, ReceiptRequest))
        assert first is not None
        assert second is not None
        assert first.digest == second.digest
        assert first.body != second.body
        return
    assert refused(inlet, [other, another_form, as_query]) == [True, True, True]


def with_name(name: bytes, body: bytes) -> bytes:
    """Compress a body by gzip, with the name of a file in it."""
    deflated = zlib.compress(body, wbits=-15)
    end = struct.pack("<II", zlib.crc32(body), len(body))
    return b"\x1f\x8b\x08\x08\0\0\0\0\0\xff" + name + b"\0" + deflated + end


def test_fields_in_compressed_bytes_sign_nothing(tmp_path: Path) -> None:
    """Mailgun's time, token and signature of a report seen once, in the name of a compressed file."""
    preset, report = reported("mailgun")
    body = json.loads(report.body)
    sent = with_name(f"&{urlencode(body.pop('signature'))}&".encode(), json.dumps(body).encode())
    forged = arriving(report, body=gzip.decompress(sent))
    forged.sent = sent
    assert refused(inlet_of(preset, tmp_path), [forged]) == [True]


def flat_inlet(folder: Path, **signature: Any) -> Inlet:
    """What verifies flat reports, which may come in the query."""
    secret = folder / "key"
    secret.write_text(KEY)
    secret.chmod(0o600)
    table = {
        "provider_id": "/id", "status": "/status", "delivered": ["delivered"], "failed": ["failed"],
        "signature": {**signature, "secret_file": secret},
    }  # fmt: skip
    return Inlet(ReceiptOptions.model_validate(table))


BLANKS = [b"", b"\n", b" \r\n\t", b"\0"]


@pytest.mark.parametrize("body", BLANKS)
def test_a_report_in_the_query_beside_blanks_needs_a_signature_of_the_query(
    body: bytes, tmp_path: Path
) -> None:
    """A body of blanks is none: a signature of them vouches for no query, one of the address does."""
    made = {name: hmac.digest(KEY.encode(), name + body, "sha256").hex() for name in (b"", URL.encode())}
    mailgun = hmac.digest(KEY.encode(), f"{NOW}t".encode(), "sha256").hex()
    in_query = f"{URL}&timestamp={NOW}&token=t&signature={mailgun}"
    cases = [
        (flat_inlet(tmp_path, **SIGNED), request(body, url=URL, X_Signature=made[b""])),
        (flat_inlet(tmp_path, scheme="mailgun"), request(body, url=in_query)),
        (
            flat_inlet(tmp_path, **SIGNED, signed="{url}{body}"),
            request(body, url=URL, X_Signature=made[URL.encode()]),
        ),
    ]
    assert [refused(inlet, [sent]) for inlet, sent in cases] == [[True], [True], [False]]


def test_a_signature_of_compressed_blanks_vouches_for_no_query(tmp_path: Path) -> None:
    """The signed bytes are some, what they mean is nothing: the report would be read from the query."""
    compressed = gzip.compress(b"\n")
    sent = request(b"\n", url=URL, X_Signature=hmac.digest(KEY.encode(), compressed, "sha256").hex())
    sent.sent = compressed
    assert refused(flat_inlet(tmp_path, **SIGNED), [sent]) == [True]


def changed(report: Outgoing) -> ReceiptRequest:
    """Mailgun's report under the same signature with another event."""
    return arriving(report, body=report.body.replace(b"delivered", b"failed"))


SIGNED = {"scheme": "hmac", "header": "X-Signature", "algorithm": "hmac-sha256"}
ANOTHER = json.dumps({"text": "Hello&id=8&status=delivered&x=", "id": "7", "status": "failed"}).encode()
TYPES = [
    FORM,
    f"{FORM}; charset=utf-8",
    "application/json",
    "multipart/form-data; boundary=x",
    "text/plain",
    "",
]


@pytest.mark.parametrize("content_type", TYPES)
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ANOTHER, ("7", "failed")),
        (b"\xef\xbb\xbf\r\n " + ANOTHER, ("7", "failed")),
        (b"id=7&status=delivered&text=%7B%22id%22%3A%228%22%7D", ("7", "delivered")),
        (b"id=7&status=delivered&text=two words\r\n", ("7", "delivered")),
        (b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n&id=8&status=delivered\r\n--x--', None),
        (b"<report><text>&id=8&status=delivered&</text></report>", None),
        (b"text=hello\n&id=8&status=delivered", ("8", "delivered")),
        (b'"&id=8&status=delivered&"', None),
    ],
    ids=["JSON", "JSON with a mark", "form", "careless form", "several parts", "XML", "lines", "text"],
)
def test_a_signed_body_means_the_same_with_any_content_type(
    tmp_path: Path, content_type: str, body: bytes, expected: tuple[str, str] | None
) -> None:
    """Its signature doesn't cover the header, which could have another report read from the same body."""
    inlet = flat_inlet(tmp_path, **SIGNED)
    signature = hmac.digest(KEY.encode(), body, "sha256").hex()
    sent = request(body, X_Signature=signature, content_type=content_type)
    genuine = inlet.verify(sent, NOW * SECOND)
    assert isinstance(genuine, ReceiptRequest)
    if expected is None:
        with pytest.raises(Unreadable):
            at_once(inlet.read(genuine, NOW * SECOND))
        return
    [found] = at_once(inlet.read(genuine, NOW * SECOND)).reports
    assert (found.provider_id, found.word) == expected


# Each scheme: a body that no signed part covers; a signed part that isn't there


def token(**claims: object) -> str:
    return jwt.encode({"iat": NOW, **claims}, KEY, algorithm="HS256")


def sha256(text: bytes | str) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


URL = "https://cb.example/receipts/sms?id=7&status=delivered"
JWT_URL: dict[str, Any] = {"scheme": "jwt", "covers": ["url_hash"]}
JWT_BOTH: dict[str, Any] = {"scheme": "jwt", "covers": ["payload_hash", "url_hash"]}
BODY = b'{"id": 7, "status": "delivered"}'


@pytest.mark.parametrize(
    ("table", "claims", "body", "genuine"),
    [
        (JWT_URL, {"url_hash": sha256(URL)}, b"", True),
        (JWT_URL, {"url_hash": sha256(URL)}, BODY, False),
        (JWT_URL, {"url_hash": sha256(URL), "payload_hash": sha256(BODY)}, BODY, True),
        (JWT_URL, {"url_hash": sha256(URL), "payload_hash": sha256(b"{}")}, BODY, False),
        (JWT_URL, {"url_hash": sha256(URL), "payload_hash": sha256(BODY)}, b"", False),
        (JWT_BOTH, {"url_hash": sha256(URL), "payload_hash": sha256(BODY)}, b"", False),
        (JWT_BOTH, {"url_hash": sha256(URL)}, b"", True),
        ({"scheme": "jwt"}, {"payload_hash": sha256(BODY)}, BODY, True),
        ({"scheme": "jwt"}, {"payload_hash": sha256(b"")}, b"", False),
    ],
)
def test_claims_of_a_token(table: dict[str, Any], claims: dict[str, Any], body: bytes, genuine: bool) -> None:
    """A body needs its hash, a hash needs its body, and without a body the address has to be signed."""
    sent = request(body, url=URL, authorization=token(**claims))
    assert is_genuine(table, KEY, sent) is genuine


def plivo(text: str, nonce: str, version: str = "v3") -> dict[str, str]:
    made = base64.b64encode(hmac.digest(KEY.encode(), text.encode(), "sha256")).decode()
    return {f"x_plivo_signature_{version}": made, f"x_plivo_signature_{version}_nonce": nonce}


def test_a_signature_of_plivo_counts_as_what_it_is() -> None:
    """One of version 3 isn't one of version 2, which covers no body; and its nonce can't hold the form."""
    url = "https://cb.example/pl?a=1"
    fields = "Status=delivered&To=7"
    text = "https://cb.example/pl?a=1.StatusdeliveredTo7"
    genuine = plivo(f"{text}.12", "12")
    assert is_genuine({"scheme": "plivo"}, KEY, form(fields, url=url, **genuine))
    as_version_2 = plivo(f"{text}.12", "?a=1.StatusdeliveredTo7.12", "v2")
    assert not is_genuine({"scheme": "plivo"}, KEY, form("Status=failed", url=url, **as_version_2))
    without_form = plivo(f"{text}.12", "StatusdeliveredTo7.12")
    assert not is_genuine({"scheme": "plivo"}, KEY, request(b"", url=url, **without_form))
    version_2 = plivo("https://cb.example/pl12", "12", "v2")
    assert not is_genuine({"scheme": "plivo"}, KEY, form(fields, url="https://cb.example/pl", **version_2))


@pytest.mark.parametrize(
    ("signed", "body", "genuine"),
    [("{url}", b"", True), ("{url}", BODY, False), ("{url}{body}", BODY, True), ("{url}{body}", b"", True)],
)
def test_a_keyed_hash_covers_what_its_template_names(signed: str, body: bytes, genuine: bool) -> None:
    """One of the address alone is good for a report in the query, and for no body."""
    text = signed.format(url=URL, body=body.decode()).encode()
    sent = request(body, url=URL, x_s=hmac.digest(KEY.encode(), text, "sha256").hex())
    assert is_genuine({"header": "X-S", "signed": signed}, KEY, sent) is genuine


def test_the_hash_in_twilios_query_needs_its_body() -> None:
    """The signed address names the hash of a body: neither none nor a form in its place is accepted."""
    url = f"https://cb.example/tw?bodySHA256={sha256(BODY)}"
    made = base64.b64encode(hmac.digest(KEY.encode(), url.encode(), "sha1")).decode()
    sent = [
        request(BODY, url=url, x_twilio_signature=made),
        request(b"", "GET", url, x_twilio_signature=made),
        request(b"", "POST", url, content_type=FORM, x_twilio_signature=made),
        request(b"&", "POST", url, content_type=FORM, x_twilio_signature=made),
    ]
    assert [is_genuine({"scheme": "twilio"}, KEY, each) for each in sent] == [True, False, False, False]


def test_signatures_cover_the_bytes_of_a_form() -> None:
    """A field in Latin-1 or UCS-2 that nobody needs; the type that a body is sent under changes nothing."""
    body = b"Status=ok&Text=Gr%F6%DFe&Reply=\x04\xff"
    fields = b"Reply\x04\xffStatusokTextGr\xf6\xdfe"
    twilio = base64.b64encode(hmac.digest(KEY.encode(), URL.encode() + fields, "sha1")).decode()
    plivo = hmac.digest(KEY.encode(), URL.encode() + b"." + fields + b".nonce1", "sha256")
    plivos = {
        "x_plivo_signature_v3": base64.b64encode(plivo).decode(), "x_plivo_signature_v3_nonce": "nonce1",
    }  # fmt: skip
    parameters = b"&Reply=\x04\xff&Status=ok&Text=Gr\xf6\xdfe"
    vonage = body + b"&sig=" + hmac.digest(KEY.encode(), parameters, "sha256").hex().encode()
    for named in (FORM, "application/json", "text/plain"):
        about = {"url": URL, "content_type": named}
        assert is_genuine({"scheme": "twilio"}, KEY, request(body, **about, x_twilio_signature=twilio))
        assert is_genuine({"scheme": "plivo"}, KEY, request(body, **about, **plivos))
        assert is_genuine({"scheme": "vonage"}, KEY, request(vonage, **about))
    other = body.replace(b"%F6", b"%F7")
    assert not is_genuine({"scheme": "twilio"}, KEY, request(other, url=URL, x_twilio_signature=twilio))


def test_json_under_the_name_of_a_form_needs_a_signature_of_json() -> None:
    """A signature of the address and no field covers no body, whatever the body is called."""
    made = base64.b64encode(hmac.digest(KEY.encode(), URL.encode(), "sha1")).decode()
    sent = request(BODY, url=URL, content_type=FORM, x_twilio_signature=made)
    assert not is_genuine({"scheme": "twilio"}, KEY, sent)


def test_vonages_parameters_cover_no_list() -> None:
    """`sig` is over texts and numbers: a list or an object beside them is signed by nobody."""
    fields: dict[str, Any] = {"messageId": "0A12", "status": "delivered", "price": None}
    text = "&messageId=0A12&status=delivered"
    sig = hmac.digest(KEY.encode(), text.encode(), "sha256").hex()
    mores: list[dict[str, Any]] = [{}, {"more": []}, {"more": {}}, {"more": 1}]
    bodies = [{**fields, "sig": sig, **more} for more in mores]
    sent = [request(json.dumps(body).encode(), content_type="application/json") for body in bodies]
    assert [is_genuine({"scheme": "vonage"}, KEY, each) for each in sent] == [True, False, False, False]


# The query and headers beside a body


PLACES = ["provider_id", "reference", "status", "code", "recipient", "reported_at"]


@pytest.mark.parametrize(
    ("signature", "good"),
    [
        ({"header": "X-S"}, False),
        ({"header": "X-S", "signed": "{url}{body}"}, True),
        ({"scheme": "standard-webhooks"}, False),
        ({"scheme": "vonage"}, False),
        ({"scheme": "twilio"}, True),
        ({"scheme": "token", "at": "path"}, True),
        (JWT_BOTH, True),
        ({"scheme": "jwt"}, False),
        (None, True),
    ],
)
@pytest.mark.parametrize("key", PLACES)
def test_a_place_in_the_query_needs_a_signature_of_the_address(
    signature: dict[str, Any] | None, good: bool, key: str
) -> None:
    """Otherwise a report that was seen once could be told of any message."""
    refused = pytest.raises(ValidationError, match=f"{key}: the signature doesn't cover query:ref")
    with nullcontext() if good else refused:
        read_from("query:ref", key, signature)


@pytest.mark.parametrize(
    ("signature", "place", "good"),
    [
        ({"header": "X-S"}, "header:X-Status", False),
        ({"header": "X-S"}, "header:X-S", False),
        ({"header": "X-S", "signed": "{url}{body}"}, "header:X-Status", False),
        ({"header": "X-S", "signed": "{body}{header:x-status}"}, "header:X-Status", True),
        ({"header": "X-S", "signed": "{body}{header:x-status}"}, "header:X-Other", False),
        ({"header": "X-S", "signed": "{timestamp}{body}", "timestamp": "header:X-At"}, "header:x-at", True),
        ({"scheme": "standard-webhooks"}, "header:Webhook-Id", True),
        ({"scheme": "standard-webhooks", "prefix": "svix-"}, "header:webhook-id", False),
        ({"scheme": "ecdsa", "timestamp_header": "X-At"}, "header:x-at", True),
        ({"scheme": "ecdsa"}, "header:x-at", False),
        ({"scheme": "twilio"}, "header:X-Status", False),
        (JWT_BOTH, "header:X-Status", False),
        ({"scheme": "token", "at": "path"}, "header:X-Status", True),
        ({"scheme": "basic", "username": "u"}, "header:X-Status", True),
        (None, "header:X-Status", True),
    ],
)
@pytest.mark.parametrize("key", PLACES)
def test_a_place_in_a_header_needs_a_signature_of_the_header(
    signature: dict[str, Any] | None, place: str, good: bool, key: str
) -> None:
    """Otherwise a report that was seen once could be sent again with another header."""
    refused = pytest.raises(ValidationError, match=f"{key}: the signature doesn't cover {place}")
    with nullcontext() if good else refused:
        read_from(place, key, signature)


def read_from(place: str, key: str, signature: dict[str, Any] | None) -> None:
    """Read the options of a report that has one value at a place."""
    table: dict[str, Any] = {
        "provider_id": "/id", "status": "/s", "delivered": ["d"], "stopped": ["x"], "recipient": "/to",
        key: place,
    }  # fmt: skip
    if signature is not None:
        table["signature"] = {**signature, "secret_file": "/unused"}
    ReceiptOptions.model_validate(table)


def test_a_query_that_is_the_report_is_read(tmp_path: Path) -> None:
    """MessageBird's reports come by GET, without a body."""
    preset, report = reported("messagebird")
    inlet = inlet_of(preset, tmp_path)
    verified = inlet.verify(arriving(report), NOW * SECOND)
    assert isinstance(verified, ReceiptRequest)
    [read] = at_once(inlet.read(verified, NOW * SECOND)).reports
    assert (read.meaning, read.reference) == ("delivered", "m-1")
    assert urlencode({"reference": "m-1"}) in report.called
