"""The lease of a worker: one row, whose counter each of its commits raises.

The counter is fence, heartbeat and proof in one. A worker whose counter stood still for a whole lease, by
the clock of who watches it, may be fenced: by an update that is conditional on that counter, so that a commit
that was under way either comes before it, and the fence fails, or finds itself fenced, and records nothing.
After a COMMIT whose answer was lost the counter tells whether it took place.

It also tells when the database lost commits that it had acknowledged: an asynchronous standby took over, or
an old copy was restored. What the others did may be lost as well. So the worker leaves a mark, in a
transaction that needs no lease, which ends all leases; while it is there nobody begins to work. An operator
decides (`deliveryd accept-loss`). A worker that has ended remembers nothing: if all of them ended before the
standby took over, nobody notices.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import LiteralString, NamedTuple

from deliveryd.errors import JournalError
from deliveryd.journal.postgresql.connection import INSTANT, Connected, DatabaseClock, FollowedClock
from deliveryd.journal.postgresql.database import Database
from deliveryd.journal.postgresql.schema import FORMAT, lock_schema, writable_format
from deliveryd.journal.sql.own_values import belong_to
from deliveryd.model import SECOND

HALTED = "halted"
"""How a lease ended that was ended by the mark."""

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8"
_NOTE = f"""
INSERT INTO main.loss (noticed_at, worker, name, acknowledged, found) VALUES ({_NOW}, %s, %s, %s, %s)
"""
_UNACCEPTED = """
SELECT noticed_at, worker, name, acknowledged, found FROM main.loss WHERE accepted_at IS NULL ORDER BY seq
"""


class CommitsLost(JournalError):
    """The database doesn't have what it had acknowledged; nothing more may be recorded in it.

    `acknowledged`: how many commits of this worker were. `found`: how many the database has; None: it doesn't
    know the worker.
    """

    def __init__(self, worker: int, acknowledged: int, found: int | None) -> None:
        super().__init__(
            "the database lost commits that it had acknowledged: a standby without them took over, or an old"
            " copy was restored; all workers stop until you decide: run deliveryd accept-loss"
        )
        self.worker = worker
        self.acknowledged = acknowledged
        self.found = found


class JournalHalted(JournalError):
    """A worker noticed that commits were lost, and no operator has decided yet."""


class Loss(NamedTuple):
    """What one worker noticed, and when by the database's clock; the other fields are CommitsLost's."""

    noticed_at: int
    worker: int
    name: str
    acknowledged: int
    found: int | None

    @property
    def lost(self) -> int:
        """How many of its commits are lost."""
        return self.acknowledged - (self.found or 0)


def own_name() -> str:
    """This process's name, for people."""
    return f"{socket.gethostname()}/{os.getpid()}"


def halt(db: Connected, loss: CommitsLost) -> None:
    """Leave the mark, and end all leases."""
    with db.transaction():
        lock_schema(db)
        db.execute(_NOTE, (loss.worker, own_name(), loss.acknowledged, loss.found))
        db.execute("UPDATE main.worker SET ended = %s WHERE ended IS NULL", (HALTED,))


def losses(db: Connected) -> Sequence[Loss]:
    """Return what was noticed since an operator last accepted a loss."""
    return [Loss(*row) for row in db.execute(_UNACCEPTED)]


def check_not_halted(db: Connected) -> None:
    """Raise JournalHalted while the mark is there; call it under `lock_schema` before a worker begins."""
    if found := losses(db):
        raise JournalHalted(
            f"the database lost commits that it had acknowledged, as the worker {found[0].name} noticed;"
            " no worker starts until you decide: run deliveryd accept-loss"
        )


def accept_losses(db: Connected, at: int) -> int:
    """Remove the mark; return how many workers had noticed a loss."""
    return db.execute("UPDATE main.loss SET accepted_at = %s WHERE accepted_at IS NULL", (at,)).rowcount


