"""Tables of a provider's answers: which row counts, what it leads to, and which tables are refused."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from pydantic import ValidationError

from deliveryd.channels.base import Accepted, Attempted, InDoubt, Misconfigured, Refused, Stopped, TryAgain
from deliveryd.channels.http.answers import AnswerReader
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.http.wire import WireResponse

Row = dict[str, Any]

CATCH_ALL: Row = {"status": ["2xx"], "verdict": "in_doubt"}

META: list[Row] = [
    {
        "status": [400, 403],
        "where": [{"at": "/error/code", "is": [130429, 80007]}],
        "verdict": "try_again",
        "reason": "/error/message",
    },
    {
        "status": [400, 403],
        "where": [{"at": "/error/code", "is": [131056]}],
        "verdict": "try_again",
        "only_this": True,
        "after": "16s",
    },
    {"status": ["4xx"], "where": [{"at": "/error/code", "is": [131050]}], "verdict": "stopped"},
    {"status": ["4xx"], "where": [{"at": "/error/code", "is": [0, 190]}], "verdict": "misconfigured"},
    {"status": ["4xx"], "where": [{"at": "/error/code", "is": [131000]}], "verdict": "in_doubt"},
    {"status": ["4xx"], "where": [{"at": "/error/code", "is": [131021]}], "verdict": "refused"},
]

UNSAID = "provider answered 200 without saying whether it accepted: no row of answers fits"

VONAGE: list[Row] = [
    {"status": [200], "where": [{"at": "/messages/*/status", "is": ["0"]}], "verdict": "accepted"},
    {
        "status": [200],
        "where": [{"at": "/messages/*/status", "is": ["1"]}],
        "verdict": "try_again",
        "after": {"at": r"wait \[ (\d+) \]", "unit": "ms"},
    },
    {"status": [200], "where": [{"at": "/messages/*/status", "is": ["4"]}], "verdict": "misconfigured"},
    CATCH_ALL,
]

TELEGRAM: list[Row] = [
    {
        "status": [403],
        "where": [{"at": "/description", "matches": "(?i)^forbidden: (bot was blocked|user is deactivated)"}],
        "verdict": "stopped",
        "reason": "/description",
    },
    {"status": [429], "verdict": "try_again", "after": {"at": "/parameters/retry_after"}},
]

TEXT: list[Row] = [
    {"status": 200, "where": [{"at": "^(OK|BUSY|ERROR)", "is": ["OK"]}], "verdict": "accepted"},
    {"status": 200, "where": [{"at": "^(OK|BUSY|ERROR)", "is": ["BUSY"]}], "verdict": "try_again"},
    {"status": 200, "where": [{"at": "^(OK|BUSY|ERROR)", "is": ["ERROR"]}], "verdict": "refused"},
    CATCH_ALL,
]


def options(rows: list[Row], **more: Any) -> HttpChannelOptions:
    return HttpChannelOptions.model_validate(
        {"url": "http://h/", "json": {"to": "{customer.phone}"}, "answers": rows, **more}
    )


def verdict_of(
    rows: list[Row], status: int, body: bytes = b"", headers: dict[str, str] | None = None, **more: Any
) -> Attempted:
    made = options(rows, **more)
    reader = AnswerReader(made.answers, made.provider_id, "h", lambda: NOW)
    return reader.verdict(WireResponse(status, headers or {}, body))


def problems_of(rows: list[Row]) -> str:
    with pytest.raises(ValidationError) as error:
        options(rows)
    return "; ".join(
        f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.value.errors(include_url=False)
    )


PAGE = b"<!DOCTYPE html>\n<html><body>Log in to the network</body></html>"
NO_JSON = InDoubt("provider answered 200 without JSON", unreadable=True)
IN_ITS_PLACE = InDoubt("provider answered 404 with a page", unreadable=True)
ON_THE_WAY = InDoubt("provider answered 200 with a page", unreadable=True)
BY_STATUS: list[Row] = [
    {"status": [202], "verdict": "accepted"},
    {"status": [404], "verdict": "stopped"},
    {"status": [410], "where": [{"at": "header:X-Gone", "is": ["yes"]}], "verdict": "stopped"},
]

WITH_AN_ID = [
    pytest.param([], 200, PAGE, NO_JSON, id="a page"),
    pytest.param([], 200, b"", NO_JSON, id="nothing"),
    pytest.param([], 200, b"OK", NO_JSON, id="a word"),
    pytest.param([], 200, b'{"id": "1', NO_JSON, id="half of JSON"),
    pytest.param([], 204, b"", NO_JSON._replace(reason="provider answered 204 without JSON"), id="204"),
    pytest.param([], 200, b'{"ok": true}', Accepted(None, lacks_id=True), id="JSON without the id"),
    pytest.param([], 200, b"null", Accepted(None, lacks_id=True), id="null"),
    pytest.param([], 200, b'\xef\xbb\xbf{"id": 7}', Accepted("7"), id="a byte order mark"),
    pytest.param([], 404, PAGE, IN_ITS_PLACE, id="404 with a page"),
    pytest.param([], 404, b"", Refused("provider answered 404", "h"), id="404 with nothing"),
    pytest.param([], 404, b'{"error": 1}', Refused("provider answered 404", "h"), id="404 with JSON"),
    pytest.param([], 413, PAGE, Refused("provider answered 413", "h"), id="413 with a page"),
    pytest.param([], 403, PAGE, Misconfigured("provider answered 403", "h"), id="403 with a page"),
    pytest.param([], 503, PAGE, TryAgain("provider answered 503", may_have_arrived=True), id="503"),
    pytest.param(
        BY_STATUS, 202, PAGE, NO_JSON._replace(reason="provider answered 202 without JSON"), id="a row"
    ),
    pytest.param(BY_STATUS, 404, PAGE, IN_ITS_PLACE, id="a row that stops the recipient"),
    pytest.param(BY_STATUS, 404, b"", Stopped("provider answered 404"), id="that row without a page"),
]


@pytest.mark.parametrize(("rows", "status", "body", "verdict"), WITH_AN_ID)
def test_an_answer_that_must_be_json_is_not_taken_for_another(
    rows: list[Row], status: int, body: bytes, verdict: Attempted
) -> None:
    """If the id is found by JSON Pointer, a page or nothing is the answer of something else."""
    assert verdict_of(rows, status, body, provider_id="/id") == verdict


def test_a_row_with_conditions_that_hold_says_that_the_provider_answered() -> None:
    gone = verdict_of(BY_STATUS, 410, PAGE, {"x-gone": "yes"}, provider_id="/id")
    assert gone == Stopped("provider answered 410 (code yes)")
    assert verdict_of(TEXT, 200, b"OK", provider_id="/id") == Accepted(None, lacks_id=True)


def test_a_page_where_a_table_reads_json_is_unreadable() -> None:
    """Unlike JSON that says nothing, which the last row is for."""
    assert verdict_of(VONAGE, 200, PAGE) == NO_JSON
    unsaid = verdict_of(VONAGE, 200, b"{}")
    assert unsaid == InDoubt(
        f"{UNSAID} (1: /messages/*/status; 2: /messages/*/status; 3: /messages/*/status)"
    )
    in_text = "^(OK|BUSY|ERROR)"
    assert verdict_of(TEXT, 200, PAGE) == InDoubt(f"{UNSAID} (1: {in_text}; 2: {in_text}; 3: {in_text})")


def test_a_reason_lists_the_rows_that_do_not_fit_within_bounds() -> None:
    """And nothing of the answer."""
    rows: list[Row] = [
        *(
            {"status": [200], "where": [{"at": f"/part/{n}", "is": ["x"]}], "verdict": "accepted"}
            for n in range(40)
        ),
        CATCH_ALL,
    ]
    verdict = verdict_of(rows, 200, b'{"text": "Ann owes 5"}')
    assert isinstance(verdict, InDoubt)
    assert verdict.reason.startswith(f"{UNSAID} (1: /part/0; 2: /part/1; ")
    assert verdict.reason.endswith(" ...)")
    assert len(verdict.reason) < 200
    assert "Ann" not in verdict.reason


def test_a_row_without_conditions_alone_lists_no_rows() -> None:
    verdict = verdict_of([{"status": [202], "verdict": "in_doubt"}], 202, b"{}")
    assert verdict == InDoubt("provider answered 202 without saying whether it accepted")


@pytest.mark.parametrize("provider_id", ["id: (\\w+)", "header:X-Id"])
def test_an_id_elsewhere_than_in_json_asks_for_no_json(provider_id: str) -> None:
    """But a page without it may be that of a firewall or a portal on the way."""
    assert verdict_of([], 200, b"OK", provider_id=provider_id) == Accepted(None, lacks_id=True)
    assert verdict_of([], 200, PAGE, provider_id=provider_id) == ON_THE_WAY
    found = verdict_of([], 200, PAGE + b"id: m7", {"x-id": "m7"}, provider_id=provider_id)
    assert found == Accepted("m7")
    assert verdict_of([], 404, PAGE, provider_id=provider_id) == Refused("provider answered 404", "h")


def test_without_an_id_a_status_says_enough_but_with_a_page() -> None:
    """A firewall's "request rejected" may bear 200; a row whose condition holds says whose page it is."""
    assert verdict_of([], 200, b"") == verdict_of([], 202, b"queued") == Accepted()
    assert verdict_of([], 200, PAGE) == ON_THE_WAY
    assert verdict_of([{"status": [200], "verdict": "accepted"}], 200, PAGE) == ON_THE_WAY
    said: Row = {"status": [200], "where": [{"at": "(Log in)", "is": ["Log in"]}], "verdict": "accepted"}
    assert verdict_of([said, CATCH_ALL], 200, PAGE) == Accepted()


