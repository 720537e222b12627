"""JSON whose numbers stay as they were written: `10.50` stays `10.50`."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from math import isfinite
from typing import Any

from deliveryd.errors import ServiceUnreadable
from deliveryd.runtime.json_numbers import NumberText

MOST_DIGITS = 20
"""Most digits of an integer: one more than any 64-bit integer has."""


class NotANumber:
    """Replaces `NaN` and `Infinity`, which aren't JSON: no model accepts it."""

    def __init__(self, text: str) -> None:
        self.text = text


class TooDeep(ValueError):
    """A text is nested deeper than the parser goes."""


_decoder = json.JSONDecoder(parse_float=NumberText, parse_int=NumberText, parse_constant=NotANumber)
_integers = json.JSONDecoder(parse_float=NumberText, parse_constant=NotANumber)
_BLANK = re.compile(r"[ \t\r\n]*+")
_NUMBER = re.compile(r"-?(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?", re.ASCII)


def loads_exact(text: str) -> Any:
    """Parse a JSON text. Raises ValueError if it is invalid, and TooDeep if that is unknown."""
    try:
        return _decoder.decode(text)
    except RecursionError:
        raise TooDeep("nested too deeply") from None


def loads_integers(text: str) -> Any:
    """Like `loads_exact`, with integers as `int` where that is lossless: faster, since most numbers are.

    JSON has one spelling per integer, except `-0`. Raises the same errors.
    """
    if "-0" in text:
        return loads_exact(text)
    try:
        return _integers.decode(text)
    except json.JSONDecodeError:
        raise
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        return loads_exact(text)


def elements_of(text: str, largest: int) -> list[Any]:
    """Return the elements of an array. Raises like `loads_exact`, and ValueError for one with more bytes."""
    decoder = _decoder if "-0" in text else _integers
    elements: list[Any] = []
    at = _separator(text, 0, "[")
    try:
        while True:
            element, end = decoder.raw_decode(text, at)
            size = end - at
            if 4 * size > largest and len(text[at:end].encode()) > largest:
                raise ValueError("an element is too large")
            elements.append(element)
            at = _blank(text, end)
            if text[at : at + 1] != ",":
                break
            at = _blank(text, at + 1)
    except RecursionError:
        raise TooDeep("nested too deeply") from None
    if _separator(text, at, "]") != len(text):
        raise ValueError("data after the array")
    return elements


def _separator(text: str, at: int, mark: str) -> int:
    at = _blank(text, at)
    if text[at : at + 1] != mark:
        raise ValueError(f"{mark} is missing")
    return _blank(text, at + 1)


def _blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def integer_of(text: str, most_digits: int = MOST_DIGITS) -> int | None:
    """Return a JSON number as an integer, in any notation: `6`, `6.0` and `60e-1` are 6.

    No float is involved. None if the number has a fraction, or more than `most_digits` digits.
    """
    number = _NUMBER.fullmatch(text)
    if number is None:
        return None
    whole, fraction, exponent = number.groups(default="")
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return 0
    if len(exponent.lstrip("+-0")) > most_digits:
        return None
    zeros = int(exponent or "0") - len(fraction) + len(digits) - len(significant)
    if zeros < 0 or len(significant) + zeros > most_digits:
        return None
    value = int(significant + "0" * zeros)
    return -value if text.startswith("-") else value


def _as_written(text: str) -> float | Decimal:
    number = float(text)
    if not isfinite(number):
        raise ValueError("a number is too large")
    return number if repr(number) == text else Decimal(text)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} isn't a JSON number")


_plain = json.JSONDecoder(parse_float=_as_written, parse_constant=_no_number)


def read_exact(body: bytes) -> Any:
    """Parse an answer as `loads_exact` does. Raises ServiceUnreadable."""
    return _read(body, _decoder)


def read_plain(body: bytes) -> Any:
    """Parse an answer to plain values that can be serialized again: finite numbers, valid Unicode.

    A number with a fraction that a float would write otherwise, such as 10.50, is a Decimal. Raises
    ServiceUnreadable.
    """
    value = _read(body, _plain)
    if b"\\u" in body:
        try:
            json.dumps(value, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise ServiceUnreadable("the answer contains half a surrogate pair") from None
    return value


def _read(body: bytes, decoder: json.JSONDecoder) -> Any:
    try:
        return decoder.decode(body.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ServiceUnreadable("the answer isn't UTF-8") from None
    except RecursionError:
        raise ServiceUnreadable("the answer is nested too deeply") from None
    except ValueError as error:
        place = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise ServiceUnreadable(f"the answer isn't JSON{place}") from None


def integral(value: object) -> object:
    """Return a number without a fraction, such as 6.0, as an integer; anything else as it is."""
    if isinstance(value, float | Decimal) and value == int(value):
        return int(value)
    return value