_RENEW = f"""
UPDATE main.worker SET commits = commits + 1,
    renewed_at = coalesce(timestamptz 'epoch' + %s::int8 * interval '1 microsecond', statement_timestamp())
WHERE id = %s AND began_at = %s AND commits = %s AND ended IS NULL
RETURNING {INSTANT.format("%s")}
"""
_IN_FORCE = "SELECT 1 FROM main.worker WHERE id = %s AND began_at = %s AND commits = %s AND ended IS NULL"
# A session that stands still within a transaction holds its row as long as the server lets it: don't wait.
_FENCE = """
UPDATE main.worker SET ended = 'fenced' WHERE id = (
    SELECT id FROM main.worker WHERE id = %s AND commits = %s AND ended IS NULL FOR UPDATE SKIP LOCKED)
"""
_BEGIN = f"""
INSERT INTO main.worker (name, began_at, format, lease, renewed_at) VALUES (%s, %s, %s, %s,
    timestamptz 'epoch' + {INSTANT.format("%s")} * interval '1 microsecond') RETURNING id
"""
_FORGOTTEN = "SELECT commits FROM main.worker WHERE id = 0"
"""The highest number of a worker whose row was deleted: see `logs.forget_workers`."""

_PROVIDERS = "SELECT unnest(providers) FROM main.worker WHERE ended IS NULL"
_LIVE = "SELECT id, name, lease, commits FROM main.worker WHERE ended {} ORDER BY id"

_RENEWED = """
SELECT EXISTS (SELECT FROM main.worker WHERE ended IS NULL AND id <> %s
    AND %s - (extract(epoch FROM renewed_at) * 1000000)::int8 BETWEEN 0 AND lease)
"""

WATCHED_EVERY = 0.5
"""Least seconds between two looks at the other workers' counters."""

RENEWALS = 4
"""Renewals within the shortest of all leases, while there is nothing to commit."""


RELEASED = "released"
"""How a lease ended that its worker ended itself."""

ORDERED = "ordered"
"""How a lease ended that an operator ended: attempts may go on until it would have been over by itself."""

_EARLY = f"IN ('{ORDERED}', '{HALTED}')"
_RELEASE = f"UPDATE main.worker SET ended = '{RELEASED}' WHERE id = %s AND ended IS NULL"
ATTEMPTS_MAY_GO_ON = f"({{0}}.ended {_EARLY} AND {{0}}.id <> ALL(%(over)s::int8[]))"
"""SQL for whether a worker whose lease was ended early may still be making attempts; `{0}` is its row.

`over` are those whose counters stood still for a whole lease (see `Neighbours`).
"""


class Fenced(JournalError):
    """Another worker took over what this one had; this process has to end and begin again."""


