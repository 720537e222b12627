"""JSON numbers that keep their text: `10.50` stays `10.50`, wherever it is stored and sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial

import orjson


class NumberText(str):
    """A JSON number, as it was written."""

    __slots__ = ()


_Fragment = orjson.Fragment
_decoder = json.JSONDecoder(parse_float=NumberText, parse_int=NumberText)


def _number(value: object) -> orjson.Fragment:
    if type(value) is NumberText:  # it has no subclasses, and this is called for each number
        return _Fragment(value.encode())
    raise TypeError(f"{type(value).__name__} isn't JSON")


dumps_exact: Callable[[object], bytes] = partial(
    orjson.dumps, default=_number, option=orjson.OPT_PASSTHROUGH_SUBCLASS
)
"""Encode a value, each NumberText as the number that it is. Raises orjson.JSONEncodeError."""


def loads_variables(text: str) -> Mapping[str, str]:
    """Decode an object of texts and numbers, which become NumberText; nothing stands around it.

    Raises json.JSONDecodeError.
    """
    variables: Mapping[str, str] = _decoder.raw_decode(text)[0]
    return variables
