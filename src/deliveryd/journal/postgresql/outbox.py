"""The outbox: each worker's events in a log of its own, and for each log a watermark.

A log is written by one worker: the one whose it is, or who adopted it. All events of a message that aren't
settled yet are in one log, and in its inbox: a new one goes where they are (`message.log`), so that they are
reported in their order whichever workers make them. The row of the message is locked by then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from deliveryd.journal.base import OutboxRow
from deliveryd.journal.event_json import EventWriter
from deliveryd.journal.outbox import Written, event_instant
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.days import Days, of_day
from deliveryd.journal.postgresql.schema import LOG_BITS
from deliveryd.journal.postgresql.values import arrays
from deliveryd.journal.postgresql.watermark import waiting, waiting_of_day
from deliveryd.model import STEP, StatusEvent

AT = "substr(e.body, 15, 27)"
"""SQL for the text of an event's instant (see `EventWriter`)."""
_AT = slice(14, 41)

WAITS = f"coalesce(e.seq > (SELECT w.settled FROM worker w WHERE w.id = e.seq >> {LOG_BITS}), false)"
"""SQL for whether an event is neither accepted nor refused."""

ACCEPTED_AT = (
    "(SELECT CASE WHEN p.first <= e.seq THEN p.at END FROM post p WHERE p.last >= e.seq"
    " ORDER BY p.last LIMIT 1)"
)
"""SQL for when the service accepted an event; NULL: it didn't."""

HAPPENED = "coalesce(e.first_seq, e.seq)"
"""SQL for an event's place in its log in the order in which things happened, whenever it was reported.

In several logs the instants of events come first: of one message none is before an earlier one, nor at once
with one in another log.
"""

MOVES = "EXISTS (SELECT 1 FROM inbox i WHERE i.message_id = e.message_id AND i.moved = e.seq)"
"""SQL for whether an event is to be reported once more, in the log of another worker."""

PRESENT = "(e.day, e.message_id) > (SELECT r.day, r.id FROM retired r)"
"""SQL for whether an event isn't pruned with its message."""

