"""Filters of mappings: what may stand after a bar in a placeholder, as in `{customer.phone|e164}`."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple
from uuid import UUID, uuid5

from deliveryd.errors import DeliverydError
from deliveryd.model import SECOND

UNREADABLE_PHONE = "the phone number can't be read"

ValueKind = Literal["text", "instant", "seconds", "number"]
"""What a value is: text, an instant in microseconds, a length of time in seconds, or any other number."""


class Unfit(DeliverydError):
    """The message can't be turned into a provider's request; the text is safe to report."""


FilterStep = Callable[[str | int], str | int]


class Filter(NamedTuple):
    """What a filter does to one kind of values, and what the result is."""

    step: FilterStep
    result: ValueKind


_NO_DIGIT = re.compile(r"[^0-9]+")


def _digits(value: str | int) -> str:
    return _NO_DIGIT.sub("", str(value))


def _base64(value: str | int) -> str:
    return b64encode(str(value).encode("utf-8")).decode("ascii")


_UUIDS = UUID("8a0d3c9e-5f0b-5b5e-9a51-6c1f0d2b7e44")


def _uuid(value: str | int) -> str:
    return str(uuid5(_UUIDS, str(value)))


def _unix(value: str | int) -> int:
    return int(value) // SECOND


def _unix_ms(value: str | int) -> int:
    return int(value) * 1000 // SECOND


def _milliseconds(value: str | int) -> int:
    return int(value) * 1000


def _minutes(value: str | int) -> int:
    return max(int(value) // 60, 1)


PHONE = "e164"
"""The filter that reads a phone number: it depends on the provider's `country`."""

FILTERS: Mapping[str, Mapping[ValueKind, Filter]] = {
    "digits": {"text": Filter(_digits, "text"), "number": Filter(_digits, "text")},
    "base64": {"text": Filter(_base64, "text"), "number": Filter(_base64, "text")},
    "uuid": {"text": Filter(_uuid, "text"), "number": Filter(_uuid, "text")},
    "unix": {"instant": Filter(_unix, "number")},
    "ms": {"instant": Filter(_unix_ms, "number"), "seconds": Filter(_milliseconds, "number")},
    "minutes": {"seconds": Filter(_minutes, "number")},
}
"""All filters but `e164`, by the kinds of values that they apply to."""

FILTER_NAMES = (PHONE, *FILTERS)


def kind_after(kind: ValueKind, filter_: str) -> ValueKind | None:
    """Return what a value of this kind is after a filter; None: the filter doesn't apply to it."""
    if filter_ == PHONE:
        return "text" if kind == "text" else None
    found = FILTERS[filter_].get(kind)
    return None if found is None else found.result
