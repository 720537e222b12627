"""Deliberate breaks of receipt deadlines, of recipients who stopped a channel, and of asking providers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from deliveryd.channels.base import Found, NotTaken, Taken
from deliveryd.channels.http import adapter, asking
from deliveryd.channels.http.ask_options import LookupOptions
from deliveryd.delivery import availability
from deliveryd.delivery.attempts import Attempts
from deliveryd.delivery.listening import Awaited
from deliveryd.delivery.recorder import Recorder
from deliveryd.delivery.stopped import StoppedRecipients
from deliveryd.http.wire import WireResponse
from deliveryd.journal.rules.receipts import Matched
from deliveryd.journal.sql import deadlines
from deliveryd.journal.sql.receipt_match import Matching
from deliveryd.model import SECOND, Confirmation, Entry, Reported, StopChange, Transition, WallClock
from deliveryd.worker import wiring

Patch = pytest.MonkeyPatch

# deadlines


def deadlines_never_pass(patch: Patch) -> None:
    """What nobody confirms stays where it is."""
    patch.setattr(deadlines, "_pass_of", lambda *_: deadlines.Passed(0, False, True, None))


def deadlines_pass_at_once(patch: Patch) -> None:
    """A message goes on as soon as it was sent."""
    confirmation = Awaited.confirmation

    def at_once(self: Awaited) -> Confirmation:
        found = confirmation(self)
        return found if found.by is None else found._replace(by=self._time.instant_in(0))

    patch.setattr(Awaited, "confirmation", at_once)


def delivery_after_its_deadline_unmatched(patch: Patch) -> None:
    """A provider reports the delivery of a message that went on, and nothing is known of it."""
    nothing = "SELECT NULL, NULL WHERE FALSE AND ? = ?"
    patch.setattr(deadlines, "ACCEPTED_BEFORE", nothing)


def unconfirmed_ends_in_error(patch: Patch) -> None:
    """A message that no later channel takes has failed, although it was sent."""
    patch.setattr(Entry, "failed_since_sent", True)


def reported_failure_ends_in_error(patch: Patch) -> None:
    """What a provider reports as failed doesn't go on to the next channel."""
    confirm = Matching._confirm
    patch.setattr(
        Matching,
        "_confirm",
        lambda self, db, message, *rest: confirm(self, db, message._replace(failed_next=0), *rest),
    )


def error_names_the_last_only(patch: Patch) -> None:
    """The service doesn't hear of the providers that had the message before."""
    patch.setattr(Matched, "failed_before", lambda *_: iter(()))


def clock_put_forward_makes_unavailable(patch: Patch) -> None:
    """For how long a channel is down is measured by a clock that somebody may set."""
    clock = SimpleNamespace(current_time=lambda: WallClock().now() / SECOND, sleep=anyio.sleep)
    patch.setattr(availability, "anyio", clock)


# recipients


def stop_by_an_answer_forgotten(patch: Patch) -> None:
    """The provider says that somebody opted out, and the next message to them is sent there."""
    patch.setattr(Attempts, "_with_stops", lambda _self, step, *_: step)


def stop_by_a_report_forgotten(patch: Patch) -> None:
    """The provider reports it, is answered 200, and nothing is recorded."""
    receive = Recorder.receive

    async def deaf(self: Recorder, reports: Sequence[Reported], opt_outs: Sequence[Any] = ()) -> Any:
        return await receive(self, reports)

    patch.setattr(Recorder, "receive", deaf)


def stops_forgotten_at_a_restart(patch: Patch) -> None:
    """The list in the journal isn't read."""
    patch.setattr(StoppedRecipients, "load", lambda *_: None)


def lift_unheeded(patch: Patch) -> None:
    """Who resumed a channel is sent nothing there until the next start."""
    apply = StoppedRecipients.apply

    def only_stops(self: StoppedRecipients, change: StopChange) -> None:
        if change.stopped:
            apply(self, change)

    patch.setattr(StoppedRecipients, "apply", only_stops)


def stop_of_one_for_all(patch: Patch) -> None:
    """As soon as anybody stopped a channel nobody is sent anything there."""
    patch.setattr(StoppedRecipients, "includes", lambda self, channel, _address: channel in self.digests)


# asking


def repeated_without_asking(patch: Patch) -> None:
    """A provider could be asked whether it has a message in doubt, and isn't."""

    async def unasked(*_: object) -> Transition | None:
        return None

    patch.setattr(Attempts, "settle_by_asking", unasked)


def found_and_repeated(patch: Patch) -> None:
    """The provider says that it has the message, and is sent it again."""
    read = asking.read_lookup

    def never_taken(options: LookupOptions, answer: WireResponse) -> Found:
        found = read(options, answer)
        return NotTaken() if isinstance(found, Taken) else found

    patch.setattr(adapter, "read_lookup", never_taken)


def asked_too_early(patch: Patch) -> None:
    """The provider is asked before its listings can have the message."""
    policy = wiring.policy_of
    patch.setattr(wiring, "policy_of", lambda provider: policy(provider)._replace(lookup_after=0.0))