CASES = [
    pytest.param(
        META,
        400,
        b'{"error": {"code": 130429, "message": "Rate limit\\nhit"}}',
        TryAgain("provider answered 400 (code 130429)", words="Rate limit hit"),
        id="a throttle in a 400",
    ),
    pytest.param(
        META,
        400,
        b'{"error": {"code": 131056}}',
        TryAgain("provider answered 400 (code 131056)", 16.0, only_this=True),
        id="a throttle of one pair",
    ),
    pytest.param(
        META,
        403,
        b'{"error": {"code": 131050}}',
        Stopped("provider answered 403 (code 131050)"),
        id="opted out",
    ),
    pytest.param(
        META,
        400,
        b'{"error": {"code": 190}}',
        Misconfigured("provider answered 400 (code 190)", "h"),
        id="token revoked",
    ),
    pytest.param(
        META, 400, b'{"error": {"code": 131000}}', InDoubt("provider answered 400 (code 131000)"), id="doubt"
    ),
    pytest.param(
        META,
        404,
        b'{"error": {"code": "131021"}}',
        Refused("provider answered 404 (code 131021)", "h", ends_channel=True),
        id="a number as text",
    ),
    pytest.param(
        META, 400, b'{"error": {"code": 5}}', Refused("provider answered 400", "h"), id="an unknown code"
    ),
    pytest.param(
        META, 401, b"<html>", Misconfigured("provider answered 401", "h"), id="a body of another kind"
    ),
    pytest.param(META, 500, b'{"error": {"code": 190}}', InDoubt("provider answered 500"), id="no row: 500"),
    pytest.param(VONAGE, 200, b'{"messages": [{"status": "0"}]}', Accepted(), id="accepted in the body"),
    pytest.param(
        VONAGE,
        200,
        b'{"messages": [{"status": "1", "error-text": "please wait [ 1500 ] and retry"}]}',
        TryAgain("provider answered 200 (code 1)", 1.5),
        id="a pause in the text",
    ),
    pytest.param(
        VONAGE,
        200,
        b'{"messages": [{"status": "4"}, {"status": "1"}]}',
        TryAgain("provider answered 200 (code 1)"),
        id="of two values the first row",
    ),
    pytest.param(
        VONAGE,
        200,
        b'{"messages": [{"status": "99"}]}',
        InDoubt(f"{UNSAID} (1: /messages/*/status; 2: /messages/*/status; 3: /messages/*/status)"),
        id="an unknown status in the body",
    ),
    pytest.param(
        TELEGRAM,
        403,
        b'{"ok": false, "error_code": 403, "description": "Forbidden: bot was blocked by the user"}',
        Stopped("provider answered 403", "Forbidden: bot was blocked by the user"),
        id="blocked",
    ),
    pytest.param(
        TELEGRAM,
        403,
        b'{"ok": false, "description": "Forbidden: bots can\'t send messages to bots"}',
        Misconfigured("provider answered 403", "h"),
        id="another 403",
    ),
    pytest.param(
        TELEGRAM,
        429,
        b'{"ok": false, "parameters": {"retry_after": 14}}',
        TryAgain("provider answered 429", 14.0),
        id="a pause in the body",
    ),
    pytest.param(TEXT, 200, b"OK id=5", Accepted(), id="plain text: OK"),
    pytest.param(TEXT, 200, b"BUSY", TryAgain("provider answered 200 (code BUSY)"), id="plain text: BUSY"),
    pytest.param(
        TEXT,
        200,
        b"ERROR 4",
        Refused("provider answered 200 (code ERROR)", "h", ends_channel=True),
        id="plain text: ERROR",
    ),
    pytest.param(
        TEXT,
        200,
        b"<html>",
        InDoubt(f"{UNSAID} (1: ^(OK|BUSY|ERROR); 2: ^(OK|BUSY|ERROR); 3: ^(OK|BUSY|ERROR))"),
        id="plain text: a page",
    ),
]


