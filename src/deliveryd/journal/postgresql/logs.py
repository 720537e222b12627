"""Which logs a worker has: its own, and those that it took over from workers that ended.

`log.holder` is who has a log, or had it last. Taking one over is one update of that row, conditional on the
holder that was seen, so that one of several adopters succeeds; a holder that was fenced commits nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from deliveryd.journal.log import LOG_BITS, Log
from deliveryd.journal.postgresql.connection import Connected
from deliveryd.journal.postgresql.lease import ATTEMPTS_MAY_GO_ON, RELEASED
from deliveryd.journal.sql import deadlines
from deliveryd.journal.sql.db import Db
from deliveryd.model import STEP
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL

UNNOTICED = 2 * HEARTBEAT_INTERVAL
"""Most seconds between a step of the clock and when a worker notices it, usually."""

_HAS_WORK = f"""
(EXISTS (SELECT 1 FROM main.event WHERE seq > l.settled AND seq < (l.number + 1) << {LOG_BITS} OFFSET 0)
    OR EXISTS (SELECT 1 FROM main.inbox WHERE log = l.number AND answer IS NULL OFFSET 0)
    OR EXISTS (SELECT 1 FROM main.message WHERE log = l.number AND ended_at IS NULL AND due_at IS NULL
        OFFSET 0)
    OR EXISTS (SELECT 1 FROM main.message WHERE log = l.number AND waits_at IS NOT NULL OFFSET 0)
    OR EXISTS (SELECT 1 FROM main.message WHERE log = l.number AND waits_for IS NOT NULL
        AND due_at IS NOT NULL OFFSET 0)
    OR EXISTS (SELECT 1 FROM main.message WHERE log = l.number AND confirms_at IS NOT NULL OFFSET 0))
"""
"""SQL for whether something in a log is open: each is one look into an index.

Without OFFSET the server may read what is open in all logs, to look each log up in that.
"""

_IS_FREE = f"(w.id IS NULL OR (w.ended IS NOT NULL AND NOT {ATTEMPTS_MAY_GO_ON.format('w')}))"
_LOGS = f"""
SELECT l.number, l.holder, coalesce(w.name, ''), coalesce(w.ended, ''), {_IS_FREE}, {_IS_FREE} AND {_HAS_WORK}
FROM main.log l LEFT JOIN main.worker w ON w.id = l.holder ORDER BY l.number
"""
_TAKE = "UPDATE main.log SET holder = %s WHERE number = %s AND holder IS NOT DISTINCT FROM %s"
_FREE = f"""
SELECT l.number, l.holder FROM main.log l LEFT JOIN main.worker w ON w.id = l.holder WHERE {_IS_FREE}
ORDER BY l.number
"""
"""Without a lock: with one, a row that changed meanwhile would be joined with no worker, and be free."""

_MAKE = f"""
INSERT INTO main.log (number, settled, holder)
SELECT number, number << {LOG_BITS}, %s
FROM (SELECT coalesce(max(number), 0) + 1 AS number FROM main.log) AS next RETURNING number
"""
_WITHOUT_WORK = f"""
SELECT l.number FROM main.log l WHERE l.number = ANY(%s::int8[]) AND l.holder = %s AND NOT {_HAS_WORK}
"""
_GIVE_BACK = "UPDATE main.log SET holder = NULL WHERE number = ANY(%s::int8[]) AND holder = %s"
_OLD = f"""
SELECT l.number, l.holder FROM main.log l LEFT JOIN main.worker w ON w.id = l.holder
WHERE {_IS_FREE} AND EXISTS (
    SELECT 1 FROM main.message
    WHERE log = l.number AND ended_at IS NOT NULL AND ended_at < %(before)s OFFSET 0)
ORDER BY l.number <= %(after)s, l.number LIMIT 1
"""
_FORGET = """
WITH gone AS (DELETE FROM main.worker w WHERE w.id > 0 AND w.ended IS NOT NULL
    AND w.renewed_at < timestamptz 'epoch' + %s::int8 * interval '1 microsecond'
    AND NOT EXISTS (SELECT 1 FROM main.log l WHERE l.holder = w.id) RETURNING id)
UPDATE main.worker w SET commits = greatest(w.commits, s.id) FROM (SELECT max(id) AS id FROM gone) AS s
WHERE w.id = 0 AND s.id IS NOT NULL
"""

_LAST_COMMIT = (
    "SELECT (extract(epoch FROM renewed_at) * 1000000)::int8, commits FROM main.worker WHERE id = %s"
)
_LATEST = 2**63 - 1


class LogSeen(NamedTuple):
    """A log, and who has it or had it last; `has_work`: it is unowned, and something in it is open."""

    number: int
    holder: int | None
    name: str
    how_ended: str
    is_free: bool
    has_work: bool

    @property
    def ended_in_order(self) -> bool:
        """Whether its holder gave it back."""
        return self.how_ended in {"", RELEASED}


class FirstLog(NamedTuple):
    """A worker's own log, and by how much it was moved back when it was taken; None: it was empty."""

    number: int
    moved_back: int | None


