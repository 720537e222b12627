"""What is read from providers' reports: words, ids, times and lists, as pure functions of a request."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlencode

import pytest
from pydantic import ValidationError

from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.model import parse_instant
from deliveryd.receipts.reading import LONGEST_RAW, ReadReports, Report, ReportReader, at_once
from deliveryd.receipts.request import ReceiptRequest, Unreadable

NOW = parse_instant("2026-06-01T00:00:00Z")
FORM = (b"content-type", b"application/x-www-form-urlencoded")


def read(table: dict[str, Any], request: ReceiptRequest) -> ReadReports:
    return at_once(ReportReader(ReceiptOptions.model_validate(table)).read(request.document(), NOW))


def post(report: object) -> ReceiptRequest:
    body = report if isinstance(report, bytes) else json.dumps(report).encode()
    return ReceiptRequest("POST", "/receipts/sms", b"", [], body)


def form(**fields: object) -> ReceiptRequest:
    return ReceiptRequest("POST", "/receipts/sms", b"", [FORM], urlencode(fields, doseq=True).encode())


def query(**fields: object) -> ReceiptRequest:
    return ReceiptRequest("GET", "/receipts/sms", urlencode(fields, doseq=True).encode(), [], b"")


def only(table: dict[str, Any], request: ReceiptRequest) -> Report:
    (report,) = read(table, request).reports
    return report


# One report

PLAIN = {
    "provider_id": "/message/id",
    "status": "/state",
    "delivered": ["DELIVRD", 1],
    "failed": ["UNDELIV"],
    "reported_at": "/when",
}


def report(**changes: object) -> bytes:
    whole: dict[str, object] = {
        "message": {"id": "p1"}, "state": "DELIVRD", "when": "2026-05-31T23:59:59.5Z",
    }  # fmt: skip
    return json.dumps({**whole, **changes}).encode()


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (report(), ("p1", "DELIVRD", "delivered", NOW - 500_000)),
        (report(message={"id": 17}, state=1), ("17", "1", "delivered", NOW - 500_000)),
        (report(state="UNDELIV"), ("p1", "UNDELIV", "failed", NOW - 500_000)),
        (report(when=1_780_271_999), ("p1", "DELIVRD", "delivered", NOW - 1_000_000)),
        (report(when=1_780_271_999.5), ("p1", "DELIVRD", "delivered", NOW - 500_000)),
        (report(when=1_780_271_999_250), ("p1", "DELIVRD", "delivered", NOW - 750_000)),
        (report(state="BUFFRED"), ("p1", "BUFFRED", "none", NOW)),
    ],
    ids=[
        "text",
        "numbers",
        "failed",
        "seconds since 1970",
        "with a fraction",
        "milliseconds",
        "another status",
    ],
)
def test_a_report_is_read(raw: bytes, expected: tuple[object, ...]) -> None:
    """The id, the word, its meaning and the time."""
    found = only(PLAIN, post(raw))
    assert (found.provider_id, found.word, found.meaning, found.at) == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"[]", b"{", b"\xff", b"[" * 100_000, b"null", b"7", b'[{"message": {"id": "p1"}}]',
        report(message={"id": ""}), report(message={"id": None}), report(message={"id": "x" * 300}),
        report(message={"id": "a\nb"}), report(state={}), report(state=["DELIVRD"]),
    ],
)  # fmt: skip
def test_an_unreadable_report_is_told_apart(raw: bytes) -> None:
    """A shape or a value that isn't as the configuration says."""
    with pytest.raises(Unreadable):
        read(PLAIN, post(raw))


def test_a_time_stands_in_one_of_several_places_or_in_none() -> None:
    """The first that is there counts; without any, the report is of the moment it came."""
    options = {**PLAIN, "reported_at": ["/when", "/bouncedAt"]}
    second = json.dumps({"message": {"id": "p1"}, "state": "DELIVRD", "bouncedAt": "2026-05-31T23:59:58Z"})
    assert only(options, post(report())).at == NOW - 500_000
    assert only(options, post(second.encode())).at == NOW - 2_000_000
    assert only(options, post(report(when=None))).at == NOW


