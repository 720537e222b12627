"""Deliberate breaks of how messages are taken, sent and repeated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from deliveryd import transitions
from deliveryd.channels.base import Attempted, Dispatch
from deliveryd.channels.http import answers
from deliveryd.delivery import attempts, dispatch_queue, preparation, recorder, settings, settings_requests
from deliveryd.delivery.attempts import Attempts
from deliveryd.delivery.in_flight import InFlightLimit
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.pauses import Pauses
from deliveryd.delivery.recorder import Recorder
from deliveryd.delivery.routing import Route, Router
from deliveryd.delivery.settings_requests import RequestSlots
from deliveryd.delivery.verdicts import VerdictHandler
from deliveryd.journal import journal
from deliveryd.journal.base import Recovery
from deliveryd.journal.sql import account, recovery
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.operations import Operations, TakenBatch
from deliveryd.model import Customer, Entry, Transition, WallClock
from deliveryd.network import deadline
from deliveryd.rendering import template
from deliveryd.rendering.content import CompiledBlock
from deliveryd.service import caller
from deliveryd.service.batch import Batch
from deliveryd.service.client import ServiceClient
from deliveryd.states import State

Patch = pytest.MonkeyPatch

# the queue


def queue_asked_again_within_a_call(patch: Patch) -> None:
    """A request for messages that left and brought no answer is repeated within the call."""
    patch.setattr(caller, "_never_left", lambda _error: True)


def part_of_a_batch_thrown_away(patch: Patch) -> None:
    """Of an answer that breaks off nothing is kept."""
    take = ServiceClient.take

    async def all_or_nothing(self: ServiceClient, count: int) -> Batch:
        batch = await take(self, count)
        return batch if batch.fault is None else Batch([], [], batch.fault)

    patch.setattr(ServiceClient, "take", all_or_nothing)


def lost_batch_untold(patch: Patch) -> None:
    """A batch may be lost, and the journal doesn't say so."""
    patch.setattr(account, "add_lost", lambda *_: None)


def nameless_elements_in_the_way(patch: Patch) -> None:
    """No more is asked for, though elements that can't be reported come again and again."""
    patch.setattr(Batch, "nameless", 0)


def taken_without_a_place(patch: Patch) -> None:
    """More is asked for while the line has as many messages as it may."""
    patch.setattr(InFlightLimit, "free_to_take", property(lambda self: self.most))


def malformed_without_dequeued(patch: Patch) -> None:
    """An element that is no message gets its error only, though a queue may wait for its `dequeued`."""
    set_aside = Operations._set_aside

    def only_errors(self: Operations, db: Db, *rest: Any) -> int:
        failed = set_aside(self, db, *rest)
        db.execute(
            "DELETE FROM event WHERE status = 'dequeued'"
            " AND message_id IN (SELECT id FROM message WHERE settings_id IS NULL)"
        )
        return failed

    patch.setattr(Operations, "_set_aside", only_errors)


def repeats_sent_again(patch: Patch) -> None:
    """A message id that the queue hands out again is taken for new."""
    take = Operations.take

    def take_again(self: Operations, db: Db, *batch: Any) -> TakenBatch:
        taken = take(self, db, *batch)
        new = dict(taken.new)
        for message in batch[0]:
            if (
                message.id not in new
                and db.execute(
                    "UPDATE message SET state = ?, ended_at = NULL, stay = 50, generation = 50,"
                    " variables = coalesce(variables, '{}')"
                    " WHERE id = ? AND state = ?",
                    (State.TAKEN, message.id, State.SENT),
                ).rowcount
            ):
                new[message.id] = 50
        return taken._replace(new=new)

    patch.setattr(Operations, "take", take_again)


def dequeued_not_awaited(patch: Patch) -> None:
    """A message is sent as soon as it is in the journal."""
    record_batch, take = Operations.take, Recorder.take

    def record_as_ready(self: Operations, db: Db, *batch: Any) -> TakenBatch:
        taken = record_batch(self, db, *batch)
        db.execute("UPDATE message SET state = ? WHERE state = ?", (State.READY, State.TAKEN))
        return taken

    async def take_as_ready(self: Recorder, *batch: Any) -> Sequence[Entry]:
        entries = await take(self, *batch)
        for entry in entries:
            del self._awaiting[entry.id]
        self._memory.ready.add(entries)
        return entries

    patch.setattr(Operations, "take", record_as_ready)
    patch.setattr(Recorder, "take", take_as_ready)


