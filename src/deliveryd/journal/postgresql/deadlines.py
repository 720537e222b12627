"""Receipt deadlines: messages that were sent, and weren't confirmed in time, go on to the next channel.

What the listening time means is in `deliveryd.journal.deadlines`. Here one of the workers counts it, and not
each of them has each provider: what passes while no worker that has it listens isn't of its own time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from deliveryd import transitions
from deliveryd.journal.base import NOT_OURS, MatchedReceipt, PassedDeadlines
from deliveryd.journal.deadlines import MOST_UNREPORTED, NOTED_EVERY, KnownReports, Passed
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.elsewhere import providers_elsewhere
from deliveryd.journal.postgresql.steps import empty_words
from deliveryd.journal.postgresql.values import ENTRY, LOCATED, VISIBLE, arrays
from deliveryd.journal.rows import entry_of, to_json
from deliveryd.model import SECOND, Receipt, Reported, Transition
from deliveryd.states import State

_LATEST = 2**63 - 1
_LISTENED = """
INSERT INTO meta VALUES ('listened', %s)
ON CONFLICT (key) DO UPDATE SET value = (meta.value::int8 + excluded.value::int8)::text RETURNING value::int8
"""
_TOTAL = "SELECT coalesce((SELECT value::int8 FROM meta WHERE key = 'listened'), 0)"
_LISTENER = "SELECT value::int8 FROM meta WHERE key = 'listener'"
_IS_LIVE = "SELECT 1 FROM worker WHERE id = %s AND ended IS NULL"
_LISTEN = """
INSERT INTO meta VALUES ('listener', %(me)s) ON CONFLICT (key) DO UPDATE SET value = excluded.value
WHERE meta.value = %(instead_of)s
"""
_KNOWN = """
SELECT reported_at, passed, silent, renewing, heard, unheard FROM provider WHERE name = %s FOR UPDATE
"""
_HEAR = """
INSERT INTO provider (name, heard, unheard) VALUES (%s, %s, %s)
ON CONFLICT (name) DO UPDATE SET heard = excluded.heard, unheard = excluded.unheard
"""
_KEEP_KNOWN = """
INSERT INTO provider (name, passed, silent, renewing) VALUES (%s, %s, %s, %s)
ON CONFLICT (name) DO UPDATE SET passed = excluded.passed, silent = excluded.silent,
    renewing = excluded.renewing
"""
_UNREPORTED = """
SELECT count(*) FROM (SELECT 1 FROM awaited
    WHERE provider = %s AND confirm_by <= %s AND accepted_at > %s LIMIT %s) AS due
"""
_DUE = f"""
SELECT a.confirm_within, a.accepted_at, {ENTRY} FROM (SELECT * FROM awaited
    WHERE provider = %s AND confirm_by <= %s AND accepted_at <= %s
    ORDER BY confirm_by LIMIT %s FOR UPDATE SKIP LOCKED) AS a
{LOCATED.format(id="a.id")} WHERE m.state = {State.SENT:d} FOR NO KEY UPDATE OF m
"""
_NEXT = "SELECT min(confirm_by) FROM awaited WHERE provider = %s AND confirm_by > %s"
_RENEW = """
UPDATE awaited SET confirm_by = %(at)s + confirm_within WHERE id = ANY(ARRAY(SELECT id FROM awaited
    WHERE provider = %(name)s AND confirm_by < %(at)s + confirm_within ORDER BY confirm_by LIMIT %(limit)s))
"""
_AWAITED = "SELECT DISTINCT provider FROM awaited WHERE confirm_by IS NOT NULL"
_DROP = """
DELETE FROM awaited WHERE id = ANY(ARRAY(SELECT id FROM awaited WHERE provider = %s LIMIT %s)) RETURNING id
"""
_EMPTY = """
UPDATE message m SET variables = NULL FROM unnest(%s::int8[]) AS wanted (id) JOIN seen ON seen.id = wanted.id
WHERE m.day = seen.day AND m.id = seen.id
"""
_KEEP_ACCEPTED = f"""
INSERT INTO unaccepted (message_id, day, key, number, provider, beginning, started_at, ended_at, verdict,
    provider_id, reason)
SELECT m.id, m.day, m.key, m.number, m.provider, m.beginning, m.started_at, m.accepted_at, 'accepted',
    m.provider_id, m.reason
FROM unnest(%s::int8[]) AS wanted (id) {LOCATED.format(id="wanted.id")}
"""
_GO_ON = f"""
UPDATE message m SET state = {transitions.UNCONFIRMED.after:d}, provider = '', key = s.key, number = 0,
    tries = 0, spent = s.spent, sent_by = s.sent_by, ended_at = NULL, started_at = NULL, accepted_at = NULL,
    provider_id = NULL, reason = NULL
