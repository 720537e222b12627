"""What receipts may be about, as it is read once for all of them, and as each of them changes it.

The rows that were changed are written at once, each only if it is still as it was read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from deliveryd import transitions
from deliveryd.errors import IllegalTransition
from deliveryd.journal.postgresql.commits import ChangedMeanwhile
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.days import ByDay, Days, by_day, of_day
from deliveryd.journal.postgresql.outbox import Outbox
from deliveryd.journal.postgresql.steps import empty_words
from deliveryd.journal.postgresql.values import LOCATED, VISIBLE, arrays
from deliveryd.journal.postgresql.waiting import IS_PAUSED
from deliveryd.journal.receipt_decisions import Matched, Tried, referred_by
from deliveryd.journal.rows import spent_of, to_json
from deliveryd.model import Entry, Receipt, StatusEvent, Transition, message_key
from deliveryd.states import State

COLUMNS = "provider, provider_id, delivered, status, reported_at, received_at, reference"
"""The columns of a receipt."""

_ROW = (
    "m.key, m.number, m.tries, m.beginning, m.provider, m.started_at, m.ended_at, m.accepted_at,"
    " m.provider_id, m.reason, m.spent, m.sent_by"
)
_FIND = f"""
SELECT m.day, m.id, m.state, a.failed_next, coalesce(w.is_paused, false), {_ROW}
FROM (
    SELECT i.id FROM unnest(%(ids)s::int8[]) AS i (id)
    UNION SELECT m.id FROM message m
        WHERE m.provider_id = ANY(%(numbers)s::text[]) AND m.provider = ANY(%(providers)s::text[])
    UNION SELECT u.message_id FROM unaccepted u
        WHERE u.provider_id = ANY(%(numbers)s::text[]) AND u.provider = ANY(%(providers)s::text[])
) AS wanted {LOCATED.format(id="wanted.id")}
LEFT JOIN awaited a ON a.id = m.id
LEFT JOIN (SELECT id, {IS_PAUSED} AS is_paused FROM waiting) AS w
    ON w.id = m.id AND m.state = {State.WAITING:d}
WHERE {VISIBLE}
"""
_TRY = (
    "u.message_id, u.key, u.number, u.provider, u.beginning, u.started_at, u.ended_at, u.verdict,"
    " u.provider_id"
)
_TRIES = ByDay(
    f"SELECT {_TRY} FROM unaccepted_of_day u WHERE u.message_id = ANY(%s::int8[])",
    f"""
SELECT {_TRY} FROM unnest(%s::int8[]) AS wanted (id) {LOCATED.format(id="wanted.id")}
JOIN unaccepted u ON u.message_id = m.id AND u.day = m.day
""",
)
_RECEIPT = (
    "r.message_id, r.provider, r.provider_id, r.delivered, r.status, r.reported_at, r.received_at,"
    " r.reference"
)
_RECEIPTS = ByDay(
    f"SELECT {_RECEIPT} FROM receipt_of_day r WHERE r.message_id = ANY(%s::int8[]) ORDER BY r.seq",
    f"""
SELECT {_RECEIPT} FROM unnest(%s::int8[]) AS wanted (id) {LOCATED.format(id="wanted.id")}
JOIN receipt r ON r.message_id = m.id AND r.day = m.day ORDER BY r.seq
""",
)
_STATUSES = f"""
SELECT e.message_id, e.status FROM unnest(%(ids)s::int8[]) AS wanted (id) {LOCATED.format(id="wanted.id")}
JOIN event e ON e.message_id = m.id AND e.day = m.day
UNION ALL SELECT message_id, status FROM inbox WHERE message_id = ANY(%(ids)s::int8[]) AND status IS NOT NULL
"""
_WRITE = by_day("""
UPDATE {message} m SET state = s.state, key = s.key, number = s.number, tries = s.tries,
    beginning = s.beginning, provider = s.provider, started_at = s.started_at, ended_at = s.ended_at,
    accepted_at = s.accepted_at, provider_id = s.provider_id, reason = s.reason, spent = s.spent,
    sent_by = s.sent_by, doubt = false, content = NULL, digest = NULL, owner = NULL,
    variables = CASE WHEN s.is_emptied THEN NULL ELSE m.variables END