def test_a_time_that_cant_be_read_leaves_the_place_to_the_next() -> None:
    options = {**PLAIN, "reported_at": ["/when", "/bouncedAt"]}
    second = report(when="0000-00-00 00:00:00", bouncedAt="2026-05-31T23:59:58Z")
    assert only(options, post(second)).at == NOW - 2_000_000


def test_a_request_without_a_report_is_unreadable() -> None:
    """Neither body nor query, a form or a query of too many fields, several parts, other markup or text."""
    many = b"&".join([b"a=1"] * 1001)
    requests = [
        ReceiptRequest("POST", "/", b"", [], b""),
        ReceiptRequest("POST", "/", b"", [FORM], many),
        ReceiptRequest("POST", "/", b"", [(b"content-type", b"multipart/form-data; boundary=x")], b"--x--"),
        ReceiptRequest("POST", "/", b"", [FORM], b'<report id="p1" state="DELIVRD"/>'),
        ReceiptRequest("POST", "/", b"", [FORM], b"DELIVRD"),
        ReceiptRequest("GET", "/", many, [], b""),
    ]
    for request in requests:
        with pytest.raises(Unreadable):
            read(PLAIN, request)


@pytest.mark.parametrize("send", [form, query])
def test_forms_and_queries_are_read_like_json(send: Any) -> None:
    """Twilio's by POST, Kannel's and Bird's by GET."""
    table = {"provider_id": "/MessageSid", "status": "/MessageStatus", "delivered": ["delivered"]}
    found = only(table, send(MessageSid="SM11", MessageStatus="delivered", To="+447700900123"))
    assert (found.provider_id, found.meaning, found.at) == ("SM11", "delivered", NOW)
    with pytest.raises(Unreadable):
        read(table, send(MessageSid=["SM11", "SM12"], MessageStatus="delivered"))


NAMES = [
    b"application/json",
    b"application/x-www-form-urlencoded",
    b"application/x-www-form-urlencoded; charset=ISO-8859-1",
    b"APPLICATION/JSON;charset=windows-1252",
    b"multipart/form-data; boundary=x",
    b"text/plain",
    b"",
]
IDS = {"provider_id": "/id", "status": "/status", "delivered": ["ok"], "reported_at": "/at"}


@pytest.mark.parametrize("named", NAMES)
@pytest.mark.parametrize(
    "body",
    [
        b'{"id": "p1", "status": "ok"}',
        b'\r\n {"id": "p1", "status": "ok"}',
        b'\xef\xbb\xbf{"id": "p1", "status": "ok", "text": "a=b&c"}',
        b'{"id": "p1", "status": "ok", "text": "Gr\xf6\xdfe"}',
        b'{"id": "p1", "status": "ok", "text": "a\x0bb", "price": NaN}',
        '{"id": "p1", "status": "ok"}'.encode("utf-16"),
        b'{"id": "p1", "status": "ok", "text": "it\\\'s C:\\\\x \\u12 \\\\"}',
        b"id=p1&status=ok",
        b"\xef\xbb\xbfid=p1&status=ok",
        b"id=p1&status=ok&text=Gr%F6%DFe",
        b"text=\xff\xfe&id=p1&status=ok",
        b"id=p1&text=%7B%22&status=ok\r\n",
        b"id=p1&status=ok&at=bananas",
    ],
)
def test_a_body_is_read_as_what_it_is(body: bytes, named: bytes) -> None:
    """Whatever type it is sent under, and though a field that isn't needed can't be read."""
    headers = [(b"content-type", named)] if named else []
    found = only(IDS, ReceiptRequest("POST", "/receipts/sms", b"", headers, body))
    assert (found.provider_id, found.meaning, found.at, found.is_dated) == ("p1", "delivered", NOW, False)


def test_a_body_of_a_line_end_is_none() -> None:
    """Beside a query that has the report."""
    request = ReceiptRequest("POST", "/receipts/sms", b"id=p1&status=ok", [], b"\r\n")
    assert only(IDS, request).provider_id == "p1"
    assert request.parameters() == [(b"id", b"p1"), (b"status", b"ok")]