FROM unnest(%s::int8[], %s::int4[], %s::text[], %s::text[]) AS s (id, key, spent, sent_by)
JOIN seen ON seen.id = s.id
WHERE m.day = seen.day AND m.id = s.id AND m.state = {transitions.UNCONFIRMED.before:d}
"""
_WAIT = """
INSERT INTO waiting (id, provider, doubt, due_at) SELECT id, '', false, due_at
FROM unnest(%s::int8[], %s::int8[]) AS s (id, due_at)
"""
_NOTE_REPORT = f"""
UPDATE provider SET reported_at = s.at, passed = 0 FROM unnest(%s::text[], %s::int8[]) AS s (name, at)
WHERE provider.name = s.name AND (reported_at + {NOTED_EVERY} <= s.at OR reported_at > s.at)
"""
_COUNTED = "SELECT overdue_until FROM provider WHERE name = %s"
_OVERDUE = f"""
SELECT count(*) FROM message m WHERE m.ended_at >= %s AND m.ended_at < %s AND m.state = {State.SENT:d}
    AND m.provider = %s AND {VISIBLE}
"""
_KEEP_COUNTED = """
INSERT INTO provider (name, overdue_until) VALUES (%(name)s, %(until)s)
ON CONFLICT (name) DO UPDATE SET overdue_until = excluded.overdue_until
WHERE provider.overdue_until = %(since)s
"""


class _Due(NamedTuple):
    """Messages whose deadline passed, as steps, and when each was accepted."""

    steps: Sequence[Transition]
    accepted_at: Sequence[int]


class ListenedTo(NamedTuple):
    """The listening time, and how much of it this worker listened since it last said so.

    `listener` counts it; `unheard` is for how long it didn't, while this worker listened.
    """

    total: int
    here: int
    listener: int | None
    unheard: int = 0


class _Hearing(NamedTuple):
    """When a worker that has a provider listened last, and for how much of the time none did."""

    heard: int | None = None
    unheard: int = 0

    def at(self, time: ListenedTo) -> _Hearing:
        """The same now that a worker that has it listens."""
        if self.heard is None:
            return _Hearing(time.total, self.unheard)
        gap = time.total - time.here - self.heard
        return _Hearing(max(time.total, self.heard), self.unheard + (gap if gap > STANDSTILL else 0))


STANDSTILL = 10 * SECOND
"""Microseconds that a worker listens while the one that counts doesn't, until it counts itself."""


class Listening:
    """Which one of several workers adds to the listening time: all of them listen at the same time.

    What it remembers is of commits that took place.
    """

    def __init__(self, db: Db, worker: int) -> None:
        self._worker = worker
        listener = _listener(db)
        self._ended = None if _is_live(db, listener) else listener
        """The one that counted last, if it had ended before this one listened."""

        self._last = ListenedTo(-1, 0, listener)

    def add(self, db: Db, listened: int) -> ListenedTo:
        """Add microseconds if this worker is the one; return the listening time.

        Where it takes over from one that ended, that one may have counted the same time: it adds nothing yet.
        """
        listener = _listener(db)
        is_live = listener == self._worker or _is_live(db, listener)
        if listener != self._worker:
            found = self._found(db, listener, listened)
            if (is_live and found.unheard < STANDSTILL) or not self._takes_over(db, listener):
                return found
        added = listened if is_live or listener == self._ended else 0
        return ListenedTo(int(_one(db, _LISTENED, (str(added),))), added, self._worker)

    def remember(self, time: ListenedTo) -> None:
        """The commit took place in which this worker found it so."""
        self._last = time

    def _found(self, db: Db, listener: int | None, listened: int) -> ListenedTo:
        """The listening time as another worker counts it."""
        total = int(_one(db, _TOTAL, ()))
        stands_still = (total, listener) == (self._last.total, self._last.listener)
        return ListenedTo(total, listened, listener, self._last.unheard + listened if stands_still else 0)

    def _takes_over(self, db: Db, listener: int | None) -> bool:
        """Become the one that counts, unless another one did meanwhile."""
        values = {"me": str(self._worker), "instead_of": str(listener)}
        return db.execute(_LISTEN, values).rowcount == 1


def _listener(db: Db) -> int | None:
    """The worker that counts; None: none ever did."""
    listener: int | None = _one(db, _LISTENER, ())
    return listener


def _is_live(db: Db, listener: int | None) -> bool:
    return listener is not None and _one(db, _IS_LIVE, (listener,)) is not None


