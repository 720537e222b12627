"""The outbox: every event behind all that were ever written, and one number up to which they are settled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from deliveryd.errors import OutOfOrder
from deliveryd.journal.base import OutboxRow
from deliveryd.journal.rows import to_json
from deliveryd.journal.sql.db import BulkInsert, Db
from deliveryd.model import STEP, StatusEvent, format_instant, parse_instant


class EventWriter:
    """Writes status events as the JSON that is posted to the service (interface 6)."""

    def __init__(self, details_field: str) -> None:
        self._details_field = details_field

    def write(self, event: StatusEvent) -> str:
        """Return an event as JSON. The timestamp is always at the same place, where SQL reads it."""
        message_id, status, timestamp, channel, reported_at, details, told_as = event
        if told_as is not None:
            message_id = told_as
        if channel is None and reported_at is None and details is None:  # nearly every event
            at = format_instant(timestamp)
            return f'{{"timestamp":"{at}","messageId":{message_id},"status":"{status}"}}'
        body: dict[str, object] = {
            "timestamp": format_instant(timestamp),
            "messageId": message_id,
            "status": status,
        }
        if channel is not None:
            body["channel"] = channel
        if reported_at is not None:
            body["reportedAt"] = format_instant(reported_at)
        if details is not None:
            body[self._details_field] = details
        return to_json(body)


WATERMARK = "(SELECT settled FROM log)"
"""SQL for the watermark: the service accepted or refused every event up to this number, and none above it."""

WAITS = "seq > (SELECT settled FROM log WHERE number = seq >> 40)"
"""SQL for whether an event of any log waits: above these bits its number is that of its log."""

ACCEPTED_AT = (
    "(SELECT iif(first <= event.seq, at, NULL) FROM post WHERE last >= event.seq ORDER BY last LIMIT 1)"
)
"""SQL for when the service accepted an event; NULL: it didn't."""

HAPPENED = "coalesce(first_seq, seq)"
"""SQL for an event's place in the order in which things happened, whenever it was reported."""


AT = "substr(body, 15, 27)"
"""SQL for the text of an event's instant: it stands first in its JSON (see `EventWriter`)."""


_POSTED = """
INSERT INTO post (last, first, at) VALUES (?, ?, ?)
ON CONFLICT (last) DO UPDATE SET first = min(post.first, excluded.first), at = excluded.at
"""

_INSERT = BulkInsert("event (seq, message_id, status, body)", "(?, ?, ?, ?)")

MOST_REMEMBERED = 20_000
"""Messages whose latest instants are remembered, at least."""


class Written(NamedTuple):
    """What an earlier run wrote last: the number of an event, and instants; 0: none.

    `last_at` is when it last wrote, by its clock. No event has an instant above `latest_at`; that is kept as
    `noted_at` since the clock was put back.
    """

    seq: int
    last_at: int
    latest_at: int
    noted_at: int


class Outbox:
    """Where steps put their events; `written` is what an earlier run left.

    No event is before an earlier one of its message, though the clock may be put back. The earlier ones are
    read where they may be later: not while instants rise, and not if all of a message are remembered.
    """

    def __init__(self, events: EventWriter, written: Written) -> None:
        self._events = events
        self._seq = written.seq
        self._latest = written.latest_at
        self._noted = written.noted_at
        self._recent: dict[int, int] = {}  # by message: the instant of its latest event that was put in
        self._before: dict[int, int] = {}

    def put(self, db: Db, events: Iterable[StatusEvent]) -> None:
        """Put new events in."""
        events = list(events)
        if not events:
            return
        ids, statuses, instants, *_ = zip(*events, strict=True)
        latest = dict(zip(ids, instants, strict=True))
        if len(latest) == len(ids) and min(instants) >= self._latest:  # the ordinary case, at once
            self._latest = max(instants)
            self._recent |= latest
        else:
            events = [self._in_order(db, event) for event in events]
        self.put_again(db, zip(ids, statuses, map(self._events.write, events), strict=True))
        if len(self._recent) > MOST_REMEMBERED:
            self._recent, self._before = {}, self._recent

    def _in_order(self, db: Db, event: StatusEvent) -> StatusEvent:
        at, id_ = event.timestamp, event.message_id
        if at > self._latest:
            self._latest = at
        elif at < self._latest:
            self.note(db, at)
            known = self._recent.get(id_) or self._before.get(id_)
            if known is None or known >= at:
                event = _not_before(db, event, known or 0)
        self._recent[id_] = event.timestamp
        return event

    def note(self, db: Db, at: int) -> None:
        """Remember, for later runs too, up to where instants of events lie, if the clock was put back."""
        if at <= self._latest - STEP:
            self.note_step(db)

    def note_step(self, db: Db) -> None:
        """Keep the latest instant of events for a later run: the clock was put back."""
        self._noted = max(self._latest, self._noted)
        # Each time, since a transaction that is rolled back takes the row back, and not this object's memory.
        db.execute("UPDATE log SET latest_at = ?", (self._noted,))

    def put_again(self, db: Db, events: Iterable[tuple[int, str, str]]) -> None:
        """Put events in as they were written before: message id, status, JSON."""
        rows = [(seq, *event) for seq, event in enumerate(events, self._seq + 1)]
        self._seq += len(rows)
        _INSERT.run(db, rows)

    def put_last(self, db: Db, seqs: Sequence[int]) -> None:
        """Have events wait behind all others that were settled, or wait further ahead."""
        db.executemany(
            "UPDATE event SET seq = ?, first_seq = coalesce(first_seq, seq),"
            " refused_at = NULL, refused = NULL WHERE seq = ?",
            [(number, seq) for number, seq in enumerate(seqs, self._seq + 1)],
        )
        self._seq += len(seqs)