def test_a_query_in_another_coding_is_read() -> None:
    """The beginning of a text in Latin-1 and in UCS-2, as Kannel's %A has it, beside what is needed."""
    for text in (b"Gr%F6%DFe", b"%04%12%04%30", b"\x04\x12\xff", b"id%3A1+text%3A%E9"):
        request = ReceiptRequest("GET", "/receipts/sms", b"reply=%b&id=p1&status=ok" % text, [], b"")
        assert only(IDS, request).provider_id == "p1"


@pytest.mark.parametrize(
    ("part", "given", "id_"),
    [
        ("^[^.]+", "q2.recvd-5f54-1.0", "q2"),
        ("^[^.]+", "q2", "q2"),
        ("<([^>]+)>", "Message <a@b>", "a@b"),
    ],
)
def test_an_id_may_be_a_part_of_what_is_reported(part: str, given: str, id_: str) -> None:
    """SendGrid's is longer than that of its answer."""
    table = {**IDS, "provider_id_part": part}
    assert only(table, post({"id": given, "status": "ok"})).provider_id == id_
    with pytest.raises(Unreadable):
        read({**IDS, "provider_id_part": "^x"}, post({"id": given, "status": "ok"}))


def test_a_query_beside_a_body_and_headers_are_places() -> None:
    """The reference in the called address, the status in the body."""
    table = {
        "reference": "query:ref", "status": "/s", "delivered": ["ok"], "reported_at": "header:X-At",
        "time": "unix",
    }  # fmt: skip
    request = ReceiptRequest("POST", "/", b"ref=k-1-1", [(b"x-at", b"1780271999")], b'{"s":"ok"}')
    found = only(table, request)
    assert (found.provider_id, found.reference, found.at) == (None, "k-1-1", NOW - 1_000_000)


# Words

WORDS = {
    "provider_id": "/id",
    "status": "/status",
    "code": "/error",
    "delivered": ["DELIVERED/5", "DELIVERED", "read"],
    "failed": ["FAILED"],
    "intermediate": {"accepted": ["DELIVERED/2", "PENDING"]},
    "stopped": ["FAILED/30004"],
    "resumed": ["START"],
    "recipient": ["/to", "/from"],
}


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("DELIVERED", 5, ("DELIVERED/5", "delivered", None, None)),
        ("DELIVERED", 2, ("DELIVERED/2", "intermediate", "accepted", None)),
        ("DELIVERED", None, ("DELIVERED", "delivered", None, None)),
        ("DELIVERED", 9, ("DELIVERED", "delivered", None, None)),
        ("PENDING", 0, ("PENDING", "intermediate", "accepted", None)),
        ("FAILED", 30003, ("FAILED", "failed", None, None)),
        ("FAILED", 30004, ("FAILED", "failed", None, "stopped")),
        ("START", None, ("START", "none", None, "resumed")),
        ("QUEUED", 30004, ("QUEUED", "none", None, None)),
    ],
)
def test_a_pair_of_words_goes_before_single_words(
    status: str, code: int | None, expected: tuple[object, ...]
) -> None:
    """For the message and for the recipient, each by itself."""
    found = only(WORDS, post({"id": "p1", "status": status, "error": code, "to": "+447700900123"}))
    assert (found.word, found.meaning, found.intermediate, found.consent) == expected


def test_an_opt_out_without_a_message_needs_a_recipient() -> None:
    """It stands in one of several places."""
    found = only(WORDS, post({"status": "START", "from": "+447700900123"}))
    assert (found.provider_id, found.consent, found.recipient) == (None, "resumed", "+447700900123")
    assert not found.is_dated
    with pytest.raises(Unreadable, match="recipient at /to, /from"):
        read(WORDS, post({"status": "START"}))


def test_the_first_of_several_places_counts() -> None:
    """Plivo's: the id of the whole message where there is one."""
    table = {
        "provider_id": ["/ParentMessageUUID", "/MessageUUID"],
        "status": "/Status",
        "delivered": ["delivered"],
    }  # fmt: skip
    part = only(table, form(MessageUUID="u2", ParentMessageUUID="u1", Status="delivered"))
    whole = only(table, form(MessageUUID="u1", Status="delivered"))
    assert (part.provider_id, whole.provider_id) == ("u1", "u1")


