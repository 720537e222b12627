"""The shared journal: a PostgreSQL database, one connection in one thread, commits that many share.

Each commit begins with the renewal of the worker's lease, and is lost with it (see `lease`). What reaches a
log by another worker than the one that has it goes through its inbox. Where two commit side by side, an
outcome with a provider's id and a receipt with the same, neither may see the other: both look once more.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import anyio
import psycopg

from deliveryd.errors import JournalError, JournalFull
from deliveryd.journal.base import (
    AheadOf,
    Allotment,
    EndedWorker,
    FromOthers,
    InCommit,
    MatchedReceipt,
    OutboxRow,
    Recorded,
    Recovery,
)
from deliveryd.journal.log import Log, LogTerms
from deliveryd.journal.orders import FORGETTING, PAUSING, Decided, Effect, ItemKind, Order
from deliveryd.journal.pauses import Pause
from deliveryd.journal.postgresql import inbox, logs
from deliveryd.journal.postgresql.commits import (
    ChangedMeanwhile,
    LeasedCommits,
    Look,
    Pending,
    StepsOfCaller,
    Work,
    blocked_by,
    translated,
)
from deliveryd.journal.postgresql.connection import Connected
from deliveryd.journal.postgresql.database import Database, Snapshots
from deliveryd.journal.postgresql.following import Counting, changed_stops, read_versions
from deliveryd.journal.postgresql.inbox import (
    HandedOrder,
    InboxKind,
    InboxRow,
    hold_messages,
    kept_messages,
    logs_of_keys,
    logs_of_reports,
    unmatched,
    unmatched_by_ids,
    unmatched_lately,
)
from deliveryd.journal.postgresql.lease import Fenced, live_providers, others_renewed
from deliveryd.journal.postgresql.logs import ClockStep, FirstLog, LogSeen
from deliveryd.journal.postgresql.pacing import Pacing
from deliveryd.journal.sql import account, deadlines, deletion, own_values, recovery
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.deletion import RetentionSweep
from deliveryd.journal.sql.pauses import pauses
from deliveryd.journal.sql.repeats import report_again
from deliveryd.journal.sql.stopped import in_force, stops_reported
from deliveryd.model import (
    SECOND,
    STEP,
    Clock,
    Malformed,
    ProgressReport,
    QueuedMessage,
    Receipt,
    RecipientReport,
    Reported,
    SharedReceipt,
    SteadyClock,
    StopChange,
    Transition,
    WallClock,
)
from deliveryd.runtime.threads import Blocking

_LIMITLESS = 1 << 62

FORWARDED = "forwarded"
"""What a report did that is about a message of another worker: it is in the inbox of its log."""

RENEWED_WITHIN = 1.0
"""Seconds within which the lease has to have been renewed before a take."""

ANSWERED_WITHIN = 15.0
"""Seconds after which an order is taken back that another worker hasn't carried out, at least."""

ANSWERS_KEPT = 600.0
"""Seconds for which an unread answer stays, at least: much longer than any command waits."""

ENDED_WITHIN = 3.0
"""Seconds after a lease's length within which the end of a worker is noticed that is gone."""

UNANSWERED = "the worker that has it doesn't answer; try again"
"""Why an order isn't carried out."""

ASKED_EVERY = 0.1
"""Seconds between two looks whether it has."""

SWEPT_EVERY = 5.0
SWEPT_AT_ONCE = 500
SWEPT_FOR = 3600
"""Seconds between two looks at receipts that fit no attempt, how many at once, and for how long (seconds)."""

_HEAR = "SELECT 1 FROM main.version WHERE kind = 'stops' FOR UPDATE"
_NOTE = "UPDATE main.worker SET providers = %s, pauses = %s WHERE id = %s"

T = TypeVar("T")


class _News(NamedTuple):
    """What one look found, and what is remembered of it when its commit took place."""

    found: FromOthers
    logs: Mapping[int, Log]
    others: frozenset[int]
    versions: Mapping[str, int]
    looked_at: frozenset[str]


