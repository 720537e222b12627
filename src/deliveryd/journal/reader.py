"""What commands read of a journal, beside a worker or without one: the same of a file and of a database.

Each call is a read transaction of its own, and short unless it is documented to read the whole journal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from types import MappingProxyType
from typing import NamedTuple

from deliveryd.journal.attention import Audit, DeadLetter, InDoubtMessage, LeftBehind, OverdueMessage
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.pauses import KnownIds, PausedMessages
from deliveryd.journal.selection import FoundMessage, Page, Selection, find_page
from deliveryd.journal.sql.account import of_removed_providers, read_overdue
from deliveryd.journal.sql.audit import audit_journal
from deliveryd.journal.sql.db import Db, InReadTransaction
from deliveryd.journal.sql.dead_letters import read_dead_letter, read_dead_letters, read_in_doubt
from deliveryd.journal.sql.history import Life, life_of
from deliveryd.journal.sql.obstacles import OBSTACLES
from deliveryd.journal.sql.own_values import kept_clock
from deliveryd.journal.sql.pauses import known_ids, paused_messages
from deliveryd.journal.sql.personal_data import PersonalData, find_personal_data
from deliveryd.journal.sql.stopped import StopList, StoppedRecipient, stop_list, stopped_recipients
from deliveryd.journal.sqlite.opening import check_pages, read

LOOKED_THROUGH = 20_000
"""Messages that are looked through, the highest ids first."""


class NamesSeen(NamedTuple):
    """The names that all of `messages` messages had, and those that any had."""

    messages: int
    always: frozenset[str]
    ever: frozenset[str]


def names_by_settings(
    rows: Iterable[tuple[int, str]], settings_ids: Collection[int]
) -> Mapping[int, NamesSeen]:
    """Gather the names by settings ID; each row is one, and the JSON of a message's variables."""
    seen: dict[int, NamesSeen] = {}
    for settings_id, variables in rows:
        if settings_id in settings_ids:
            names = frozenset(json.loads(variables))
            count, always, ever = seen.get(settings_id, (0, names, names))
            seen[settings_id] = NamesSeen(count + 1, always & names, ever | names)
    return seen


PORTION_SECONDS = 0.01
"""Seconds that one read transaction is meant to take, so that the log can be checkpointed in between."""

FIRST_PORTION, LEAST_PORTION, LARGEST_PORTION = 500, 50, 20_000

_DECISIONS = """
SELECT seq, at, verb, kind, key, message_id, "user", caller, reason FROM decision
WHERE seq > ?1 AND at >= coalesce(?2, at) AND at <= coalesce(?3, at)
    AND verb = coalesce(?4, verb) AND (CAST(?5 AS TEXT) IS NULL OR ?5 IN ("user", caller))
    AND (CAST(?6 AS BIGINT) IS NULL OR message_id = ?6
        OR (message_id IS NULL AND kind = 'message' AND key = CAST(?6 AS TEXT)))
ORDER BY seq LIMIT ?7
"""
_VARIABLES = """
SELECT settings_id, variables FROM (SELECT settings_id, variables FROM message ORDER BY id DESC LIMIT ?)
WHERE variables IS NOT NULL AND settings_id IS NOT NULL
"""


class DecisionSelection(NamedTuple):
    """Decisions for which everything that is given is true."""

    since: int | None = None
    until: int | None = None
    message: int | None = None
    user: str | None = None
    verb: str | None = None


class Decision(NamedTuple):
    """An operator's order for one key; `user` as the system reports it, `caller` as the user claimed.

    `message_id` is the message that it concerned; None: none, or one that was erased or forgotten.
    """

    seq: int
    at: int
    verb: str
    kind: str
    key: str
    message_id: int | None
    user: str | None
    caller: str | None
    reason: str | None


def _stays_here(_db: Db, _message_id: int) -> str | None:
    """A file has one log, and names no worker."""
    return None


