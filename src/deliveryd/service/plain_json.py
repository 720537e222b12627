"""JSON as plain values that can be serialized again: finite numbers, valid Unicode.

A number with a fraction that a float would write otherwise, such as 10.50, is a Decimal.
"""

from __future__ import annotations

import json
from decimal import Decimal
from math import isfinite
from typing import Any

from deliveryd.errors import ServiceUnreadable


def _as_written(text: str) -> float | Decimal:
    number = float(text)
    if not isfinite(number):
        raise ValueError("a number is too large")
    return number if repr(number) == text else Decimal(text)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} isn't a JSON number")


_decoder = json.JSONDecoder(parse_float=_as_written, parse_constant=_no_number)


def loads_service_json(body: bytes) -> Any:
    """Parse a JSON text. Raises ServiceUnreadable if it is invalid or couldn't be serialized again."""
    try:
        value = _decoder.decode(body.decode("utf-8-sig"))
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False, default=str).encode()  # lone surrogates can't be encoded
    except UnicodeDecodeError:
        raise ServiceUnreadable("the answer isn't UTF-8") from None
    except UnicodeEncodeError:
        raise ServiceUnreadable("the answer contains half a surrogate pair") from None
    except RecursionError:
        raise ServiceUnreadable("the answer is nested too deeply") from None
    except ValueError as error:
        place = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise ServiceUnreadable(f"the answer isn't JSON{place}") from None
    return value


def integral(value: object) -> object:
    """Return a number without a fraction, such as 6.0, as an integer; anything else as it is."""
    if isinstance(value, float | Decimal) and value == int(value):
        return int(value)
    return value