FROM unnest(%s::int8[], %s::int2[], %s::int4[], %s::bool[], %s::int2[],
    %s::int4[], %s::int4[], %s::int4[], %s::int4[], %s::text[], %s::int8[], %s::int8[], %s::int8[],
    %s::text[], %s::text[], %s::text[], %s::text[])
    AS s (id, was_state, was_key, is_emptied, state,
        key, number, tries, beginning, provider, started_at, ended_at, accepted_at,
        provider_id, reason, spent, sent_by) {located}
WHERE {is_there} AND m.state = s.was_state AND m.key = s.was_key
RETURNING m.id, m.log
""")
_LOCK = by_day("""
SELECT m.id, m.log FROM unnest(%s::int8[], %s::int2[], %s::int4[]) AS s (id, was_state, was_key) {located}
JOIN {message} m ON {is_there} WHERE m.state = s.was_state AND m.key = s.was_key
ORDER BY m.id FOR NO KEY UPDATE OF m
""")
_KEEP_TRIES = f"""
INSERT INTO unaccepted (message_id, day, key, number, provider, beginning, started_at, ended_at, verdict,
    provider_id, reason)
SELECT s.id, m.day, s.key, s.number, s.provider, s.beginning, s.started_at, s.ended_at, 'accepted',
    s.provider_id, s.reason
FROM unnest(%s::int8[], %s::int4[], %s::int4[], %s::text[], %s::int4[], %s::int8[], %s::int8[], %s::text[],
    %s::text[]) AS s (id, key, number, provider, beginning, started_at, ended_at, provider_id, reason)
{LOCATED.format(id="s.id")}
"""
_NAME_TRIES = f"""
UPDATE unaccepted u SET provider_id = s.provider_id
FROM unnest(%s::int8[], %s::int4[], %s::text[]) AS s (id, key, provider_id) {LOCATED.format(id="s.id")}
WHERE u.message_id = m.id AND u.day = m.day AND u.key = s.key AND u.provider_id IS NULL
"""
_DROP_TRIES = """
DELETE FROM unaccepted u USING unnest(%s::int8[], %s::int4[]) AS s (id, key)
WHERE u.message_id = s.id AND u.key = s.key AND u.verdict = 'accepted'
"""
_WAIT = """
INSERT INTO waiting (id, provider, doubt, due_at) SELECT s.id, '', false, s.due_at
FROM unnest(%s::int8[], %s::int8[]) AS s (id, due_at)
"""


class Try(NamedTuple):
    """A try that doesn't stand in its message's row."""

    key: int
    number: int
    provider: str
    beginning: int
    started_at: int
    ended_at: int | None
    verdict: str | None
    provider_id: str | None


@dataclass(slots=True)
class BookedMessage:
    """A message as the receipts of a batch find it and leave it."""

    day: int
    id: int
    state: int
    failed_next: bool | None
    is_paused: bool
    key: int
    number: int
    tries: int
    beginning: int
    provider: str
    started_at: int | None
    ended_at: int | None
    accepted_at: int | None
    provider_id: str | None
    reason: str | None
    spent: str
    sent_by: str | None
    was_state: int = 0
    was_key: int = 0
    was_awaited: bool = False
    is_changed: bool = False
    is_emptied: bool = False
    due_at: int | None = None

    def matched(self, tries: Iterable[Try]) -> Matched:
        """What decisions depend on; `tries` are those of the message that don't stand in its row."""
        is_only_try = not any(
            each.provider == self.provider and (each.key, each.number) != (self.key, self.number)
            for each in tries
        )
        return Matched(
            self.id, self.state, self.key, self.accepted_at, self.provider_id, self.failed_next, self.spent,
            self.is_paused, is_only_try,
        )  # fmt: skip

    @property
    def entry(self) -> Entry:
        """The entry, as far as a step of a sent message needs it."""
        return Entry(
            self.id, 0, 0, {}, self.provider, self.tries, self.key, self.number, spent_of(self.spent),
            beginning=self.beginning, sent_by=self.sent_by,
        )  # fmt: skip


