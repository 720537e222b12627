"""JSON as plain values that can be serialized again: finite numbers, valid Unicode."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from deliveryd.errors import ServiceUnreadable


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError("a number is too large")
    return number


def _no_number(text: str) -> float:
    raise ValueError(f"{text} isn't a JSON number")


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)


def loads_service_json(body: bytes) -> Any:
    """Parse a JSON text. Raises ServiceUnreadable if it is invalid or couldn't be serialized again."""
    try:
        value = _decoder.decode(body.decode("utf-8-sig"))
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()  # lone surrogates can't be encoded
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