class Lease:
    """This worker's own lease, used in the journal's thread.

    `clock` measures what is left of it; `renewed_at` is when the last renewal was sent that is committed.
    A database that lost commits may give the number to another worker: `born_at`, the instant of its
    beginning, shows whose row it is.
    """

    def __init__(
        self,
        worker: int,
        seconds: float,
        clock: Callable[[], float],
        began_at: float,
        database_clock: DatabaseClock,
        *,
        born_at: int,
    ) -> None:
        self.worker = worker
        self.born_at = born_at
        self.seconds = seconds
        self.clock = clock
        self.database_clock = database_clock
        self.followed_clock = FollowedClock(clock)
        self.renewed_at = began_at
        self._sent_at = began_at
        self._commits = 0

    def renew(self, db: Connected) -> None:
        """Begin a commit with it. Raises Fenced or CommitsLost: then nothing may be committed."""
        self._sent_at = self.clock()
        given = self.database_clock.given
        row = db.execute(_RENEW, (given, self.worker, self.born_at, self._commits, given)).fetchone()
        if row is None:
            raise self._refused(db)
        self.followed_clock.note(row[0], self._sent_at)

    def check(self, db: Connected) -> None:
        """Raise Fenced or CommitsLost where `renew` would."""
        if db.execute(_IN_FORCE, (self.worker, self.born_at, self._commits)).fetchone() is None:
            raise self._refused(db)

    def note_commit(self) -> None:
        """The transaction that it was renewed in is committed."""
        self._commits += 1
        self.renewed_at = self._sent_at

    @property
    def age(self) -> float:
        """Seconds since the last renewal was sent that is committed."""
        return self.clock() - self.renewed_at

    def took_place(self, db: Connected) -> bool:
        """Whether a commit took place whose answer was lost. Raises Fenced or CommitsLost.

        Its session may still be at it, as while it waits for a standby: then the row is locked.
        """
        commits, ended = self._row(db, "FOR SHARE")
        if commits == self._commits + 1:
            return True
        if commits != self._commits or ended is not None:
            raise self._refused(db)
        return False

    def _refused(self, db: Connected) -> JournalError:
        """Why this worker may commit nothing more."""
        commits, ended = self._row(db)
        if commits is None and self.worker <= _forgotten(db):  # what was left is adopted, and the row deleted
            return Fenced("another worker took over, and everything this one had")
        if commits is None or commits < self._commits:
            return CommitsLost(self.worker, self._commits, commits)
        if ended == HALTED:
            return JournalHalted(
                "another worker noticed that the database lost commits; all workers stop until you decide:"
                " run deliveryd accept-loss"
            )
        if ended == ORDERED:
            return Fenced("an operator ended this worker: see deliveryd decisions --verb fence")
        return Fenced(f"another worker took over: this one's lease is {ended or 'used by another process'}")

    def _row(self, db: Connected, locked: LiteralString = "") -> tuple[int | None, str | None]:
        """The counter, and how the lease was ended."""
        row = db.execute(
            f"SELECT commits, ended FROM main.worker WHERE id = %s AND began_at = %s {locked}",
            (self.worker, self.born_at),
        ).fetchone()
        return (None, None) if row is None else (row[0], row[1])


def _forgotten(db: Connected) -> int:
    row = db.execute(_FORGOTTEN).fetchone()
    return 0 if row is None else int(row[0])


class LiveWorker(NamedTuple):
    """A worker whose lease isn't ended; `lease` in seconds."""

    id: int
    name: str
    lease: float
    commits: int


class LeaseWatch:
    """Watches other workers' counters by a clock of its own, which no step of any other clock moves."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, float]] = {}
        self._moved: dict[int, tuple[int, float]] = {}  # to what, and when, also of workers that are gone
        self._has_looked = False

    def over(self, workers: Sequence[LiveWorker], asked_at: float, answered_at: float) -> list[LiveWorker]:
        """Those whose counter stood still for a whole lease, as far as was watched.

        The answer may be late: a counter that moved may have done so just before it came, and one that
        didn't is known to have stood still only until it was asked for.
        """
        known = self._since
        moved = {
            each.id: each.commits
            for each in workers
            if each.id not in known or known[each.id][0] != each.commits
        }
        self._since = {
            each.id: (each.commits, answered_at) if each.id in moved else known[each.id] for each in workers
        }
        moved_at = answered_at if self._has_looked else -math.inf
        self._moved |= {id_: (commits, moved_at) for id_, commits in moved.items()}
        self._has_looked = True
        return [each for each in workers if asked_at - self._since[each.id][1] >= each.lease]

    def moved_at(self, worker: int, commits: int) -> float:
        """When a worker's counter came to this, at the latest; minus infinity: before the first look.

        Infinity: after the last look.
        """
        moved_to, at = self._moved.get(worker, (None, math.inf))
        return at if moved_to == commits else math.inf

    def has_seen(self, worker: int) -> bool:
        """Whether a worker was at work at a look."""
        return worker in self._moved


class Neighbours:
    """The other workers, as this one sees them; used in the journal's thread.

    It fences one whose counter stood still for a whole lease, if this worker itself could renew all that
    time: no worker can while the database restarts or stands still, and then no lease may be ended for it.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._watch = LeaseWatch()
        self._steady_since = lease.clock()
        self._looked_at = float("-inf")
        self.live: Sequence[LiveWorker] = ()
        """Those whose leases aren't ended, at the last look; this one isn't among them."""
        self.over: Sequence[int] = ()
        """Those whose leases were ended early, by an operator or a loss, and would be over by now anyway."""

    def note_connected(self) -> None:
        """The connection is a new one."""
        self._steady_since = self._lease.clock()

    def committed_at(self, worker: int, commits: int) -> float:
        """When a worker committed last, at the latest; minus infinity: before this one began."""
        if worker < self._lease.worker and not self._watch.has_seen(worker):
            return -math.inf
        return min(self._watch.moved_at(worker, commits), self._lease.clock())

    @property
    def interval(self) -> float:
        """Seconds between two renewals at most: a part of the shortest lease."""
        return min([self._lease.seconds, *(each.lease for each in self.live)]) / RENEWALS

    @property
    def is_due(self) -> bool:
        """Whether the next commit should look."""
        return self._lease.clock() - self._looked_at >= min(WATCHED_EVERY, self.interval)

    def look(self, db: Connected) -> None:
        """Look at their counters, within a commit of this worker, and fence those whose leases are over."""
        now = self._looked_at = self._lease.clock()
        if self._lease.age > 2 * self.interval:
            self._steady_since = now  # this one couldn't renew meanwhile, and so perhaps no worker could
        early = ended_early(db)
        others = [each for each in live_workers(db) if each.id != self._lease.worker]
        over = self._watch.over([*others, *early], now, self._lease.clock())
        self.over = [each.id for each in over if each in early]
        over = [each for each in over if each in others]
        fenced = {each.id for each in over if now - self._steady_since >= each.lease and fence(db, each)}
        self.live = [each for each in others if each.id not in fenced]