def take_first(db: Connected, worker: int) -> tuple[int, int | None]:
    """Take the first unowned log, or make one; for a worker that begins, under `lock_schema`.

    Returns also who had it last.
    """
    for number, holder in db.execute(_FREE, {"over": []}).fetchall():
        if db.execute(_TAKE, (worker, number, holder)).rowcount == 1:
            return number, holder
    (number,) = db.execute(_MAKE, (worker,)).fetchone() or (0,)
    return number, None


def logs_seen(db: Connected, over: Collection[int]) -> Sequence[LogSeen]:
    """Return all logs. `over`: workers that were ended early, and whose attempts are over."""
    return [LogSeen(*row) for row in db.execute(_LOGS, {"over": list(over)})]


def all_logs(db: Connected) -> frozenset[int]:
    """Return the numbers of all logs."""
    return frozenset(number for (number,) in db.execute("SELECT number FROM main.log"))


def take_over(db: Connected, worker: int, log: LogSeen) -> bool:
    """Have a log from now on, unless another worker was faster."""
    return db.execute(_TAKE, (worker, log.number, log.holder)).rowcount == 1


class LastCommit(NamedTuple):
    """When a worker last committed, by the database's clock as it was, and its counter."""

    at: int
    commits: int


class ClockStep(NamedTuple):
    """By how much the database's clock was put back (negative: forward), and when a worker noticed that.

    `shown` is what it showed then; `at` are seconds of the lease's clock, minus infinity: before the start.
    """

    back: int
    shown: int
    at: float

    def is_after(self, commit: int, committed_at: float) -> bool:
        """Whether a commit was made before this step, by its instant and its second at the latest.

        A clock that is put back shows instants twice: a commit of about then isn't taken for an earlier one,
        so that no wait is cut short.
        """
        if self.back < 0:
            return commit <= self.shown + self.back + STEP
        if committed_at < self.at - UNNOTICED or committed_at == -math.inf:
            return True
        return committed_at <= self.at and commit >= self.shown + STEP


def last_commit(db: Connected, worker: int | None) -> LastCommit | None:
    """Return a worker's last commit; None: it isn't known any more."""
    row = db.execute(_LAST_COMMIT, (worker,)).fetchone()
    return None if row is None else LastCommit(*row)


def move_due_times(db: Db, log: Log, back: int, now: int) -> None:
    """Bring a log that is taken in line with a clock that was put back by so much since its last commit.

    In the transaction that takes it, as far as it is known then: whoever takes it next compares with the new
    holder's commits.
    """
    log.operations.retime(db, back, _LATEST)
    if back > 0:
        deadlines.bound_instants(db, now)


def keep_free(db: Connected, log: int, over: Collection[int]) -> bool:
    """Keep others from having a log until the transaction ends; False: a worker has it, or is about to."""
    free: dict[int, int | None] = dict(db.execute(_FREE, {"over": list(over)}).fetchall())
    return log in free and _lock(db, log, free[log])


def give_back(db: Connected, worker: int, logs: Collection[int]) -> Sequence[int]:
    """Give those of these logs back in which nothing is open any more; return them."""
    if not logs:
        return ()
    empty = [number for (number,) in db.execute(_WITHOUT_WORK, (list(logs), worker))]
    if empty:
        db.execute(_GIVE_BACK, (empty, worker))
    return empty


def lock_old(db: Connected, over: Collection[int], before: int, after: int) -> int | None:
    """Lock the next unowned log behind `after` in which messages ended before an instant.

    None: there is none, or another worker was faster. It stays with who had it last. `over` is as in
    `logs_seen`.
    """
    row = db.execute(_OLD, {"over": list(over), "before": before, "after": after}).fetchone()
    return int(row[0]) if row is not None and _lock(db, *row) else None


def _lock(db: Connected, log: int, holder: int | None) -> bool:
    """Keep others from having a log until the transaction ends, unless a worker took it since it was seen."""
    return db.execute(_TAKE, (holder, log, holder)).rowcount == 1


def forget_workers(db: Connected, before: int) -> None:
    """Delete the rows of workers that ended before an instant, and that have no log."""
    db.execute(_FORGET, (before,))