@pytest.mark.parametrize(("rows", "status", "body", "verdict"), CASES)
def test_the_first_row_that_fits_counts(
    rows: list[Row], status: int, body: bytes, verdict: Attempted
) -> None:
    """Then the usual meanings of statuses; a reason names the status and the configured code alone."""
    assert verdict_of(rows, status, body) == verdict


@pytest.mark.parametrize(("rows", "status", "body", "verdict"), CASES)
def test_rows_put_together_mean_what_they_mean_one_by_one(
    rows: list[Row], status: int, body: bytes, verdict: Attempted
) -> None:
    """A condition that always holds keeps rows apart, and changes nothing."""
    apart = [
        {**row, "where": [{"at": "header:x-none", "absent": True}, *row["where"]]} if "where" in row else row
        for row in rows
    ]
    found = verdict_of(apart, status, body)
    if isinstance(found, InDoubt) and isinstance(verdict, InDoubt):  # its reason lists the conditions
        assert found.reason.partition(" (1: ")[0] == verdict.reason.partition(" (1: ")[0]
        found = found._replace(reason=verdict.reason)
    assert found == verdict


@pytest.mark.parametrize(
    "body", [b'{"id": "m-1", "text": "Gr\xf6\xdfe"}', b'{"text": "a\tb", "cost": NaN, "id": "m-1"}']
)
def test_an_id_counts_beside_a_field_that_cant_be_read(body: bytes) -> None:
    """Some gateways repeat the text in its own coding."""
    assert verdict_of([], 202, body, provider_id="/id") == Accepted("m-1")


