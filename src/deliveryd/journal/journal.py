"""The journal: what a worker records, in the logs that it has, and what it reads of them.

A log is worked on like a file. Where a worker has several, each call goes to the log of its messages, or to
all of them: first to those that it took over, which come to an end.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from deliveryd.journal.base import (
    Account,
    AheadOf,
    BudgetUse,
    Counts,
    Doubtful,
    Due,
    FetchPortion,
    FromOthers,
    InCommit,
    Left,
    MatchedReceipt,
    Open,
    Orphans,
    OutboxRow,
    PassedDeadlines,
    Recorded,
    Recovery,
    Shared,
    recorded_in_logs,
)
from deliveryd.journal.group_commit import GroupCommit
from deliveryd.journal.log import Log, LogTerms, log_of
from deliveryd.journal.orders import Decided, Order
from deliveryd.journal.pauses import Pause
from deliveryd.journal.rows import by_the_clock, to_json
from deliveryd.journal.sql import (
    account,
    counting,
    deadlines,
    deletion,
    own_values,
    pauses,
    recovery,
    statements,
    turns,
)
from deliveryd.journal.sql.account import open_work
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.own_values import SignedToken, use_token
from deliveryd.journal.sql.stopped import bound_stops, in_force, stops_reported
from deliveryd.model import Entry, Malformed, QueuedMessage, Reported, SteadyClock, StopChange, Transition
from deliveryd.runtime.threads import Blocking

T = TypeVar("T")


class Journal(GroupCommit[Db]):
    """The durable memory of the line; each kind of store has a subclass.

    One worker works on it at a time, or several if it is shared. What a method records is durable when it
    returns, all of it in one transaction. Messages are taken into the log `own`.
    """

    limits: Shared | None = None
    """What is shared of limits with other workers, who may work on it at the same time; None: none may."""

    common_clock: SteadyClock | None
    """What all who work on it go by, whatever their machines' clocks show; None: a machine's own."""

    namespace: str
    stop_key: bytes
    """The key of the digests of suppressed recipients."""

    reserve: int
    """Bytes of free space on the disk below which nothing more is taken in."""

    last_at: int
    """When an earlier run last wrote, by the clock of that time; 0: never."""

    kept_clock: str
    """What an earlier run, or another worker, gave `retime`; "": nothing."""

    def __init__(self, write: Blocking, own: Log, terms: LogTerms) -> None:
        super().__init__(write)
        self.namespace = terms.namespace
        self._terms = terms
        self._own = own
        self._logs: dict[int, Log] = {own.number: own}
        self._away: dict[int, int] = {}  # of messages in other logs than the own one: the log

    # Which log

    @abstractmethod
    async def _read(self, query: Callable[[Db], T]) -> T:
        """Run a query on all logs, beside the writer."""

    def _each(self, db: Db) -> Iterator[Log]:
        """Work on each log, those that were taken over first."""
        for log in sorted(self._logs.values(), key=lambda each: each is self._own):
            db.enter(log.number)
            yield log

    def _in_own(self, db: Db) -> Log:
        db.enter(self._own.number)
        return self._own

    def _in_log_of(self, db: Db, message_id: int) -> Log:
        log = self._logs.get(self._away.get(message_id, self._own.number), self._own)
        db.enter(log.number)
        return log

    def _by_log(
        self, db: Db, items: Iterable[T], number_of: Callable[[T], int]
    ) -> Iterator[tuple[Log, Sequence[T]]]:
        """Work on the log of each of these, and yield what belongs to it; of logs that it hasn't, nothing."""
        items = list(items)
        if len(self._logs) == 1 and not self._away:
            if items:
                yield self._in_own(db), items
            return
        for _, log, group in self._grouped(db, self._logs, ((number_of(item), item) for item in items)):
            if log is not None:
                yield log, group

    def _grouped(
        self, db: Db, logs: Mapping[int, Log], items: Iterable[tuple[int, T]]
    ) -> Iterator[tuple[int, Log | None, Sequence[T]]]:
        """Yield the items of each log, while it is worked on if it is one of these logs; else it is None."""
        groups: defaultdict[int, list[T]] = defaultdict(list)
        for number, item in items:
            groups[number].append(item)
        for number, group in groups.items():
            log = logs.get(number)
            if log is not None:
                db.enter(number)
            yield number, log, group

    @property
    def is_shared(self) -> bool:
        """Whether other workers may work on it at the same time: then `follow` returns what they did."""
        return self.limits is not None

    @property
    def older_workers(self) -> frozenset[tuple[int, int]]:
        """The number of each worker that began before this one and has a lease, and of its commits.

        What is done once for all workers is done by the oldest.
        """
        return frozenset()

    async def others_at_work(self) -> bool:
        """Whether another worker committed within its lease, and since the clock was last put back."""
        return False

    def _log_of_message(self, message_id: int) -> int:
        return self._away.get(message_id, self._own.number)

    def _have(self, log: Log, entries: Sequence[Entry]) -> Sequence[Entry]:
        """These messages, which the line has from now on, are in this log; return them."""
        if log is not self._own:
            self._away.update((entry.id, log.number) for entry in entries)
        return entries

    # Intake

    async def take(
        self, messages: Sequence[QueuedMessage], malformed: Sequence[Malformed], at: int, lost: int = 0
    ) -> Mapping[int, int]:
        """Record a batch: each new message in TAKEN with its `dequeued` event.

        Returns the ids that are new, each with its generation: 1, or more for one that was forgotten.
        `lost` is how many batches may be lost, besides what is given of them. A malformed element with an id
        is a message too, which has failed: its `dequeued` is followed by an `error`.

        A message id seen before is not recorded again: its `dequeued` and its latest event are put into the
        outbox once more, unless events of it are waiting there anyway. A `dequeued` that was refused is put
        there at once the first time, and then after 1, 2, 4 minutes and so on, up to an hour.
        """

        def record(db: Db) -> Mapping[int, int]:
            log = self._in_own(db)
            account.add_lost(db, lost, at)
            taken = log.operations.take(db, messages, malformed, at)
            if taken.of_others:
                self._hand_over_repeats(db, taken.of_others, at)
            return taken.new

        new = await self._commit(record)
        for id_ in new:
            self._away.pop(id_, None)  # one that was forgotten may have been in another log
        return new

    def _hand_over_repeats(self, db: Db, ids: Collection[int], at: int) -> None:
        """Have messages reported again that the queue handed out once more, and that other logs have."""
        raise NotImplementedError

    # Delivery

    async def change(self, steps: Sequence[Transition], ahead_of: AheadOf | None = None) -> Recorded:
        """Record steps of messages, at most one of each, and apply the receipts that were kept for them.

        A step from READY isn't taken by a message that a receipt proves to be sent: it ends instead. A step
        from SENDING is taken first. Either way the message is among those settled, and whatever its step
        leads to must not be done, above all no intent be carried out.
        An acceptance with a confirmation keeps the variables. A step from READY to SENT restores the accepted
        try; if its provider reported meanwhile that it failed, the message ends with an `error` instead.
        An intent whose claim exceeds a budget or a cap isn't taken (`Counted.refused`).
        An intent keeps the digest of what is sent. An outcome that may have arrived keeps the content, until
        the message ends or its key changes.
        `ahead_of`: see `by_the_clock`; None: the clock is never set.
        Raises IllegalTransition when a message isn't where its step begins; then none of the steps is taken.
        """
        return await self._commit(lambda db: self._change(db, steps, ahead_of))

    def _change(self, db: Db, steps: Sequence[Transition], ahead_of: AheadOf | None) -> Recorded:
        if ahead_of is not None:
            steps = by_the_clock(steps, ahead_of)
        found = [
            log.operations.change(db, _by_its_time(log, mine))
            for log, mine in self._by_log(db, steps, lambda step: self._log_of_message(step.entry.id))
        ]
        return found[0] if len(found) == 1 else recorded_in_logs(found)

    async def budget_uses(self, now: int) -> Sequence[BudgetUse]:
        """What is used of all budgets, by all workers, in periods that aren't over."""
        return await self._read(lambda db: counting.uses_of(db, now))

    async def due(self, now: int, room: Mapping[str, int]) -> Due:
        """Make waiting messages READY whose time has come, the longest due first.

        At most `room[provider]` of each provider; "" stands for those that aren't bound to one. Those that
        wait for something aren't among them.
        """

        def fetch(db: Db) -> Due:
            left = dict(room)
            found = []
            for log in self._each(db):
                due = log.operations.due(db, now, left)
                self._have(log, due.entries)
                for entry in due.entries:
                    left[entry.provider or ""] -= 1
                found.append(due)
            return _all_due(found)

        return await self._commit(fetch)

    async def overdue(self, now: int, limit: int) -> Due:
        """The same for messages that wait for something, at any provider: they have waited long enough.

        Those that are paused have when they expired.
        """

        return await self._make_ready(limit, lambda log, db, left: log.operations.overdue(db, now, left))

    async def resume(self, waits_for: Sequence[str], portions: Sequence[FetchPortion]) -> list[Entry]:
        """Make messages READY that wait for one of these, two at most; their settings ids take turns.

        Of an id, what waits for the first named comes first. What one portion leaves, the others have.
        """
        due = await self._make_ready(
            sum(portion.most for portion in portions),
            lambda log, db, left: Due(log.operations.resume(db, waits_for, portions, left), None),
        )
        return due.entries

    async def have_wait_for_room(self, provider: str, now: int, limit: int) -> int:
        """Let messages that are due at a provider wait for room there; return how many, `limit` at most."""
        return await self._up_to(
            limit, lambda _log, db, left: turns.have_wait_for_room(db, provider, now, left)
        )

    async def _make_ready(self, limit: int, due: Callable[[Log, Db, int], Due]) -> Due:
        """Make messages of all logs READY, `limit` at most."""

        def fetch(db: Db) -> Due:
            left = limit
            found = []
            for log in self._each(db):
                found.append(due(log, db, left))
                left -= len(self._have(log, found[-1].entries))
            return _all_due(found)

        return await self._commit(fetch)

    async def wake(self, waits_for: Collection[str], at: InCommit, limit: int) -> int:
        """Let messages that wait for one of these be due at `at`; return how many, `limit` at most."""
        keys = to_json(list(waits_for))
        return await self._up_to(
            limit, lambda _log, db, left: db.execute(statements.WAKE, (at(), keys, left)).rowcount
        )

    async def release(self, provider: str, at: int, limit: int) -> int:
        """Let messages that are bound to a provider and wait be due at once, bound to none.

        Those in doubt stay, and those that are paused. Returns how many were released, `limit` at most.
        """
        return await self._up_to(limit, lambda _log, db, left: recovery.release(db, provider, at, left))

    async def park(self, waits_for: str, instead_of: Collection[str], limit: int) -> int:
        """Let messages that wait for one of these wait for the end of a pause; return how many.

        They stay due when they were, at the latest.
        """
        return await self._up_to(limit, lambda _log, db, left: pauses.park(db, waits_for, instead_of, left))

    async def _up_to(self, limit: int, change: Callable[[Log, Db, int], int]) -> int:
        """Change messages of all logs, `limit` at most; return how many."""

        def do(db: Db) -> int:
            done = 0
            for log in self._each(db):
                done += change(log, db, limit - done)
            return done

        return await self._commit(do)

    async def end_pauses(self, now: int) -> Sequence[Pause]:
        """Resume what was paused until an instant that has come, and record that; return all other pauses.

        Their messages go on when they are woken (see `wake`). For the oldest worker: see `older_workers`.
        """
        return await self._commit(lambda db: self._in_own(db).orders.end_pauses(db, now))

    async def retime_pauses(self, back: int, now: InCommit) -> Sequence[Pause]:
        """Bring pauses in line with a clock that was put back by this many microseconds (negative: forward).

        Each lasts no longer from `now` on than it was ordered to. Returns all pauses. For the oldest worker.
        """

        def retime(db: Db) -> Sequence[Pause]:
            pauses.retime_pauses(db, back, now())
            return pauses.pauses(db)

        return await self._commit(retime)

    async def largest_cause(self) -> tuple[str, int]:
        """What most of the waiting messages wait for, in an operator's words, and how many they are.

        Those that are paused don't count.
        """
        return await self._read(account.largest_cause)

    # Reporting

    async def outbox(self, after: int, limit: int) -> list[OutboxRow]:
        """The oldest events that aren't accepted or refused yet, behind the one with this `seq`; 0: all."""
        return await self._commit(lambda db: self._outbox(db, after, limit))

    def _outbox(self, db: Db, after: int, limit: int) -> list[OutboxRow]:
        rows: list[OutboxRow] = []
        behind = log_of(after)
        passed = behind not in self._logs or not after
        for log in self._each(db):
            passed = passed or log.number == behind
            if passed and len(rows) < limit:
                start = after if log.number == behind else 0
                rows += log.operations.outbox(db, start, limit - len(rows))
        return rows

    async def accept(self, rows: Sequence[OutboxRow], at: int) -> list[Entry]:
        """Mark events as accepted by the service. A message whose `dequeued` is among them becomes READY.

        So does one in SET_ASIDE, unless an operator dropped it; those are returned.
        Events are settled in the order of the outbox, and those that were settled already change nothing.
        Raises OutOfOrder when one that waits further ahead isn't among them.
        """
        return await self._for_events(rows, lambda log, db, mine: log.operations.accept(db, mine, at))

    async def accept_early(self, rows: Sequence[OutboxRow], at: int) -> list[Entry]:
        """Let messages go on whose `dequeued` the service accepted before it answered about events ahead.

        Does to messages what `accept` does, and returns the same. The events stay in the outbox for `accept`,
        and are known as accepted.
        """
        return await self._for_events(rows, lambda log, db, mine: log.operations.accept_early(db, mine, at))

    async def _for_events(
        self, rows: Sequence[OutboxRow], change: Callable[[Log, Db, Sequence[OutboxRow]], list[Entry]]
    ) -> list[Entry]:
        def do(db: Db) -> list[Entry]:
            found = [self._have(log, change(log, db, mine)) for log, mine in self._of_events(db, rows)]
            return [entry for entries in found for entry in entries]

        return await self._commit(do)

    def _of_events(self, db: Db, rows: Sequence[OutboxRow]) -> Iterator[tuple[Log, Sequence[OutboxRow]]]:
        return self._by_log(db, rows, lambda row: log_of(row.seq))

    async def put_last(self, rows: Sequence[OutboxRow]) -> None:
        """Have events wait behind all others, each with the later ones of its message.

        None of them may be accepted or refused, nor a later one of its message.
        """

        def put(db: Db) -> None:
            for log, mine in self._of_events(db, rows):
                log.operations.put_last(db, mine)

        await self._commit(put)

    async def refuse(self, row: OutboxRow, reason: str, at: int) -> int:
        """Set an event aside. A message whose `dequeued` was refused is set aside with it.

        Returns how often this event was refused by now; 0: it was settled already. Raises OutOfOrder like
        `accept`.
        """

        def refuse(db: Db) -> int:
            return sum(log.operations.refuse(db, row, reason, at) for log, _ in self._of_events(db, [row]))

        return await self._commit(refuse)

    # Receipts

    async def receive(
        self, reports: Sequence[Reported], stops: Sequence[StopChange] = ()
    ) -> list[MatchedReceipt]:
        """Record providers' updates; return what each one did, those about recipients (`stops`) last.

        A reference names a key, and so all tries under it, or the message, and so its latest key on the
        provider.
        "matched": at most it turned one end into another. "settled": its message was held in doubt or had
        failed, and is sent. "recalled": the same for a message that waited. "unmatched": kept until an
        attempt fits it, or until its message, being in the line's hands, takes the next step. "repeated": it
        was known. Of a progress: "told" to the service if the message is sent and the status new, or "noted".
        Of a report that can't be read: "unread", it is kept. Of a SharedReceipt and a RecipientReport that
        names no message: "not_ours", nothing of it is kept.
        Of a recipient: "matched" if it changed the list, else "repeated"; the latest in time counts.
        """
        return await self._try(lambda db: [*self._receive(db, reports), *self._hear(db, stops)])

    def _hear(self, db: Db, stops: Sequence[StopChange]) -> list[MatchedReceipt]:
        """Record what receipts report about recipients."""
        return stops_reported(db, stops)

    def _receive(self, db: Db, reports: Sequence[Reported]) -> list[MatchedReceipt]:
        return self._in_own(db).matching.receive(db, reports)

    async def id_in_doubt(self, message_id: int, key: int) -> str | None:
        """The provider's id of a message, as the latest try in doubt under this key had it in its outcome."""

        def look(db: Db) -> str | None:
            self._in_log_of(db, message_id)
            return recovery.id_in_doubt(db, message_id, key)

        return await self._commit(look)

    async def repeat_is_ordered(self, message_id: int, key: int) -> bool:
        """Whether an operator ordered a message's repeat since its latest try in doubt under this key."""

        def look(db: Db) -> bool:
            self._in_log_of(db, message_id)
            return recovery.repeat_is_ordered(db, message_id, key)

        return await self._commit(look)

    async def stopped(self) -> list[tuple[str, bytes]]:
        """The channel and the digest of each recipient who can't be reached any more."""
        return await self._commit(in_force)

    async def pass_deadlines(
        self, listened: int, at: int, providers: Collection[str], limit: int
    ) -> PassedDeadlines:
        """Add microseconds to the listening time; send messages on whose deadline passed.

        They wait, due `at` once, at no provider and under a new key, with their accepted try kept. At most
        `limit` of each of the providers. If a provider reported on no message since, up to
        `MOST_UNREPORTED` go on; if more are due, its deadlines stand still until it reports, and begin again.
        `providers` are all that report: messages of another one, which was removed, stay sent without a
        deadline, and their variables are emptied.
        """

        def pass_all(db: Db) -> tuple[PassedDeadlines, Sequence[Log]]:
            found, new = [], []
            for log in self._each(db):
                added = 0 if log.is_new else listened
                found.append(
                    deadlines.pass_deadlines(db, added, at, providers, limit, emptied=self._terms.emptied)
                )
                new += [log] if log.is_new else []
            return deadlines.passed_in_logs(found), new

        passed, new = await self._commit(pass_all)
        for log in new:
            log.is_new = False
            log.ahead -= listened
        return passed

    async def count_overdue(self, provider: str, since: int | None, until: int) -> int:
        """Count what a provider accepted between two instants and didn't confirm.

        `since` None: from where an earlier run ended.
        """
        query = partial(account.count_overdue, provider, since, until)
        count = await self._read_own(query)
        if count:
            await self._commit(lambda db: self._keep_counted(db, provider, until))
        return count

    def _keep_counted(self, db: Db, provider: str, until: int) -> None:
        for _ in self._each(db):
            account.keep_counted(db, provider, until)

    async def _read_own(self, query: Callable[[Db], int]) -> int:
        """Run a query on each log that this worker has, beside the writer; return the sum."""
        return await self._read(query)

    async def use_token(self, token: SignedToken, at: int) -> bool:
        """Note what a token was used for; return whether it wasn't used for another report before.

        It is kept until its signature isn't accepted any more.
        """
        return await self._commit(lambda db: use_token(db, token, at))

    # What an earlier run left, and providers that are removed

    async def recover(self, now: int, providers: Collection[str], put_back: int = 0) -> Recovery:  # noqa: ARG002
        """Put in order what an earlier run left; called once, before anything else.

        `put_back`: microseconds by which the clock was put back since then, where logs are taken over whose
        due times weren't moved (negative: forward; 0: it wasn't, or that isn't known).
        Waiting messages whose provider isn't among `providers` lose it; those with an attempt in doubt there
        are held in doubt. Those that waited for settings or a customer are due: nothing is asked for yet.
        Those that are paused stay so.
        """
        return await self._commit(
            lambda db: recovery.left_in_logs(
                [self._recover(db, log, now, providers) for log in self._each(db)]
            )._replace(pauses=pauses.pauses(db), down_since=own_values.down_since(db))
        )

    def _recover(self, db: Db, log: Log, now: int, providers: Collection[str]) -> Recovery:
        found = recovery.recover(db, now, providers, log.matching)
        self._have(log, found.taken)
        self._have(log, [each.entry for each in found.doubtful])
        return found

    async def leave(self, removed: Collection[str], disabled: Collection[str], at: int, limit: int) -> Left:
        """Let messages that wait or are held at these providers be due at once, bound to none.

        Those that wait in doubt are held where the provider is removed, and stay where it is disabled, as do
        those that are held in doubt, and those that are paused. At most `limit` of each kind.
        """
        return await self._commit(
            lambda db: _sum_left([recovery.leave(db, removed, disabled, at, limit) for _ in self._each(db)])
        )

    async def held(self, providers: Collection[str], after: int, limit: int) -> list[Doubtful]:
        """The messages held in doubt at these providers, by their ids, from the one behind `after` on."""

        def look(db: Db) -> list[Doubtful]:
            found: list[Doubtful] = []
            for log in self._each(db):
                here = recovery.held(db, providers, after, limit)
                self._have(log, [each.entry for each in here])
                found += here
            return sorted(found, key=lambda each: each.entry.id)[:limit]

        return await self._commit(look)

    async def orphans(self, provider: str, sent_since: int) -> Orphans:
        """Count what the removal of a provider would leave; of what it accepted, since that instant."""
        return await self._read(partial(recovery.count_orphans, provider, sent_since))

    async def note_down(self, since: Mapping[str, int]) -> None:
        """Keep since when these providers are down."""
        await self._commit(lambda db: own_values.note_down(db, since))

    async def keep_parts(self, parts: Mapping[int, str]) -> None:
        """Keep what is known of the SMS parts of settings ids, until they are paused."""
        await self._commit(lambda db: own_values.keep_parts(db, parts))

    async def kept_parts(self) -> Mapping[int, str]:
        """What was kept of them."""
        return await self._commit(own_values.kept_parts)

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
        """Bring due times in line with a clock that was put back by this many microseconds.

        0: it wasn't. Negative: it was put forward, which moves what waits for its time alone. None lies more
        than `longest` microseconds ahead of `now` then, but of messages that are paused: they are due when
        they expire. Nor was anything reported or accepted later than `now`.
        `record` is kept for the next run, with that or not at all. `pauses_back`: see `retime_pauses`.
        `then` is called before anything else is committed. Returns all pauses.
        """

        is_put_back = max(back, pauses_back or 0) > 0

        def retime(db: Db) -> Sequence[Pause]:
            if record is not None:
                own_values.keep_clock(db, record)
            for log in self._each(db):
                log.operations.retime(db, back, now() + longest)
                if is_put_back:
                    deadlines.bound_instants(db, now())
            if is_put_back:
                bound_stops(db, now())
            if pauses_back is not None:
                pauses.retime_pauses(db, pauses_back, now())
            return pauses.pauses(db)

        return await self._commit(retime, then)

    # What is there

    async def counts(self) -> Counts:
        """The sums of what is open."""
        return await self._commit(lambda db: account.sum_counts([account.counts(db) for _ in self._each(db)]))

    async def open_work(self) -> Open:
        """What hasn't ended, by provider, and the oldest of it; for those who look, some seconds old."""
        return await self._read(open_work)

    async def account(self) -> Account:
        """Where all messages are that were ever taken."""
        return await self._read(account.account)

    # Orders, and what is deleted

    async def decide(self, order: Order, at: int, providers: Collection[str]) -> Decided:
        """Carry out an operator's order, each key for itself; `providers` are the providers that there are.

        What is paused can be paused again: it stays paused since the first time, with the new end and reason.

        What is dropped stays recorded, and so does each decision.
        """
        return await self._try(lambda db: self._in_own(db).orders.carry_out(db, order, at, providers))

    async def prune(self, before: int, limit: int) -> int:
        """Delete ended messages whose end was before that instant and whose events are all accepted.

        A refused event keeps its message until it is retried or dropped. The ids of all are kept, so that a
        repeat is still recognised. Malformed elements that weren't seen since,
        and unmatched receipts from before, are deleted too. At most `limit` of each kind. Returns how many
        messages were deleted.
        """
        return await self._commit(
            lambda db: (
                sum(log.retention.step(db, before, limit) for log in self._each(db))
                + deletion.delete_others(db, before, limit)
            )
        )

    # What each store does by itself

    @abstractmethod
    def has_room(self) -> bool:
        """Whether more may be taken in: what is under way already must find room later as well."""

    @abstractmethod
    def room(self) -> int:
        """The bytes that are free on the disk."""

    @abstractmethod
    def misplaced(self) -> str | None:
        """Why what is recorded would be lost with this process, and what to do; None: it wouldn't be.

        Nothing more may be taken in then. What is under way goes on, in what is open.
        """

    async def renew(self) -> None:
        """Return when this worker's lease was renewed a moment ago, however long that takes.

        What another worker has taken over isn't this one's to take for. One that is alone has no lease.
        """

    async def look_around(self) -> None:
        """Look whether other workers are at work (`older_workers`), before anything is recovered."""

    async def follow(
        self,
        now: int,  # noqa: ARG002
        providers: Collection[str],  # noqa: ARG002
        ahead: Callable[[], int] = lambda: 0,  # noqa: ARG002
    ) -> FromOthers:
        """Return what other workers did since the last call, and record which providers this one has.

        `ahead` returns in the commit how far due times are ahead of the clock (see `LineClock`).
        What workers left whose leases are over is adopted, and treated as a restart would. A worker
        that is alone has no other to follow.
        """
        return FromOthers()

    @abstractmethod
    async def cut_log(self) -> bool:
        """Empty what a journal keeps beside its file, so that nothing deleted is left there.

        False while another connection reads the journal as of an earlier instant: try again later.
        """

    @abstractmethod
    async def give_back(self, limit: int) -> int:
        """Give room that pruning left back to the disk, as far as what comes next won't need it.

        At most `limit` portions, each of some kilobytes. Returns how many it were; 0: there is no more.
        """


def _by_its_time(log: Log, steps: Sequence[Transition]) -> Sequence[Transition]:
    """The steps, with deadlines in the listening time of a log."""
    if not log.ahead:
        return steps
    return [
        step._replace(confirmation=step.confirmation._replace(by=step.confirmation.by + log.ahead))
        if step.confirmation is not None and step.confirmation.by is not None
        else step
        for step in steps
    ]


def _all_due(found: Sequence[Due]) -> Due:
    """What is due in all logs."""
    if len(found) == 1:
        return found[0]
    return Due(
        [entry for each in found for entry in each.entries],
        min((each.next_due for each in found if each.next_due is not None), default=None),
        sum(each.left for each in found),
        sum(each.paused for each in found),
    )


def _sum_left(found: Sequence[Left]) -> Left:
    return Left(
        sum(each.held for each in found),
        sum(each.released for each in found),
        sum(each.resumed for each in found),
    )
