"""Whom a request of an HTTP gateway goes to: the customer's address, as the mapping sends it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from deliveryd.channels.base import Dispatch
from deliveryd.channels.filling import MappingContext, TextTemplate
from deliveryd.channels.filters import Unfit
from deliveryd.model import Customer, Entry, Rendered, WallClock

_PLACEHOLDER = re.compile(r"\{customer\.([^{}|]+)[^{}]*\}")
_NO_ADDRESSES = frozenset({"name", "language"})
"""Customer fields that are never an address."""

_NOTHING = Rendered("", "", {})


def address_in(mapped: object) -> str | None:
    """Return the placeholder of the address: the only customer field of the mappings.

    Name and language don't count. None: there is no such field, or more than one.
    """
    found: dict[str, str] = {}
    for text in _texts(mapped):
        for match in _PLACEHOLDER.finditer(text):
            found.setdefault(match[1], match[0])
    addresses = [placeholder for field, placeholder in found.items() if field not in _NO_ADDRESSES]
    return addresses[0] if len(addresses) == 1 else None


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from _texts(member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _texts(member)


class Recipient:
    """Fills in the address of a customer."""

    def __init__(self, placeholder: str, context: MappingContext) -> None:
        self._template = TextTemplate(placeholder, context)

    def of(self, customer: Customer) -> str | None:
        """Return the address of a customer; None: there is none."""
        entry = Entry(0, 0, customer.id, {})
        try:
            address = self._template.fill(Dispatch("", entry, customer, _NOTHING, None, WallClock()))
        except Unfit:
            return None
        return address if isinstance(address, str) else None