def test_the_providers_id_in_a_header() -> None:
    """SendGrid has it there, and an accepted row has it too."""
    headers = {"x-message-id": "m-1"}
    assert verdict_of([], 202, b"", headers, provider_id="header:X-Message-Id") == Accepted("m-1")
    rows: list[Row] = [{"status": [409], "verdict": "accepted"}]
    assert verdict_of(rows, 409, b"", headers, provider_id="header:X-Message-Id") == Accepted("m-1")


def test_a_refusal_of_one_recipient_isnt_counted() -> None:
    """With `only_this` it says nothing about the settings."""
    rows: list[Row] = [{"status": [404], "verdict": "refused", "only_this": True}]
    assert verdict_of(rows, 404) == Refused("provider answered 404", None, ends_channel=True)


def test_a_503_that_anybody_may_have_sent() -> None:
    """A row without conditions can't tell the provider from a gateway before it; one with them can."""
    rows: list[Row] = [
        {"status": [503], "where": [{"at": "/code", "is": [7]}], "verdict": "try_again"},
        {"status": [503], "verdict": "try_again", "after": "5s"},
    ]
    assert verdict_of(rows, 503, b'{"code": 7}') == TryAgain("provider answered 503 (code 7)")
    assert verdict_of(rows, 503) == TryAgain("provider answered 503", 5.0, may_have_arrived=True)


