"""Deliberate breaks of what the service hears, and of what providers' receipts do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from deliveryd import transitions
from deliveryd.delivery.posting import ABOUT_THE_EVENTS
from deliveryd.errors import ServiceRefused, ServiceUnavailable
from deliveryd.journal.base import OutboxRow
from deliveryd.journal.orders import Effect
from deliveryd.journal.rules.receipts import Tried
from deliveryd.journal.sql import operations, receipt_match
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.operations import Operations
from deliveryd.journal.sql.receipt_match import Matching
from deliveryd.model import Entry, Receipt, ReceiptStep, StatusEvent, Transition, channel_of
from deliveryd.service.client import ServiceClient
from deliveryd.states import State

Patch = pytest.MonkeyPatch

# events


def outbox_outside_the_transaction(patch: Patch) -> None:
    """Events are written a little later than the steps that they tell of."""
    change, outbox = Operations.change, Operations.outbox

    def change_only(self: Operations, db: Db, changes: Sequence[Transition]) -> object:
        late: list[StatusEvent] = self.__dict__.setdefault("late", [])
        late += [event for one in changes for event in one.events]
        return change(self, db, [one._replace(events=()) for one in changes])

    def events_too(self: Operations, db: Db, after: int, limit: int) -> list[OutboxRow]:
        late: list[StatusEvent] = self.__dict__.setdefault("late", [])
        self._outbox.put(db, late)
        late.clear()
        return outbox(self, db, after, limit)

    patch.setattr(Operations, "change", change_only)
    patch.setattr(Operations, "outbox", events_too)


def batch_set_aside_instead_of_split(patch: Patch) -> None:
    """One bad event takes the others of its batch with it."""
    report = ServiceClient.report

    async def all_or_nothing(self: ServiceClient, bodies: Sequence[str]) -> None:
        refused: set[str] = self.__dict__.setdefault("refused", set())
        if refused.issuperset(bodies):
            raise ServiceRefused("one of its batch was refused", 400)
        try:
            await report(self, bodies)
        except ServiceRefused as error:
            if error.status in ABOUT_THE_EVENTS - {413}:
                refused.update(bodies)
            raise

    patch.setattr(ServiceClient, "report", all_or_nothing)


def event_lost_on_split(patch: Patch) -> None:
    """Of a batch that is split, the second half is never posted, and taken for accepted."""
    report = ServiceClient.report

    async def half(self: ServiceClient, bodies: Sequence[str]) -> None:
        lost: set[str] = self.__dict__.setdefault("lost", set())
        if lost.issuperset(bodies):
            return
        try:
            await report(self, bodies)
        except ServiceRefused as error:
            if error.status in ABOUT_THE_EVENTS and len(bodies) > 1:
                lost.update(bodies[len(bodies) // 2 :])
            raise

    patch.setattr(ServiceClient, "report", half)


def newest_event_first(patch: Patch) -> None:
    """The outbox is a stack."""
    outbox = Operations.outbox

    def backwards(self: Operations, db: Db, after: int, limit: int) -> list[OutboxRow]:
        return outbox(self, db, after, 1_000_000)[::-1][:limit]

    patch.setattr(Operations, "outbox", backwards)


def outage_taken_for_acceptance(patch: Patch) -> None:
    """Events count as accepted though the service couldn't be reached."""
    report = ServiceClient.report

    async def careless(self: ServiceClient, bodies: Sequence[str]) -> None:
        try:
            await report(self, bodies)
        except ServiceUnavailable:
            return

    patch.setattr(ServiceClient, "report", careless)


def set_aside_never_released(patch: Patch) -> None:
    """A message whose `dequeued` is accepted when it is offered again stays where it is."""
    patch.setattr(operations, "_reopen", lambda *_: [])


def end_without_its_doubt(patch: Patch) -> None:
    """The service hears that a message expired, and nothing of the try that may have arrived."""
    ending = Entry.ending
    patch.setattr(Entry, "ending", lambda self, *reasons: ending(self._replace(doubt=False), *reasons))


# receipts


def receipt_before_match_forgotten(patch: Patch) -> None:
    """A receipt that comes before the outcome of its attempt is never looked at again."""
    patch.setattr(receipt_match, "_receipts", lambda *_: {})


def doubt_left_by_a_receipt_that_names_it(patch: Patch) -> None:
    """A provider says that an attempt in doubt arrived, and nobody listens."""
    patch.setattr(Matching, "_referred", lambda *_: None)


def receipt_with_a_name_taken_for_known(patch: Patch) -> None:
    """A receipt that names its attempt is dropped, since one that named nothing had come before."""
    repeated = receipt_match._is_repeated
    patch.setattr(
        receipt_match,
        "_is_repeated",
        lambda db, receipt, tried, kept: repeated(db, receipt, tried, [True] * len(kept)),
    )


def _deaf_to_receipts_in(patch: Patch, state: State) -> None:
    apply = Matching._apply

    def deaf(self: Matching, db: Db, tried: Tried, receipt: Receipt, *rest: Any) -> Effect | None:
        (number, accepted_at) = db.execute(
            "SELECT state, accepted_at FROM message WHERE id = ?", (tried.message_id,)
        ).fetchone()
        if number == state and accepted_at is None:
            return Effect()
        return apply(self, db, tried, receipt, *rest)

    patch.setattr(Matching, "_apply", deaf)


def receipt_for_what_failed_swallowed(patch: Patch) -> None:
    """A message expired while it was in doubt; then its provider reports that it arrived: untold."""
    _deaf_to_receipts_in(patch, State.FAILED)


def receipt_for_what_waits_ignored(patch: Patch) -> None:
    """After a 503 a receipt proves that the message arrived, and it is sent again all the same."""
    _deaf_to_receipts_in(patch, State.WAITING)


def delivered_after_failed_untold(patch: Patch) -> None:
    """A provider that reported a failure reports the delivery, and the service never hears of it."""
    reported = transitions.reported

    def final(id_: int, before: State, receipt: Receipt, *earlier: str) -> ReceiptStep | None:
        return None if before is State.FAILED else reported(id_, before, receipt, *earlier)

    patch.setattr(transitions, "reported", final)


def delivered_told_on_each_channel(patch: Patch) -> None:
    """Two providers report the delivery of one message, and the service hears of it twice."""
    reported = transitions.reported

    def again(id_: int, before: State, receipt: Receipt, *earlier: str) -> ReceiptStep | None:
        if before is State.DELIVERED and receipt.delivered:
            at = receipt.received_at
            event = StatusEvent(id_, "delivered", at, channel_of(receipt.provider), receipt.reported_at)
            return ReceiptStep(before, before, event)
        return reported(id_, before, receipt, *earlier)

    patch.setattr(transitions, "reported", again)
