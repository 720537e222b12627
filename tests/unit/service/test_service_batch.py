"""What an answer of the queue comes to, however it is written and wherever it breaks off."""

from __future__ import annotations

import json
import time
from decimal import Decimal

import pytest

from deliveryd.errors import ServiceUnavailable, ServiceUnreadable
from deliveryd.journal.rows import variables_json
from deliveryd.model import QueuedMessage
from deliveryd.runtime.json_numbers import NumberText, VariablesText
from deliveryd.service.batch import (
    LARGEST_ELEMENT,
    MANY_MARKS,
    MOST_ELEMENTS,
    MOST_VARIABLES,
    read_queue,
    salvaged,
)


def element(variables: str = "{}", **fields: str) -> str:
    """A message of the queue as JSON text; `fields` are texts too."""
    texts = {"id": "1", "settingsId": "2", "customerId": "3", "variables": variables} | fields
    return "{" + ", ".join(f'"{name}": {text}' for name, text in texts.items()) + "}"


def queue(*elements: str) -> bytes:
    return f"[{','.join(elements)}]".encode()


def test_a_batch_in_the_order_of_the_queue() -> None:
    """Messages keep their order, ids and variables; what the interface doesn't name is let be."""
    batch = read_queue(queue(element('{"a.b": "x"}', id="7", extra="[1, {}]"), element(id="5")))
    assert batch.messages == [QueuedMessage(7, 2, 3, {"a.b": "x"}), QueuedMessage(5, 2, 3, {})]
    assert (batch.malformed, batch.size) == ([], 2)


@pytest.mark.parametrize(
    "body",
    [
        b"[]", b" [ ] ", b"\n[\n]\n", b"\xef\xbb\xbf[]", b"", b" \r\n\t", b"null", b"\n null ",
        b"\xef\xbb\xbf", b"\xef\xbb\xbfnull",
    ],
)  # fmt: skip
def test_an_empty_queue(body: bytes) -> None:
    """An empty array, an empty body and `null` are an empty queue, and nothing is lost."""
    assert read_queue(body) == ([], [], None)


@pytest.mark.parametrize(
    "number",
    ["10.50", "1e3", "1E+3", "-0", "-0.0", "1E400", "1e-400", "0.1000", "1" * 40, "-" + "9" * 5000, "0"],
)
def test_numbers_keep_the_text_that_they_were_written_with(number: str) -> None:
    """A number in a variable is inserted as the service wrote it, not as a computer would."""
    [message] = read_queue(queue(element(f'{{"n": {number}}}'))).messages
    assert message.variables == {"n": number}
    assert type(message.variables["n"]) is NumberText


@pytest.mark.parametrize("id_", ["0", "-1", "9223372036854775807", "-9223372036854775808"])
def test_ids_of_64_bits(id_: str) -> None:
    """Every integer of 64 bits is an id."""
    assert read_queue(queue(element(id=id_, settingsId=id_, customerId=id_))).messages[0].id == int(id_)


@pytest.mark.parametrize(
    ("written", "integer"),
    [
        ("6.0", 6), ("6.00", 6), ("6e0", 6), ("60e-1", 6), ("0.6E+1", 6), ("6000e-0003", 6), ("-6.0", -6),
        ("0.0", 0), ("-0.0", 0), ("0e999999999", 0), ("0.000e-999999999", 0), ("1e18", 10**18),
        ("9223372036854775807.000", 2**63 - 1), ("922337203685477580.7e1", 2**63 - 1),
        ("-9.223372036854775808e18", -(2**63)), ("9007199254740993.0", 2**53 + 1),
    ],
)  # fmt: skip
def test_an_integer_may_be_written_with_a_fraction_or_an_exponent(written: str, integer: int) -> None:
    """`6.0` is the integer 6 in every id, exactly, also where a float couldn't hold it."""
    [message] = read_queue(queue(element(id=written, settingsId=written, customerId=written))).messages
    assert message[:3] == (integer, integer, integer)
    assert type(message.id) is int


@pytest.mark.parametrize(
    "written", ["1e999999999", "1e-999999999", "1e" + "9" * 5000, "1e120", "0." + "0" * 5000 + "1", "1.5e0"]
)
def test_a_number_with_a_huge_exponent_is_no_id_and_costs_nothing(written: str) -> None:
    """No power of ten is computed for what has no 64 bits anyway."""
    started = time.process_time()
    batch = read_queue(queue(*[element(id=written)] * 100))
    assert time.process_time() - started < 10
    assert [malformed.id for malformed in batch.malformed] == [None] * 100


