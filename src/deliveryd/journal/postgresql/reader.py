"""Reads the journal in PostgreSQL for commands; see `journal.reader`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from deliveryd.journal.attention import DeadLetter, InDoubtMessage, LeftBehind, OverdueMessage
from deliveryd.journal.history import Life
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.pauses import KnownIds, PausedMessages
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.audit import audit_journal
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.dead_letters import read_dead_letter, read_dead_letters, read_in_doubt
from deliveryd.journal.postgresql.history import life_of
from deliveryd.journal.postgresql.left_behind import read_left_behind
from deliveryd.journal.postgresql.outbox import AT
from deliveryd.journal.postgresql.overdue import read_overdue
from deliveryd.journal.postgresql.pauses import read_known, read_pauses
from deliveryd.journal.postgresql.personal_data import find_personal_data
from deliveryd.journal.postgresql.snapshots import Snapshots
from deliveryd.journal.postgresql.standing import (
    MAY_HAVE_ARRIVED,
    obstacle_to_beginning_anew,
    obstacle_to_erasing,
    obstacle_to_forgetting,
)
from deliveryd.journal.postgresql.stopped import in_force, read_stopped
from deliveryd.journal.postgresql.upkeep import meta
from deliveryd.journal.postgresql.values import LOCATED, VISIBLE, plain
from deliveryd.journal.reader import Decision, DecisionSelection
from deliveryd.journal.reconciliation import Audit
from deliveryd.journal.selection import Page, Selection, found_of_row, of_reason
from deliveryd.journal.stopped import StopList, StoppedRecipient
from deliveryd.journal.traces import PersonalData
from deliveryd.journal.variables_seen import LOOKED_THROUGH, NamesSeen, names_by_settings
from deliveryd.states import State

MOST_FOUND = 500
"""Messages of one page: each takes a look at its events."""

T = TypeVar("T")

_COLUMNS = f"""
m.id, m.state, m.settings_id, m.customer_id, m.provider, m.spent, m.taken_at, m.ended_at, m.beginning,
{MAY_HAVE_ARRIVED}, CASE WHEN m.state = {State.FAILED:d} THEN coalesce(
    (SELECT i.body FROM inbox i WHERE i.message_id = m.id AND i.status = 'error' ORDER BY i.seq DESC LIMIT 1),
    (SELECT e.body FROM event e WHERE e.message_id = m.id AND e.day = m.day AND e.status = 'error'
        ORDER BY {AT} DESC, e.seq DESC LIMIT 1)) END
"""
_TERMS = {
    "customer": "m.customer_id = %(customer)s",
    "settings": "m.settings_id = %(settings)s",
    "first": "m.id >= %(first)s",
    "last": "m.id <= %(last)s",
    "since": "coalesce(m.ended_at, m.taken_at) >= %(since)s",
    "until": "coalesce(m.ended_at, m.taken_at) <= %(until)s",
    "provider": (
        "(m.provider = %(provider)s OR strpos(m.spent, '[' || to_json(%(provider)s::text) || ',') > 0)"
    ),
    "channel": (
        "(split_part(m.provider, '/', 1) = %(channel)s OR m.provider = %(channel)s"
        " OR strpos(m.spent, '[' || to_json(%(channel)s::text) || ',') > 0"
        " OR strpos(m.spent, '[' || rtrim(to_json(%(channel)s::text)::text, '\"') || '/') > 0)"
    ),
    "states": "m.state = ANY(%(states)s::int2[])",
}
"""SQL for each field of a selection that is given; `spent` begins each of its providers with a bracket."""

_BY_IDS = (
    f"SELECT {_COLUMNS} FROM unnest(%(ids)s::int8[]) AS wanted (id) {LOCATED.format(id='wanted.id')}"
    f" WHERE {VISIBLE}"
)
_LOWEST = -(2**63)
_NEXT = f"SELECT m.id FROM message m WHERE {VISIBLE} AND m.id > %s ORDER BY m.id LIMIT %s"
_WITHIN = f"SELECT {_COLUMNS} FROM message m WHERE {VISIBLE} AND m.id > %(begin)s AND m.id <= %(end)s"
_DECISIONS = """
SELECT seq, at, verb, kind, key, message_id, "user", caller, reason FROM decision
WHERE seq > %(after)s AND (%(since)s::int8 IS NULL OR at >= %(since)s)
    AND (%(until)s::int8 IS NULL OR at <= %(until)s) AND (%(verb)s::text IS NULL OR verb = %(verb)s)
    AND (%(user)s::text IS NULL OR %(user)s IN ("user", caller))
    AND (%(message)s::int8 IS NULL OR message_id = %(message)s
        OR (message_id IS NULL AND kind = 'message' AND key = %(message)s::text))
ORDER BY seq LIMIT %(limit)s
"""
_VARIABLES = f"""
SELECT settings_id, variables FROM (
    SELECT m.settings_id, m.variables FROM message m WHERE {VISIBLE} ORDER BY m.id DESC LIMIT %s) AS latest