# Lists

INFOBIP = {
    "each": "/results",
    "provider_id": "/messageId",
    "status": "/status/groupName",
    "code": "/status/id",
    "delivered": ["DELIVERED/5"],
    "failed": ["UNDELIVERABLE"],
    "reported_at": "/doneAt",
}


def infobip(id_: str, group: str = "DELIVERED", number: int = 5) -> dict[str, object]:
    status = {"groupName": group, "id": number}
    return {"messageId": id_, "status": status, "doneAt": "2026-05-31T23:59:59.500+0000"}


def test_each_report_of_a_list_stands_alone() -> None:
    """The readable ones are read; the others are kept with the reason."""
    reading = read(INFOBIP, post({"results": [infobip("m1"), {"messageId": "m2"}, infobip("m3"), 7]}))
    assert [(each.provider_id, each.meaning, each.at) for each in reading.reports] == [
        ("m1", "delivered", NOW - 500_000), ("m3", "delivered", NOW - 500_000),
    ]  # fmt: skip
    assert [(each.raw, each.reason) for each in reading.unread] == [
        ('{"messageId":"m2"}', "there is no usable status at /status/groupName"),
        ("7", "the report is no object"),
    ]


def test_what_is_kept_of_an_unreadable_report_is_bounded() -> None:
    """A part of it."""
    reading = read(INFOBIP, post({"results": [infobip("m1"), {"x": "y" * 10_000}]}))
    assert len(reading.unread[0].raw) == LONGEST_RAW


@pytest.mark.parametrize(
    "body",
    [
        {"results": [{"messageId": "m1"}, {}]},
        {"results": {"messageId": "m1"}},
        {"results": None},
        {"result": []},
        [],
        [infobip("m1")],
        infobip("m1"),
    ],
    ids=[
        "nothing readable",
        "an object",
        "null",
        "another name",
        "a list",
        "a list of reports",
        "one report",
    ],
)
def test_a_list_that_isnt_there_is_unreadable(body: object) -> None:
    """Another shape than the configuration says is never good."""
    with pytest.raises(Unreadable):
        read(INFOBIP, post(body))


def test_an_empty_list_has_no_report() -> None:
    """It was read."""
    assert read(INFOBIP, post({"results": []})) == ReadReports(())


@pytest.mark.parametrize("body", [{"results": [infobip("m1"), infobip("m2")]}, [infobip("m1")]])
def test_a_list_is_unreadable_where_one_report_is_expected(body: object) -> None:
    """Also where a pointer names the first of several: the second one would be lost."""
    table = {key: value for key, value in INFOBIP.items() if key != "each"}
    indexed = {
        **table, "provider_id": "/results/0/messageId", "status": "/results/0/status/groupName",
        "delivered": ["DELIVERED"], "reported_at": "/results/0/doneAt",
    }  # fmt: skip
    for each in (table, indexed):
        with pytest.raises(Unreadable):
            read(each, post(body))
    assert only(indexed, post({"results": [infobip("m1")]})).provider_id == "m1"


META = {
    "each": "/entry/*/changes/*/value/statuses",
    "ignore": [{"at": "/entry/*/changes/*/value/messages/*/id", "matches": "."}],
    "provider_id": "/id",
    "status": "/status",
    "code": "/errors/0/code",
    "delivered": ["delivered", "read"],
    "failed": ["failed"],
    "reported_at": "/timestamp",
    "time": "unix",
}


