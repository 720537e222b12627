"""Places in answers and reports: what a finder finds, and when a condition holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from deliveryd.http.finder import (
    MOST_ESCAPES,
    ConditionOptions,
    Document,
    compile_condition,
    compile_finder,
    read_texts,
)

REPORTS = b'{"results": [{"id": "a", "price": 1.50}, {"id": null}, {"id": "b", "price": 2.0}], "total": 2}'


def holds(body: bytes, headers: dict[str, str] | None = None, /, **condition: object) -> bool:
    options = ConditionOptions.model_validate(condition)
    return compile_condition(options).holds(Document(body, headers or {}))


@pytest.mark.parametrize(
    ("expression", "body", "found"),
    [
        ("/id", b'{"id": "x"}', "x"),
        ("/messages/0/id", b'{"messages": [{"id": 12345678901234567890}]}', "12345678901234567890"),
        ("/id", b'{"id": 123456789012345678901234567890}', "123456789012345678901234567890"),
        ("/a~1b/c~0d", b'{"a/b": {"c~d": 1.50}}', "1.50"),
        ("/ok", b'{"ok": true}', "true"),
        ("/id", b'{"id": null}', None),
        ("/id", b'{"id": {"x": 1}}', None),
        ("/id", b"[1]", None),
        ("/01", b"[1, 2]", None),
        ("/9", b"[1]", None),
        ("/id", b"<html>", None),
        ("/id", b"", None),
        ("/id", b"\xff\xfe", None),
        ("/id", b'{"id": "' + b"x" * 300 + b'"}', None),
        ("/id", b'{"id": "a\\nb"}', None),
        ("/id", b"[" * 100_000, None),
        (r"id=(\w+)", b"OK id=abc-1", "abc"),
        (r"\d+", b"OK 77", "77"),
        (r"id=(\w+)", b"OK", None),
        (r"(a)?OK", b"OK", None),
    ],
)
def test_finding_a_value_in_a_body(expression: str, body: bytes, found: str | None) -> None:
    """A provider's id is text that fits into a log line, or missing; no answer raises."""
    assert compile_finder(expression).find(Document(body)) == found


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("/results/*/id", ["a", "b"]),
        ("/results/*/price", ["1.50", "2.0"]),
        ("/results/*", []),
        ("/total/*", []),
        ("/*", []),
    ],
)
def test_a_star_crosses_an_array(expression: str, found: list[str]) -> None:
    """The elements that have the value, in their order."""
    assert compile_finder(expression).find_all(Document(REPORTS)) == found


def test_a_star_is_a_name_in_an_object() -> None:
    """Only arrays are crossed."""
    assert compile_finder("/*/id").find(Document(b'{"*": {"id": 5}, "x": {"id": 6}}')) == "5"


def test_nested_arrays() -> None:
    """Every star crosses one array, as in Meta's reports."""
    body = b'{"entry": [{"changes": [{"id": 1}, {"id": 2}]}, {"changes": [{"id": 3}]}, {}]}'
    assert compile_finder("/entry/*/changes/*/id").find_all(Document(body)) == ["1", "2", "3"]


def test_headers_and_the_query() -> None:
    """A header is found whatever its case; a parameter that is given twice has both values."""
    document = Document(b"", {"x-message-id": "m1"}, read_texts(b"to=%2B1&id=a&id=b&empty="))
    assert compile_finder("header:X-Message-Id").find(document) == "m1"
    assert compile_finder("header:X-Other").find(document) is None
    assert compile_finder("query:to").find(document) == "+1"
    assert compile_finder("query:id").find_all(document) == ["a", "b"]
    assert compile_finder("query:none").find_all(document) == []