def boot_time() -> float:
    """Seconds of a clock that can't be set, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def live_workers(db: Connected) -> list[LiveWorker]:
    """The workers whose leases aren't ended."""
    return _workers(db, "IS NULL")


def others_renewed(db: Connected, worker: int, now: int) -> bool:
    """Whether a worker but this one renewed its lease within its length before `now`."""
    return db.execute(_RENEWED, (worker, now)).fetchone() == (True,)


def live_providers(db: Connected) -> frozenset[str]:
    """The providers that workers have whose leases aren't ended."""
    return frozenset(name for (name,) in db.execute(_PROVIDERS))


def ended_early(db: Connected) -> list[LiveWorker]:
    """The workers that an operator or a loss ended: until their leases would be over, attempts may go on."""
    return _workers(db, _EARLY)


def _workers(db: Connected, ended: LiteralString) -> list[LiveWorker]:
    rows = db.execute(_LIVE.format(ended)).fetchall()
    return [LiveWorker(id_, name, lease / SECOND, commits) for id_, name, lease, commits in rows]


def fence(db: Connected, worker: LiveWorker) -> bool:
    """End a worker's lease, if its counter is still what was seen and no commit is under way."""
    return db.execute(_FENCE, (worker.id, worker.commits)).rowcount == 1


def begin_work(
    db: Connected,
    lease: float,
    at: int,
    clock: Callable[[], float],
    database_clock: DatabaseClock,
    *,
    service: str | None = None,
) -> Lease:
    """Begin as a new worker, without a log yet.

    Raises JournalHalted, and JournalUnusable if the journal was moved or upgraded beyond this program, or
    belongs to another service than that at the address `service`.
    """
    began_at = clock()
    with db.transaction():
        lock_schema(db)
        writable_format(db)  # it may have been moved since it was opened
        check_not_halted(db)
        if service is not None:
            belong_to(Database(db), service)
        row = own_name(), at, FORMAT, round(lease * SECOND), database_clock.given
        (id_,) = db.execute(_BEGIN, row).fetchone() or (0,)
        begun = Lease(id_, lease, clock, began_at, database_clock, born_at=at)
        asked_at = clock()
        begun.followed_clock.note(database_clock.now(db), asked_at)
    return begun


def release_lease(db: Connected, lease: Lease) -> None:
    """End this worker's own lease: others may have its logs at once."""
    db.execute(_RELEASE, (lease.worker,))
