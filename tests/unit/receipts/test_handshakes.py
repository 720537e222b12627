"""Providers that prove an address by a handshake: Azure Event Grid, and RCS for Business."""

from __future__ import annotations

import base64
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from test_receipts_taken_in import room

from deliveryd.model import SECOND
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Forged
from deliveryd.receipts.verification import open_scheme, signed_content
from support.signed_requests import NOW, options, request

pytestmark = pytest.mark.anyio

TOKEN = "t0ken-of-thirty-two-characters-00"
OTHER = "t0ken-of-thirty-two-characters-01"
EVENT = {"eventType": "DELIVERED", "messageId": "m1", "sendTime": "2026-11-21T18:40:05Z"}


@pytest.fixture
def secret(tmp_path: Path) -> str:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text(TOKEN)
    return str(file)


def azure(secret: str) -> dict[str, Any]:
    return {
        "each": "/*",
        "provider_id": "/data/messageId",
        "status": "/data/deliveryStatus",
        "delivered": ["Delivered"],
        "signature": {"scheme": "event-grid", "at": "path", "secret_file": secret},
    }


def google(secret: str) -> dict[str, Any]:
    return {
        "provider_id": "/messageId",
        "status": "/eventType",
        "delivered": ["DELIVERED"],
        "signature": {"scheme": "google-rcs", "secret_file": secret},
    }


def validation(token: str, body: object) -> ReceiptRequest:
    url = f"https://cb.example/receipts/sms/{token}"
    return request(json.dumps(body).encode(), url=url, aeg_event_type="SubscriptionValidation")


async def test_event_grid_gets_the_code_of_its_handshake_back(tmp_path: Path, secret: str) -> None:
    code = {"id": "e", "data": {"validationCode": "512d38b6-c7b8", "validationUrl": "https://x.example"}}
    async with room(tmp_path, azure(secret)) as (receipts, _journal):
        reply = await receipts.take_in("sms", validation(TOKEN, [code]))
        assert (reply.status, reply.content_type) == (200, "application/json")
        assert json.loads(reply.text) == {"validationResponse": "512d38b6-c7b8"}
        assert (await receipts.take_in("sms", validation(OTHER, [code]))).status == 401
        broken: object
        for broken in ([], {}, [{"data": {}}], [{"data": {"validationCode": 7}}]):
            assert (await receipts.take_in("sms", validation(TOKEN, broken))).status == 401


async def test_event_grid_reports_with_the_secret_in_its_address(tmp_path: Path, secret: str) -> None:
    event = [{"data": {"messageId": "p1", "deliveryStatus": "Delivered"}}]
    async with room(tmp_path, azure(secret)) as (receipts, _journal):
        for token, status in ((TOKEN, 200), (OTHER, 401)):
            url = f"https://cb.example/receipts/sms/{token}"
            sent = request(json.dumps(event).encode(), url=url, aeg_event_type="Notification")
            reply = await receipts.take_in("sms", sent)
            assert reply.status == status
            assert list(reply.results) == (["unmatched"] if status == 200 else [])


async def test_rcs_gets_the_secret_of_its_handshake_back(tmp_path: Path, secret: str) -> None:
    async with room(tmp_path, google(secret)) as (receipts, _journal):
        for token, answered in ((TOKEN, (200, "1234567890")), (OTHER, (401, "the signature doesn't fit"))):
            body = json.dumps({"clientToken": token, "secret": "1234567890"}).encode()
            reply = await receipts.take_in("sms", request(body))
            assert (reply.status, reply.text) == answered


def envelope(event: object, key: str = TOKEN) -> ReceiptRequest:
    data = json.dumps(event).encode()
    signature = base64.b64encode(hmac.digest(key.encode(), data, "sha512")).decode()
    body = {"message": {"data": base64.b64encode(data).decode(), "messageId": "1"}}
    return request(json.dumps(body).encode(), x_goog_signature=signature)


async def test_rcs_signs_the_event_in_its_envelope(tmp_path: Path, secret: str) -> None:
    async with room(tmp_path, google(secret)) as (receipts, _journal):
        reply = await receipts.take_in("sms", envelope(EVENT))
        assert (reply.status, list(reply.results)) == (200, ["unmatched"])
        assert (await receipts.take_in("sms", envelope(EVENT, OTHER))).status == 401


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b"\xff", b'{"message": 1}', b'{"message": {"data": "?"}}', b'{"clientToken": 7}',
     b'{"clientToken": "\\ud800", "secret": "x"}', b'{"message": {"data": "abc"}}',
     b'{"message": {"data": "\xc3\xa9"}}', b'{"message": {"data": "e30="}}'],
)  # fmt: skip
async def test_rcs_needs_an_envelope_and_its_signature(body: bytes) -> None:
    scheme = open_scheme(options(scheme="google-rcs", secret_file="/unused"))
    with pytest.raises(Forged):
        signed_content(scheme, request(body), [scheme.read_key(TOKEN)], NOW * SECOND)


@pytest.mark.parametrize("asked", ["\ud800", "é", "a" * 257, "two\nlines"])
async def test_only_a_code_is_given_back(tmp_path: Path, secret: str, asked: str) -> None:
    body = json.dumps({"clientToken": TOKEN, "secret": asked}).encode()
    async with room(tmp_path, google(secret)) as (receipts, _journal):
        assert (await receipts.take_in("sms", request(body))).status == 401
    event = validation(TOKEN, [{"data": {"validationCode": asked}}])
    (tmp_path / "azure").mkdir()
    async with room(tmp_path / "azure", azure(secret)) as (receipts, _journal):
        assert (await receipts.take_in("sms", event)).status == 401
