"""The values that travel the line: instants as text, the clock, attempt ids, customers."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deliveryd.model import Customer, WallClock, format_instant, key_prefix, message_key, parse_instant

NEW_YEAR = 1_704_067_200_000_000  # 2024-01-01T00:00:00Z
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

instants = st.datetimes(timezones=st.just(UTC)).map(
    lambda moment: (moment - EPOCH) // timedelta(microseconds=1)
)


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (NEW_YEAR, "2024-01-01T00:00:00.000000Z"),
        (NEW_YEAR + 1, "2024-01-01T00:00:00.000001Z"),
        (0, "1970-01-01T00:00:00.000000Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (-62_135_596_800_000_000, "0001-01-01T00:00:00.000000Z"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_an_instant_is_written_with_six_decimals_and_a_z(instant: int, text: str) -> None:
    """Of every length the same, so that texts sort like instants."""
    assert format_instant(instant) == text


@given(instants)
def test_an_instant_is_read_as_it_was_written(instant: int) -> None:
    assert parse_instant(format_instant(instant)) == instant


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-01T00:00:00Z",
        "2024-01-01t00:00:00z",
        "2024-01-01 00:00:00.000Z",
        "2024-01-01T00:00Z",
        "2024-01-01T00:00:00",
        "2024-01-01T02:00:00+02:00",
        "2023-12-31T19:30:00,000-0430",
        "2024-01-01T00:00:00.0000009Z",
        "20240101T000000Z",
        "20240101T0000+0000",
        "20240101T010000,0+01",
        "2024-001T00:00Z",
        "2024001T000000Z",
        "2024-W01-1T00:00:00Z",
        "2024W011T0000Z",
        "2023-12-31T24:00Z",
        "2023-12-31T24:00:00.000Z",
        "20231231T240000Z",
        "2023-365T24:00:00",
        "2023-W52-7T24:00+00:00",
        "2023-12-31T18:00\u221206:00",
        "2024-01-01T00:00.0Z",
        "2024-01-01T01.5+01:30",
        "2023-12-31T23:59:60Z",
        "2024-01-01T08:59:60+09:00",
    ],
)
def test_the_same_instant_in_other_words(text: str) -> None:
    """Any offset, none (then it is UTC), any precision; what is finer than a microsecond is cut."""
    assert parse_instant(text) == NEW_YEAR


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2024-01-01",
        "2024-01-01T00",
        "20240101",
        "2024-W01-1",
        "2024-001",
        "2024-W01T00:00Z",
        "2024-W53-1T00:00Z",
        "2023-366T00:00Z",
        "2024-000T00:00Z",
        "2024-01T00:00Z",
        "2024-13-01T00:00:00Z",
        "2024-02-30T00:00:00Z",
        "2024-01-01T24:00:01Z",
        "2024-01-01T24:01Z",
        "2024-01-01T25:00Z",
        "2024-01-01T00:60Z",
        "2024-01-01T00:00:60Z",
        "2024-01-15T23:59:60Z",
        "2024-01-01T00:00:00+05:99",
        "2024-01-01T00:00:00Z[Europe/Berlin]",
        "2024-01-01T00:00:209Z",
        "2024-01-01T00:00:00:123Z",
        "2024-01-01T00:00:+00:00",
        "2024-01-01T00:00:00xZ",
        "2024-01-01T00:00:00+25:00",
        "2024-01-01X00:00:00Z",
        "01/01/2024 00:00:00",
        "1704067200000000",
        "never, or later still",
        "2024-01-01T00:00:0\ud800",
        "2024-01-01T00:00:00Z" * 1000,
    ],
)
def test_what_is_no_instant_is_refused(text: str) -> None:
    """An expiry is never guessed; a date without a time of day would be a guess."""
    with pytest.raises(ValueError, match="not an ISO 8601 instant"):
        parse_instant(text)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_an_instant_that_could_not_be_written_is_refused(text: str) -> None:
    """A provider may report any time it likes; the event that repeats it must still be possible."""
    with pytest.raises(ValueError, match="years 1 to 9999"):
        parse_instant(text)


def test_the_clock_tells_the_time_of_day() -> None:
    before = time.time_ns() // 1000
    assert before <= WallClock().now() <= time.time_ns() // 1000


def test_a_key_is_the_same_whoever_asks() -> None:
    """Other messages, providers, beginnings and journals have other keys."""
    assert message_key("3f2a", 12, "sms", 1) == message_key("3f2a", 12, "sms", 1)
    parts = [
        ("a", 1, "sms", 1), ("a", 12, "sms", 1), ("a", -1, "sms", 1), ("b", 1, "sms", 1),
        ("a", 1, "sms", 2), ("a", 1, "sms/b", 1), ("a", 1, "sms", 12), ("a", 1, "email", 1),
    ]  # fmt: skip
    assert len({message_key(*each) for each in parts}) == len(parts)


@pytest.mark.parametrize("message_id", [1, -1, 2**63 - 1, -(2**63)])
def test_a_key_has_at_most_forty_letters_digits_and_dashes(message_id: int) -> None:
    key = message_key("0123456789ab", message_id, "a-channel/with_a_provider", 10**9)
    assert re.fullmatch(r"[A-Za-z0-9-]{1,40}", key)
    assert key.startswith(key_prefix("0123456789ab", message_id))


def test_a_customer_has_a_name_and_a_language_or_none() -> None:
    ann = Customer(1, {"name": "Ann", "language": "pt-BR", "phone": "+441"})
    assert (ann.name, ann.language) == ("Ann", "pt-BR")
    assert (Customer(2, {}).name, Customer(2, {}).language) == (None, None)
