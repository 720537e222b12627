"""Phone numbers in the form that providers expect: E.164, `+` and digits only.

A text is a number only if all of it is: whatever the library would skip or turn into digits may be half of a
number, two numbers, a mask or a note, and the digits that are left another person's number.
"""

from __future__ import annotations

import re
from functools import lru_cache

import phonenumbers
from phonenumbers import PhoneNumberType, ValidationResult

from deliveryd.channels.mapping import UNREADABLE_PHONE, Unfit
from deliveryd.cleaning import is_invisible

_MOST_KEPT = 1024
"""Numbers that are kept: each is read when the provider is chosen, and again when the message is sent."""

_MOST_DIGITS = 15
"""Digits of a number with its country code at most (ITU-T E.164); the library lets longer ones pass."""

_LONGEST_AREA_CODE = 5
_LONGEST_LOCAL = 8
"""Digits of an area code, and of a number without it, at most: what precedes a dash with blanks is one."""

_PLUS = "+"
_BLANK = " \u00a0\u2000-\u200a\u202f\u205f\u3000"
_DASH = "\\-\u2010-\u2015\u2212\u30fc\uff0d"
_OPENING, _CLOSING = r"(\[\uff08\uff3b", r")\]\uff09\uff3d"
_PART = rf"/\uff0f~\u2053\u223c\uff5e{_OPENING}"
"""What may stand before a further number as well as before a further part of this one."""

_PLAIN = re.compile(r"\+[1-9][0-9]{6,14}")
_NUMBER = re.compile(
    rf"[{_OPENING}]?\+?[{_BLANK}{_OPENING}]*\d(?:[{_BLANK}{_DASH}{_PART}{_CLOSING}.\uff0e]*\d)*[{_CLOSING}]?"
)
_URI = re.compile(r"tel:(?P<number>[^;]*)(?:;phone-context=(?P<context>\+[^;]*))?", re.IGNORECASE)
_DECIMAL = re.compile(r"(?!\+[17]\.\d{10}\Z)\+?\d[.\uff0e]\d+|[^.\uff0e]*[.\uff0e](?:\d{1,2}|0+)")
"""A single point as in `491511234567.0` and `4.91511234567`: groups of a number are longer, or several.

One that follows a whole country code is none, as in `+1.2015550123` (RFC 5733).
"""
_FURTHER = re.compile(rf"[{_PART}]|(?<=[{_BLANK}])[{_DASH}](?=[{_BLANK}])")
_TRUNK_ZERO = re.compile(rf"[{_OPENING}]0[{_CLOSING}]")
_MEANT = {"UK": "GB", "EL": "GR"}
"""Codes that are in use for countries, and aren't those of ISO 3166."""

_MOBILE = (PhoneNumberType.MOBILE, PhoneNumberType.FIXED_LINE_OR_MOBILE)


def country_problem(country: str) -> str | None:
    """Return why this isn't a country whose numbers can be read, or None."""
    if country in phonenumbers.SUPPORTED_REGIONS:
        return None
    upper = country.upper()
    meant = upper if upper in phonenumbers.SUPPORTED_REGIONS else _MEANT.get(upper)
    hint = f"; did you mean {meant}?" if meant is not None else ""
    return f'{country!r} isn\'t a country; expected two letters of ISO 3166, such as "GB"{hint}'