def test_nothing_is_absent_from_a_body_that_cannot_be_read() -> None:
    """A page of a proxy isn't an answer without an error."""
    rows: list[Row] = [
        {"status": [200], "where": [{"at": "/error", "absent": True}], "verdict": "accepted"},
        CATCH_ALL,
    ]
    assert verdict_of(rows, 200, b"{}") == Accepted()
    assert isinstance(verdict_of(rows, 200, b"<html>"), InDoubt)
    assert isinstance(verdict_of(rows, 200, b'{"error": 1}'), InDoubt)


NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SOON = NOW + timedelta(seconds=1000)


@pytest.mark.parametrize(
    ("after", "headers", "body", "seconds"),
    [
        ({"at": "header:Retry-After"}, {"retry-after": "7"}, b"", 7.0),
        ({"at": "header:Retry-After"}, {"retry-after": format_datetime(SOON, usegmt=True)}, b"", 1000.0),
        (None, {"retry-after": "7"}, b"", 7.0),
        ({"at": "/wait"}, {}, b'{"wait": 2.5}', 2.5),
        ({"at": "/wait", "unit": "ms"}, {}, b'{"wait": "2500"}', 2.5),
        ({"at": "/wait", "unit": "at"}, {}, b'{"wait": %d}' % SOON.timestamp(), 1000.0),
        ({"at": "/wait", "unit": "at"}, {}, b'{"wait": %d}' % (SOON.timestamp() * 1000), 1000.0),
        ({"at": "/wait", "unit": "at"}, {}, b'{"wait": "%s"}' % SOON.isoformat().encode(), 1000.0),
        ({"at": "/wait", "unit": "at"}, {}, b'{"wait": "2015-10-21T07:28:00Z"}', 0.0),
        ({"at": "/wait"}, {}, b'{"wait": 86400}', 3600.0),
        ({"at": "/wait"}, {}, b'{"wait": -5}', None),
        ({"at": "/wait"}, {}, b'{"wait": "soon"}', None),
        ({"at": "/wait"}, {"retry-after": "9"}, b"{}", 9.0),
        ("90s", {"retry-after": "9"}, b"", 90.0),
    ],
)
def test_pauses(after: object, headers: dict[str, str], body: bytes, seconds: float | None) -> None:
    """In a header or the body, as seconds, milliseconds or an instant; at most an hour."""
    rows: list[Row] = [
        {"status": [429], "verdict": "try_again", **({} if after is None else {"after": after})}
    ]
    verdict = verdict_of(rows, 429, body, headers)
    assert isinstance(verdict, TryAgain)
    assert verdict.after == seconds


