"""Reads the embedded journal for commands; see `reader`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from deliveryd.journal.anew import obstacle_to_beginning_anew
from deliveryd.journal.attention import DeadLetter, InDoubtMessage, LeftBehind, OverdueMessage
from deliveryd.journal.audit import audit_journal
from deliveryd.journal.beginnings import MAY_HAVE_ARRIVED
from deliveryd.journal.dead_letters import read_dead_letter, read_dead_letters, read_in_doubt
from deliveryd.journal.erasure import obstacle
from deliveryd.journal.forgetting import obstacle_to_forgetting
from deliveryd.journal.history import Life, life_of
from deliveryd.journal.left_behind import read_left_behind
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.overdue import read_overdue
from deliveryd.journal.pauses import KnownIds, PausedMessages, read_known, read_pauses
from deliveryd.journal.personal_data import find_personal_data
from deliveryd.journal.read_transaction import read
from deliveryd.journal.reader import Decision, DecisionSelection
from deliveryd.journal.reconciliation import Audit
from deliveryd.journal.rows import IDS
from deliveryd.journal.selection import Page, Selection, found_of_row, of_reason
from deliveryd.journal.stopped import StopList, StoppedRecipient, read_stop_list, read_stopped
from deliveryd.journal.traces import PersonalData
from deliveryd.journal.variables_seen import LOOKED_THROUGH, NamesSeen, names_by_settings
from deliveryd.states import ENDED, State

MOST_FOUND = 500
"""Messages of one page: each takes a look at its events."""

_COLUMNS = f"""
id, state, settings_id, customer_id, provider, spent, taken_at, ended_at, beginning, {MAY_HAVE_ARRIVED},
iif(state = {State.FAILED:d}, (SELECT body FROM event WHERE message_id = message.id AND status = 'error'
    ORDER BY seq DESC LIMIT 1), NULL)
"""  # noqa: S608  # constants
_LOWEST = -(2**63)
_OBSTACLES: Mapping[Action, Callable[[sqlite3.Connection, int], str | None]] = {
    Action.BEGIN_ANEW: partial(obstacle_to_beginning_anew, accepted=False),
    Action.BEGIN_ANEW_ANYWAY: partial(obstacle_to_beginning_anew, accepted=True),
    Action.FORGET: partial(obstacle_to_forgetting, accepted=False),
    Action.FORGET_ANYWAY: partial(obstacle_to_forgetting, accepted=True),
    Action.ERASE: obstacle,
}
_TERMS = {
    "customer": "customer_id = ?",
    "settings": "settings_id = ?",
    "first": "id >= ?",
    "last": "id <= ?",
    "since": "coalesce(ended_at, taken_at) >= ?",
    "until": "coalesce(ended_at, taken_at) <= ?",
    "provider": "(provider = ? OR instr(spent, '[' || json_quote(?) || ','))",
    "channel": (
        "(? IN (provider, substr(provider, 1, instr(provider, '/') - 1))"
        " OR instr(spent, '[' || json_quote(?) || ',')"
        " OR instr(spent, '[' || rtrim(json_quote(?), '\"') || '/'))"
    ),
}
"""SQL for each field of a selection that is given; `spent` begins each of its providers with a bracket."""

_DECISIONS = """
SELECT seq, at, verb, kind, key, message_id, "user", caller, reason FROM decision
WHERE seq > :after AND at >= coalesce(:since, at) AND at <= coalesce(:until, at)
    AND verb = coalesce(:verb, verb) AND (:user IS NULL OR :user IN ("user", caller))
    AND (:message IS NULL OR message_id = :message
        OR (message_id IS NULL AND kind = 'message' AND key = CAST(:message AS TEXT)))