class PhoneReader:
    """Reads phone numbers. Those without a country code belong to `country`; None: they can't be read."""

    def __init__(self, country: str | None) -> None:
        self._country = country
        self._read = lru_cache(_MOST_KEPT)(self._e164)

    def e164(self, text: str | int) -> str:
        """Return the number as `+` and digits. Raises Unfit, without the number."""
        number = self._read(str(text))
        if number is None:
            raise Unfit(UNREADABLE_PHONE)
        return number

    def is_readable(self, text: str) -> bool:
        """Whether `e164` can read it."""
        return self._read(text) is not None

    def e164_without_prefix(self, text: str) -> str | None:
        """Return an international number without its `+`, or else a mobile number of `country`.

        None: it is neither, or may well be either.
        """
        whole, own = self._read(f"{_PLUS}{text}"), self._read(text)
        if own is None or own == whole or self._type_of(own) not in _MOBILE:
            return whole
        return own if whole is None or self._type_of(whole) == PhoneNumberType.UNKNOWN else None

    def _type_of(self, e164: str) -> int:
        return phonenumbers.number_type(phonenumbers.parse(e164))

    def _e164(self, text: str) -> str | None:
        text = text if _PLAIN.fullmatch(text) else self._checked(text)
        number = self._number(text)
        if number is None:
            return None
        possible = phonenumbers.is_possible_number_with_reason(number)
        if possible != ValidationResult.IS_POSSIBLE and (
            possible != ValidationResult.IS_POSSIBLE_LOCAL_ONLY or _PLUS not in text
        ):  # without an area code it is one of any area
            return None
        if number.italian_leading_zero and not self._has_surely_a_zero(text, number):
            return None
        found = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)
        return found if len(found) <= len(_PLUS) + _MOST_DIGITS else None

    def _checked(self, text: str) -> str:
        """Return the text as the library is to read it; empty if it isn't a number and nothing else."""
        if not text.isascii():
            text = "".join(char for char in text if not is_invisible(char)).replace("\uff0b", _PLUS)
        text = text.strip()
        if (uri := _URI.fullmatch(text)) is not None:  # RFC 3966
            text = (uri["context"] or "") + uri["number"]
        if not _NUMBER.fullmatch(text) or _DECIMAL.fullmatch(text) or self._holds_two(text):
            return ""
        return text

    def _number(self, text: str) -> phonenumbers.PhoneNumber | None:
        """Return what the text is; its country code may lack the `+`, if it is that of its country."""
        number = self._parsed(text)
        if number is None or _PLUS in text:
            return number
        digits = phonenumbers.normalize_digits_only(text)
        if digits.startswith("0"):
            return number
        complete = self._parsed(f"+{digits}")
        is_own = digits.startswith(str(number.country_code))
        if complete is None or not phonenumbers.is_valid_number(complete):
            return None if is_own and complete and self._is_either(number, complete) else number
        if is_own:
            return complete if complete.country_code == number.country_code else None
        return None if self._is_foreign(text, number, complete) else number

    @staticmethod
    def _is_either(number: phonenumbers.PhoneNumber, complete: phonenumbers.PhoneNumber) -> bool:
        """Whether a fixed line may as well be a number with its country code, of a range not known yet."""
        is_other = complete != number and phonenumbers.is_possible_number(complete)
        return is_other and phonenumbers.number_type(number) not in _MOBILE

    @staticmethod
    def _is_foreign(text: str, number: phonenumbers.PhoneNumber, complete: phonenumbers.PhoneNumber) -> bool:
        """Whether a text may well be a number of another country that lacks its `+`."""
        if not phonenumbers.is_valid_number(number):
            return text.isdecimal()
        is_mobile = phonenumbers.number_type(complete) == PhoneNumberType.MOBILE
        return is_mobile and text[0].isdecimal() and phonenumbers.number_type(number) not in _MOBILE

    def _has_surely_a_zero(self, text: str, number: phonenumbers.PhoneNumber) -> bool:
        """Whether a number is valid with its zero, and isn't without it if that is in brackets."""
        other = self._parsed(_TRUNK_ZERO.sub("", text))
        is_either = other is not None and other != number and phonenumbers.is_valid_number(other)
        return phonenumbers.is_valid_number(number) and not is_either

    def _parsed(self, text: str) -> phonenumbers.PhoneNumber | None:
        try:
            return phonenumbers.parse(text, self._country)
        except phonenumbers.NumberParseException:
            return None

    def _holds_two(self, text: str) -> bool:
        """Whether a part of the text is more than an area code, and another part follows."""
        return any(
            self._national_digits(text[: match.start()])
            > (_LONGEST_AREA_CODE if match[0] in _PART else _LONGEST_LOCAL)
            for match in _FURTHER.finditer(text)
        )

    def _national_digits(self, text: str) -> int:
        number = self._parsed(text)
        return 0 if number is None else len(phonenumbers.national_significant_number(number))
