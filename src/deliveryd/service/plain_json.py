"""JSON as plain values that can be written again: numbers are finite, texts are whole."""

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
    raise ValueError(f"{text} is no number of JSON")


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)


def loads_service_json(body: bytes) -> Any:
    """Read a JSON text. Raises ServiceUnreadable when it is none, or holds what couldn't be written again."""
    try:
        value = _decoder.decode(body.decode("utf-8-sig"))
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair can't be
    except UnicodeDecodeError:
        raise ServiceUnreadable("the answer isn't UTF-8") from None
    except UnicodeEncodeError:
        raise ServiceUnreadable("the answer holds half a surrogate pair") from None
    except RecursionError:
        raise ServiceUnreadable("the answer is nested too deeply") from None
    except ValueError as error:
        place = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise ServiceUnreadable(f"the answer isn't JSON{place}") from None
    return value