_PUT_OF_DAY = """
INSERT INTO event_of_day (seq, day, message_id, status, body)
SELECT s.seq, %s, s.message_id, s.status, s.body
FROM unnest(%s::int8[], %s::int8[], %s::text[], %s::text[]) AS s (seq, message_id, status, body)
"""
_PUT = """
INSERT INTO event (seq, day, message_id, status, body)
SELECT s.seq,
    CASE WHEN (seen.day, seen.id) > (SELECT r.day, r.id FROM retired r) THEN seen.day ELSE %s END,
    s.message_id, s.status, s.body
FROM unnest(%s::int8[], %s::int8[], %s::text[], %s::text[]) AS s (seq, message_id, status, body)
LEFT JOIN seen ON seen.id = s.message_id
"""
_PUT_AGAIN = """
INSERT INTO event (seq, first_seq, day, message_id, status, body)
SELECT s.seq,
    (SELECT min(coalesce(e.first_seq, e.seq)) FROM event e
        WHERE e.day = seen.day AND e.message_id = s.message_id AND e.status = s.status AND e.body = s.body),
    CASE WHEN (seen.day, seen.id) > (SELECT r.day, r.id FROM retired r) THEN seen.day ELSE %s END,
    s.message_id, s.status, s.body
FROM unnest(%s::int8[], %s::int8[], %s::text[], %s::text[]) AS s (seq, message_id, status, body)
LEFT JOIN seen ON seen.id = s.message_id
"""
_PUT_LAST = """
UPDATE event e SET seq = s.number, first_seq = coalesce(e.first_seq, e.seq), refused_at = NULL, refused = NULL
FROM unnest(%s::int8[], %s::int8[]) AS s (number, seq) WHERE e.seq = s.seq RETURNING e.message_id, e.body
"""
_TOLD = f"""
SELECT e.message_id, max({AT}) FROM unnest(%(ids)s::int8[]) AS wanted (id)
JOIN event e ON e.message_id = wanted.id GROUP BY 1
UNION ALL SELECT e.message_id, max({AT}) FROM unnest(%(ids)s::int8[]) AS wanted (id)
JOIN inbox e ON e.message_id = wanted.id WHERE e.body IS NOT NULL GROUP BY 1
"""
_PENDING = f"""
SELECT s.id, w.id, w.holder IS NOT DISTINCT FROM %(me)s
FROM unnest(%(ids)s::int8[], %(logs)s::int8[]) AS s (id, log) JOIN worker w ON w.id = s.log
WHERE EXISTS (SELECT 1 FROM event e WHERE e.message_id = s.id AND e.seq > w.settled
        AND e.seq < (w.id + 1) << {LOG_BITS})
    OR EXISTS (SELECT 1 FROM inbox i WHERE i.message_id = s.id)
FOR KEY SHARE OF w
"""
_LOCK_MESSAGES = """
SELECT m.id, m.log FROM unnest(%s::int8[]) AS wanted (id) JOIN seen ON seen.id = wanted.id
JOIN message m ON m.day = seen.day AND m.id = seen.id ORDER BY m.id FOR NO KEY UPDATE OF m
"""
_LOCK_SEEN = "SELECT id FROM seen WHERE id = ANY(%s::int8[]) ORDER BY id FOR NO KEY UPDATE"
_LOGS_OF_PRUNED = f"""
SELECT message_id, max(log) FROM (
    SELECT e.message_id, e.seq >> {LOG_BITS} AS log FROM event e
    WHERE e.message_id = ANY(%(ids)s::int8[]) AND {WAITS}
    UNION ALL SELECT message_id, log FROM inbox WHERE message_id = ANY(%(ids)s::int8[])) AS found
GROUP BY message_id
"""
_NOTE_LOG = """
UPDATE message m SET log = s.log
FROM unnest(%s::int8[], %s::int8[]) AS s (id, log) JOIN seen ON seen.id = s.id
WHERE m.day = seen.day AND m.id = s.id
"""
_SEND = """
INSERT INTO inbox (log, message_id, status, body)
SELECT * FROM unnest(%s::int8[], %s::int8[], %s::text[], %s::text[])
"""
_SEND_MOVED = """
INSERT INTO inbox (log, message_id, moved, status, body)
SELECT * FROM unnest(%s::int8[], %s::int8[], %s::int8[], %s::text[], %s::text[])
"""
_OF_EVENTS = "SELECT seq, message_id FROM event WHERE seq = ANY(%s::int8[])"
_IN_INBOXES = """
SELECT i.seq, i.message_id FROM worker w JOIN inbox i ON i.log = w.id
WHERE w.holder = %s ORDER BY i.seq LIMIT %s
"""
_IN_INBOXES_OF = """
SELECT i.seq, i.message_id FROM inbox i JOIN worker w ON w.id = i.log AND w.holder = %s
WHERE i.message_id = ANY(%s::int8[])
"""
_LOCK_FREE = """
SELECT m.id FROM unnest(%s::int8[]) AS wanted (id) JOIN seen ON seen.id = wanted.id
JOIN message m ON m.day = seen.day AND m.id = seen.id FOR NO KEY UPDATE OF m SKIP LOCKED
"""
_NOT_PRUNED = """
SELECT m.id FROM unnest(%s::int8[]) AS wanted (id) JOIN seen ON seen.id = wanted.id
JOIN message m ON m.day = seen.day AND m.id = seen.id
"""
_MOVE_IN = "DELETE FROM inbox WHERE seq = ANY(%s::int8[]) RETURNING seq, log, message_id, moved, status, body"
_TAKE_BACK = """
DELETE FROM inbox WHERE message_id = ANY(%s::int8[]) RETURNING seq, log, message_id, moved, status, body
"""
_LAST = f"""
SELECT greatest(w.settled, (SELECT max(e.seq) FROM event e
    WHERE e.seq >= w.id << {LOG_BITS} AND e.seq < (w.id + 1) << {LOG_BITS})) FROM worker w WHERE w.id = %s
"""
_NO_DAYS: Mapping[int, int] = {}
MOST_AHEAD = 10_000
"""Messages at most of which is remembered that their events are ahead of this worker's clock."""

LOOKS_AT_ALL = 10
"""Looks at all partitions that follow one at today's which may not have found all that waits."""

MOST_MOVED_IN = 2000
"""Rows of inboxes that one commit moves at most."""

_NOTE = """
INSERT INTO meta VALUES ('latest_at', %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""
_WRITTEN = f"""
SELECT (SELECT max(at) FROM post), (SELECT max(refused_at) FROM event
        WHERE refused_at IS NOT NULL AND dropped_at IS NULL),
    (SELECT max({AT}) FROM event e JOIN worker w ON e.seq > w.settled AND e.seq < (w.id + 1) << {LOG_BITS}
        WHERE w.holder IS NOT NULL),
    (SELECT value::int8 FROM meta WHERE key = 'latest_at')
