"""What customers lack to be reached: fields that providers are sent, and addresses that can be read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import islice
from pathlib import Path

from pydantic import BaseModel

from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.mapping import customer_fields
from deliveryd.channels.phone_numbers import PhoneReader
from deliveryd.channels.smtp.mailbox import parse_mailbox
from deliveryd.channels.smtp.options import SmtpOptions
from deliveryd.commands.check.findings import Finding, Level
from deliveryd.config import Config
from deliveryd.directory.customer_index import records_of
from deliveryd.model import Customer
from deliveryd.options.suggestion import closest

_MOST_READ = 200_000
"""Customers that are looked at: some seconds."""

_SHOWN = 3

_Reader = Callable[[str], bool]


def fields_without_values(config: Config, known: Collection[str], directory: str) -> list[Finding]:
    """Return a warning for each field that a provider is sent and no customer has.

    `known` are the fields that customers have; `directory` is a clause that names their source.
    """
    found = []
    for provider in config.channels.providers.values():
        for field in sorted(_fields_sent(provider.options) - {"id", *known}):
            text = f"{{customer.{field}}} has no value for any customer, so no one is reached: {directory}"
            if (name := closest(field, known)) is not None:
                text += f"; did you mean {{customer.{name}}}?"
            found.append(Finding(provider.place, Level.WARNING, text))
    return found


def _fields_sent(options: BaseModel) -> frozenset[str]:
    """Return the customer fields that a built-in adapter sends."""
    match options:
        case HttpChannelOptions():
            return customer_fields(options.mapped())
        case SmtpOptions():
            return frozenset({options.address_field})
        case _:
            return frozenset()


def unreadable_addresses(config: Config, path: Path) -> list[Finding]:
    """Return a warning for each provider and field with addresses that can't be read. Raises OSError."""
    readers = {provider.place: _readers(provider.options) for provider in config.channels.providers.values()}
    found: dict[tuple[str, str], list[str]] = {}
    count = 0
    for record in islice(records_of(path), _MOST_READ):
        count += 1
        fields = Customer(0, record.fields).fields
        for place, by_field in readers.items():
            for field, is_readable in by_field.items():
                if field in fields and not is_readable(fields[field]):
                    found.setdefault((place, field), []).append(fields.get("id", "?"))
    return [
        Finding(place, Level.WARNING, _unread(field, ids, count)) for (place, field), ids in found.items()
    ]


def _unread(field: str, ids: list[str], number: int) -> str:
    more = f" and {len(ids) - _SHOWN:,} more" if len(ids) > _SHOWN else ""
    return (
        f"{{customer.{field}}} can't be read for {len(ids):,} of {number:,} customers, who aren't reached:"
        f" {', '.join(ids[:_SHOWN])}{more}"
    )


def _readers(options: BaseModel) -> Mapping[str, _Reader]:
    """Return for each field of an address whether it can be read."""
    match options:
        case HttpChannelOptions():
            reader = PhoneReader(options.country)
            names = sorted(name.field for name in options.phone_fields if name.root == "customer")
            return dict.fromkeys(names, reader.is_readable)
        case SmtpOptions():
            return {options.address_field: _is_mailbox}
        case _:
            return {}


def _is_mailbox(text: str) -> bool:
    try:
        parse_mailbox(text)
    except ValueError:
        return False
    return True