def taken_with_a_full_disk(patch: Patch) -> None:
    """Nobody looks whether there is room for what is taken."""
    patch.setattr(Recorder, "obstacle", lambda _: None)


# intents, keys and content


def commit_after_send_instead_of_before(patch: Patch) -> None:
    """Intents are written together with the outcomes: a crash in between leaves no trace of the attempt."""
    record = Recorder.record

    async def record_late(self: Recorder, changes: Sequence[Transition]) -> Collection[int]:
        intents: list[Transition] = self.__dict__.setdefault("intents", [])
        rest = [change for change in changes if change.after is not State.SENDING]
        if rest and intents:
            late, intents[:] = tuple(intents), []
            await record(self, late)
        intents += [change for change in changes if change.after is State.SENDING]
        return await record(self, rest)

    patch.setattr(Recorder, "record", record_late)


def _begun_anew(patch: Patch, when: Callable[[Entry], bool]) -> None:
    begun = Entry.begun

    def anew(self: Entry, provider: str, digest: bytes, at: int) -> Entry:
        entry = (
            self._replace(stay=self.stay + 1, stay_tries=0, generation=self.generation + 1)
            if when(self)
            else self
        )
        return begun(entry, provider, digest, at)

    patch.setattr(Entry, "begun", anew)


def new_key_for_a_repeat(patch: Patch) -> None:
    """An attempt in doubt is repeated under another key."""
    _begun_anew(patch, lambda entry: entry.doubt)


def new_key_after_a_503(patch: Patch) -> None:
    """What wasn't in doubt, as the provider said, is tried again under another key."""
    _begun_anew(patch, lambda entry: entry.stay_tries > 0 and not entry.doubt)


def failed_provider_taken_for_one_that_refused(patch: Patch) -> None:
    """After a 500 or a 408 another channel takes the message, as after a 503."""
    patch.setattr(answers, "_NOT_TAKEN", answers._NOT_TAKEN | {500, 408})


def content_rendered_anew_on_a_repeat(patch: Patch) -> None:
    """What may have arrived is repeated with the customer's new name."""
    route = Router.route

    def anew(self: Router, message: Delivery, now: int) -> Route | None:
        message.entry = message.entry._replace(content=None)
        return route(self, message, now)

    patch.setattr(Router, "route", anew)
    patch.setattr(Attempts, "obstacle", lambda *_: None)


def other_words_after_a_crash(patch: Patch) -> None:
    """An intent without an outcome is repeated though it says something else by now."""
    patch.setattr(Attempts, "obstacle", lambda *_: None)


def doubt_forgotten_after_a_busy_answer(patch: Patch) -> None:
    """The repeat of an attempt in doubt meets a 503, and the doubt about the first one is forgotten."""
    decide = VerdictHandler.decide

    def forgetful(
        self: VerdictHandler, entry: Entry, customer: Customer | None, verdict: Attempted
    ) -> Transition:
        return decide(self, entry._replace(doubt=False), customer, verdict)

    patch.setattr(VerdictHandler, "decide", forgetful)


def fallback_after_doubt(patch: Patch) -> None:
    """Another channel takes over where the outcome of the first is unknown."""
    route = Router.route

    def elsewhere(self: Router, message: Delivery, now: int) -> Route | None:
        if message.entry.doubt and message.entry.provider is not None:
            other = Delivery(message.entry.given_up("in doubt"), message.settings)
            other.customer, other.looked_up = message.customer, message.looked_up
            found = route(self, other, now)
            if found is None or found is other:
                return found
        return route(self, message, now)

    patch.setattr(Router, "route", elsewhere)


def ordered_resend_under_a_new_key(patch: Patch) -> None:
    """An operator has an attempt in doubt repeated, and it goes out as another one."""
    resend = transitions.ordered_resend
    patch.setattr(transitions, "ordered_resend", lambda entry, at: resend(entry.anew(), at))