class Reader:
    """Reads of a journal that don't change it, through `read`.

    Each raises JournalAbsent when there is no journal yet, JournalUnusable when an operator has to change
    something, and JournalError when another attempt may succeed.

    `look_at`: work on the log of a message, and return the name of the worker that has it. `checks` are those
    of the store, for an audit. `is_by_end`: ended messages are read in the order of their ends.
    """

    def __init__(
        self,
        read: InReadTransaction,
        *,
        look_at: Callable[[Db, int], str | None] = _stays_here,
        check_store: Callable[[Db], None] = lambda _db: None,
        checks: Mapping[str, str] = MappingProxyType({}),
        is_by_end: bool = True,
    ) -> None:
        self._read = read
        self._look_at = look_at
        self._check_store = check_store
        self._checks = checks
        self._is_by_end = is_by_end

    def find(self, selection: Selection, after: tuple[int, ...] | None, limit: int) -> Page:
        """Examine the next `limit` messages behind `after`, and return those that are selected.

        None: from the beginning. The cost of a call is bounded by `limit`, however many messages there are.
        """
        return self._read(partial(find_page, selection, after, limit, is_by_end=self._is_by_end))

    def obstacles(self, verb: Action, ids: Collection[int]) -> Mapping[int, str]:
        """Return which of these messages an order would be refused for now, and why.

        The verb is to begin again, to forget or to erase.
        """
        obstacle = OBSTACLES[verb]
        return self._read(lambda db: {id_: why for id_ in ids if (why := obstacle(db, id_)) is not None})

    def lives(self, ids: Collection[int]) -> Sequence[Life]:
        """Return everything about each of these messages, in the order of the ids."""
        return self._read(lambda db: [life_of(db, id_, self._look_at(db, id_)) for id_ in ids])

    def known(self, messages: Collection[int], settings: Collection[int]) -> KnownIds:
        """Return which of these messages the journal has, and which of these settings its latest messages."""
        return self._read(lambda db: known_ids(db, messages, settings))

    def in_doubt(self, channel: str | None, until: int | None) -> Sequence[InDoubtMessage]:
        """Return the messages held in doubt since `until` or earlier, if given, in the order of their ids.

        `channel`: only those at its providers, or at one provider.
        """
        return self._read(lambda db: read_in_doubt(db, channel, until))

    def kept_clock(self) -> str:
        """Return what the latest run kept of its clock; "": nothing."""
        return self._read(kept_clock)

    def dead_letters(self, kinds: Sequence[ItemKind], since: int, reason: str) -> Sequence[DeadLetter]:
        """Return dead letters set aside since an instant, with this text in their reason, oldest first."""
        return self._read(lambda db: read_dead_letters(db, kinds, since, reason))

    def dead_letter(self, kind: ItemKind, key: str) -> Mapping[str, object] | None:
        """Return everything about one dead letter, with its raw text; None: there is none of this name."""
        return self._read(lambda db: read_dead_letter(db, kind, key))

    def overdue(self, until: Mapping[str, int]) -> Sequence[OverdueMessage]:
        """Return the messages that were sent before these instants, by provider, and never confirmed.

        The oldest first. Reads the messages that were sent and are still kept.
        """
        return self._read(lambda db: read_overdue(db, until))

    def left_behind(self, providers: Collection[str]) -> Sequence[LeftBehind]:
        """Return what belongs to providers other than these, in the order of their names."""
        return self._read(lambda db: of_removed_providers(db, providers))

    def pauses(self) -> Sequence[PausedMessages]:
        """Return all pauses with how many messages wait for each, the oldest first."""
        return self._read(paused_messages)

    def stopped(self, channel: str | None) -> Sequence[StoppedRecipient]:
        """Return the recipients who can't be reached, on one channel if given, oldest first."""
        return self._read(lambda db: stopped_recipients(db, channel))

    def stop_list(self) -> StopList:
        """Return what checks whether a recipient is among them."""
        return self._read(stop_list)

    def decisions(self, selection: DecisionSelection, after: int, limit: int) -> Sequence[Decision]:
        """Return the next `limit` decisions with a number above `after`, oldest first."""
        since, until, message, user, verb = selection
        values = after, since, until, verb, user, message, limit
        return self._read(lambda db: [Decision(*row) for row in db.execute(_DECISIONS, values)])

    def personal_data(self, customer_id: int) -> PersonalData:
        """Return where the journal has a customer's data. Reads all of it, in several transactions."""
        return find_personal_data(self._read, customer_id)

    def names_seen(self, settings_ids: Collection[int]) -> Mapping[int, NamesSeen]:
        """Return the names of variables by settings, of messages whose variables are kept."""
        return self._read(
            lambda db: names_by_settings(db.execute(_VARIABLES, (LOOKED_THROUGH,)), settings_ids)
        )

    def audit(self) -> Audit:
        """Check the whole journal for contradictions, in one transaction."""

        def audit(db: Db) -> Audit:
            self._check_store(db)
            return audit_journal(db, self._checks)

        return self._read(audit)


def file_reader(path: Path) -> Reader:
    """Return what reads the journal in a file."""
    return Reader(partial(read, path), check_store=partial(check_pages, path))


def read_found(
    reader: Reader, selection: Selection, note: Callable[[int], None] = lambda _examined: None
) -> Iterator[FoundMessage]:
    """Find messages in portions, each in a short transaction of its own; `note` gets the number examined.

    Without ids they come in the order of ids; from SQLite, if only ended ones are selected, in that of their
    ends. A message that changes meanwhile may be missed or found as it was.
    """
    after: tuple[int, ...] | None = None
    limit, examined = FIRST_PORTION, 0
    while True:
        began = perf_counter()
        page = reader.find(selection, after, limit)
        took = perf_counter() - began
        limit = next_portion(limit, took)
        examined += page.examined
        note(examined)
        yield from page.found
        if page.after is None:
            return
        after = page.after
        sleep(min(took, PORTION_SECONDS))  # half of the time is left to the worker


def next_portion(limit: int, seconds: float) -> int:
    """Return how many messages the next portion examines, after one that took so long."""
    factor = min(PORTION_SECONDS / max(seconds, 1e-6), 2.0)
    return max(LEAST_PORTION, min(int(limit * factor), LARGEST_PORTION))