def test_lists_within_lists() -> None:
    """Meta's, whose times are texts; requests with customers' answers are ignored."""

    def statuses(*ids: str) -> dict[str, object]:
        return {
            "value": {"statuses": [{"id": id_, "status": "read", "timestamp": "1780271999"} for id_ in ids]}
        }

    customers = {"changes": [{"value": {"messages": [{"id": "wamid.9", "text": {"body": "hello"}}]}}]}
    body = {"entry": [{"changes": [statuses("w1", "w2"), statuses("w3")]}, customers]}
    assert [(each.provider_id, each.at) for each in read(META, post(body)).reports] == [
        ("w1", NOW - 1_000_000), ("w2", NOW - 1_000_000), ("w3", NOW - 1_000_000),
    ]  # fmt: skip
    assert read(META, post({"entry": [customers]})) == ReadReports(())
    with pytest.raises(Unreadable, match="no list at /entry"):
        read(META, post({"entry": [{"changes": [{"value": {}}]}]}))


def test_the_body_itself_may_be_the_list() -> None:
    """SendGrid's."""
    table = {"each": "/*", "provider_id": "/id", "status": "/event", "delivered": ["delivered"]}
    reading = read(table, post([{"id": "a", "event": "delivered"}, {"id": "b", "event": "open"}]))
    assert [each.meaning for each in reading.reports] == ["delivered", "none"]


def test_one_report_may_name_several_messages_and_have_no_status() -> None:
    """Facebook's `mids`: every report means delivered."""
    table = {
        "each": "/entry/*/messaging",
        "ignore": [{"at": "/delivery/mids/*", "absent": True}],
        "provider_id": "/delivery/mids/*",
        "reported_at": "/timestamp",
        "time": "unix_ms",
    }
    body = {
        "entry": [
            {
                "messaging": [
                    {"timestamp": 1_780_271_999_000, "delivery": {"mids": ["m1", "m2"]}},
                    {"timestamp": 1_780_271_999_000, "read": {"watermark": 5}},
                ]
            }
        ]
    }
    reports = read(table, post(body)).reports
    assert [(each.provider_id, each.meaning, each.word) for each in reports] == [
        ("m1", "delivered", "delivered"), ("m2", "delivered", "delivered"),
    ]  # fmt: skip
    with pytest.raises(Unreadable):
        read(table, post({"entry": []} | {"entry": [{"other": 1}]}))


def test_ignored_requests_and_items_are_read() -> None:
    """Viber's confirmation of the address; an item among others."""
    table = {
        "ignore": [{"at": "/event", "is": ["webhook"]}],
        "provider_id": "/message_token",
        "status": "/event",
        "delivered": ["delivered"],
    }
    assert read(table, post({"event": "webhook", "timestamp": 1})) == ReadReports(())
    items = [{"event": "webhook"}, {"event": "delivered", "message_token": 5}]
    assert only({**table, "each": "/*"}, post(items)).provider_id == "5"


# Times