def pass_deadlines(
    db: Db,
    time: ListenedTo,
    at: int,
    providers: Collection[str],
    limit: int,
    *,
    worker: int,
    instant: int | None,
    keeps_variables: bool,
) -> PassedDeadlines:
    """Send on what wasn't confirmed in time, up to `limit` of each provider.

    Drop the deadlines of all other providers, but of those that workers other than this one have.
    """
    done = {name: _pass_of(db, name, time, at, limit) for name in sorted(providers)}
    removed = {name for (name,) in db.execute(_AWAITED)}.difference(providers)
    if removed:
        removed -= providers_elsewhere(db, worker, instant)
    dropped = {name: _drop(db, name, limit, keeps_variables=keeps_variables) for name in sorted(removed)}
    return PassedDeadlines(
        time.total,
        {name: each.passed for name, each in done.items() if each.passed},
        frozenset(name for name, each in done.items() if each.silent),
        dropped,
        min((each.next_by for each in done.values() if each.next_by is not None), default=None),
        all(each.is_complete for each in done.values()) and all(each < limit for each in dropped.values()),
    )


def _drop(db: Db, name: str, limit: int, *, keeps_variables: bool) -> int:
    ids = [id_ for (id_,) in db.execute(_DROP, (name, limit))]
    if ids and not keeps_variables:
        db.execute(_EMPTY, (ids,))
        empty_words(db, ids)
    return len(ids)


def _pass_of(db: Db, name: str, time: ListenedTo, at: int, limit: int) -> Passed:
    row = db.execute(_KNOWN, (name,)).fetchone() or ()
    known, before = KnownReports(*row[:4]), _Hearing(*row[4:])
    hearing = before.at(time)
    if hearing != before:
        db.execute(_HEAR, (name, *hearing))
    now = time.total - hearing.unheard
    room = MOST_UNREPORTED - known.passed
    silent = _one(db, _UNREPORTED, (name, now, known.reported_at, room + 1)) > room
    renewing = now if known.silent and not silent else known.renewing
    if renewing is not None:
        values = {"at": renewing, "name": name, "limit": limit}
        if db.execute(_RENEW, values).rowcount < limit:
            renewing = None
    due = _Due((), ())
    if renewing is None:
        due = _due(db, (name, now, known.reported_at if silent else _LATEST, limit), at)
    _go_on(db, due.steps)
    passed = known.passed + sum(accepted_at > known.reported_at for accepted_at in due.accepted_at)
    next_by = _one(db, _NEXT, (name, now))
    if (passed, int(silent), renewing) != known[1:]:
        db.execute(_KEEP_KNOWN, (name, passed, silent, renewing))
    next_by = None if next_by is None else next_by + hearing.unheard
    return Passed(len(due.steps), silent, renewing is None and len(due.steps) < limit, next_by)


def _due(db: Db, values: tuple[str, int, int, int], at: int) -> _Due:
    """The messages that go on; `values` are those of the query."""
    rows = db.execute(_DUE, values).fetchall()
    steps = [transitions.unconfirmed(entry_of(row), at, within / SECOND) for within, _, *row in rows]
    return _Due(steps, [accepted_at for _, accepted_at, *_ in rows])


def _go_on(db: Db, steps: Sequence[Transition]) -> None:
    """Take the steps of sent messages that go on; their accepted tries are kept."""
    if not steps:
        return
    entries = sorted((step.entry for step in steps), key=lambda entry: entry.id)
    ids = [entry.id for entry in entries]
    db.execute(_KEEP_ACCEPTED, (ids,))
    rows = [
        (each.id, each.key, to_json([tuple(one) for one in each.spent]), each.sent_by) for each in entries
    ]
    db.execute(_GO_ON, arrays(rows))
    db.execute("DELETE FROM awaited WHERE id = ANY(%s::int8[])", (ids,))
    db.execute(_WAIT, arrays([(step.entry.id, step.due_at) for step in steps]))


def note_reports(db: Db, reports: Sequence[Reported], matched: Sequence[MatchedReceipt]) -> None:
    """Note which providers with deadlines reported on a message of this journal."""
    latest = {
        report.provider: report.received_at
        for report, match in zip(reports, matched, strict=True)
        if isinstance(report, Receipt) and match.result not in ("unmatched", NOT_OURS)
    }
    if latest:
        db.execute(_NOTE_REPORT, (list(latest), list(latest.values())))


class Overdue(NamedTuple):
    """How many messages were sent since an instant, up to which all were counted, and never confirmed."""

    since: int
    messages: int


def count_overdue(db: Db, provider: str, until: int) -> Overdue:
    """Count a provider's messages that were sent before an instant and not counted yet."""
    since = _one(db, _COUNTED, (provider,)) or 0
    count = _one(db, _OVERDUE, (since, until, provider)) if until > since else 0
    return Overdue(since, count)


def keep_counted(db: Db, provider: str, since: int, until: int) -> bool:
    """Note up to which instant messages were counted; False: another worker counted meanwhile."""
    return db.execute(_KEEP_COUNTED, {"name": provider, "since": since, "until": until}).rowcount == 1


def _one(db: Db, query: str, values: Sequence[Any]) -> Any:
    row = db.execute(query, values).fetchone()
    return None if row is None else row[0]
