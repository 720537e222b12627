"""Requests of another shape than a preset's tables say: never answered 200 without having been read."""

from __future__ import annotations

import json

import pytest

from deliveryd.channels.presets.catalogue import Catalogue
from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.http.finder import Document
from deliveryd.model import parse_instant
from deliveryd.receipts.reading import ReportReader, at_once
from deliveryd.receipts.request import Unreadable

NOW = parse_instant("2026-06-01T00:00:00Z")


def reader_of(name: str) -> ReportReader:
    """The reader of a preset's reports."""
    preset = Catalogue().find(name)
    assert preset is not None
    table = dict(preset.file.table["receipt"])
    for signed in ("signature", "challenge"):
        table.pop(signed, None)
    return ReportReader(ReceiptOptions.model_validate(table))


@pytest.mark.parametrize(
    ("table", "sent"),
    [
        ("whatsapp", {"object": "whatsapp_business_account", "entry": {"changes": []}}),
        ("whatsapp", {"object": "whatsapp_business_account", "entry": [{"changes": {"value": {}}}]}),
        ("whatsapp", {"object": "whatsapp_business_account", "entry": [{"changes": [{"value": []}]}]}),
        (
            "whatsapp",
            {"object": "whatsapp_business_account", "entry": [{"changes": [{"value": {"statuses": {}}}]}]},
        ),
        (
            "whatsapp",
            {"object": "whatsapp_business_account", "entry": [{"changes": [{"value": {"statuses": [[]]}}]}]},
        ),
        ("facebook", {"object": "page", "entry": [{"messaging": {"delivery": {"mids": ["m"]}}}]}),
        ("facebook", {"object": "page", "entry": [{"messaging": [{"delivery": [{"mids": ["m"]}]}]}]}),
        ("facebook", {"object": "page", "entry": [{"messaging": [{"delivery": {"mids": {"a": "m"}}}]}]}),
        ("facebook", {"object": "page", "entry": [{"messaging": [["delivery"]]}]}),
        ("vonage", [{"messageId": "1", "status": "delivered"}]),
        ("clickatell", [{"messageId": "1", "statusCode": 4}]),
        ("telegram", [{"my_chat_member": {}}]),
        ("telegram", {"my_chat_member": [{}]}),
        ("infobip", {"results": {"messageId": "1"}}),
        ("sendgrid", {"event": "delivered", "ref": "1"}),
        ("mailgun", {"event-data": [{"event": "delivered"}]}),
    ],
)
def test_a_list_or_an_object_in_place_of_another_shape_is_never_ignored(table: str, sent: object) -> None:
    """Of what a preset ignores, too: answering 200 would say that it was read."""
    with pytest.raises(Unreadable):
        at_once(reader_of(table).read(Document(json.dumps(sent).encode()), NOW))


@pytest.mark.parametrize(
    ("table", "sent"),
    [
        ("whatsapp", {"object": "whatsapp_business_account", "entry": []}),
        ("whatsapp", {"object": "whatsapp_business_account", "entry": [{"changes": [{"value": {}}]}]}),
        (
            "whatsapp",
            {"object": "whatsapp_business_account", "entry": [{"changes": [{"value": {"messages": [{}]}}]}]},
        ),
        ("facebook", {"object": "page", "entry": [{"messaging": [{"read": {"watermark": 1}}]}]}),
        ("facebook", {"object": "page", "entry": [{"messaging": [{"delivery": {"mids": []}}]}]}),
        ("facebook", {"object": "page", "entry": [{"messaging": [{"delivery": {"mids": None}}]}]}),
        ("telegram", {"update_id": 1, "message": {"text": "Hi"}}),
        ("sendgrid", []),
    ],
)
def test_what_holds_no_report_is_answered_normally(table: str, sent: object) -> None:
    found = at_once(reader_of(table).read(Document(json.dumps(sent).encode()), NOW))
    assert not found.reports
    assert not found.unread


def test_a_list_of_another_shape_beside_a_good_one_is_kept_as_unreadable() -> None:
    good = {"id": "w1", "status": "delivered", "timestamp": "1795286404"}
    values = [{"statuses": [good]}, {"statuses": {"id": "w2", "status": "delivered"}}]
    sent = {"object": "whatsapp_business_account", "entry": [{"changes": [{"value": v} for v in values]}]}
    found = at_once(reader_of("whatsapp").read(Document(json.dumps(sent).encode()), NOW))
    assert [report.provider_id for report in found.reports] == ["w1"]
    assert [unread.raw for unread in found.unread] == ['{"id":"w2","status":"delivered"}']
