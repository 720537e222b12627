"""Deliberate breaks of the worker, each a promise that it no longer keeps: what the oracle has to see."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest
from anyio.abc import TaskGroup

from deliveryd import lanes, routing
from deliveryd.errors import ServiceRefused, ServiceUnavailable
from deliveryd.journal import matching, upkeep
from deliveryd.journal.base import Change, OutboxRow, Recovery
from deliveryd.journal.decisions import Decisions
from deliveryd.journal.matching import Matching
from deliveryd.journal.operations import Operations
from deliveryd.lanes import Lane
from deliveryd.model import Customer, Entry, Malformed, QueuedMessage, StatusEvent
from deliveryd.pipeline import Pipeline
from deliveryd.rendering.content import CompiledBlock, CompiledSettings
from deliveryd.reporting import Reporting
from deliveryd.routing import Routed, Router, Unsendable

Patch = pytest.MonkeyPatch


def commit_after_send_instead_of_before(patch: Patch) -> None:
    """A crash in between leaves no trace of the attempt."""

    async def begin(self: Lane, batch: Sequence[Routed], workers: TaskGroup) -> None:
        self._under_way += len(batch)
        now = self._clock.now()
        in_time = [one for one in batch if not routing.is_expired(one.expires_at, now)]
        begun = [(one.entry.begun(self.name), one) for one in in_time]
        late = [one for one in batch if routing.is_expired(one.expires_at, now)]
        self._begun.extend(begun)
        for _ in begun:
            workers.start_soon(self._work)
        lapsed = [lanes._lapse(one, now) for one in late]
        await self._record([self._intent(entry, now) for entry, _ in begun] + lapsed)
        self._under_way -= len(late)

    patch.setattr(Lane, "_begin", begin)


def expiry_checked_once(patch: Patch) -> None:
    """Between routing and sending nobody looks at the clock."""
    patch.setattr(lanes, "is_expired", lambda _expires_at, _now: False)


def outbox_outside_the_transaction(patch: Patch) -> None:
    """Events are written a little later than the steps that they tell of."""
    change, outbox = Operations.change, Operations.outbox

    def change_only(self: Operations, db: sqlite3.Connection, changes: Sequence[Change]) -> set[int]:
        late: list[StatusEvent] = self.__dict__.setdefault("late", [])
        late += [event for one in changes for event in one.events]
        return change(self, db, [one._replace(events=()) for one in changes])

    def events_too(self: Operations, db: sqlite3.Connection, after: int, limit: int) -> list[OutboxRow]:
        late: list[StatusEvent] = self.__dict__.setdefault("late", [])
        self._outbox.put(db, late)
        late.clear()
        return outbox(self, db, after, limit)

    patch.setattr(Operations, "change", change_only)
    patch.setattr(Operations, "outbox", events_too)


def batch_set_aside_instead_of_split(patch: Patch) -> None:
    """One bad event takes the others of its batch with it."""
    post = Reporting._post

    async def all_or_nothing(self: Reporting, rows: Sequence[OutboxRow]) -> None:
        try:
            await self._sink.report([row.body for row in rows])
        except ServiceRefused as error:
            if error.status not in {400, 413, 422}:
                raise
            for row in rows:
                await self._set_aside(row, str(error))
        else:
            await post(self, rows)

    patch.setattr(Reporting, "_post", all_or_nothing)


def event_lost_on_split(patch: Patch) -> None:
    """Of a batch that is split, the second half is never posted, and taken for accepted."""
    post = Reporting._post

    async def half(self: Reporting, rows: Sequence[OutboxRow]) -> None:
        try:
            await self._sink.report([row.body for row in rows])
        except ServiceRefused as error:
            middle = len(rows) // 2
            if error.status not in {400, 409, 413, 422}:
                raise
            if not middle:
                await self._set_aside(rows[0], str(error))
                return
            await post(self, rows[:middle])
            rows = rows[middle:]
        await self._journal.accept(rows, self._clock.now())
        self._on_accepted(rows)

    patch.setattr(Reporting, "_post", half)


def receipt_before_match_forgotten(patch: Patch) -> None:
    """A receipt that comes before the outcome of its attempt is never looked at again."""
    patch.setattr(Matching, "match_early", lambda *_: set())


def dequeued_not_awaited(patch: Patch) -> None:
    """A message is sent as soon as it is in the journal."""
    take = Operations.take

    def take_as_ready(
        self: Operations,
        db: sqlite3.Connection,
        messages: Sequence[QueuedMessage],
        malformed: Sequence[Malformed],
        at: int,
    ) -> set[int]:
        new = take(self, db, messages, malformed, at)
        db.execute("UPDATE message SET state = 2 WHERE state = 1")
        return new

    def taken(self: Pipeline, entries: Sequence[Entry]) -> None:
        self._places.hold(entry.id for entry in entries)
        self._make_ready(list(entries))
        self.reporting.expect_now(len(entries))

    patch.setattr(Operations, "take", take_as_ready)
    patch.setattr(Pipeline, "taken", taken)


def new_key_for_a_repeat(patch: Patch) -> None:
    """An attempt in doubt is repeated under another key."""

    patch.setattr(Entry, "begun", lambda self: self._replace(attempts=self.attempts + 1))


def doubt_forgotten_after_a_busy_answer(patch: Patch) -> None:
    """The repeat of an attempt in doubt meets a 503, and the doubt about the first one is forgotten."""
    decide = Lane.decide
    patch.setattr(
        Lane, "decide", lambda self, entry, verdict: decide(self, entry._replace(doubt=None), verdict)
    )


def _recovering(patch: Patch, recover: Callable[..., Recovery]) -> None:
    patch.setattr(upkeep, "recover", recover)


def doubt_dropped_on_recovery(patch: Patch) -> None:
    """What was being sent when the worker died is taken for never sent."""
    recover = upkeep.recover

    def forgetful(db: sqlite3.Connection, namespace: str, now: int, lanes: Collection[str]) -> Recovery:
        db.execute("UPDATE message SET state = 3, due_at = ?, doubt = NULL WHERE state = 4", (now,))
        return recover(db, namespace, now, lanes)

    _recovering(patch, forgetful)


def waiting_forgotten_on_recovery(patch: Patch) -> None:
    """Nobody looks after a restart for what waits for its next try."""
    recover = upkeep.recover
    _recovering(patch, lambda *args: recover(*args)._replace(waiting=0))


def ready_lost_on_recovery(patch: Patch) -> None:
    """What was in the line's hands when the worker died stays there for ever."""
    recover = upkeep.recover

    def blind(db: sqlite3.Connection, namespace: str, now: int, lanes: Collection[str]) -> Recovery:
        ready = db.execute("SELECT id FROM message WHERE state = 2").fetchall()
        left = recover(db, namespace, now, lanes)
        db.executemany("UPDATE message SET state = 2, due_at = NULL WHERE id = ?", ready)
        return left._replace(waiting=left.waiting - len(ready))

    _recovering(patch, blind)


