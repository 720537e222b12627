"""Counts the customers of a file whose addresses can't be read, by provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

from pydantic import BaseModel

from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.phone_numbers import PhoneReader
from deliveryd.channels.smtp.mailbox import parse_mailbox
from deliveryd.channels.smtp.options import SmtpOptions
from deliveryd.commands.check.findings import Finding, Level
from deliveryd.config import Config
from deliveryd.directory.customer_index import records_of
from deliveryd.model import Customer

_MOST_READ = 200_000
"""Customers that are looked at: some seconds."""

_SHOWN = 3

_Reader = Callable[[str], bool]


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
    return [Finding(place, Level.WARNING, _told(field, ids, count)) for (place, field), ids in found.items()]


def _told(field: str, ids: list[str], number: int) -> str:
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