def test_a_form_is_an_object_of_texts() -> None:
    """A pointer works on a form's fields as on JSON."""
    document = Document(b"", form=read_texts(b"MessageStatus=delivered&x=1&x=2&x=3"))
    assert compile_finder("/MessageStatus").find(document) == "delivered"
    assert compile_finder("/x/*").find_all(document) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("encoded", "fields"),
    [
        (b"a=%ff&b=1", {"a": "\ufffd", "b": "1"}),
        (b"a=\xff&b=1", {"a": "\ufffd", "b": "1"}),
        (b"%ff=x&b=1", {"\ufffd": "x", "b": "1"}),
        (b"a=Gr%F6%DFe&b=1", {"a": "Gr\ufffd\ufffde", "b": "1"}),
        (b"a=Gr\xf6\xdfe&b=1", {"a": "Gr\ufffd\ufffde", "b": "1"}),
        (b"a=%C3\xa9&b=%00%41", {"a": "é", "b": "\0A"}),  # one character, half of it escaped
        (b"a=%ED%A0%BD&b=1", {"a": "\ufffd\ufffd\ufffd", "b": "1"}),  # half a surrogate pair
        (b"a=%04%22&b=1", {"a": '\x04"', "b": "1"}),  # the beginning of a text in UCS-2
        (b"a=100%&b=%zz%4", {"a": "100%", "b": "%zz%4"}),
        ("a=é&b=1".encode(), {"a": "é", "b": "1"}),
        (b"&a=x+y%2B&&b==1&c&=d&", {"a": "x y+", "b": "=1", "c": "", "": "d"}),
        (b"a=1;b=2", {"a": "1;b=2"}),
    ],
)
def test_forms_are_decoded_as_the_url_standard_says(encoded: bytes, fields: dict[str, str]) -> None:
    """What isn't UTF-8 is replaced in its field; the others are read."""
    assert read_texts(encoded) == fields


def test_a_form_of_too_many_fields_is_not_read() -> None:
    """A thousand are."""
    assert read_texts(b"&".join([b"a=1"] * 1000)) == {"a": ["1"] * 1000}
    with pytest.raises(ValueError, match="1000 fields"):
        read_texts(b"&".join([b"a=1"] * 1001))


@pytest.mark.parametrize("escapes", [b"%41", b"%41x", b"%"])
def test_a_form_of_too_many_escapes_is_not_read(escapes: bytes) -> None:
    """The loop would stand while they are resolved, before the signature of the form is looked at."""
    assert list(read_texts(b"a=" + escapes * MOST_ESCAPES)) == ["a"]
    with pytest.raises(ValueError, match="100000 escapes"):
        read_texts(b"a=" + escapes * (MOST_ESCAPES + 1))


def test_the_elements_of_a_list() -> None:
    """Each is a document of its own: exact numbers, and the headers of the whole."""
    parts = list(Document(REPORTS, {"x-a": "1"}).each(("results",)))
    assert [compile_finder("/price").find(part) for part in parts] == ["1.50", None, "2.0"]
    assert compile_finder("header:x-a").find(parts[1]) == "1"
    assert list(Document(REPORTS).each(("total",))) == []


def test_a_body_is_readable_or_not() -> None:
    """An empty object is readable; a broken body isn't, and has no tree."""
    assert Document(b"{}").is_readable
    assert Document(b"null").is_readable
    assert not Document(b"{").is_readable
    assert Document(b"{").tree is None


@pytest.mark.parametrize("expression", ["", "(", "/a~2", "header:", "header:a b", "query:"])
def test_expressions_that_name_no_place(expression: str) -> None:
    """Neither a JSON Pointer, nor a regular expression, nor a name."""
    with pytest.raises(ValueError, match=r"JSON Pointer|expected a name"):
        compile_finder(expression)


ERROR = b'{"error": {"code": 130429, "message": "Rate limit hit", "data": null, "sub": ""}, "codes": [1, 7]}'


@pytest.mark.parametrize(
    ("condition", "held"),
    [
        ({"at": "/error/code", "is": [130429]}, True),
        ({"at": "/error/code", "is": ["130429", 4]}, True),
        ({"at": "/error/code", "is": [4]}, False),
        ({"at": "/codes/*", "is": [7]}, True),
        ({"at": "/codes/*", "is": [8]}, False),
        ({"at": "/error/sub", "is": [""]}, True),
        ({"at": "/error/message", "matches": "(?i)rate limit"}, True),
        ({"at": "/error/message", "matches": "^limit"}, False),
        ({"at": "/error/data", "absent": True}, True),
        ({"at": "/error/code", "absent": True}, False),
        ({"at": "/error", "absent": True}, False),
        ({"at": "header:x-error", "is": ["busy"]}, True),
        ({"at": "header:x-none", "absent": True}, True),
    ],
)
def test_conditions(condition: dict[str, object], held: bool) -> None:
    """Values are compared as text; null counts as absent."""
    assert holds(ERROR, {"x-error": "busy"}, **condition) is held


