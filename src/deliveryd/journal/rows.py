"""How values look in the journal's columns. Whatever a text holds can be stored, unpaired surrogates too."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import orjson

from deliveryd.journal.base import Change
from deliveryd.model import Entry

ENTRY = "id, settings_id, customer_id, variables, lane, tries, attempts, spent, doubt, taken_at"
"""The columns of an entry, in the order of `EntryRow`."""

_escaped = json.JSONEncoder(separators=(",", ":")).encode


class EntryRow(NamedTuple):
    """The columns of `ENTRY`; `settings_id`, `customer_id` and `variables` are those of a real message."""

    id: int
    settings_id: int
    customer_id: int
    variables: str
    lane: str
    tries: int
    attempts: int
    spent: str
    doubt: str | None
    taken_at: int


def entry_of(row: tuple[Any, ...]) -> Entry:
    """Build an entry from the columns of `ENTRY`."""
    columns = EntryRow(*row)
    return Entry(
        columns.id,
        columns.settings_id,
        columns.customer_id,
        json.loads(columns.variables),
        columns.lane or None,
        columns.tries,
        columns.attempts,
        tuple((channel, reason) for channel, reason in json.loads(columns.spent)),
        columns.doubt,
        columns.taken_at,
    )


def progress_of(change: Change) -> tuple[object, ...]:
    """What a step writes: state, due_at, lane, tries, attempts, spent, doubt."""
    _, _, _, _, lane, tries, attempts, spent, doubt, _ = change.entry
    return (
        change.after,
        change.due_at,
        lane or "",
        tries,
        attempts,
        to_json(spent) if spent else "[]",
        doubt,
    )


def to_json(value: object) -> str:
    """JSON that UTF-8 can carry: an unpaired surrogate is escaped, and comes back as it was."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return _escaped(value)


def to_text(text: str | None) -> str | None:
    """Text that UTF-8 can carry: an unpaired surrogate is spelled out."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()
