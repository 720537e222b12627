"""The shared journal: a PostgreSQL database, one connection in one thread, commits that many share.

Each commit begins with the renewal of the worker's lease, and is lost with it (see `lease`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TypeVar

import psycopg

from deliveryd.errors import JournalError, JournalFull
from deliveryd.journal.base import (
    Account,
    Allotment,
    Counts,
    Doubtful,
    Due,
    FromOthers,
    Left,
    MatchedReceipt,
    Open,
    Orphans,
    OutboxRow,
    PassedDeadlines,
    Recorded,
    Recovery,
)
from deliveryd.journal.event_json import EventWriter
from deliveryd.journal.orders import Decided, Order
from deliveryd.journal.pauses import Pause
from deliveryd.journal.postgresql import (
    deadlines,
    intake,
    pauses,
    reporting,
    retention,
    upkeep,
    waiting,
    waking,
)
from deliveryd.journal.postgresql.blockers import blocked_by
from deliveryd.journal.postgresql.commits import LeasedCommits, Look, Pending, Work, translated
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.days import Days
from deliveryd.journal.postgresql.decisions import Decisions
from deliveryd.journal.postgresql.elsewhere import providers_elsewhere
from deliveryd.journal.postgresql.following import Counting, Follower, News, read_versions
from deliveryd.journal.postgresql.lease import Fenced
from deliveryd.journal.postgresql.outbox import Outbox, written
from deliveryd.journal.postgresql.pacing import Pacing
from deliveryd.journal.postgresql.receipts import Matching
from deliveryd.journal.postgresql.schema import day_of, make_day
from deliveryd.journal.postgresql.steps import StepWriter
from deliveryd.journal.postgresql.stopped import in_force, stops_reported
from deliveryd.journal.postgresql.tokens import use_token
from deliveryd.journal.used_tokens import SignedToken
from deliveryd.model import (
    Clock,
    Entry,
    Malformed,
    QueuedMessage,
    Reported,
    StopChange,
    Transition,
    WallClock,
)
from deliveryd.runtime.threads import Blocking

_LIMITLESS = 1 << 62

RENEWED_WITHIN = 1.0
"""Seconds within which the lease has to have been renewed before a take."""

T = TypeVar("T")


class _Change:
    """Steps to record: those of several callers are recorded at once."""

    def __init__(self, matching: Matching, steps: Sequence[Transition]) -> None:
        self._matching = matching
        self.steps = steps

    def __call__(self, db: Db) -> Recorded:
        return _recorded(self._matching, db, [self])[0]


class PostgresqlJournal(LeasedCommits):
    """A journal in a PostgreSQL database; see `opening`."""

    is_shared = True

    reserve = 0
    """The server says nothing of its disk before that is full."""

    def __init__(
        self,
        work: Work,
        reading: Callable[[], Db],
        read: Blocking,
        events: EventWriter,
        *,
        keeps_variables: bool,
        clock: Clock | None = None,
        under_next_lease: Callable[[], AbstractAsyncContextManager[PostgresqlJournal]],
    ) -> None:
        super().__init__(work)
        self._under_next_lease = under_next_lease
        self._pacing = Pacing(work.connect, read, clock)
        self._clock = work.lease.database_clock
        self.common_clock: Clock | None = work.lease.followed_clock
        self._reading = reading
        self._read_in = read
        self._keeps_variables = keeps_variables
        self._checked: set[int] = set()
        self._days_changed = False
        db, lease = work.db, work.lease
        left = written(db)
        self.last_at = left.last_at
        self.kept_clock = ""
        self.namespace = upkeep.meta(db, "namespace") or ""
        self.stop_key = bytes.fromhex(upkeep.meta(db, "stop_key") or "")
        self._days = Days(db)
        self._outbox = Outbox(events, lease.worker, left, self._days)
        recorder = StepWriter(lease.worker, self._days, keeps_variables=keeps_variables)
        self._matching = Matching(self._outbox, recorder, self.namespace, keeps_variables=keeps_variables)
        self._missed = waking.Missed()
        self._follower = Follower(lease.worker, self._neighbours, self._outbox, self._matching, lease.clock)
        self._counting = Counting(reading, lease.clock)
        self._listening = deadlines.Listening(db, lease.worker)
        self._decisions = Decisions(self._outbox, self._matching, lease.worker, self.stop_key)

    async def take(
        self, messages: Sequence[QueuedMessage], malformed: Sequence[Malformed], at: int, lost: int = 0
    ) -> Mapping[int, int]:
        """Record a batch of the queue; return the ids that are new, with their beginnings.

        The queue hands it out once: if another worker took over meanwhile, it is recorded under a lease of
        its own, which is given back at once.
        """

        def record(db: Db) -> Mapping[int, int]:
            intake.add_lost(db, lost, at)
            self._days.today = self._day_for(db, at)
            return intake.take(db, self._outbox, messages, malformed, at)

        async def record_under_next_lease() -> Mapping[int, int]:
            async with self._under_next_lease() as journal:
                return await journal.take(messages, malformed, at, lost)

        try:
            return await self._commit(record)
        except Fenced:
            try:
                return await record_under_next_lease()
            except JournalFull as error:
                return await self._again(record_under_next_lease, error)
        except JournalError:
            await self._count_lost(lost + 1, at)
            raise

    async def _count_lost(self, batches: int, at: int) -> None:
        """Count batches that can't be recorded, beside the writer: it may commit nothing more."""

        def count() -> None:
            with self._connect() as db:
                intake.add_lost(db, batches, at)

        with suppress(psycopg.Error, JournalError):  # the log says it too
            await self._read_in(count)

    def _day_for(self, db: Db, at: int) -> int:
        """The day in whose partitions something is recorded that is new at an instant; makes them first."""
        day = retention.day_to_take_into(db, day_of(at), self._clock)
        if day not in self._checked or day not in self._days:
            make_day(db, day)
            self._checked.add(day)
            self._days.look(db)
        return day

    async def change(self, transitions: Sequence[Transition]) -> Recorded:
        """Record steps of messages, and apply the receipts that were kept for them."""
        return await self._commit(_Change(self._matching, transitions))

    async def due(self, now: int, room: Mapping[str, int]) -> Due:
        """Make waiting messages READY whose time has come."""
        return await self._commit(lambda db: waiting.take_due(db, self._lease.worker, now, room))

    async def overdue(self, now: int, limit: int) -> Due:
        """Make messages READY that have waited for something for long enough."""
        return await self._commit(
            lambda db: waiting.take_overdue(db, self._lease.worker, now, limit, self._follower.foreign)
        )

    async def resume(self, waits_for: Sequence[str], limit: int) -> list[Entry]:
        """Make messages READY that wait for one of these."""
        return await self._commit(
            lambda db: waiting.take_waiting_for(
                db, self._lease.worker, waits_for, limit, self._follower.foreign
            )
        )

    async def wake(self, waits_for: Collection[str], at: int, limit: int) -> int:
        """Let messages be due that wait for one of these."""
        woken = await self._commit(
            lambda db: waking.wake(
                db, waits_for, at, limit, foreign=self._follower.foreign, missed=self._missed
            )
        )
        self._missed.note(waits_for, at, woken.missed)
        return limit if woken.found == limit else woken.found - len(woken.missed)

    async def release(self, provider: str, at: int, limit: int) -> int:
        """Let messages be due at any provider that wait for this one."""
        return await self._commit(lambda db: waiting.release(db, provider, at, limit))

    async def park(self, waits_for: str, instead_of: Collection[str], limit: int) -> int:
        """Let messages wait for the end of a pause instead of these."""
        return await self._commit(
            lambda db: waiting.park(db, waits_for, instead_of, limit, self._follower.foreign)
        )

    async def end_pauses(self, now: int) -> Sequence[Pause]:
        """Resume what was paused until an instant that has come."""
        return await self._commit(lambda db: self._decisions.end_pauses(db, now))

    async def retime_pauses(self, back: int, now: int) -> Sequence[Pause]:
        """Bring pauses in line with a clock that was put back."""
        return await self._commit(
            lambda db: pauses.retime_pauses(db, self._back(back), self._common_now(db, now))
        )

    def _back(self, back: int) -> int:
        """How far the database's clock was put back: all workers notice, and the oldest moves due times."""
        return back if all(each.id > self._lease.worker for each in self._neighbours.live) else 0

    def _common_now(self, db: Db, now: int) -> int:
        """The time that all due times go by: where others work, a clock that is behind doesn't count."""
        return max(now, self._clock.now(db)) if self._neighbours.live else now

    def _common_time(self, db: Db) -> int | None:
        """The time of what reaches any worker: the database's clock, if there are others."""
        return self._clock.now(db) if self._neighbours.live else None

    async def largest_cause(self) -> tuple[str, int]:
        """What most messages wait for; read beside the writer, since it scans all that wait."""
        return await self._read(upkeep.largest_cause)

    async def outbox(self, after: int, limit: int) -> list[OutboxRow]:
        """The oldest events that wait."""
        return await self._commit(Look(lambda db: self._outbox.waiting(db, after, limit)))

    async def accept(self, rows: Sequence[OutboxRow], at: int) -> list[Entry]:
        """Mark events as accepted; return the messages that were set aside and may be sent now."""
        return await self._commit(lambda db: reporting.accept(db, self._outbox, self._lease.worker, rows, at))

    async def accept_early(self, rows: Sequence[OutboxRow], at: int) -> list[Entry]:
        """Let messages go on whose `dequeued` was accepted before events ahead of it were answered."""
        return await self._commit(
            lambda db: reporting.accept_early(db, self._outbox, self._lease.worker, rows, at)
        )

    async def put_last(self, rows: Sequence[OutboxRow]) -> None:
        """Have events wait behind all others, with the later ones of their messages."""
        await self._commit(lambda db: reporting.put_last(db, self._outbox, rows))

    async def refuse(self, row: OutboxRow, reason: str, at: int) -> int:
        """Set an event aside; return how often it was refused by now."""
        return await self._commit(lambda db: reporting.refuse(db, self._outbox, row, reason, at))

    async def receive(
        self, reports: Sequence[Reported], stops: Sequence[StopChange] = ()
    ) -> list[MatchedReceipt]:
        """Record providers' updates."""
        return await self._try(
            lambda db: [
                *self._matching.receive(db, reports),
                *stops_reported(db, stops, self._common_time(db) if stops else None),
            ]
        )

    async def id_in_doubt(self, message_id: int, key: int) -> str | None:
        """The provider's id of a message in doubt."""
        return await self._commit(lambda db: upkeep.id_in_doubt(db, message_id, key))

    async def stopped(self) -> list[tuple[str, bytes]]:
        """The recipients who can't be reached any more."""

        def read(db: Db) -> tuple[list[tuple[str, bytes]], int]:
            version = read_versions(db)["stops"]  # first: a change that comes in between is read twice
            return in_force(db), version

        found, version = await self._commit(read)
        self._follower.remember({"stops": version})
        return found

    async def pass_deadlines(
        self, listened: int, at: int, providers: Collection[str], limit: int
    ) -> PassedDeadlines:
        """Add to the listening time; send messages on whose deadline passed."""

        def count(db: Db) -> tuple[PassedDeadlines, deadlines.ListenedTo]:
            time = self._listening.add(db, listened)
            found = deadlines.pass_deadlines(
                db,
                time,
                at,
                providers,
                limit,
                worker=self._lease.worker,
                instant=self._clock.given,
                keeps_variables=self._keeps_variables,
            )
            return found, time

        found, time = await self._commit(count)
        self._listening.remember(time)
        return found

    async def count_overdue(self, provider: str, since: int | None, until: int) -> int:  # noqa: ARG002
        """Count what a provider accepted and nobody confirmed; read beside the writer.

        From where any worker ended, whatever its patience: each message is counted by one of them.
        """
        found = await self._read(lambda db: deadlines.count_overdue(db, provider, until))
        if not found.messages:
            return 0
        is_mine = await self._commit(lambda db: deadlines.keep_counted(db, provider, found.since, until))
        return found.messages if is_mine else 0

    async def recover(self, now: int, providers: Collection[str]) -> Recovery:
        """Put in order what earlier workers left."""

        def recover(db: Db) -> tuple[Recovery, Mapping[str, int]]:
            self._follower.begin(db, providers)
            versions = read_versions(db)
            return upkeep.recover(db, self._lease.worker, now, providers, self._neighbours), versions

        found, versions = await self._commit(recover)
        self._follower.remember({"pauses": versions["pauses"], "down": versions["down"]})
        return found

    async def use_token(self, token: SignedToken, at: int) -> bool:
        """Note what a token was used for; return whether it wasn't used for anything else before."""
        return await self._commit(lambda db: use_token(db, token, at))

    async def leave(self, providers: Collection[str], at: int, limit: int) -> Left:
        """Hold or release what waits at removed providers."""

        def leave(db: Db) -> Left:
            elsewhere = providers_elsewhere(db, self._lease.worker, self._clock.given)
            return waiting.leave(db, frozenset(providers) - elsewhere, at, limit)

        return await self._commit(leave)

    async def held(self, providers: Collection[str], after: int, limit: int) -> list[Doubtful]:
        """The messages held in doubt at these providers."""
        return await self._commit(lambda db: waiting.held(db, providers, after, limit))

    async def orphans(self, provider: str, sent_since: int) -> Orphans:
        """Count what the removal of a provider would leave; read beside the writer."""
        return await self._read(lambda db: upkeep.count_orphans(db, provider, sent_since))

    async def note_down(self, since: Mapping[str, int]) -> None:
        """Keep since when all providers of these channels are down."""
        await self._commit(lambda db: upkeep.note_down(db, since))

    async def retime(self, back: int, now: int, longest: int) -> None:
        """Bring due times in line with a clock that was put back."""

        def retime(db: Db) -> None:
            if back:
                self._outbox.note_step(db)
            waiting.retime(db, self._back(back), self._common_now(db, now) + longest)

        await self._commit(retime)

    async def hasten(self, due: Mapping[int, int]) -> None:
        """Let waiting messages be due earlier."""
        await self._commit(lambda db: waiting.hasten(db, due))

    async def counts(self) -> Counts:
        """The sums of what is open."""
        return await self._commit(upkeep.counts)

    async def open_work(self) -> Open:
        """What hasn't ended; read beside the writer, since it scans all that waits."""
        return await self._read(upkeep.open_work)

    async def account(self) -> Account:
        """Where all messages are; read beside the writer, since it counts all that has ended."""
        return await self._read(upkeep.account)

    async def decide(self, order: Order, at: int, providers: Collection[str]) -> Decided:
        """Carry out an operator's order."""

        def decide(db: Db) -> Decided:
            known = providers_elsewhere(db, self._lease.worker, self._clock.given).union(providers)
            return self._decisions.carry_out(db, order, at, known)

        return await self._try(decide)

    async def keep_clock(self, record: str) -> None:
        """The database's clock is everybody's."""

    async def prune(self, before: int, limit: int) -> int:
        """Forget messages of days that are over; make tomorrow's partitions ahead of its takes."""
        due: list[int] = []

        def prune(db: Db) -> retention.PrunedPortion:
            due[:] = [day + 1 for day in self._checked]
            self._checked.clear()
            ahead = max(WallClock().now() - self._clock.now(db), 0)  # forgotten is forgotten for all
            pruned = retention.prune(db, self._lease.worker, self._days.today, before - ahead, limit)
            there = self._days.look(db)
            due[:] = [day for day in due if day not in there]
            if self._days.today not in there:
                self._days.today = max(there, default=0)
            return pruned

        pruned = await self._commit(prune)
        if pruned.is_drop_due or due:
            await self._keep_days(due)
        return pruned.deleted

    async def _keep_days(self, due: Sequence[int]) -> None:
        """Make and drop days beside the writer."""
        today = self._days.today

        def keep() -> None:
            with self._connect() as db:
                for day in due:
                    make_day(db, day)
                retention.drop_retired(db, today)

        with suppress(psycopg.Error, JournalError):  # in a minute again; the writer reports what stays broken
            await self._read_in(keep)

    async def give_back(self, limit: int) -> int:  # noqa: ARG002  # a dropped day leaves nothing to give back
        """Give room back to the disk: the server does."""
        return 0

    async def cut_log(self) -> bool:
        """Empty what is kept beside the tables; the server's own log is beyond a journal's reach."""
        return True

    async def renew(self) -> None:
        """Return when the lease was renewed within the last second, or by a slow commit since this call."""
        lease, asked_at = self._lease, self._lease.clock()
        while lease.age > RENEWED_WITHIN and (lease.renewed_at < asked_at or lease.age > lease.seconds / 2):
            await self._commit(lambda _db: None)

    def outlasts(self, seconds: float) -> bool:
        """Whether the lease lasts for so many seconds more."""
        return self._broken is None and self._lease.age + seconds < self._lease.seconds

    async def allot(self, provider: str, interval: float, wanted: int) -> Allotment:
        """Reserve attempts out of those that the provider's rate allows to all workers together."""
        return await self._pacing.allot(provider, interval, wanted)

    async def claim_probe(self, provider: str, pause: float, longest: float) -> float:
        """Take this worker's turn to probe a provider that is down."""
        return await self._pacing.claim_probe(provider, pause, longest)

    async def free_probe(self, provider: str) -> None:
        """Let the other workers probe a provider at once."""
        await self._pacing.free_probe(provider)

    async def follow(self, now: int, providers: Collection[str]) -> FromOthers:
        """Adopt what ended workers left; return what other workers did."""

        def look(db: Db) -> tuple[News, Mapping[int, object]]:
            self._follower.note(db, providers)
            news = self._follower.look(db, now, self._clock.given)
            return news, self._missed.wake(db)

        # First: the line has to know what was adopted before it reports the events of that.
        counts = await self._read_in(self._counting.count) if self._counting.is_due else None
        news, woken = await self._commit(look)
        self._follower.remember(news.versions)
        self._missed.forget(woken)
        if counts is None:
            return news.found
        return news.found._replace(waiting=counts.waiting, paused=counts.paused)

    def has_room(self) -> bool:
        """Whether more may be taken in."""
        return not self.full

    def room(self) -> int:
        """The bytes that are free on the disk, which only the server knows."""
        return _LIMITLESS

    def misplaced(self) -> str | None:
        """Why what is recorded would be lost with this process; nothing of it is here."""
        return None

    async def _read(self, query: Callable[[Db], T]) -> T:
        """Run a query in a connection of its own, beside the writer, however long that can't be made."""
        try:
            return await self._try_to_read(query)
        except JournalFull as error:
            return await self._again(partial(self._try_to_read, query), error)

    async def _try_to_read(self, query: Callable[[Db], T]) -> T:
        def run() -> T:
            with self._reading() as db:
                db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                return query(db)

        try:
            return await self._read_in(run)
        except psycopg.Error as error:
            raise translated(error) from error

    async def _why_stalled(self) -> str:
        pid = self._db.info.backend_pid
        try:
            found = await self._try_to_read(lambda db: blocked_by(db, pid))
        except JournalError:
            found = None
        return found or "nobody's lock; the server waits for its standby, or hangs"

    def _end(self) -> None:
        self._pacing.close()
        super()._end()

    def _forget_uncommitted(self) -> None:
        self._checked.clear()
        self._days_changed = True
        self._follower.forget_uncommitted()

    def close(self) -> None:
        """Close the connections."""
        self._counting.close()
        self._db.close()

    def _run(self, db: Db, batch: Sequence[Pending]) -> None:
        if self._days_changed:  # perhaps: another worker may have dropped the day of what is put in
            self._days.today = max(self._days.look(db), default=0)
            self._days_changed = False
        for group in _grouped(batch):
            first = group[0].operation
            if isinstance(first, _Change):
                changes = [each.operation for each in group if isinstance(each.operation, _Change)]
                for request, result in zip(group, _recorded(self._matching, db, changes), strict=True):
                    request.result = result
            else:
                group[0].result = first(db)


def _grouped(batch: Sequence[Pending]) -> Iterator[Sequence[Pending]]:
    """Operations one by one, but steps that follow one another together, each message at most once."""
    group: list[Pending] = []
    ids: set[int] = set()
    for request in batch:
        steps = request.operation.steps if isinstance(request.operation, _Change) else ()
        mine = {step.entry.id for step in steps}
        if group and (not isinstance(request.operation, _Change) or not ids.isdisjoint(mine)):
            yield group
            group, ids = [], set()
        if isinstance(request.operation, _Change):
            group.append(request)
            ids |= mine
        else:
            yield [request]
    if group:
        yield group


def _recorded(matching: Matching, db: Db, changes: Sequence[_Change]) -> list[Recorded]:
    """Record the steps of several callers; return to each what concerns its own messages."""
    done = matching.change(db, [step for change in changes for step in change.steps])
    found = []
    for change in changes:
        mine = [step.entry.id for step in change.steps]
        effects = [effect for id_ in mine for effect in done.effects.get(id_, ())]
        settled, elsewhere = set(mine) & set(done.settled), set(mine) & set(done.elsewhere)
        found.append(Recorded(settled, effects, elsewhere))
    return found
