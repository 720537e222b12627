"""Phone numbers in the form that providers expect: E.164, `+` and digits only."""

from __future__ import annotations

from functools import lru_cache

import phonenumbers

from deliveryd.channels.filling import UNREADABLE_PHONE, Unfit

_MOST_KEPT = 1024
"""Numbers that are kept: each is read when the provider is chosen, and again when the message is sent."""


def country_problem(country: str) -> str | None:
    """Return why this isn't a country whose numbers can be read, or None."""
    if country in phonenumbers.SUPPORTED_REGIONS:
        return None
    return f'{country!r} isn\'t a country; expected two letters of ISO 3166, such as "GB"'


class PhoneReader:
    """Reads phone numbers. Those without a country code belong to `country`; None: they can't be read."""

    def __init__(self, country: str | None) -> None:
        self._country = country
        self._read = lru_cache(_MOST_KEPT)(self._parse)

    def e164(self, text: str | int) -> str:
        """Return the number as `+` and digits. Raises Unfit, without the number."""
        number = self._read(str(text))
        if number is None:
            raise Unfit(UNREADABLE_PHONE)
        return number

    def is_readable(self, text: str) -> bool:
        """Whether `e164` can read it."""
        return self._read(text) is not None

    def _parse(self, text: str) -> str | None:
        try:
            number = phonenumbers.parse(text, self._country)
        except phonenumbers.NumberParseException:
            return None
        if number.extension or not phonenumbers.is_possible_number(number):
            return None
        return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)