def repeats_sent_again(patch: Patch) -> None:
    """A message id that the queue hands out again is taken for new."""
    take = Operations.take

    def take_again(
        self: Operations,
        db: sqlite3.Connection,
        messages: Sequence[QueuedMessage],
        malformed: Sequence[Malformed],
        at: int,
    ) -> set[int]:
        new = take(self, db, messages, malformed, at)
        for message in messages:
            if (
                message.id not in new
                and db.execute(
                    "UPDATE message SET state = 1, ended_at = NULL, attempts = 50 WHERE id = ? AND state = 6",
                    (message.id,),
                ).rowcount
            ):
                new.add(message.id)
        return new

    patch.setattr(Operations, "take", take_again)


def fallback_after_doubt(patch: Patch) -> None:
    """Another channel takes over where the outcome of the first is unknown."""
    route = Router.route

    def elsewhere(
        self: Router, entry: Entry, settings: CompiledSettings, customer: Customer | None, now: int
    ) -> Routed | Unsendable:
        if entry.doubt is not None and entry.lane is not None:
            other = entry._replace(doubt=None, spent=(*entry.spent, (entry.lane, "in doubt")))
            found = route(self, other, settings, customer, now)
            if isinstance(found, Routed):
                return found
        return route(self, entry, settings, customer, now)

    patch.setattr(Router, "route", elsewhere)


def doubt_left_by_a_receipt_that_names_it(patch: Patch) -> None:
    """A provider says that an attempt in doubt arrived, and nobody listens."""
    patch.setattr(Matching, "_referred", lambda *_: None)


def receipt_with_a_name_taken_for_known(patch: Patch) -> None:
    """A receipt that names its attempt is dropped, since one that named nothing had come before."""
    repeated = matching._is_repeated
    patch.setattr(
        matching,
        "_is_repeated",
        lambda db, receipt, _, kept: repeated(db, receipt._replace(reference=None), None, kept),
    )


def ordered_resend_under_a_new_key(patch: Patch) -> None:
    """An operator has an attempt in doubt repeated, and it goes out as another one."""
    move = Decisions._move
    patch.setattr(
        Decisions,
        "_move",
        lambda self, case, change: move(self, case, change._replace(entry=change.entry._replace(doubt=None))),
    )


def taken_with_a_full_disk(patch: Patch) -> None:
    """Nobody looks whether there is room for what is taken."""
    patch.setattr(Pipeline, "may_take", lambda _: True)


def sent_half_filled(patch: Patch) -> None:
    """Placeholders without a value are sent as they are."""
    patch.setattr(CompiledBlock, "missing", lambda *_: ())


def newest_event_first(patch: Patch) -> None:
    """The outbox is a stack."""
    outbox = Operations.outbox

    def backwards(self: Operations, db: sqlite3.Connection, after: int, limit: int) -> list[OutboxRow]:
        return outbox(self, db, after, 1_000_000)[::-1][:limit]

    patch.setattr(Operations, "outbox", backwards)


def outage_taken_for_acceptance(patch: Patch) -> None:
    """Events count as accepted though the service couldn't be reached."""
    post = Reporting._post

    async def careless(self: Reporting, rows: Sequence[OutboxRow]) -> None:
        try:
            await post(self, rows)
        except ServiceUnavailable:
            await self._journal.accept(rows, self._clock.now())
            self._on_accepted(rows)

    patch.setattr(Reporting, "_post", careless)


MUTATIONS: Mapping[str, Callable[[Any], None]] = {
    mutation.__name__: mutation
    for mutation in (
        commit_after_send_instead_of_before,
        expiry_checked_once,
        outbox_outside_the_transaction,
        batch_set_aside_instead_of_split,
        event_lost_on_split,
        receipt_before_match_forgotten,
        dequeued_not_awaited,
        new_key_for_a_repeat,
        doubt_forgotten_after_a_busy_answer,
        doubt_dropped_on_recovery,
        waiting_forgotten_on_recovery,
        ready_lost_on_recovery,
        repeats_sent_again,
        fallback_after_doubt,
        doubt_left_by_a_receipt_that_names_it,
        receipt_with_a_name_taken_for_known,
        ordered_resend_under_a_new_key,
        taken_with_a_full_disk,
        sent_half_filled,
        newest_event_first,
        outage_taken_for_acceptance,
    )
}