class Book:
    """The messages that some receipts may be about. `keeps_variables`: also of messages that are sent."""

    def __init__(self, namespace: str, days: Days, *, keeps_variables: bool) -> None:
        self.records: dict[int, BookedMessage] = {}
        self.tries: defaultdict[int, list[Try]] = defaultdict(list)
        self.receipts: defaultdict[int, list[Receipt]] = defaultdict(list)
        self.events: list[StatusEvent] = []
        self.days: dict[int, int] = {}
        """The days of messages that were locked, as far as they are known."""

        self._days = days
        self._namespace = namespace
        self._keeps_variables = keeps_variables
        self._left: list[tuple[Any, ...]] = []
        self._restored: list[tuple[int, int]] = []
        self._having: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._told: set[tuple[int, str]] = set()
        self._named: list[tuple[int, int, str]] = []

    def read(self, db: Db, ids: Collection[int], named: Collection[tuple[str, str]]) -> None:
        """Read messages by their ids, and by the ids that providers gave them.

        Of several providers some of another one's may be read too. Each partition is asked once for all.
        """
        numbers, providers = sorted({each for each, _ in named}), sorted({each for _, each in named})
        rows = db.execute(_FIND, {"ids": sorted(ids), "numbers": numbers, "providers": providers})
        for row in rows:
            record = BookedMessage(*row)
            record.was_state, record.was_key = record.state, record.key
            record.was_awaited = record.failed_next is not None
            self.records[record.id] = record
            self._index(record.id, record.provider_id, record.provider)
        if not self.records:
            return
        for id_, *values in self._read_by_day(db, _TRIES):
            tried = Try(*values)
            self.tries[id_].append(tried)
            self._index(id_, tried.provider_id, tried.provider)
        for id_, *values in self._read_by_day(db, _RECEIPTS):
            self.receipts[id_].append(Receipt(*values))

    def _read_by_day(self, db: Db, statement: ByDay) -> Iterator[tuple[Any, ...]]:
        """What a statement returns for the messages that were read.

        Of one that moves to another day meanwhile it misses some; then it isn't found when it is locked.
        """
        found = [(id_, each.day) for id_, each in self.records.items()]
        for day, group in self._days.grouped(found, lambda row: int(row[1])):
            text = of_day(statement.of_day, day) if day else statement.of_any
            yield from db.execute(text, ([id_ for id_, _ in group],))

    def _index(self, id_: int, provider_id: str | None, provider: str) -> None:
        """Note that a message has, or had, an id of a provider."""
        if provider_id is not None:
            self._having[provider_id, provider].add(id_)

    def read_statuses(self, db: Db) -> None:
        """Read which events the messages have had."""
        self._told.update(db.execute(_STATUSES, {"ids": list(self.records)}).fetchall())

    def has_told(self, id_: int, status: str) -> bool:
        """Whether a message has an event of a status."""
        return (id_, status) in self._told

    def matched(self, id_: int) -> Matched:
        """What decisions on a message depend on."""
        return self.records[id_].matched(self.tries[id_])

    # what a receipt is about

    def tried(self, receipt: Receipt) -> Tried | None:
        """What a receipt is about, by our own name for it if there is one.

        Where a provider uses an id of its own again, that is the latest accepted try with it.
        """
        referred = (
            self._referred(receipt.reference, receipt.provider) if receipt.reference is not None else None
        )
        if referred is not None or not receipt.provider_id:
            return referred
        named = receipt.provider_id, receipt.provider
        having = self._having[named]
        rows = [
            (each.started_at or 0, each.id, each.key)
            for each in (self.records[id_] for id_ in having)
            if (each.provider_id, each.provider) == named
        ]
        if not rows:
            rows = [
                (each.started_at, id_, each.key)
                for id_ in having
                for each in self.tries[id_]
                if (each.provider_id, each.provider) == named
            ]
        return Tried(*max(rows)[1:]) if rows else None

    def learn(self, tried: Tried, receipt: Receipt) -> bool:
        """Note the provider's id that a receipt has for the tries that it names; False: it has none.

        Nobody knew that id before, where the answer with it was lost, or had none: receipts may be kept
        under it. If the accepted try may be another one with this id, it stays without.
        """
        if receipt.reference is None or not receipt.provider_id:
            return False
        tries = self.tries[tried.message_id]
        for place, each in enumerate(tries):
            if each.key == tried.key and each.provider_id is None:
                tries[place] = each._replace(provider_id=receipt.provider_id)
                self._named.append((tried.message_id, each.key, receipt.provider_id))
                self._index(tried.message_id, receipt.provider_id, receipt.provider)
        record = self.records[tried.message_id]
        is_of_it = (record.key, record.provider) == (tried.key, receipt.provider)
        is_without = record.accepted_at is not None and record.provider_id is None
        has_it = any((each.key, each.provider_id) == (tried.key, receipt.provider_id) for each in tries)
        if is_of_it and is_without and not has_it:
            record.provider_id, record.is_changed = receipt.provider_id, True
            self._index(record.id, record.provider_id, record.provider)
        return True

    def _referred(self, reference: str, provider: str) -> Tried | None:
        """This key, or the latest one of the message with this id, where it was tried on this provider."""
        named = referred_by(reference, self._namespace)
        if named is None:
            return None
        stays = sorted(self._stays(named.message_id, provider), reverse=True)
        for key, beginning in stays:
            name = message_key(self._namespace, named.message_id, provider, beginning)
            if not named.is_key or name == reference:
                return Tried(named.message_id, key)
        return None

    def _stays(self, id_: int, provider: str) -> Iterator[tuple[int, int]]:
        """The keys of a message's tries at a provider, each with its beginning."""
        record = self.records.get(id_)
        if record is None:
            return
        if record.provider == provider and (record.state == State.SENDING or record.accepted_at is not None):
            yield record.key, record.beginning
        for each in self.tries[id_]:
            if each.provider == provider:
                yield each.key, each.beginning

    # the steps that follow

    def settle(self, tried: Tried, receipt: Receipt) -> int:
        """The provider has the message: it is sent under this key. Returns the number of events."""
        record = self.records[tried.message_id]
        at = receipt.received_at
        step = transitions.proved_sent(record.id, State(record.state), at)
        if self.accepted_under(tried) is not None:
            self.restore(tried, at, transitions.BY_RECEIPT)
            return 0
        latest = max(
            (each for each in self.tries[record.id] if each.key == tried.key), key=lambda t: t.number
        )
        record.number, record.started_at, record.beginning = (
            latest.number,
            latest.started_at,
            latest.beginning,
        )
        record.state, record.provider, record.key = step.after, receipt.provider, tried.key
        record.ended_at = record.accepted_at = at
        record.provider_id, record.reason = receipt.provider_id or None, transitions.BY_RECEIPT
        self._changed(record, is_emptied=True)
        self._index(record.id, record.provider_id, record.provider)
        self.tell(step.event)
        return 1

    def began(self, tried: Tried) -> int:
        """When the first try under a key began."""
        record = self.records[tried.message_id]
        started = [each.started_at for each in self.tries[record.id] if each.key == tried.key]
        if record.key == tried.key and record.started_at is not None:
            started.append(record.started_at)
        return min(started)

    def accepted_under(self, tried: Tried) -> Try | None:
        """The try under a key that was accepted although its message went on."""
        tries = self.tries[tried.message_id]
        return next((each for each in tries if each.key == tried.key and each.verdict == "accepted"), None)

    def restore(self, tried: Tried, at: int, reason: str | None) -> None:
        """Take a step to SENT: the accepted try under this key is the one of its message's row again."""
        accepted = self.accepted_under(tried)
        record = self.records[tried.message_id]
        if accepted is None:
            raise IllegalTransition(f"message {record.id} wasn't sent before")
        record.state, record.ended_at, record.reason = transitions.STAYS_SENT.after, at, reason
        record.key, record.number, record.provider = accepted.key, accepted.number, accepted.provider
        record.tries, record.beginning = accepted.number, accepted.beginning
        record.started_at, record.accepted_at = accepted.started_at, accepted.ended_at
        record.provider_id, record.sent_by = accepted.provider_id, None
        self.tries[record.id].remove(accepted)
        self._restored.append((record.id, accepted.key))
        self._changed(record, is_emptied=True)

    def go_on(self, step: Transition) -> None:
        """Take the step of a sent message that goes on; its accepted try is kept."""
        record, entry = self.records[step.entry.id], step.entry
        if record.state != step.before or record.accepted_at is None or record.started_at is None:
            raise IllegalTransition(f"message {entry.id} isn't sent")
        tried = record.key, record.number, record.provider, record.beginning, record.started_at
        self.tries[record.id].append(Try(*tried, record.accepted_at, "accepted", record.provider_id))
        self._left.append((record.id, *tried, record.accepted_at, record.provider_id, record.reason))
        record.state, record.due_at, record.provider = step.after, step.due_at, ""
        record.key, record.number, record.tries = entry.key, 0, 0
        record.spent, record.sent_by = to_json([tuple(each) for each in entry.spent]), entry.sent_by
        record.started_at = record.accepted_at = record.ended_at = None
        record.provider_id = record.reason = record.failed_next = None
        record.is_paused = False
        record.is_changed = True

    def end(self, record: BookedMessage, state: State, at: int, event: StatusEvent) -> None:
        """BookedMessage how a message ended that was sent."""
        record.state, record.ended_at = state, at
        self._changed(record, is_emptied=record.failed_next is not None)
        record.failed_next = None
        self.tell(event)

    def tell(self, event: StatusEvent) -> None:
        """Have the service told of something."""
        self.events.append(event)
        self._told.add((event.message_id, event.status))

    def _changed(self, record: BookedMessage, *, is_emptied: bool) -> None:
        record.is_changed = True
        record.is_emptied = record.is_emptied or (is_emptied and not self._keeps_variables)
        record.is_paused, record.due_at = False, None

    def write(self, db: Db, outbox: Outbox, matched: Collection[int] = ()) -> frozenset[int]:
        """Write what changed; return the messages whose events others will report.

        Raises ChangedMeanwhile if a message changed since it was read.

        `matched`: messages that receipts are about, also those that these change nothing of. They are locked
        as well: who restores an earlier state of one reads its receipts then.
        """
        changed = sorted(
            (each for each in self.records.values() if each.is_changed), key=lambda each: each.id
        )
        logs: dict[int, int | None] = {}
        if changed:
            self._take_out(db, changed)  # before the messages, as everybody does
            logs |= self._lock(db, _WRITE, [_columns(each) for each in changed])
            if len(logs) != len(changed):
                raise ChangedMeanwhile("a message of these receipts changed meanwhile")
            if waits := [(each.id, each.due_at) for each in changed if each.due_at is not None]:
                db.execute(_WAIT, arrays(waits))
        logs |= self._locked(db, {*matched, *(event.message_id for event in self.events)} - logs.keys())
        if self._left:
            db.execute(_KEEP_TRIES, arrays(self._left))
        if self._named:
            db.execute(_NAME_TRIES, arrays(self._named))
        if self._restored:
            db.execute(_DROP_TRIES, arrays(self._restored))
        empty_words(db, [each.id for each in changed if each.is_emptied and self.tries[each.id]])
        places = {id_: log for id_, log in logs.items() if log != outbox.worker}
        return outbox.put(db, self.events, places, self.days)

    def _lock(self, db: Db, statement: ByDay, rows: Sequence[tuple[Any, ...]]) -> dict[int, int | None]:
        """Run a statement that locks messages; return the logs of their latest events."""
        locked = self._days.lock(db, statement, rows, {id_: each.day for id_, each in self.records.items()})
        self.days |= locked.days
        return locked.logs

    def _locked(self, db: Db, ids: Collection[int]) -> dict[int, int | None]:
        """Lock messages that don't change, as they were read; return the logs of their latest events."""
        if not ids:
            return {}
        rows = [
            (each.id, each.was_state, each.was_key) for each in (self.records[id_] for id_ in sorted(ids))
        ]
        logs = self._lock(db, _LOCK, rows)
        told = {(event.message_id, event.status) for event in self.events if event.message_id in logs}
        told &= set(db.execute(_STATUSES, {"ids": list(logs)}).fetchall()) if told else set()
        if len(logs) != len(ids) or told:
            raise ChangedMeanwhile("a message of these reports changed meanwhile")
        return logs

    def _take_out(self, db: Db, changed: Sequence[BookedMessage]) -> None:
        waited = [each.id for each in changed if each.was_state == State.WAITING]
        if waited:
            db.execute("DELETE FROM waiting WHERE id = ANY(%s::int8[])", (waited,))
        confirmed = [each.id for each in changed if each.was_awaited and each.failed_next is None]
        if confirmed:
            db.execute("DELETE FROM awaited WHERE id = ANY(%s::int8[])", (confirmed,))


def _columns(each: BookedMessage) -> tuple[Any, ...]:
    return (
        each.id, each.was_state, each.was_key, each.is_emptied, each.state, each.key, each.number, each.tries,
        each.beginning, each.provider, each.started_at, each.ended_at, each.accepted_at, each.provider_id,
        each.reason, each.spent, each.sent_by,
    )  # fmt: skip