def written(db: Db) -> Written:
    """What an earlier run wrote last."""
    (seq,) = db.execute(f"SELECT max({WATERMARK}, coalesce(max(seq), 0)) FROM event").fetchone()  # noqa: S608
    posted, refused, waits, latest, noted = db.execute(
        "SELECT (SELECT at FROM post WHERE last = (SELECT max(last) FROM post)),"  # noqa: S608  # constants
        " (SELECT max(refused_at) FROM event WHERE refused IS NOT NULL AND dropped_at IS NULL),"
        f" (SELECT {AT} FROM event WHERE seq > {WATERMARK} ORDER BY seq DESC LIMIT 1),"
        f" (SELECT max({AT}) FROM event WHERE seq > {WATERMARK}),"
        " (SELECT latest_at FROM log)"
    ).fetchone()
    settled = [at + STEP for at in (posted, refused) if at is not None]  # their events are older
    latest_at = max(*settled, event_instant(latest), noted or 0, 0)
    return Written(seq, max(posted or refused or 0, event_instant(waits)), latest_at, noted or 0)


def _not_before(db: Db, event: StatusEvent, known: int) -> StatusEvent:
    """The event, or the same one at the instant of its message's latest, if that is later.

    The journal has the latest, or it is `known` and about to be inserted.
    Two events of one status stay apart: a message that begins again may fail again while the clock is behind.
    """
    latest, same = db.execute(
        f"SELECT max({AT}), max(iif(status = ?, {AT}, NULL)) FROM event WHERE message_id = ?",  # noqa: S608
        (event.status, event.message_id),
    ).fetchone()
    at = max(event.timestamp, event_instant(latest), known)
    return event._replace(timestamp=at + (at == event_instant(same)))


def event_instant(text: str | None) -> int:
    """Read an event's instant; 0: there is none."""
    try:
        return 0 if text is None else parse_instant(text)
    except ValueError:  # no event that deliveryd wrote
        return 0


def note_posted(db: Db, numbers: Iterable[int], at: int) -> None:
    """Record that the service accepted these events, by number: those that follow one another as one post."""
    rows: list[tuple[int, int, int]] = []
    for seq in sorted(numbers):
        if rows and rows[-1][0] == seq - 1:
            rows[-1] = (seq, rows[-1][1], at)
        else:
            rows.append((seq, seq, at))
    db.executemany(_POSTED, rows)


def was_posted(db: Db, seq: int) -> bool:
    """Whether the service accepted an event before."""
    return db.execute("SELECT 1 FROM post WHERE first <= ?1 AND last >= ?1", (seq,)).fetchone() is not None


def note_settled(db: Db, settled: range, at: int) -> None:
    """Record that the service accepted all events that were settled now, some of them perhaps before."""
    db.execute("DELETE FROM post WHERE last >= ? AND last < ?", (settled[0], settled[-1]))
    db.execute(_POSTED, (settled[-1], settled[0], at))


def settle_events(db: Db, rows: Sequence[OutboxRow]) -> range:
    """Raise the watermark to the last of these events; return the numbers that are settled by it.

    Raises OutOfOrder when an event that waits further ahead isn't among them: it would never be reported.
    """
    (settled,) = db.execute(f"SELECT {WATERMARK}").fetchone()
    numbers = [row.seq for row in rows]
    last = max(numbers, default=0)
    if last <= settled:
        return range(0)
    if len(numbers) != last - settled or numbers != list(range(settled + 1, last + 1)):
        waiting = db.execute("SELECT seq FROM event WHERE seq > ? AND seq <= ?", (settled, last))
        if left := {seq for (seq,) in waiting}.difference(numbers):
            raise OutOfOrder(
                f"event {last} can't be settled before event {min(left)}, which waits ahead of it"
            )
    db.execute("UPDATE log SET settled = ?", (last,))
    return range(settled + 1, last + 1)