@pytest.mark.parametrize(
    ("time", "zone", "text", "expected"),
    [
        ("iso", None, "2026-06-01T00:00:00.000+0000", NOW),
        ("iso", None, "2026-06-01T02:00:00+02:00", NOW),
        ("iso", None, "2026-06-01 00:00:00", NOW),
        ("iso", "Europe/London", "2026-06-01T01:00:00", NOW),
        ("iso", "Europe/London", "2026-06-01T00:00:00Z", NOW),
        ("iso", "Europe/London", "1780272000", NOW),
        ("unix", None, "1780272000", NOW),
        ("unix", None, "1780272000000", NOW),
        ("unix_ms", None, "1780272000000", NOW),
        ("%Y-%m-%d %H:%M", None, "2026-06-01 00:00", NOW),
        ("%Y-%m-%d %H:%M", "Europe/London", "2026-06-01 01:00", NOW),
        ("%y%m%d%H%M", "Europe/Berlin", "2606010200", NOW),
        ("%d/%m/%Y %H:%M %z", "Europe/London", "01/06/2026 00:00 +0000", NOW),
        ("iso", None, "2026-06-01T00:00:00.123456789Z", NOW + 123_456),
        ("iso", None, "2026-06-01", None),
        ("iso", None, "0000-00-00", None),
        ("iso", None, "0000-00-00T00:00:00Z", None),
        ("iso", None, "0001-01-01T00:00:00Z", None),
        ("iso", None, "0001-01-01T00:00:00+14:00", None),
        ("iso", None, "1970-01-01T00:00:00Z", None),
        ("iso", None, "2026-06-01T00:00:00 02:00", None),
        ("iso", None, "2026-06-01T25:61:61Z", None),
        ("iso", None, "bananas", None),
        ("iso", None, "Mon, 01 Jun 2026 00:00:00 +0000", None),
        ("iso", None, "1780272000000000", None),
        ("iso", None, "20260601000000", None),
        ("iso", None, "2026-06-02T00:00:00Z", NOW + 86_400_000_000),
        ("iso", None, "2026-06-02T00:00:01Z", None),
        ("iso", "Europe/London", "0001-01-01T00:00:00", None),
        ("iso", "Europe/London", "9999-12-31T23:59:59", None),
        ("iso", None, "-1", None),
        ("iso", None, True, None),
        ("iso", None, {"date": "2026-06-01"}, None),
        ("unix", None, 0, None),
        ("unix", None, -1, None),
        ("unix", None, 1780272000000000, None),
        ("unix", None, 1e300, None),
        ("unix", None, " ", None),
        ("unix", None, "+", None),
        ("unix", None, "1780272000 ", NOW),
        ("unix_ms", None, "1780272000000000", None),
        ("%Y-%m-%d %H:%M:%S", None, "2026-06-01 00:00:00.123456", None),
        ("%Y-%m-%d %H:%M:%S", None, "0000-00-00 00:00:00", None),
        ("%Y-%m-%d %H:%M:%S", "Europe/London", "2026-06-01+00:00:00", None),
        ("%Y-%m-%d %H:%M:%S%z", None, "2026-06-01 00:00:00 00:00", None),
        ("%Y-%m-%d %H:%M:%S%z", None, "0001-01-01 00:00:00+1400", None),
        ("unix", None, "2026-06-01T00:00:00Z", None),
        ("%Y-%m-%d", None, "01.06.2026", None),
        ("unix", None, "1e400", None),
        ("unix", None, "nan", None),
    ],
)
def test_times(time: str, zone: str | None, text: object, expected: int | None) -> None:
    """Formats, and zones of times without an offset; one that can't be read leaves the report undated."""
    found = only({**PLAIN, "time": time, "zone": zone}, post(report(when=text)))
    assert (found.provider_id, found.meaning) == ("p1", "delivered")
    assert (found.at, found.is_dated) == ((NOW, False) if expected is None else (expected, True))


# Configuration


ABSENT = object()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"failed": ["DELIVRD"]}, "in both delivered and failed: DELIVRD"),
        ({"intermediate": {"accepted": ["1"]}}, "in both delivered and intermediate.accepted: 1"),
        ({"intermediate": {"sent": ["1"]}}, "'sending' or 'accepted'"),
        ({"stopped": ["a"], "resumed": ["a"], "recipient": "/to"}, "in both stopped and resumed: a"),
        ({"stopped": ["a"]}, "stopped and resumed need recipient"),
        ({"provider_id": []}, "needs provider_id or reference"),
        (
            {"provider_id": [], "reference": "/r", "provider_id_part": "x"},
            "provider_id_part needs provider_id",
        ),
        ({"provider_id_part": "("}, "provider_id_part"),
        ({"provider_id": "id"}, "a JSON Pointer must start with"),
        ({"provider_id": "header:"}, "expected a name after"),
        ({"delivered": [], "failed": []}, "status needs words"),
        ({"delivered": ABSENT}, "write delivered = [] if the provider reports failures only"),
        ({"delivered": ABSENT, "failed": [], "intermediate": {"accepted": ["1"]}}, "status needs words"),
        ({"status": []}, "words need status"),
        ({"time": "rfc"}, 'expected "iso"'),
        ({"zone": "Europe/Nowhere"}, "there is no time zone Europe/Nowhere"),
        ({"zone": "Europe/London", "reported_at": []}, "zone needs reported_at"),
        ({"answer": {"status": 302}}, "less than or equal to 299"),
        ({"challenge": {}}, "needs one of secret_file and secret"),
    ],
)
def test_what_fits_no_report_is_told(changes: dict[str, Any], problem: str) -> None:
    """Every mistake at its key."""
    table = {key: value for key, value in {**PLAIN, **changes}.items() if value is not ABSENT}
    with pytest.raises(ValidationError) as raised:
        ReceiptOptions.model_validate(table)
    assert problem in str(raised.value)