MALFORMED = {
    "a text as id": element(id='"1"'),
    "a fraction as id": element(id="1.5"),
    "a negative exponent in an id": element(id="1e-1"),
    "an id of more than 64 bits": element(id="9223372036854775808"),
    "an endless id": element(id="9" * 5000),
    "true as id": element(id="true"),
    "no settings id": element(settingsId="null"),
    "a list as customer id": element(customerId="[3]"),
    "no variables": element("null"),
    "variables in a list": element("[]"),
    "a boolean variable": element('{"a": true}'),
    "a null variable": element('{"a": null}'),
    "an object variable": element('{"a": {"b": "c"}}'),
    "a list variable": element('{"a": ["b"]}'),
    "a variable that is no number": element('{"a": NaN}'),
    "an infinite variable": element('{"a": -Infinity}'),
    "NaN as id": element(id="NaN"),
    "half a character in a variable": element('{"a": "\\ud800"}'),
    "half a character in a key": element('{"\\udfff": "a"}'),
    "a line break in a text": element('{"a": "b\nc"}'),
    "an escape that JSON doesn't have": element('{"a": "\\x41"}'),
    "an escape that is cut short": element('{"a": "\\u12"}'),
    "nothing": "null",
    "a number": "17",
    "a text": '"message"',
    "a list": "[1, [2, {}]]",
    "an empty object": "{}",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_no_message_is_set_apart_and_the_rest_goes_on(case: str) -> None:
    """The malformed element is kept exactly as it was written; the ones around it are messages."""
    raw = MALFORMED[case]
    batch = read_queue(queue(element(id="10"), f" \n{raw}\t", element(id="11")))
    assert [message.id for message in batch.messages] == [10, 11]
    [malformed] = batch.malformed
    assert malformed.raw == raw
    assert malformed.reason
    assert malformed.reason.encode()  # it can be stored and sent


def test_ten_in_a_batch_one_of_them_malformed_in_ten_ways() -> None:
    """One reason tells of the first mistakes, by their paths, without values and names of variables."""
    variables = json.dumps({f"v{number}": None for number in range(10)} | {"secret": {"text": "Ada"}})
    elements = [element(id=str(number)) for number in range(9)]
    elements.insert(4, element(variables, id="99", settingsId='"Ada"', customerId="[]"))
    batch = read_queue(queue(*elements))
    assert [message.id for message in batch.messages] == list(range(9))
    [malformed] = batch.malformed
    assert malformed.id == 99
    assert malformed.raw == elements[4]
    assert malformed.reason == (
        "settingsId: expected a 64-bit integer; customerId: expected a 64-bit integer;"
        " variables: expected a text or a number"
    )


def test_a_missing_field_is_named() -> None:
    """Who reads the reason knows what is missing."""
    [malformed] = read_queue(b'[{"id": 4, "variables": {}}]').malformed
    assert malformed.reason == "settingsId: is missing; customerId: is missing"
    assert malformed.id == 4


@pytest.mark.parametrize("id_", ['"1"', "1.5", "true", "null", "9" * 101, "1e100", "9" * 5000, "[]"])
def test_a_malformed_message_may_have_no_usable_id(id_: str) -> None:
    """Only an integer of up to 100 digits can be reported as the id of a malformed message."""
    assert read_queue(queue(element(id=id_))).malformed[0].id is None


@pytest.mark.parametrize(
    "id_", ["9223372036854775808", "-9223372036854775809", "9223372036854775808.0", "1e19", "9" * 100, "1e99"]
)
def test_an_id_beyond_64_bits_is_an_id_that_can_be_reported(id_: str) -> None:
    """The element is no message, and has its integer id, however that is written, and however large it is."""
    for rest in ("", f', "extra": "{"x" * LARGEST_ELEMENT}"'):
        [malformed] = read_queue(queue(element(id=id_ + rest))).malformed
        assert malformed.id == int(Decimal(id_))


def test_of_a_repeated_key_the_last_one_counts() -> None:
    """Repeated keys aren't forbidden in JSON, and are read as every other parser does."""
    [message] = read_queue(
        b'[{"id": 1, "settingsId": 2, "customerId": 3, "variables": {"a": 1, "a": 2}, "id": 9}]'
    ).messages
    assert (message.id, message.variables) == (9, {"a": "2"})


def test_a_message_that_is_nested_too_deeply_spoils_no_other() -> None:
    """However deep one element goes, it is set apart as it is, with its id; the others are messages."""
    deep = element(extra="[" * 100_000 + "]" * 100_000, id="5")
    deeper = element(extra='{"]":' * 50_000 + '"}{\\"[,"' + "}" * 50_000, id="6")
    batch = read_queue(queue(element(id="1"), deep, element('{"a": "],[\\\\"}', id="2"), deeper))
    assert [message.id for message in batch.messages] == [1, 2]
    assert [malformed.raw for malformed in batch.malformed] == [deep, deeper]
    assert [malformed.id for malformed in batch.malformed] == [5, 6]
    assert batch.fault is None


def test_a_byte_that_is_not_utf8_spoils_one_element() -> None:
    """The element is set apart with its id, and shows the byte; nothing is lost."""
    wrong = element('{"a": "?"}', id="5").encode().replace(b"?", b"\xff")
    first, last = element('{"a": "\u00e9"}', id="1").encode(), element(id="2").encode()
    batch = read_queue(b"[" + b",".join([first, wrong, last]) + b"]")
    assert [message.id for message in batch.messages] == [1, 2]
    assert [(bad.id, bad.reason) for bad in batch.malformed] == [(5, "isn't UTF-8")]
    assert "\\xff" in batch.malformed[0].raw
    assert batch.fault is None


@pytest.mark.parametrize("size", [LARGEST_ELEMENT + 1, 9 << 20])
@pytest.mark.parametrize("filler", ["a", "\u00e9"])
def test_an_element_that_is_too_large_is_malformed_and_the_others_go_on(size: int, filler: str) -> None:
    """It is set apart by its id, with its beginning; so it doesn't come again and again."""
    head, tail = '{"id": 5.0, "extra": {"id": 6}, "variables": {"a": "', '"}}'
    text = filler * (size // len(filler.encode()) + 1)
    batch = read_queue(queue(element(id="1"), head + text + tail, element(id="2")))
    assert [message.id for message in batch.messages] == [1, 2]
    [malformed] = batch.malformed
    assert (malformed.id, malformed.reason) == (5, f"larger than {LARGEST_ELEMENT} bytes")
    assert malformed.raw.startswith(head)
    assert len(malformed.raw) < LARGEST_ELEMENT
    assert batch.fault is None


def test_an_element_of_just_the_largest_size_is_a_message() -> None:
    """The bound is the same whatever else the answer holds."""
    empty = element('{"a": ""}', id="5")
    largest = element(f'{{"a": "{"x" * (LARGEST_ELEMENT - len(empty))}"}}', id="5")
    for more in ("", "x" * (9 << 20)):
        batch = read_queue(queue(largest, element(id="1", extra=f'"{more}"')))
        assert batch.messages[0].id == 5
        assert len(batch.messages[0].variables["a"]) == LARGEST_ELEMENT - len(empty)
        assert batch.fault is None


def test_too_many_elements_keep_as_many_as_are_read() -> None:
    """More than anybody asked for are read up to a bound, and it is told that there were more."""
    one = element(id="7")
    batch = read_queue(queue(*[one] * (MOST_ELEMENTS + 1)), 100)
    assert len(batch.messages) == MOST_ELEMENTS
    assert str(batch.fault) == "the queue's answer holds more than 10000 elements, 100 were asked for"
    assert read_queue(queue(*[one] * (MOST_ELEMENTS + 1)), MOST_ELEMENTS + 1).fault is None


def test_commas_and_brackets_in_texts_are_no_values() -> None:
    """300 messages whose texts of 25 KiB are full of them are messages, however they are read."""
    text = json.dumps({"a": "a, [b], {c}, " * 2000})
    elements = [element(text, id=str(id_)) for id_ in range(300)]
    assert queue(*elements).count(b",") > MANY_MARKS
    batch = read_queue(queue(*elements), 300)
    assert ([message.id for message in batch.messages], batch.malformed, batch.fault) == (
        [*range(300)],
        [],
        None,
    )
    batch = read_queue(queue(*elements, "17"), 301)
    assert (len(batch.messages), len(batch.malformed), batch.fault) == (300, 1, None)


@pytest.mark.slow
def test_messages_with_very_many_variables_are_whole_and_take_no_more_memory_than_their_text() -> None:
    """Each is within its own bounds, so none is lost; those beyond an answer's bound are kept as text."""
    values = {f"v{number}": NumberText(number) for number in range(MOST_VARIABLES // 10)}
    many = json.dumps({name: int(text) for name, text in values.items()})
    texts = [many] * 15 + [json.dumps({"a": 1})]
    batch = read_queue(queue(*(element(text, id=str(id_)) for id_, text in enumerate(texts))), 16)
    assert [message.id for message in batch.messages] == [*range(16)]
    assert (batch.malformed, batch.fault) == ([], None)
    for message in batch.messages[:15]:
        assert message.variables == values
        assert variables_json(message.variables) == variables_json(values)
    kept = [isinstance(message.variables, VariablesText) for message in batch.messages]
    assert kept == [False] * 10 + [True] * 5 + [False]


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b",",
        b", ",
        b',{"id": 3, "settingsId": 2, "cus',
        b',{"id": 3, "settingsId": 2, "customerId": 3, "variables": {}',
        b', {"a": "',
        b', {"a": "\\',
        b", 12",
        b", tru",
        b", oops]",
        b",{\"id\": 3, 'a': 1}]",
        b',{"id": 01}]',
        b",]",
        b'{"id": 3}]',
        b"] []",
        b"]]",
        b"] <!-- timing -->",
        b"}",
        b"\x00\xff\xfe",
        b"<html>504 Gateway Time-out</html>",
        b", " + b"[" * 100_000,
        b", " + b'{"a":' * 100_000,
        b", " + b"[" * 100_000 + b"]" * 100_000 + b", oops]",
        b', "' + b'\\"' * 100_000,
    ],
)
def test_an_answer_that_breaks_off_keeps_every_element_that_was_whole(rest: bytes) -> None:
    """Wherever the array ends in rubbish or not at all, what was before it counts, and the rest is told."""
    first, second = element(id="1"), element('{"a": "]},{\\\\\\" \u20ac"}', id="2")
    batch = read_queue(f"[{first},\n{second}".encode() + rest)
    assert [message.id for message in batch.messages] == [1, 2]
    assert isinstance(batch.fault, ServiceUnreadable)
    assert len(str(batch.fault)) < 100
    assert "html" not in str(batch.fault)


@pytest.mark.parametrize("cut", range(1, 90))
def test_a_body_cut_anywhere_gives_what_was_whole_and_nothing_else(cut: int) -> None:
    """No part of an element is ever taken for one, not even a number that may have had more digits."""
    elements = [element('{"n": 1.50}', id="1"), element('{"a": "b"}', id="2"), "17"]
    body = queue(*elements)
    batch = salvaged(body[:-cut], 3, ServiceUnavailable("cut"))
    whole = [element for element in elements[:2] if f"{element}".encode() in body[:-cut]]
    assert [message.id for message in batch.messages] == [1, 2][: len(whole)]
    assert [malformed.raw for malformed in batch.malformed] == []
    assert str(batch.fault) == "cut"


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"value": []}',
        b'"[]"',
        b"17",
        b"nul",
        b"null null",
        b"[",
        b"[1",
        b"[]]",
        b"[] []",
        b"<html>[]</html>",
        b"\xff\xfe[\x00]\x00",
        b"['a']",
        b"[01]",
        b"[.5]",
        b"[,]",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_an_answer_of_which_nothing_can_be_read(body: bytes) -> None:
    """What is not a JSON array is told without quoting it, since it may have been a batch."""
    batch = read_queue(body)
    assert batch.size == 0
    assert isinstance(batch.fault, ServiceUnreadable)
    assert len(str(batch.fault)) < 100
    assert "html" not in str(batch.fault)


def test_nothing_behind_a_quote_too_many_is_taken_for_a_message() -> None:
    """Where a text ends too early, the texts behind it look like elements; none of them is believed."""
    bait = element(id="99")
    broken = '{"id": 3, "settingsId": 2, "customerId": 3, "variables": {"a": "x"", "b": "'
    body = f'[{element(id="1")}, {broken}"}}}}, {bait}, {element(id="4")}]'
    batch = read_queue(body.encode())
    assert [message.id for message in batch.messages] == [1]
    assert batch.malformed == []
    assert batch.fault is not None


def test_a_batch_of_thousands_is_read_at_once() -> None:
    """5,000 messages, half of them malformed, take no more than a moment."""
    elements = [
        element('{"a": null}' if number % 2 else '{"a": "b"}', id=str(number)) for number in range(5000)
    ]
    body = queue(*elements)
    started = time.process_time()
    batch = read_queue(body)
    assert time.process_time() - started < 10
    assert (len(batch.messages), len(batch.malformed)) == (2500, 2500)
    assert batch.malformed[-1].raw == elements[-1]
