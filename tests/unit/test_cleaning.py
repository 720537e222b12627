"""What surrounds a field of a customer and isn't seen."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from deliveryd.cleaning import cleaned, is_invisible
from deliveryd.model import Customer


@pytest.mark.parametrize(
    ("written", "read"),
    [
        pytest.param(" Ann ", "Ann", id="blanks"),
        pytest.param("\u00a0ann@example.com\t\r\n", "ann@example.com", id="no-break blank, tab, line break"),
        pytest.param(
            "\ufeffann@example.com\u200b", "ann@example.com", id="byte order mark, blank without width"
        ),
        pytest.param("\u202a+49 151\u202c", "+49 151", id="directions"),
        pytest.param("ann@example.com\u200d", "ann@example.com", id="a joiner that joins nothing"),
        pytest.param("Ann\x00", "Ann", id="a control character"),
        pytest.param("\u3000Ann Lee\u3000", "Ann Lee", id="a wide blank, not the one inside"),
        pytest.param("\u2764\ufe0f ", "\u2764\ufe0f", id="an emoji keeps its variation"),
        pytest.param("\u0d28\u0d4d\u200d", "\u0d28\u0d4d\u200d", id="a Malayalam letter keeps its joiner"),
        pytest.param(
            "\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e", id="a Persian word keeps its parts"
        ),
    ],
)
def test_fields_of_a_customer(written: str, read: str) -> None:
    """What is seen stays as it is, with what shapes it; the rest is gone, whichever field it is."""
    assert Customer(1, {"phone": written, "x": "y"}).fields == {"phone": read, "x": "y"}
    assert cleaned(read) == read


@pytest.mark.parametrize(
    "value", ["", " ", "\u200b", "\ufeff\u00a0", "\u2060\u00ad", "\u3164", "\u2800", "\u115f", "\t\x07"]
)
def test_a_value_that_nobody_sees_is_none(value: str) -> None:
    """Such a name is undefined, and such a language or address isn't there."""
    customer = Customer(1, {"name": value, "language": value, "email": value})
    assert (customer.name, customer.language, customer.fields) == (None, None, {})


def test_invisible_characters_are_those_of_unicode() -> None:
    """All format and control characters but white space, and none that has a shape, a sound or a width."""
    invisible = {chr(code) for code in range(sys.maxunicode + 1) if is_invisible(chr(code))}
    for char in map(chr, range(sys.maxunicode + 1)):
        if unicodedata.category(char) in ("Cf", "Cc") and not char.isspace():
            assert char in invisible
    seen = {char for char in invisible if unicodedata.category(char) not in ("Cf", "Cc", "Cn", "Mn")}
    assert seen == set("\u115f\u1160\u3164\uffa0\u2800")
