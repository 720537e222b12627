"""How values look in the journal's columns. Whatever a text holds can be stored, unpaired surrogates too."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from deliveryd.journal.base import Change
from deliveryd.model import Entry

ENTRY = "id, settings_id, customer_id, variables, lane, tries, attempts, spent, doubt, taken_at"
"""The columns of an entry, in the order of `EntryRow`."""

_as_is = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
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
    entry = change.entry
    spent = to_json(entry.spent) if entry.spent else "[]"
    return change.after, change.due_at, entry.lane or "", entry.tries, entry.attempts, spent, entry.doubt


def to_json(value: object) -> str:
    """JSON that UTF-8 can carry: an unpaired surrogate is escaped, and comes back as it was."""
    text = _as_is(value)
    return text if _is_utf8(text) else _escaped(value)


def to_text(text: str | None) -> str | None:
    """Text that UTF-8 can carry: an unpaired surrogate is spelled out."""
    return text if text is None or _is_utf8(text) else text.encode("utf-8", "backslashreplace").decode()


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