class PostgresqlJournal(LeasedCommits):
    """A journal in a PostgreSQL database; see `opening`."""

    reserve = 0
    """The server reports nothing of its disk before that is full."""

    def __init__(
        self,
        work: Work,
        own: FirstLog,
        terms: LogTerms,
        reading: Callable[[], Connected],
        read: Blocking,
        *,
        clock: Clock | None = None,
        under_next_lease: Callable[[], AbstractAsyncContextManager[PostgresqlJournal]],
    ) -> None:
        super().__init__(work, own.number, terms)
        self._moved_back = own.moved_back
        self._under_next_lease = under_next_lease
        self._pacing = Pacing(work.connect, read, clock)
        self.limits = self
        self._clock = work.lease.database_clock
        self.common_clock: SteadyClock | None = work.lease.followed_clock
        self._snapshots = Snapshots(reading)
        self._read_in = read
        self.last_at = self._own.last_at
        self.kept_clock = own_values.kept_clock(self._database)
        self.stop_key = own_values.stop_key_of(self._database)
        self._counting = Counting(self._snapshots, work.lease.clock)
        self._providers: frozenset[str] = frozenset()
        self._others: frozenset[int] = frozenset()  # the logs that this worker hasn't
        self._seen: dict[str, int] = {}  # versions
        self._noted: tuple[frozenset[str], int] | None = None
        self._live: frozenset[int] = frozenset()
        self._steps: list[ClockStep] = []  # that the clock made since the earlier run
        self._named: set[str] = set()  # ids of providers that this transaction or one before it brought
        self._to_look: set[str] = set()  # of those, the ones of transactions that are over
        self._swept_at = float("-inf")
        self._swept_to = 0
        self._sweeps: dict[int, RetentionSweep] = {}  # of unowned logs
        self._pruned_to = 0  # the log of the last of them
        self._answered = 0  # rows of inboxes up to this number were there when answers were last forgotten
        self._answered_at = float("-inf")

    @property
    def older_workers(self) -> frozenset[tuple[int, int]]:
        """As of the last look at the other workers."""
        live = self._neighbours.live
        return frozenset((each.id, each.commits) for each in live if each.id < self._lease.worker)

    async def others_at_work(self) -> bool:
        """By the database's clock: a lease that is over may not be ended yet."""
        now, worker = self._clock.now, self._lease.worker
        return await self._commit(Look(lambda _db: others_renewed(self._db, worker, now(self._db))))

    # Intake

    async def take(
        self, messages: Sequence[QueuedMessage], malformed: Sequence[Malformed], at: int, lost: int = 0
    ) -> Mapping[int, int]:
        """Record a batch of the queue; return the ids that are new, with their generations.

        The queue hands it out once: if another worker took over meanwhile, it is recorded under a lease of
        its own, which is given back at once.
        """

        async def record_under_next_lease() -> Mapping[int, int]:
            async with self._under_next_lease() as journal:
                return await journal.take(messages, malformed, at, lost)

        try:
            return await super().take(messages, malformed, at, lost)
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
            with self._connect() as connection:
                db = Database(connection)
                db.enter(self._own.number)
                account.add_lost(db, batches, at)

        with suppress(psycopg.Error, JournalError):  # the log has it too
            await self._read_in(count)

    def _hand_over_repeats(self, db: Db, ids: Collection[int], at: int) -> None:
        there = kept_messages(self._db, ids)
        if there.keys() < set(ids):
            raise ChangedMeanwhile("a message that the queue handed out again was forgotten meanwhile")
        for number, log, group in self._grouped(db, self._logs, ((log, id_) for id_, log in there.items())):
            if log is not None:
                report_again(db, log.outbox, group, at)
            else:
                inbox.put_in(self._db, number, InboxKind.REPEATS, group)

    # Delivery

    async def change(self, steps: Sequence[Transition], ahead_of: AheadOf | None = None) -> Recorded:
        """Record steps of messages, and apply the receipts that were kept for them."""
        return await self._commit(StepsOfCaller(partial(self._change, ahead_of=ahead_of), steps))

    def _change(self, db: Db, steps: Sequence[Transition], ahead_of: AheadOf | None) -> Recorded:
        if self._others:
            self._named.update(
                step.outcome.provider_id
                for step in steps
                if step.outcome is not None and step.outcome.provider_id is not None
            )
        return super()._change(db, steps, ahead_of)

    def _run(self, batch: Sequence[Pending]) -> None:
        self._to_look |= self._named  # what brought these is committed, or was rolled back
        self._named.clear()
        super()._run(batch)

    # Reporting

    async def outbox(self, after: int, limit: int) -> list[OutboxRow]:
        """The oldest events that wait."""
        return await self._commit(Look(lambda db: self._outbox(db, after, limit)))

    # Receipts

    def _receive(self, db: Db, reports: Sequence[Reported]) -> list[MatchedReceipt]:
        """Match what is about messages of this worker; all else goes to the logs of its messages.

        A worker that began within the last second is not known yet: what is kept is looked at again, but
        nothing is kept of an account that others use, too, of progress, and of recipients.
        """
        is_alone = not self._others and len(self._logs) == 1
        if is_alone and not any(isinstance(each, SharedReceipt | ProgressReport) for each in reports):
            of: Sequence[int | None] = [self._own.number] * len(reports)
        else:
            of = logs_of_reports(self._db, reports, self.namespace)
        placed = ((self._own.number if number is None else number, at) for at, number in enumerate(of))
        matched: dict[int, MatchedReceipt] = {}
        for number, log, places in self._grouped(db, self._logs, placed):
            mine = [reports[place] for place in places]
            if log is not None:
                found = log.matching.receive(db, mine)
            else:
                found = _forwarded(mine)
                if left := [each for each in mine if not isinstance(each, RecipientReport)]:
                    inbox.put_in(self._db, number, InboxKind.REPORTS, inbox.of_reports(left))
            matched |= dict(zip(places, found, strict=True))
        results = [matched[place] for place in range(len(reports))]
        self._named.update(
            each.provider_id
            for each, done in zip(reports, results, strict=True)
            if done.result == "unmatched" and isinstance(each, Receipt) and each.provider_id
        )
        return results

    def _hear(self, db: Db, stops: Sequence[StopChange]) -> list[MatchedReceipt]:
        """Record what receipts report about recipients: one worker after another, by the database's clock.

        Else a word could count that another worker received before.
        """
        if not stops:
            return []
        self._db.execute(_HEAR)
        now = self._clock.now(self._db)
        return stops_reported(
            db, [each if each.heard_at is None else each._replace(heard_at=now) for each in stops]
        )

    async def stopped(self) -> list[tuple[str, bytes]]:
        """The recipients who can't be reached any more."""

        def read(db: Db) -> tuple[list[tuple[str, bytes]], int]:
            version = read_versions(self._db)["stops"]  # first: what comes in between is read twice
            return [(channel, bytes(digest)) for channel, digest in in_force(db)], version

        found, version = await self._commit(read)
        self._seen["stops"] = version
        return found

    async def _read_own(self, query: Callable[[Db], int]) -> int:
        def read(db: Db) -> int:
            found = 0
            for number in list(self._logs):
                db.enter(number)
                found += query(db)
            return found

        return await self._read(read)

    # What others do

    async def recover(self, now: int, providers: Collection[str], put_back: int = 0) -> Recovery:
        """Put in order what ended workers left."""

        def begin(db: Db) -> tuple[Mapping[int, Log], frozenset[int], Mapping[str, int]]:
            self._steps = [ClockStep(put_back, self._clock.now(self._db), -math.inf)] if put_back else []
            self._note(self._db, providers)
            self._neighbours.look(self._db)
            if put_back and self._moved_back is not None and abs(put_back - self._moved_back) >= STEP:
                logs.move_due_times(
                    db, self._in_own(db), put_back - self._moved_back, self._clock.now(self._db)
                )
            found = {each.number: log for each, log in self._take_over(db, 0)}
            others = logs.all_logs(self._db) - self._logs.keys() - found.keys()
            return found, others, read_versions(self._db)

        found, others, versions = await self._commit(begin)
        self._logs |= found
        self._others = others
        self._seen |= {"pauses": versions["pauses"], "down": versions["down"]}
        return await super().recover(now, providers)

    def _recover(self, db: Db, log: Log, now: int, providers: Collection[str]) -> Recovery:
        """Reports in its inbox come first: what they settle isn't in doubt any more."""
        matched: list[MatchedReceipt] = []
        while rows := inbox.read_inbox(self._db, [log.number], [InboxKind.REPORTS]):
            inbox.delete(self._db, [row.seq for row in rows])
            matched += _received(db, log, rows)
        found = super()._recover(db, log, now, providers)
        effects = (each.effect for each in matched if each.effect is not None)
        # What waits is counted afterwards.
        return found._replace(
            effects=(*(each._replace(waiting=0, paused=0) for each in effects), *found.effects)
        )

    def _note(self, db: Connected, providers: Collection[str]) -> None:
        """Record for the others which providers this worker has, and which pauses it goes by."""
        self._providers = frozenset(providers)
        noted = self._providers, self._seen.get("pauses", 0)
        if noted != self._noted:
            db.execute(_NOTE, (sorted(providers), noted[1], self._lease.worker))
            self._noted = noted

    def _take_over(self, db: Db, ahead: int) -> list[tuple[LogSeen, Log]]:
        """Take over the unowned logs in which something is open.

        Also one that is this worker's already, if the commit's outcome never got here. Their due times become
        as far ahead as those of this worker's logs.
        """
        found = []
        for each in logs.logs_seen(self._db, self._neighbours.over):
            is_left = each.has_work or each.holder == self._lease.worker
            if not is_left or each.number in self._logs:
                continue
            if logs.take_over(self._db, self._lease.worker, each):
                log = self._opened(db, each.number)
                now = self._clock.now(self._db)
                back = self._put_back_since(each.holder, now, ahead) - ahead
                if abs(back) >= STEP:
                    logs.move_due_times(db, log, back, now)
                found.append((each, log))
        return found

    def _put_back_since(self, holder: int | None, now: int, ahead: int) -> int:
        """By how much the database's clock was put back since a worker committed last; negative: forward.

        These are the steps that this worker noticed, and that one didn't follow; before the start of this one
        it was put back at least by as much as that one committed later than now.
        """
        last = logs.last_commit(self._db, holder)
        if holder is None or last is None:
            return 0
        committed_at = self._neighbours.committed_at(holder, last.commits)
        steps = [*self._steps, ClockStep(ahead, now, self._lease.clock())]
        back = sum(step.back for step in steps if step.is_after(last.at, committed_at))
        return max(last.at - now, 0) if not back and committed_at == -math.inf else back

    def _opened(self, db: Db, number: int) -> Log:
        """Begin to work on a log that was taken over."""
        db.enter(self._own.number)
        own = deadlines.listened(db)
        db.enter(number)
        log = Log(db, number, self._terms)
        log.ahead = deadlines.listened(db) - own
        log.is_new = True
        return log

    async def retime(
        self,
        back: int,
        now: InCommit,
        longest: int,
        record: str | None = None,
        *,
        pauses_back: int | None = None,
        then: Callable[[], None] | None = None,
    ) -> Sequence[Pause]:
        """The same, of its own logs; those that it takes over are brought in line with them."""

        def moved() -> None:
            self._steps.append(ClockStep(back, now(), self._lease.clock()))
            if then is not None:
                then()

        return await super().retime(
            back, now, longest, record, pauses_back=pauses_back, then=moved if back else then
        )

    async def look_around(self) -> None:
        """Look at the other workers' leases."""
        await self._commit(lambda _db: self._neighbours.look(self._db))

    async def follow(
        self, now: int, providers: Collection[str], ahead: Callable[[], int] = lambda: 0
    ) -> FromOthers:
        """Take over what ended workers left, read the inboxes, and return what other workers did."""
        # First: the line has to have what was taken over before it reports the events of that.
        counts = await self._read_in(self._counting.count) if self._counting.is_due else None
        found: list[_News] = []

        def look(db: Db) -> _News:
            found[:] = [self._look(db, now, providers, ahead())]
            return found[0]

        news = await self._commit(look, lambda: self._have_news(*found))
        if counts is None:
            return news.found
        return news.found._replace(waiting=counts.waiting, paused=counts.paused)

    def _have_news(self, news: _News) -> None:
        """Before anything else is committed: due times that are moved then are those of these logs."""
        self._logs = dict(news.logs)
        self._others = news.others
        self._seen |= news.versions
        self._live = frozenset(each.id for each in self._neighbours.live)
        self._to_look -= news.looked_at

    def _look(self, db: Db, now: int, providers: Collection[str], ahead: int) -> _News:
        connection, worker = self._db, self._lease.worker
        self._note(connection, providers)
        self._neighbours.look(connection)
        taken = self._take_over(db, ahead)
        there = dict(self._logs)
        left = []
        for each, log in taken:
            there[each.number] = log
            db.enter(each.number)
            left.append(self._recover(db, log, now, providers))
        effects, has_more = self._read_inboxes(db, there, now)
        effects += self._look_once_more(db, there, now)
        for number in logs.give_back(
            connection, worker, [each for each in self._logs if each != self._own.number]
        ):
            del there[number], self._logs[number]  # at once: what is committed next is done without it
            self._others |= {number}
            for id_ in [id_ for id_, its in list(self._away.items()) if its == number]:
                self._away.pop(id_, None)  # in this thread, whose other commits add some
        versions = read_versions(connection)
        found = FromOthers(
            recovery.left_in_logs(left)._replace(
                ended=[EndedWorker(each.name, each.ended_in_order) for each, _ in taken]
            )
            if left
            else None,
            pauses(db) if versions["pauses"] != self._seen.get("pauses") else None,
            changed_stops(connection, self._seen.get("stops", versions["stops"]), versions["stops"]),
            own_values.down_since(db) if versions["down"] != self._seen.get("down") else None,
            effects=effects,
            any_ended=not self._live <= frozenset(each.id for each in self._neighbours.live),
            has_more=has_more,
        )
        return _News(
            found, there, logs.all_logs(connection) - there.keys(), versions, frozenset(self._to_look)
        )

    def _read_inboxes(self, db: Db, there: Mapping[int, Log], now: int) -> tuple[list[Effect], bool]:
        """Do what others left in the inboxes of this worker's logs; return also whether there may be more."""
        effects: list[Effect] = []
        rows = inbox.read_inbox(self._db, there)
        for (number, kind), some in groupby(rows, key=lambda row: (row.log, row.kind)):
            db.enter(number)
            effects += self._carry_out(db, there[number], kind, list(some), now)
        inbox.delete(self._db, [row.seq for row in rows if row.kind is not InboxKind.ORDER])
        return effects, inbox.is_full(rows)

    def _carry_out(
        self, db: Db, log: Log, kind: InboxKind, rows: Sequence[InboxRow], now: int
    ) -> Sequence[Effect]:
        """Carry out rows of one kind, in the log that is worked on."""
        match kind:
            case InboxKind.REPORTS:
                return [each.effect for each in _received(db, log, rows) if each.effect is not None]
            case InboxKind.REPEATS:
                report_again(db, log.outbox, [id_ for row in rows for id_ in row.body], now)
                return [Effect(events=len(rows))]
            case InboxKind.UNMATCHED:
                return self._match_again(db, log, {seq for row in rows for seq in row.body}, now)
            case InboxKind.ORDER:
                return [effect for row in rows for effect in self._answer(db, log, row, now)]

    def _answer(self, db: Db, log: Log, row: InboxRow, now: int) -> Sequence[Effect]:
        """Carry out an order that another worker handed on."""
        decided = self._carry_out_order(db, log, inbox.order_of(row.body), now, self._providers)
        self._have(log, [each.taken for each in decided.effects if each.taken is not None])
        if not inbox.answer(self._db, row.seq, [decided.done, decided.skipped]):
            raise ChangedMeanwhile("an order was taken back when it was about to be carried out")
        return decided.effects

    def _match_again(self, db: Db, log: Log, seqs: Collection[int], now: int) -> list[Effect]:
        found = [log.matching.match_again(db, seq, now) for seq in sorted(unmatched(self._db, seqs))]
        return [effect for effect in found if effect is not None]

    def _look_once_more(self, db: Db, there: Mapping[int, Log], now: int) -> list[Effect]:
        """Match receipts that were kept while the outcome that they fit was committed by another worker."""
        if not self._others and len(there) == 1:
            return []
        found = dict(unmatched_by_ids(self._db, self._to_look)) if self._to_look else {}
        if self._lease.clock() - self._swept_at >= SWEPT_EVERY:
            lately = unmatched_lately(self._db, now - SWEPT_FOR * SECOND, self._swept_to, SWEPT_AT_ONCE)
            found |= lately
            self._swept_at = self._lease.clock()
            self._swept_to = max(lately) if len(lately) == SWEPT_AT_ONCE else 0
        of = logs_of_reports(self._db, list(found.values()), self.namespace)
        fitting = ((number, seq) for seq, number in zip(found, of, strict=True) if number is not None)
        effects: list[Effect] = []
        for number, log, seqs in self._grouped(db, there, fitting):
            if log is not None:
                effects += self._match_again(db, log, seqs, now)
            else:
                inbox.put_in(self._db, number, InboxKind.UNMATCHED, seqs)
        return effects

    # Orders

    async def decide(self, order: Order, at: int, providers: Collection[str]) -> Decided:
        """Carry out an operator's order; what is about a message of another log by the worker that has it.

        What is this worker's comes last, since the line has to receive at once what follows from it: else the
        service might have accepted an event by then, and no message would wait for that.
        """
        if order.verb in PAUSING:  # also of what only others have
            known = await self._try(lambda _db: live_providers(self._db).union(providers))
            return await super().decide(order, at, known)
        if order.kind not in {ItemKind.MESSAGE, ItemKind.EVENT, ItemKind.RECEIPT}:
            return await super().decide(order, at, providers)
        decided, handed = await self._try(lambda db: self._decide(db, order, at, providers, hands_on=True))
        if not handed:
            return decided
        await self._await_answers(handed)
        done, skipped = _answered(await self._take_back(handed))
        rest = tuple(key for key in order.keys if key not in skipped and key not in done)
        if rest:  # whoever had some of it may be gone by now
            left = order._replace(keys=rest)
            decided, _ = await self._try(lambda db: self._decide(db, left, at, providers, hands_on=False))
        return decided._replace(done=(*done, *decided.done), skipped={**skipped, **decided.skipped})

    def _decide(
        self, db: Db, order: Order, at: int, providers: Collection[str], *, hands_on: bool
    ) -> tuple[Decided, Collection[int]]:
        """Carry out what is this worker's, or unowned.

        If something is another worker's, that is handed on instead, and the rows' numbers are returned; or,
        with `hands_on` False, skipped.
        """
        of = logs_of_keys(self._db, order, self.namespace)
        parts: defaultdict[int, list[str]] = defaultdict(list)
        for key in order.keys:
            parts[of.get(key, self._own.number)].append(key)
        orders = {number: order._replace(keys=tuple(keys)) for number, keys in parts.items()}
        others = {
            number: orders.pop(number)
            for number in parts
            if number not in self._logs and not logs.keep_free(self._db, number, self._neighbours.over)
        }
        if others and hands_on:
            return Decided((), {}, ()), [
                inbox.put_in(self._db, number, InboxKind.ORDER, inbox.of_order(each, at))
                for number, each in others.items()
            ]
        skipped = {key: UNANSWERED for each in others.values() for key in each.keys}
        found = []
        for number, part in orders.items():
            mine = HandedOrder(part, at)
            if (log := self._logs.get(number)) is not None:
                db.enter(number)
                decided = self._carry_out_order(db, log, mine, at, providers)
                self._have(log, [each.taken for each in decided.effects if each.taken is not None])
                found.append(decided)
            else:
                decided = self._carry_out_order(db, self._opened(db, number), mine, at, providers)
                found.append(decided._replace(effects=()))  # whoever takes the log over finds them
            skipped |= found[-1].skipped
        done = [key for each in found for key in each.done]
        return Decided(tuple(done), skipped, tuple(effect for each in found for effect in each.effects)), ()

    def _carry_out_order(
        self, db: Db, log: Log, given: HandedOrder, now: int, providers: Collection[str]
    ) -> Decided:
        """Carry out an order in the log that is worked on, once what it concerns was reported again.

        What the queue handed out again to other workers might be forgotten unreported. No worker can take it
        as a repeat from now on: whoever is about to waits, and finds it forgotten.
        """
        if given.order.verb in FORGETTING:
            hold_messages(self._db, given.order)
        effects: list[Effect] = []
        while rows := inbox.read_inbox(self._db, [log.number], [InboxKind.REPEATS]):
            inbox.delete(self._db, [row.seq for row in rows])
            effects += self._carry_out(db, log, InboxKind.REPEATS, rows, now)
        decided = log.orders.carry_out(db, given.order, given.at, providers)
        return decided._replace(effects=(*effects, *decided.effects))

    async def _await_answers(self, handed: Collection[int]) -> None:
        """Wait until all are carried out, or a worker that has their logs would have been found gone."""
        with anyio.move_on_after(max(ANSWERED_WITHIN, self._lease.seconds + ENDED_WITHIN)):
            while True:
                found = await self._try(Look(lambda _db: inbox.answers(self._db, handed)))
                if len(found) == len(handed):
                    return
                await anyio.sleep(ASKED_EVERY)

    async def _take_back(self, handed: Collection[int]) -> Mapping[int, Any]:
        return await self._try(lambda _db: inbox.take_back(self._db, handed))

    # Upkeep

    async def prune(self, before: int, limit: int) -> int:
        """Delete old ended messages, also of unowned logs."""

        def prune(db: Db) -> int:
            ahead = max(WallClock().now() - self._clock.now(self._db), 0)  # what is deleted is so for all
            by = before - ahead
            deleted = sum(log.retention.step(db, by, limit) for log in self._each(db))
            deleted += self._prune_left(db, by, limit)
            logs.forget_workers(self._db, by)
            if self._lease.clock() - self._answered_at >= ANSWERS_KEPT:
                self._answered = inbox.forget_answers(self._db, self._answered)
                self._answered_at = self._lease.clock()
            return deleted + deletion.delete_others(db, by, limit)

        return await self._commit(prune)

    def _prune_left(self, db: Db, before: int, limit: int) -> int:
        """Delete a portion from one of the unowned logs: from the next one each time."""
        number = logs.lock_old(self._db, self._neighbours.over, before, self._pruned_to)
        if number is None:
            return 0
        self._pruned_to = number
        db.enter(number)
        return self._sweeps.setdefault(number, RetentionSweep()).step(db, before, limit)

    async def give_back(self, limit: int) -> int:  # noqa: ARG002  # the server does that itself
        """Give room back to the disk: the server does."""
        return 0

    async def cut_log(self) -> bool:
        """Empty what is kept beside the tables; the server's own log is beyond a journal's reach."""
        return True

    # The lease, and limits that workers share

    async def renew(self) -> None:
        """Return when the lease was renewed within the last second, or by a slow commit since this call."""
        lease, asked_at = self._lease, self._lease.clock()
        while lease.age > RENEWED_WITHIN and (lease.renewed_at < asked_at or lease.age > lease.seconds / 2):
            await self._commit(lambda _db: None)

    def lease_covers(self, seconds: float) -> bool:
        """Whether the lease lasts for this many more seconds."""
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

    def has_room(self) -> bool:
        """Whether more may be taken in."""
        return not self.full

    def room(self) -> int:
        """The bytes that are free on the disk, which only the server can measure."""
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

    async def _try_to_read(self, query: Callable[[Database], T]) -> T:
        try:
            return await self._read_in(partial(self._snapshots, query))
        except psycopg.Error as error:
            raise translated(error) from error

    async def _why_stalled(self) -> str:
        pid = self._db.info.backend_pid
        try:
            found = await self._try_to_read(lambda db: blocked_by(db.connection, pid))
        except JournalError:
            found = None
        return found or "no session holds a lock; the server waits for its standby, or hangs"

    def _end(self) -> None:
        self._pacing.close()
        super()._end()

    def _forget_uncommitted(self) -> None:
        self._noted = None
        super()._forget_uncommitted()

    def close(self) -> None:
        """Close the connections."""
        self._snapshots.close()
        self._db.close()


def _answered(answers: Mapping[int, Any]) -> tuple[Sequence[str], Mapping[str, str]]:
    """The keys that others carried out, and why they didn't some."""
    given = [answer for answer in answers.values() if answer is not None]
    skipped = {key: why for _, each in given for key, why in each.items()}
    return [key for done, _ in given for key in done], skipped


def _received(db: Db, log: Log, rows: Sequence[InboxRow]) -> Sequence[MatchedReceipt]:
    """Record what rows of reports hold: all at once, as it costs much less."""
    return log.matching.receive(db, [report for row in rows for report in inbox.reports_of(row.body)])


def _forwarded(reports: Sequence[Reported]) -> list[MatchedReceipt]:
    """What reports did that go to another worker; one of a recipient needs nothing but that it is ours."""
    return [MatchedReceipt("noted" if isinstance(each, RecipientReport) else FORWARDED) for each in reports]