@pytest.mark.parametrize(
    "condition",
    [
        {"at": "/a"},
        {"at": "/a", "is": [1], "absent": True},
        {"at": "/a", "is": []},
        {"at": "/a", "absent": False},
        {"at": "/a", "matches": "("},
        {"at": "(", "is": [1]},
    ],
)
def test_conditions_that_are_none(condition: dict[str, object]) -> None:
    """One test, at a place that can be named."""
    with pytest.raises(ValidationError):
        ConditionOptions.model_validate(condition)


@pytest.mark.parametrize(
    "body",
    [
        b'{"code": 21610, "text": "\\ud83d"}',
        b'{"code": 21610, "text": "Gr\xf6\xdfe"}',
        b'{"code": 21610, "text": "\xed\xa0\xbd"}',
        b'{"code": 21610, "text": "a\tb\nc\0"}',
        b'{"code": 21610, "price": NaN, "least": -Infinity}',
        b'{"code": 21610, "price": 1e999}',
        b'\xef\xbb\xbf{"code": 21610}',
        b'\xef\xbb\xbf {"code": 21610, "text": "\xff"}\r\n\0',
        '{"code": 21610, "text": "é"}'.encode("utf-16"),
        '{"code": 21610, "text": "é"}'.encode("utf-16-le"),
    ],
)
def test_a_value_is_found_beside_one_that_cant_be_read(body: bytes) -> None:
    """A refusal that repeats a cut text, or one in another coding, still has its code."""
    assert holds(body, at="/code", **{"is": [21610]})


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r"\x", r"\x"),
        (r"it\'s", r"it\'s"),
        (r"\\x", r"\x"),
        (r"\\\x", r"\\x"),
        (r"\u12 \u00e9", r"\u12 é"),
        (r"\\u12", r"\u12"),
        (r"\x\n\"", '\\x\n"'),
        (r"C:\dir\\", "C:\\dir\\"),
    ],
)
def test_a_backslash_that_begins_no_escape_belongs_to_the_text(written: str, text: str) -> None:
    """Programs that write JSON by hand leave some in paths and quotations."""
    assert Document(f'{{"text": "{written} \\."}}'.encode()).tree == {"text": f"{text} \\."}


def test_wrong_escapes_are_parsed_once_and_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop would stand otherwise, before the signature of a report is looked at."""
    parsed = []

    def loads(text: str, **options: Any) -> object:
        parsed.append(text)
        return original(text, **options)

    original = json.loads
    monkeypatch.setattr("json.loads", loads)
    wrong = b"\\x" * MOST_ESCAPES
    assert Document(b'{"text": "' + wrong + b'"}').is_readable
    assert not Document(b'{"text": "' + wrong + b'\\x"}').is_readable
    assert not Document(b'{"text": "' + wrong[:100]).is_readable
    assert len(parsed) == 3


def test_right_escapes_may_be_any_number() -> None:
    """A large list of reports in ASCII has many, and its exact numbers are read."""
    document = Document(b'{"text": "' + b"\\n\\\\" * MOST_ESCAPES + b'", "price": 1.50}')
    assert compile_finder("/price").find(document) == "1.50"


def test_what_cant_be_read_is_found_nowhere() -> None:
    """No number is no value, and a fraction beside a broken text is still as it was written."""
    document = Document(b'{"nothing": NaN, "text": "\xff", "price": 1.50}')
    assert [compile_finder(at).find(document) for at in ("/nothing", "/text", "/price")] == [
        None, "\ufffd", "1.50",
    ]  # fmt: skip