ORDER BY seq LIMIT :limit
"""
_VARIABLES = """
SELECT settings_id, variables FROM (SELECT settings_id, variables FROM message ORDER BY id DESC LIMIT ?)
WHERE variables IS NOT NULL AND settings_id IS NOT NULL
"""


class SqliteReader:
    """Reads the journal in one SQLite file. Each method raises JournalError, JournalAbsent without a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def find(self, selection: Selection, after: tuple[int, ...] | None, limit: int) -> Page:
        """Examine the next messages, and return those that are selected."""
        if selection.ids:
            return read(self._path, partial(_by_ids, selection, after, limit))
        walk = _BY_END if selection.states and ENDED.issuperset(selection.states) else _BY_ID
        return read(self._path, partial(_portion, walk, selection, after, limit))

    def obstacles(self, verb: Action, ids: Collection[int]) -> Mapping[int, str]:
        """Return which of these messages an order would be refused for now, and why."""
        obstacle = _OBSTACLES[verb]
        return read(
            self._path, lambda db: {id_: why for id_ in ids if (why := obstacle(db, id_)) is not None}
        )

    def lives(self, ids: Collection[int]) -> Sequence[Life]:
        """Return everything about each of these messages."""
        return read(self._path, lambda db: [life_of(db, id_) for id_ in ids])

    def known(self, messages: Collection[int], settings: Collection[int]) -> KnownIds:
        """Return which of these messages and settings the journal has."""
        return read_known(self._path, messages, settings)

    def in_doubt(self, channel: str | None, until: int | None) -> Sequence[InDoubtMessage]:
        """Return the messages held in doubt."""
        return read_in_doubt(self._path, channel, until)

    def dead_letters(self, kinds: Sequence[ItemKind], since: int, reason: str) -> Sequence[DeadLetter]:
        """Return dead letters, oldest first."""
        return read_dead_letters(self._path, kinds, since, reason)

    def dead_letter(self, kind: ItemKind, key: str) -> Mapping[str, object] | None:
        """Return everything about one dead letter."""
        return read_dead_letter(self._path, kind, key)

    def overdue(self, until: Mapping[str, int]) -> Sequence[OverdueMessage]:
        """Return the messages that were sent before these instants and never confirmed."""
        return read_overdue(self._path, until)

    def left_behind(self, providers: Collection[str]) -> Sequence[LeftBehind]:
        """Return what belongs to providers other than these."""
        return read_left_behind(self._path, providers)

    def pauses(self) -> Sequence[PausedMessages]:
        """Return all pauses with how many messages wait for each."""
        return read_pauses(self._path)

    def stopped(self, channel: str | None) -> Sequence[StoppedRecipient]:
        """Return the recipients who can't be reached."""
        return read_stopped(self._path, channel)

    def stop_list(self) -> StopList:
        """Return what tells whether a recipient is among them."""
        return read_stop_list(self._path)

    def decisions(self, selection: DecisionSelection, after: int, limit: int) -> Sequence[Decision]:
        """Return the next decisions, oldest first."""
        values = selection._asdict() | {"after": after, "limit": limit}
        return read(self._path, lambda db: [Decision(*row) for row in db.execute(_DECISIONS, values)])

    def personal_data(self, customer_id: int) -> PersonalData:
        """Return where the journal has a customer's data."""
        return find_personal_data(self._path, customer_id)

    def names_seen(self, settings_ids: Collection[int]) -> Mapping[int, NamesSeen]:
        """Return the names of variables by settings."""
        return read(
            self._path,
            lambda db: names_by_settings(db.execute(_VARIABLES, (LOOKED_THROUGH,)), settings_ids),
        )

    def audit(self) -> Audit:
        """Check the whole journal for contradictions."""
        return audit_journal(self._path)


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


def _portion(
    walk: _Walk, selection: Selection, after: tuple[int, ...] | None, limit: int, db: sqlite3.Connection
) -> Page:
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
    found = of_reason(selection, [found_of_row(row[width:]) for row in rows])
    return Page(
        found, last if not _is_behind(walk, selection, last) else None, len(rows) if is_cut else examined
    )


def _is_behind(walk: _Walk, selection: Selection, last: tuple[int, ...] | None) -> bool:
    """Whether nothing that is selected can follow."""
    if last is None:
        return True
    end = selection.until if walk is _BY_END else selection.last
    return end is not None and last[0] > end


def _by_ids(selection: Selection, after: tuple[int, ...] | None, limit: int, db: sqlite3.Connection) -> Page:
    """Look these ids up, a portion of them."""
    begin = 0 if after is None else after[0]
    end = begin + min(limit, MOST_FOUND)
    ids = selection.ids[begin:end]
    terms, values = _terms(selection)
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM message WHERE id IN {IDS} {terms} ORDER BY id",  # noqa: S608
        (json.dumps(ids), *values),
    )
    found = of_reason(selection, [found_of_row(row) for row in rows])
    return Page(found, (end,) if end < len(selection.ids) else None, len(ids))


def _terms(selection: Selection) -> tuple[str, Sequence[object]]:
    """Return SQL for what is selected, beginning with AND, and its values."""
    terms: list[str] = []
    values: list[object] = []
    for name, term in _TERMS.items():
        if (wanted := getattr(selection, name)) is not None:
            terms.append(f"AND {term}")
            values += [wanted] * term.count("?")
    if selection.states:
        terms.append(f"AND state IN ({', '.join(f'{state:d}' for state in selection.states)})")
    return " ".join(terms), values
