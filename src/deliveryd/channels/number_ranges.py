"""Which country an E.164 number belongs to, and whether it is a premium-rate number, by phonenumbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

import phonenumbers
from phonenumbers import PhoneMetadata, PhoneNumberType

_MOST_KEPT = 1024
"""Heads of numbers, and numbers of shared calling codes: each is looked at more than once."""

_LONGEST_CODE = 3
_HEAD = 1 + _LONGEST_CODE
"""Characters of a number after which its calling code is known."""

_NOWHERE = "001"
"""The region of numbers that belong to no country, such as +800."""


def calling_code_of(country: str) -> str:
    """Return how the numbers of a country begin, such as "+49"."""
    return f"+{phonenumbers.country_code_for_region(country)}"


def country_of(number: str) -> str | None:
    """Return the country of an E.164 number; None: it belongs to none that is known."""
    _, regions = _plan_of(number[:_HEAD])
    if len(regions) > 1:
        return _country_among(number)
    return regions[0] if regions and regions[0] != _NOWHERE else None


def premium_ranges(head: str, *, without_plus: bool) -> Callable[[str], object] | None:
    """Return what matches all premium-rate numbers that begin so, as they are sent; None: there are none."""
    plus = "" if without_plus else r"\+"
    code, regions = _plan_of(f"+{head}" if without_plus else head)
    found = dict.fromkeys(_patterns(code, regions))
    return re.compile(rf"{plus}{code}(?:{'|'.join(found)})", re.ASCII).fullmatch if found else None


def is_premium(number: str) -> bool:
    """Whether a number is a premium-rate number in its country, also where others share its calling code."""
    return phonenumbers.number_type(phonenumbers.parse(number)) == PhoneNumberType.PREMIUM_RATE


@lru_cache(_MOST_KEPT)
def _plan_of(head: str) -> tuple[str, tuple[str, ...]]:
    """Return the calling code that numbers with this head have, and the regions that share it."""
    for length in range(1, _LONGEST_CODE + 1) if head[:1] == "+" else ():
        code = head[1 : 1 + length]
        if (
            code.isascii()
            and code.isdecimal()
            and (regions := phonenumbers.COUNTRY_CODE_TO_REGION_CODE.get(int(code)))
        ):
            return code, regions
    return "", ()


def _patterns(code: str, regions: tuple[str, ...]) -> Iterator[str]:
    for region in regions:
        metadata = PhoneMetadata.metadata_for_region_or_calling_code(int(code), region)
        premium = metadata and metadata.premium_rate
        if premium and premium.national_number_pattern:
            yield f"(?:{premium.national_number_pattern})"


@lru_cache(_MOST_KEPT)
def _country_among(number: str) -> str | None:
    try:
        found = phonenumbers.region_code_for_number(phonenumbers.parse(number))
    except phonenumbers.NumberParseException:
        return None
    return found if isinstance(found, str) else None