def test_words_are_one_printable_line_of_bounded_length() -> None:
    """Whatever the provider sends."""
    rows: list[Row] = [{"status": [400], "verdict": "refused", "reason": "/text"}]
    for text, words in (("a\\u0000b\\r\\n c", "a b c"), ("x" * 5000, "x" * 500), ("", None), ("\\n", None)):
        verdict = verdict_of(rows, 400, b'{"text": "%s"}' % text.encode())
        assert isinstance(verdict, Refused)
        assert verdict.words == words


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"status": [100], "verdict": "refused"}], "100 isn't a status of a complete answer"),
        ([{"status": [600], "verdict": "refused"}], "600 isn't a status of a complete answer"),
        ([{"status": ["6xx"], "verdict": "refused"}], "expected a number"),
        ([{"status": [], "verdict": "refused"}], "at least 1 item"),
        ([{"status": [400], "verdict": "rejected"}], "answers.0.verdict"),
        ([{"status": [400], "verdict": "stopped", "only_this": True}], "only_this needs the verdict"),
        ([{"status": [400], "verdict": "refused", "after": "5s"}], "after needs the verdict"),
        ([{"status": [200], "verdict": "accepted", "reason": "/x"}], "an accepted message has no reason"),
        ([{"status": [429], "verdict": "try_again", "after": "2h"}], "at most 1h"),
        ([{"status": [429], "verdict": "try_again", "after": {"at": "/x", "unit": "m"}}], "unit"),
        ([{"status": [400], "verdict": "refused", "where": [{"at": "query:x", "is": [1]}]}], "has no query"),
        (
            [{"status": ["4xx"], "verdict": "refused"}, {"status": [404], "verdict": "stopped"}],
            "row 2 never applies: row 1 before it fits the same answers",
        ),
        (
            [
                {"status": [400, 404], "where": [{"at": "/c", "is": [1, 2]}], "verdict": "refused"},
                {"status": [404], "where": [{"at": "/c", "is": [2]}], "verdict": "stopped"},
            ],
            "row 2 never applies",
        ),
        (
            [{"status": [200], "where": [{"at": "/c", "is": [1]}], "verdict": "refused"}],
            'add a last row with status = ["2xx"] and verdict = "in_doubt"',
        ),
        (
            [
                {"status": [200], "where": [{"at": "/c", "is": [1]}], "verdict": "refused"},
                {"status": [200], "verdict": "in_doubt"},
            ],
            "add a last row",
        ),
    ],
)
def test_tables_that_cannot_work(rows: list[Row], problem: str) -> None:
    """Each mistake is named with its row."""
    assert problem in problems_of(rows)


@pytest.mark.parametrize(
    "rows",
    [
        [{"status": [404], "verdict": "stopped"}, {"status": ["4xx"], "verdict": "refused"}],
        [
            {"status": ["4xx"], "where": [{"at": "/c", "is": [1]}], "verdict": "refused"},
            {"status": ["4xx"], "where": [{"at": "/c", "is": [1, 2]}], "verdict": "stopped"},
        ],
        [
            {
                "status": ["4xx"],
                "where": [{"at": "/c", "is": [1]}, {"at": "/d", "is": [1]}],
                "verdict": "refused",
            },
            {"status": ["4xx"], "where": [{"at": "/c", "is": [1]}], "verdict": "stopped"},
        ],
        [{"status": [200], "where": [{"at": "header:x", "is": ["1"]}], "verdict": "refused"}],
        VONAGE,
    ],
)
def test_tables_that_work(rows: list[Row]) -> None:
    """A narrower row goes before a wider one."""
    assert options(rows).answers


def test_reading_an_answer_costs_microseconds_with_forty_rows() -> None:
    """Rows are found by status and by value, not one after the other."""
    rows = [
        {"status": [200], "where": [{"at": "/messages/0/status", "is": [str(code)]}], "verdict": "refused"}
        for code in range(1, 40)
    ]
    accepted: Row = {
        "status": [200],
        "where": [{"at": "/messages/0/status", "is": ["0"]}],
        "verdict": "accepted",
    }
    made = options([*rows, accepted, CATCH_ALL], provider_id="/messages/0/id")
    reader = AnswerReader(made.answers, made.provider_id, "h", lambda: NOW)
    answer = WireResponse(200, {}, b'{"message-count": "1", "messages": [{"status": "0", "id": "m-1"}]}')
    assert reader.verdict(answer) == Accepted("m-1")
    best = min(_seconds_for(reader, answer) for _ in range(5))
    assert best / 1000 < 100e-6, "generous: about 6 µs on a quiet machine"


def _seconds_for(reader: AnswerReader, answer: WireResponse) -> float:
    started = time.perf_counter()
    for _ in range(1000):
        reader.verdict(answer)
    return time.perf_counter() - started