"""


class Outbox:
    """Where steps put their events. The log is the worker's own, so its numbers need no look at the table.

    No event is before an earlier one of its message, though the clock may be put back. While the instants of
    events rise, the earlier ones aren't read. Today is also the day of what is put in for pruned messages.
    """

    def __init__(self, events: EventWriter, worker: int, written: Written, days: Days) -> None:
        self.days = days
        self._events = events
        self.worker = worker
        self._seq = worker << LOG_BITS
        self._latest = written.latest_at
        self._noted = written.noted_at
        self._read: dict[int, int] = {}
        """By log, the highest number that was read: its event may be posted now, and be moved meanwhile."""
        self._ahead: dict[int, int] = {}
        """By message, the latest instant of an event in this log that is later than all of its own."""
        self._scattered = 0
        """Looks at all partitions that are left until today's alone is looked at again."""

    def put_first(self, db: Db, events: Sequence[StatusEvent]) -> None:
        """Put the events of new messages in."""
        rows = self._written(db, events, frozenset())
        self._append(db, rows, days=dict.fromkeys([id_ for id_, *_ in rows], self.days.today))

    def put(
        self,
        db: Db,
        events: Iterable[StatusEvent],
        places: Mapping[int, int | None],
        days: Mapping[int, int],
    ) -> frozenset[int]:
        """Put new events in, of messages that are locked; return those whose events others will report.

        `places`: the column `log` of those messages for which it isn't this worker's own log. `days`: those
        of messages of which it is known.
        """
        events = list(events)
        places = {
            event.message_id: places[event.message_id] for event in events if event.message_id in places
        }
        logs = self._logs(db, places)
        rows = self._written(db, events, places.keys())
        for log in sorted(set(logs.values())):
            if log > 0:
                self._append(db, [row for row in rows if logs.get(row[0]) == log], log)
        if sent := [row for row in rows if logs.get(row[0], 0) < 0]:
            db.execute(_SEND, arrays([(-logs[row[0]], *row) for row in sent]))
        self._append(db, [row for row in rows if row[0] not in logs], days=days)
        self._note_logs(db, places, logs)
        return frozenset(id_ for id_, log in logs.items() if log < 0)

    def _logs(self, db: Db, places: Mapping[int, int | None]) -> dict[int, int]:
        """Of messages whose earlier events wait elsewhere: the log, if it is held here, or else -log."""
        asked = {id_: abs(log) for id_, log in places.items() if log}
        if not asked:
            return {}
        values = {"me": self.worker, "ids": list(asked), "logs": list(asked.values())}
        found = db.execute(_PENDING, values).fetchall()
        if held := [id_ for id_, _, is_held in found if is_held]:
            self._move(db, db.execute(_IN_INBOXES_OF, (self.worker, held)).fetchall())
        return {
            id_: log if is_held else -log
            for id_, log, is_held in found
            if not (is_held and log == self.worker)
        }

    def _note_logs(self, db: Db, places: Collection[int], logs: Mapping[int, int]) -> None:
        """Note where the latest events of messages are."""
        if places:
            db.execute(_NOTE_LOG, arrays([(id_, logs.get(id_, self.worker)) for id_ in sorted(places)]))

    def _written(
        self, db: Db, events: Sequence[StatusEvent], others: Collection[int]
    ) -> list[tuple[int, str, str]]:
        """Events as JSON, none before an earlier one of its message; `others` have some in other logs."""
        if not events:
            return []
        late = self._late(events)
        if late:
            self.note(db, min(event.timestamp for event in events))
        if late or others:
            events = list(_in_order(db, events, {*late, *others}))
            self._latest = max(self._latest, *(event.timestamp for event in events))
        write = self._events.write
        return [(event.message_id, event.status, write(event)) for event in events]

    def _late(self, events: Sequence[StatusEvent]) -> set[int]:
        """The messages that have an event before the latest instant."""
        late: set[int] = set()
        latest = self._latest
        for event in events:
            if event.timestamp < max(latest, self._ahead.get(event.message_id, 0)):
                late.add(event.message_id)
            latest = max(latest, event.timestamp)
        self._latest = latest
        return late

    def _note_ahead(self, bodies: Iterable[tuple[int, str]]) -> None:
        """Remember which messages have events in this log that aren't before all of this worker's own."""
        for message_id, body in bodies:
            at = event_instant(body[_AT])
            if at >= self._latest:
                self._ahead[message_id] = max(at + 1, self._ahead.get(message_id, 0))
        if len(self._ahead) > MOST_AHEAD:
            self._ahead = {id_: at for id_, at in self._ahead.items() if at > self._latest}

    def note(self, db: Db, at: int) -> None:
        """Remember, for later runs too, up to where instants of events lie, if the clock was put back."""
        if at <= self._latest - STEP:
            self.note_step(db)

    def note_step(self, db: Db) -> None:
        """Keep the latest instant of events for a later run: the clock was put back."""
        self._noted = max(self._latest, self._noted)
        db.execute(_NOTE, (str(self._noted),))

    def _append(
        self, db: Db, rows: Sequence[tuple[int, str, str]], log: int = 0, days: Mapping[int, int] = _NO_DAYS
    ) -> None:
        """Write rows of message id, status and JSON at the end of a log; 0: this worker's own one.

        `days`: those of messages that are locked, as far as they are known.
        """
        if not rows:
            return
        numbered = [(seq, *row) for seq, row in zip(self._numbers(db, len(rows), log), rows, strict=True)]
        for day, group in self.days.grouped(numbered, lambda row: days.get(row[1], 0)):
            if day:
                db.execute(of_day(_PUT_OF_DAY, day), (day, *arrays(group)))
            else:
                db.execute(_PUT, (self.days.today, *arrays(group)))

    def _numbers(self, db: Db, count: int, log: int = 0) -> list[int]:
        """The next numbers of a log."""
        if log in (0, self.worker):
            first = self._seq + 1
            self._seq += count
        else:
            (last,) = db.execute(_LAST, (log,)).fetchone() or (0,)
            first = max(last, self._read.get(log, 0)) + 1
        return list(range(first, first + count))

    def put_again(self, db: Db, events: Sequence[tuple[int, str, str]]) -> None:
        """Put events in as they were written before: message id, status, JSON.

        They keep their places in the order in which things happened.
        """
        if not events:
            return
        places = self.lock(db, {id_ for id_, *_ in events})
        logs = self._logs(db, places)
        for log in sorted({logs.get(id_, 0) for id_, *_ in events}):
            rows = [row for row in events if logs.get(row[0], 0) == log]
            if log < 0:
                db.execute(_SEND, arrays([(-log, *row) for row in rows]))
            else:
                numbers = self._numbers(db, len(rows), log)
                numbered = [(seq, *row) for seq, row in zip(numbers, rows, strict=True)]
                db.execute(_PUT_AGAIN, (self.days.today, *arrays(numbered)))
                self._note_ahead((id_, body) for id_, _, body in rows)
        self._note_logs(db, places, logs)

    def put_last(self, db: Db, seqs: Sequence[int]) -> Mapping[int, int]:
        """Have events wait behind all others that were settled, or wait further ahead.

        Returns the logs of those messages whose events others will report.
        """
        if not seqs:
            return {}
        message_of: dict[int, int] = dict(db.execute(_OF_EVENTS, (list(seqs),)).fetchall())
        places = self.lock(db, set(message_of.values()))
        logs = {id_: -log for id_, log in self._logs(db, places).items() if log < 0}
        mine = [seq for seq in seqs if seq in message_of and message_of[seq] not in logs]
        if mine:
            self._note_ahead(db.execute(_PUT_LAST, (self._numbers(db, len(mine)), mine)))
        sent = [
            (logs[message_of[seq]], message_of[seq], seq, None, None)
            for seq in seqs
            if seq in message_of and message_of[seq] in logs
        ]
        if sent:  # in front of all that waits in the inbox already, as it would be within one log
            later = sorted(db.execute(_TAKE_BACK, (list(logs),)).fetchall())
            moving = set(seqs)
            sent += [row[1:] for row in later if row[3] not in moving]
            db.execute(_SEND_MOVED, arrays(sent))
        self._note_logs(db, places, {id_: -log for id_, log in logs.items()})
        return logs

    def lock(self, db: Db, ids: Collection[int]) -> dict[int, int | None]:
        """Lock messages, so that nobody else makes events of them; what inboxes here hold of them moves in.

        Returns their places as of `put`; of those that are pruned, where events of them wait.
        """
        places: dict[int, int | None] = dict(db.execute(_LOCK_MESSAGES, (sorted(ids),)).fetchall())
        pruned = sorted(set(ids) - places.keys())
        if pruned:
            db.execute(_LOCK_SEEN, (pruned,))
            places |= dict(db.execute(_LOGS_OF_PRUNED, {"ids": pruned}).fetchall())
        if in_inboxes := [id_ for id_, log in places.items() if log is not None and log < 0]:
            self._move(db, db.execute(_IN_INBOXES_OF, (self.worker, in_inboxes)).fetchall())
        return places

    def move_in(self, db: Db) -> int:
        """Put what other workers left in the inboxes of this worker's logs into these; return how many.

        Who makes an event of a message has that locked, and its earlier ones stay where they are meanwhile.
        """
        found = db.execute(_IN_INBOXES, (self.worker, MOST_MOVED_IN)).fetchall()
        if not found:
            return 0
        ids = sorted({id_ for _, id_ in found})
        free = {id_ for (id_,) in db.execute(_LOCK_FREE, (ids,))}
        if busy := [id_ for id_ in ids if id_ not in free]:
            free |= set(busy) - {id_ for (id_,) in db.execute(_NOT_PRUNED, (busy,))}
        return self._move(db, [row for row in found if row[1] in free])

    def _move(self, db: Db, found: Sequence[tuple[int, int]]) -> int:
        """Move rows of inboxes, each its number and its message's id; return how many."""
        if not found:
            return 0
        rows = sorted(db.execute(_MOVE_IN, ([seq for seq, _ in found],)).fetchall())
        for log in sorted({log for _, log, *_ in rows}):
            mine = [row for row in rows if row[1] == log]
            numbers = self._numbers(db, len(mine), log)
            new = [
                (seq, *row[2:3], *row[4:]) for seq, row in zip(numbers, mine, strict=True) if row[3] is None
            ]
            if new:
                db.execute(_PUT_AGAIN, (self.days.today, *arrays(new)))  # some may be written already
                self._note_ahead((id_, body) for _, id_, _, body in new)
            moved = [(seq, row[3]) for seq, row in zip(numbers, mine, strict=True) if row[3] is not None]
            if moved:
                self._note_ahead(db.execute(_PUT_LAST, arrays(moved)))
        return len(rows)

    def waiting(self, db: Db, after: int, limit: int) -> list[OutboxRow]:
        """The oldest events that wait, log by log."""
        found = None if after else self._waiting_of_day(db, limit)
        if found is None:
            found = waiting(db, self.worker, after, limit)
        for log, of_log in groupby(found, lambda row: row.seq >> LOG_BITS):
            self._read[log] = max(self._read.get(log, 0), *(row.seq for row in of_log))
        return found

    def _waiting_of_day(self, db: Db, limit: int) -> list[OutboxRow] | None:
        """The same if today's partition has all of them; it isn't asked each time if it lately hadn't."""
        if self._scattered or self.days.today not in self.days:
            self._scattered = max(self._scattered - 1, 0)
            return None
        found = waiting_of_day(db, self.worker, self.days.today, self._seq, limit)
        if found is None:
            self._scattered = LOOKS_AT_ALL
        return found


def _in_order(db: Db, events: Sequence[StatusEvent], late: Collection[int]) -> Iterator[StatusEvent]:
    """The events; those of some messages behind the latest that these had, by a microsecond at least.

    Numbers order events of one instant within a log only, and a message's events may be in several.
    """
    told: defaultdict[int, int] = defaultdict(lambda: -1)
    for message_id, at in db.execute(_TOLD, {"ids": sorted(late)}):
        told[message_id] = max(event_instant(at), told[message_id])
    for event in events:
        if event.message_id not in late:
            yield event
            continue
        at = max(event.timestamp, told[event.message_id] + 1)
        told[event.message_id] = at
        yield event._replace(timestamp=at)


def written(db: Db) -> Written:
    """What earlier runs wrote last."""
    posted, refused, latest, noted = db.execute(_WRITTEN).fetchone() or (None,) * 4
    settled = [at + STEP for at in (posted, refused) if at is not None]  # their events are older
    at = event_instant(latest)
    return Written(0, max(posted or refused or 0, at), max(*settled, at, noted or 0, 0), noted or 0)
