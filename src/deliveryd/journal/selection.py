"""Which messages a command is about, and what is found of them, page by page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from deliveryd.journal.rows import IDS, spent_of, to_json
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.deletion import MAY_HAVE_ARRIVED
from deliveryd.journal.sql.history import ids_as_told
from deliveryd.states import ENDED, State

NO_REASON = "no reason recorded"
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z")
_LONG_NUMBER = re.compile(r"\d{7,}")
_USUAL_FIELDS = frozenset({"timestamp", "messageId", "status"})


class Selection(NamedTuple):
    """Messages for which everything that is given is true.

    `first` and `last` are a range of ids. `channel` and `provider` are one that sent the message, has it now,
    or failed with it. `reason` is a part of the reason of a failure, in any case of letters. `since` and
    `until` bound the instant at which it ended, or was taken if it hasn't ended.
    """

    ids: tuple[int, ...] = ()
    states: tuple[State, ...] = ()
    customer: int | None = None
    channel: str | None = None
    provider: str | None = None
    settings: int | None = None
    reason: str | None = None
    since: int | None = None
    until: int | None = None
    first: int | None = None
    last: int | None = None


class FoundMessage(NamedTuple):
    """A message as far as a list shows it.

    `providers` are those that failed with it, in their order, and the one that it is bound to. `reason` is
    why it failed, as reported to the service. `may_have_arrived`: it failed with an attempt whose outcome is
    unknown, or which was accepted and never confirmed. `told_as` is its id as the service has it.
    """

    id: int
    state: State
    settings_id: int | None
    customer_id: int | None
    providers: tuple[str, ...]
    taken_at: int
    ended_at: int | None
    generation: int
    reason: str | None
    may_have_arrived: bool
    told_as: int

    @property
    def failure(self) -> str:
        """Why it failed, as what others failed for: instants and long numbers count as equal."""
        return _LONG_NUMBER.sub("#", _INSTANT.sub("TIME", self.reason or NO_REASON))


class Page(NamedTuple):
    """One portion of what is found. `after` continues behind it; None: that was all."""

    found: tuple[FoundMessage, ...]
    after: tuple[int, ...] | None
    examined: int


def _found_of_rows(db: Db, rows: Sequence[Sequence[Any]]) -> Sequence[FoundMessage]:
    told = ids_as_told(db, [row[0] for row in rows])
    return [_found_of_row(row, told.get(row[0], row[0])) for row in rows]


def _found_of_row(row: Sequence[Any], told_as: int) -> FoundMessage:
    """Build what is found from the columns of its row, the body of its latest `error` event last."""
    id_, state, settings_id, customer_id, provider, spent, taken_at, ended_at, generation, doubt, body = row
    failed = [each.provider for each in spent_of(spent)]
    providers = tuple(dict.fromkeys(name for name in (*failed, provider) if name))
    reason = None if body is None else _details(body)
    return FoundMessage(
        id_,
        State(state),
        settings_id,
        customer_id,
        providers,
        taken_at,
        ended_at,
        generation,
        reason,
        bool(doubt),
        told_as,
    )


def _details(body: str) -> str | None:
    """Return the details of an `error` event, whatever their field is named (`events.details_field`)."""
    fields = json.loads(body)
    return next((str(value) for name, value in fields.items() if name not in _USUAL_FIELDS), None)


def _of_reason(selection: Selection, found: Sequence[FoundMessage]) -> tuple[FoundMessage, ...]:
    """Return those whose reason is as selected."""
    if selection.reason is None:
        return tuple(found)
    text = selection.reason.casefold()
    return tuple(each for each in found if text in (each.reason or "").casefold())


MOST_FOUND = 500
"""Messages of one page: each takes a look at its events."""

_COLUMNS = f"""
id, state, settings_id, customer_id, provider, spent, taken_at, ended_at, generation, {MAY_HAVE_ARRIVED},
iif(state = {State.FAILED:d}, (SELECT body FROM event WHERE message_id = message.id AND status = 'error'
    ORDER BY seq DESC LIMIT 1), NULL)
