"""Which country a number belongs to, and which numbers cost more."""

from __future__ import annotations

import phonenumbers
import pytest
from phonenumbers import PhoneNumberFormat, PhoneNumberType

from deliveryd.channels.number_ranges import calling_code_of, country_of, is_premium, premium_ranges


@pytest.mark.parametrize(
    ("number", "country"),
    [
        ("+4915112345678", "DE"),
        ("+436641234567", "AT"),
        ("+12015550123", "US"),
        ("+14165550123", "CA"),
        ("+18765550123", "JM"),
        ("+79161234567", "RU"),
        ("+77012345678", "KZ"),
        ("+447400123456", "GB"),
        ("+447797712345", "JE"),
        ("+447781123456", "GG"),
        ("+447624123456", "IM"),
        ("+447700900123", None),
        ("+80012345678", None),
        ("+9991234567", None),
        ("+", None),
        ("+\u0664\u0669151", None),
    ],
)
def test_the_country_of_a_number(number: str, country: str | None) -> None:
    """Those that share a calling code are told apart; a number that is of none of them has none."""
    assert country_of(number) == country


def test_calling_codes() -> None:
    assert [calling_code_of(each) for each in ("DE", "US", "JE")] == ["+49", "+1", "+44"]


@pytest.mark.parametrize("country", sorted(phonenumbers.SUPPORTED_REGIONS))
def test_every_premium_number_is_found(country: str) -> None:
    """By what the numbers of its calling code match, written with and without the plus; no mobile one is."""
    for kind in (PhoneNumberType.PREMIUM_RATE, PhoneNumberType.MOBILE):
        example = phonenumbers.example_number_for_type(country, kind)
        if example is None or phonenumbers.region_code_for_number(example) != country:
            continue
        number = phonenumbers.format_number(example, PhoneNumberFormat.E164)
        found = is_premium(number)
        assert found == (phonenumbers.number_type(example) == PhoneNumberType.PREMIUM_RATE)
        for text in (number, number[1:]):
            matches = premium_ranges(text[:4], without_plus=text != number)
            assert bool(matches and matches(text)) or not found