WHERE variables IS NOT NULL AND settings_id IS NOT NULL
"""
_OBSTACLES: Mapping[Action, Callable[[Db, int], str | None]] = {
    Action.BEGIN_ANEW: partial(obstacle_to_beginning_anew, accepted=False),
    Action.BEGIN_ANEW_ANYWAY: partial(obstacle_to_beginning_anew, accepted=True),
    Action.FORGET: partial(obstacle_to_forgetting, accepted=False),
    Action.FORGET_ANYWAY: partial(obstacle_to_forgetting, accepted=True),
    Action.ERASE: obstacle_to_erasing,
}


class PostgresqlReader:
    """Reads the journal in a database. Each method raises JournalError, JournalAbsent without a journal.

    A connection is kept for the next read, and closed with the reader.
    """

    def __init__(self, source: JournalDatabase) -> None:
        self._snapshots = Snapshots(source)

    def find(self, selection: Selection, after: tuple[int, ...] | None, limit: int) -> Page:
        """Examine the next messages, and return those that are selected."""
        if selection.ids:
            return self._read(partial(_by_ids, selection, after, limit))
        return self._read(partial(_portion, selection, after, limit))

    def obstacles(self, verb: Action, ids: Collection[int]) -> Mapping[int, str]:
        """Return which of these messages an order would be refused for now, and why."""
        obstacle = _OBSTACLES[verb]
        return self._read(lambda db: {id_: why for id_ in ids if (why := obstacle(db, id_)) is not None})

    def lives(self, ids: Collection[int]) -> Sequence[Life]:
        """Return everything about each of these messages."""
        return self._read(lambda db: [life_of(db, id_) for id_ in ids])

    def known(self, messages: Collection[int], settings: Collection[int]) -> KnownIds:
        """Return which of these messages and settings the journal has."""
        return self._read(lambda db: read_known(db, messages, settings))

    def in_doubt(self, channel: str | None, until: int | None) -> Sequence[InDoubtMessage]:
        """Return the messages held in doubt."""
        return self._read(lambda db: read_in_doubt(db, channel, until))

    def dead_letters(self, kinds: Sequence[ItemKind], since: int, reason: str) -> Sequence[DeadLetter]:
        """Return dead letters, oldest first."""
        return self._read(lambda db: read_dead_letters(db, kinds, since, reason))

    def dead_letter(self, kind: ItemKind, key: str) -> Mapping[str, object] | None:
        """Return everything about one dead letter."""
        return self._read(lambda db: read_dead_letter(db, kind, key))

    def overdue(self, until: Mapping[str, int]) -> Sequence[OverdueMessage]:
        """Return the messages that were sent before these instants and never confirmed."""
        return self._read(lambda db: read_overdue(db, until))

    def left_behind(self, providers: Collection[str]) -> Sequence[LeftBehind]:
        """Return what belongs to providers other than these."""
        return self._read(lambda db: read_left_behind(db, providers))

    def pauses(self) -> Sequence[PausedMessages]:
        """Return all pauses with how many messages wait for each."""
        return self._read(read_pauses)

    def stopped(self, channel: str | None) -> Sequence[StoppedRecipient]:
        """Return the recipients who can't be reached."""
        return self._read(lambda db: read_stopped(db, channel))

    def stop_list(self) -> StopList:
        """Return what tells whether a recipient is among them."""
        return self._read(lambda db: StopList(bytes.fromhex(meta(db, "stop_key") or ""), in_force(db)))

    def decisions(self, selection: DecisionSelection, after: int, limit: int) -> Sequence[Decision]:
        """Return the next decisions, oldest first."""
        values = selection._asdict() | {"after": after, "limit": limit}
        return self._read(lambda db: [Decision(*row) for row in db.execute(_DECISIONS, values)])

    def personal_data(self, customer_id: int) -> PersonalData:
        """Return where the journal has a customer's data."""
        return find_personal_data(self._read, customer_id)

    def names_seen(self, settings_ids: Collection[int]) -> Mapping[int, NamesSeen]:
        """Return the names of variables by settings."""
        wanted = frozenset(settings_ids)
        return self._read(lambda db: names_by_settings(db.execute(_VARIABLES, (LOOKED_THROUGH,)), wanted))

    def audit(self) -> Audit:
        """Check the whole journal for contradictions."""
        return self._read(audit_journal)

    def _read(self, query: Callable[[Db], T]) -> T:
        """Run a query on one snapshot."""
        return self._snapshots.read(query)


def _portion(selection: Selection, after: tuple[int, ...] | None, limit: int, db: Db) -> Page:
    """Examine one portion: find its last message, then what is selected up to there.

    Always by ids: no index has the order of the ends, so that a walk in it would sort all for each portion.
    """
    (begin,) = after or (_LOWEST if selection.first is None else max(selection.first - 1, _LOWEST),)
    places = db.execute(_NEXT, (begin, limit)).fetchall()
    if not places:
        return Page((), None, 0)
    end = places[-1]
    terms, values = _terms(selection)
    rows = db.execute(f"{_WITHIN}{terms} ORDER BY m.id", values | {"begin": begin, "end": end[0]})
    found = of_reason(selection, [found_of_row(row) for row in rows])
    is_last = len(places) < limit or (selection.last is not None and end[0] > selection.last)
    return Page(found, None if is_last else end, len(places))


def _by_ids(selection: Selection, after: tuple[int, ...] | None, limit: int, db: Db) -> Page:
    """Look these ids up, a portion of them."""
    begin = 0 if after is None else after[0]
    end = begin + min(limit, MOST_FOUND)
    ids = list(selection.ids[begin:end])
    terms, values = _terms(selection)
    rows = db.execute(f"{_BY_IDS}{terms} ORDER BY m.id", values | {"ids": ids})
    found = of_reason(selection, [found_of_row(row) for row in rows])
    return Page(found, (end,) if end < len(selection.ids) else None, len(ids))


def _terms(selection: Selection) -> tuple[str, dict[str, Any]]:
    """Return SQL for what is selected, beginning with AND, and its values."""
    given = {name: value for name in _TERMS if (value := getattr(selection, name)) not in (None, ())}
    if "states" in given:
        given["states"] = [int(state) for state in given["states"]]
    values = {name: plain(value) if isinstance(value, str) else value for name, value in given.items()}
    return "".join(f" AND {_TERMS[name]}" for name in given), values
