"""`Retry-After` in both of its forms, and in strange ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from deliveryd.http.responses import retry_after

DAY = 86_400.0


def test_retry_after_as_a_date() -> None:
    """The other form of HTTP: an instant, with or without a zone; one in the past is now."""
    later = datetime.now(UTC) + timedelta(seconds=90)
    for text in (format_datetime(later, usegmt=True), later.strftime("%a, %d %b %Y %H:%M:%S -0000")):
        assert retry_after(text, DAY) == pytest.approx(90, abs=3)
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT", DAY) == 0.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("٣", None),
        ("Wed, 99 Foo 2015", None),
        ("0000000000007", 7.0),
        ("99999999999", 86_400.0),
        ("9" * 5000, 86_400.0),
        ("Wed, 21 Oct 2999 07:28:00 GMT", 86_400.0),
        ("Fri, 31 Dec 9999 23:59:59 -2359", 86_400.0),
        ("Mon, 01 Jan 0001 00:00:00 +2359", 0.0),
        ("Mon, 01 Jan 2030 00:00:00 +999999", None),
    ],
)
def test_retry_after_that_is_strange(text: str | None, seconds: float | None) -> None:
    """What can't be read is ignored, and nobody is made to wait for longer than the bound."""
    assert retry_after(text, DAY) == seconds