def test_a_provider_may_report_failures_only() -> None:
    """It has to be said; deliveries are told by no word then, and opt-outs need none."""
    failures = {"provider_id": "/id", "status": "/status", "delivered": [], "failed": ["bounced"]}
    assert only(failures, post({"id": "a", "status": "bounced"})).meaning == "failed"
    consents = {"status": "/status", "stopped": ["kicked"], "recipient": "/to"}
    shown = [
        ReceiptOptions.model_validate(table).confirms
        for table in (failures, consents, PLAIN, {"provider_id": "/id"})
    ]
    assert shown == [False, False, True, True]


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def test_a_report_nested_too_deep_to_be_written_again_is_kept_unread() -> None:
    table = {"each": "/results", "provider_id": "/id", "status": "/status", "delivered": ["ok"]}
    found = read(table, post(b'{"results": [{"id": "a", "status": "ok"}, ' + deep(500) + b"]}"))
    assert [report.provider_id for report in found.reports] == ["a"]
    assert [unread.raw[:3] for unread in found.unread] == ["[[["]


def test_a_cut_emoji_spoils_no_other_report() -> None:
    """Providers that cut texts by UTF-16 units send half a surrogate pair, which isn't valid Unicode."""
    table = {"each": "/results", "provider_id": "/id", "status": "/status", "delivered": ["ok"]}
    reports = b'{"id": "a", "status": "ok", "text": "hi \\ud83d"}, {"id": "\\ud83d", "status": "ok"}'
    found = read(table, post(b'{"results": [' + reports + b"]}"))
    assert [report.provider_id for report in found.reports] == ["a"]
    assert [unread.raw for unread in found.unread] == ['{"id":"\\ud83d","status":"ok"}']


def test_a_fraction_beside_what_the_slower_parser_cant_read() -> None:
    """How deep that one reads depends on the interpreter: the fraction is read as written, or not usable."""
    table = {"each": "/results", "provider_id": "/id", "status": "/status", "delivered": ["ok"]}
    request = post(b'{"x": ' + deep(1000) + b', "results": [{"id": 1.5, "status": "ok"}]}')
    reads_less = sys.version_info < (3, 12)
    with pytest.raises(Unreadable, match="/id") if reads_less else nullcontext():
        assert [report.provider_id for report in read(table, request).reports] == ["1.5"]


@pytest.mark.parametrize(
    ("code", "details"),
    [
        ("30003", "bounce/30003"),
        ("EC_UNKNOWN-1.2", "bounce/EC_UNKNOWN-1.2"),
        ("550 5.1.1 <ada@example.com> unknown", "bounce"),
        ("ada@example.com", "bounce"),
        ("no such number 447700900123", "bounce"),
        ("550 5.1.1 " + "unknown " * 20, "bounce"),
        ("Bounced Address", "bounce"),
        ("Ann Example", "bounce"),
        ("call +44 7700 900123", "bounce"),
        ("447700900123", "bounce"),
        ("ref:447700900123/7", "bounce"),
        ("4477-0090-0123", "bounce"),
        ("44.7700.900_123:0", "bounce"),
        ("x44y77z00w90", "bounce"),
        ("1234-567", "bounce/1234-567"),
        ("a/b:5.1.1_x-y", "bounce/a/b:5.1.1_x-y"),
        ("x" * 64, "bounce/" + "x" * 64),
        ("x" * 65, "bounce"),
        ("é", "bounce"),
        (None, "bounce"),
    ],
)
def test_details_have_codes_and_no_addresses(code: str | None, details: str) -> None:
    """The reason of a mail server, which SendGrid passes on, has the address in it."""
    table = {"provider_id": "/id", "status": "/event", "code": "/reason", "delivered": []}
    report = only(table | {"failed": ["bounce"]}, post({"id": "a", "event": "bounce", "reason": code}))
    assert (report.meaning, report.details) == ("failed", details)