"""  # noqa: S608  # constants
_LOWEST = -(2**63)
_FAILED_AT = "instr(spent, ?) > 0"
"""SQL for whether a provider failed; `spent` begins each of its providers with a bracket."""


def _at_provider(provider: str) -> tuple[str, Sequence[str]]:
    return f"(provider = ? OR {_FAILED_AT})", (provider, f"[{to_json(provider)},")


def _on_channel(channel: str) -> tuple[str, Sequence[str]]:
    name = to_json(channel)
    term = "? IN (provider, substr(provider, 1, instr(provider || '/', '/') - 1))"
    return f"({term} OR {_FAILED_AT} OR {_FAILED_AT})", (channel, f"[{name},", f"[{name[:-1]}/")


_TERMS: Mapping[str, Callable[[Any], tuple[str, Sequence[object]]]] = {
    "customer": lambda id_: ("customer_id = ?", (id_,)),
    "settings": lambda id_: ("settings_id = ?", (id_,)),
    "first": lambda id_: ("id >= ?", (id_,)),
    "last": lambda id_: ("id <= ?", (id_,)),
    "since": lambda at: ("coalesce(ended_at, taken_at) >= ?", (at,)),
    "until": lambda at: ("coalesce(ended_at, taken_at) <= ?", (at,)),
    "provider": _at_provider,
    "channel": _on_channel,
}
"""SQL and its values for each field of a selection that is given."""


class _Walk:
    """An order in which messages are examined: the columns that it goes by, and what bounds it."""

    def __init__(self, columns: str, begin: Callable[[Selection], tuple[int, ...]], bounds: str) -> None:
        marks = ", ".join("?" * len(columns.split(", ")))
        self.begin = begin
        self.columns = columns
        self.bound = (
            f"SELECT {columns} FROM message WHERE {bounds} AND ({columns}) > ({marks})"  # noqa: S608
            f" ORDER BY {columns} LIMIT 1 OFFSET ?"
        )
        self.rest = (
            f"SELECT count(*) FROM (SELECT 1 FROM message WHERE {bounds} AND ({columns}) > ({marks})"  # noqa: S608
            f" ORDER BY {columns} LIMIT ?)"
        )
        self.within = f"{bounds} AND ({columns}) > ({marks})"
        self.up_to = f"AND ({columns}) <= ({marks})"


def _first_id(selection: Selection) -> tuple[int, ...]:
    first = _LOWEST if selection.first is None else selection.first
    return (max(first - 1, _LOWEST),)


def _first_end(selection: Selection) -> tuple[int, ...]:
    return (selection.since or 0, -1, 0)


_BY_ID = _Walk("id", _first_id, "TRUE")
_BY_END = _Walk("ended_at, state, id", _first_end, "ended_at IS NOT NULL")


def find_page(
    selection: Selection, after: tuple[int, ...] | None, limit: int, db: Db, *, is_by_end: bool
) -> Page:
    """Examine the next `limit` messages behind `after`; see `Reader.find`.

    `is_by_end`: ended messages are read in the order of their ends.
    """
    if selection.ids:
        return _by_ids(selection, after, limit, db)
    is_by_end = is_by_end and bool(selection.states) and ENDED.issuperset(selection.states)
    return _portion(_BY_END if is_by_end else _BY_ID, selection, after, limit, db)


def _portion(walk: _Walk, selection: Selection, after: tuple[int, ...] | None, limit: int, db: Db) -> Page:
    """Examine one portion: find its last message, then what is selected up to there."""
    begin = after or walk.begin(selection)
    end = db.execute(walk.bound, (*begin, limit - 1)).fetchone()
    terms, values = _terms(selection)
    up_to, bounds = ("", ()) if end is None else (walk.up_to, end)
    rows = db.execute(
        f"SELECT {walk.columns}, {_COLUMNS} FROM message WHERE {walk.within} {up_to} {terms}"  # noqa: S608
        f" ORDER BY {walk.columns} LIMIT ?",
        (*begin, *bounds, *values, MOST_FOUND),
    ).fetchall()
    width = len(begin)
    is_cut = len(rows) == MOST_FOUND
    last = tuple(rows[-1][:width]) if is_cut else end
    examined = limit if end is not None else db.execute(walk.rest, (*begin, limit)).fetchone()[0]
    found = _of_reason(selection, _found_of_rows(db, [row[width:] for row in rows]))
    return Page(
        found, last if not _is_behind(walk, selection, last) else None, len(rows) if is_cut else examined
    )


def _is_behind(walk: _Walk, selection: Selection, last: tuple[int, ...] | None) -> bool:
    """Whether nothing that is selected can follow."""
    if last is None:
        return True
    end = selection.until if walk is _BY_END else selection.last
    return end is not None and last[0] > end


def _by_ids(selection: Selection, after: tuple[int, ...] | None, limit: int, db: Db) -> Page:
    """Look these ids up, a portion of them."""
    begin = 0 if after is None else after[0]
    end = begin + min(limit, MOST_FOUND)
    ids = selection.ids[begin:end]
    terms, values = _terms(selection)
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM message WHERE id IN {IDS} {terms} ORDER BY id",  # noqa: S608
        (json.dumps(ids), *values),
    ).fetchall()
    found = _of_reason(selection, _found_of_rows(db, rows))
    return Page(found, (end,) if end < len(selection.ids) else None, len(ids))


def _terms(selection: Selection) -> tuple[str, Sequence[object]]:
    """Return SQL for what is selected, beginning with AND, and its values."""
    terms: list[str] = []
    values: list[object] = []
    for name, term_of in _TERMS.items():
        if (wanted := getattr(selection, name)) is not None:
            term, given = term_of(wanted)
            terms.append(f"AND {term}")
            values += given
    if selection.states:
        terms.append(f"AND state IN ({', '.join(f'{state:d}' for state in selection.states)})")
    return " ".join(terms), values