# recovery


def _recovering(patch: Patch, recover: Callable[..., Recovery]) -> None:
    patch.setattr(recovery, "recover", recover)


def doubt_dropped_on_recovery(patch: Patch) -> None:
    """What was being sent when the worker died is taken for never sent."""
    recover = recovery.recover

    def forgetful(db: Db, now: int, *rest: Any) -> Recovery:
        db.execute("UPDATE message SET state = 3, due_at = ?, doubt = 0 WHERE state = 4", (now,))
        return recover(db, now, *rest)

    _recovering(patch, forgetful)


def waiting_forgotten_on_recovery(patch: Patch) -> None:
    """Nobody looks after a restart for what waits for its next try."""
    recover = recovery.recover
    _recovering(patch, lambda *args: recover(*args)._replace(waiting=0))


def ready_lost_on_recovery(patch: Patch) -> None:
    """What was in progress when the worker died stays there for ever."""
    recover = recovery.recover

    def blind(db: Db, *args: Any) -> Recovery:
        ready = db.execute("SELECT id FROM message WHERE state = 2").fetchall()
        left = recover(db, *args)
        db.executemany("UPDATE message SET state = 2, due_at = NULL WHERE id = ?", ready)
        return left._replace(waiting=left.waiting - len(ready))

    _recovering(patch, blind)


# expiry, clocks and what is said


def expiry_checked_once(patch: Patch) -> None:
    """Between routing and sending nobody looks at the clock."""
    held_back = Delivery.held_back

    def only_before(self: Delivery, pauses: Pauses, now: int) -> Transition | None:
        return held_back(self, pauses, 0 if self.provider else now)

    patch.setattr(Delivery, "held_back", only_before)
    for module in (attempts, dispatch_queue):
        patch.setattr(module, "is_expired", lambda _expires_at, _now: False)
    expiry_checked_only_at_the_intent(patch)


def expiry_checked_only_at_the_intent(patch: Patch) -> None:
    """The time may run out while a connection is made."""
    patch.setattr(Dispatch, "check_time", lambda _: None)


def clock_frozen_after_a_correction(patch: Patch) -> None:
    """The time of day never runs backwards, though the clock was put right."""
    now = WallClock.now

    def never_back(self: WallClock) -> int:
        latest = self.__dict__["latest"] = max(self.__dict__.get("latest", 0), now(self))
        return int(latest)

    patch.setattr(WallClock, "now", never_back)


def due_times_left_after_a_correction(patch: Patch) -> None:
    """What was to wait for a second, by a clock that was an hour ahead, waits for an hour."""
    patch.setattr(Operations, "retime", lambda *_: None)


def due_times_moved_that_were_right(patch: Patch) -> None:
    """What is recorded between a step back and the moving of due times is due at once."""
    for module in (journal, recorder):
        patch.setattr(module, "by_the_clock", lambda steps, *_: steps)


def answers_after_a_suspension_unread(patch: Patch) -> None:
    """A process that wakes after a deadline doesn't look at what lies in its sockets."""
    patch.setattr(deadline, "LAST_TURNS", 0)
    patch.setattr(deadline, "LATE_TURNS", 0)


def sent_half_filled(patch: Patch) -> None:
    """Placeholders without a value are sent as they are."""
    patch.setattr(CompiledBlock, "missing", lambda *_: ())


def names_with_blanks_left_alone(patch: Patch) -> None:
    """`{ x }` reaches the customer as it is written."""
    patch.setattr(template, "_cleaned", lambda written: written)


# isolation


def place_held_while_settings_hang(patch: Patch) -> None:
    """Who waits for an answer keeps its place."""
    for module in (settings, preparation):
        patch.setattr(module, "PROMPT", 1e6)


def hanging_ids_take_all_slots(patch: Patch) -> None:
    """No request for settings gives way, however long it hangs."""
    patch.setattr(settings_requests, "GIVES_WAY", 1e6)
    patch.setattr(RequestSlots, "_slow", lambda *_: 0)
