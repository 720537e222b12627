"""One attempt at a provider, from its recorded intent to the step that follows from the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import get_args

from deliveryd import transitions
from deliveryd.channels.base import (
    Accepted,
    AskLater,
    AtDevices,
    Dispatch,
    Expired,
    InDoubt,
    Misconfigured,
    Refused,
    Stopped,
    Taken,
    TryAgain,
    Unsent,
    Verdict,
)
from deliveryd.channels.devices import at_device, devices_of, with_devices
from deliveryd.delivery import devices
from deliveryd.delivery.common import Common
from deliveryd.delivery.message import Delivery, is_expired
from deliveryd.delivery.terms import DispatchTerms
from deliveryd.delivery.verdicts import VerdictHandler
from deliveryd.journal.rows import digest_of
from deliveryd.model import AT_ONCE, Content, Customer, Entry, Outcome, Transition, channel_of, message_key
from deliveryd.runtime.wakeup import Uses
from deliveryd.states import State
from deliveryd.telemetry.log_events import Event, log

VERDICTS = frozenset(get_args(Verdict))

NO_REST = "none of its other devices can be reached any more"
"""Why a message that some devices have isn't repeated."""

DIGEST_DIGITS = 12
"""Hexadecimal digits of a device's digest that a reason shows."""

NO_VALUES: Mapping[str, str] = {}


class Attempts:
    """Attempts at one provider by the same terms: the adapter, and who judges its verdicts.

    A dispatcher that works by new terms makes new attempts by them. `may_begin`: see `Dispatch`.
    """

    def __init__(
        self, terms: DispatchTerms, common: Common, use: Uses, may_begin: Callable[[], bool] | None
    ) -> None:
        self.channel = terms.channel
        self.provider = terms.provider
        self.use = use
        self._verdicts = VerdictHandler(terms, common)
        self._customer_fields = tuple(terms.channel.customer_fields)
        self._devices_field = terms.channel.devices_field
        self._said = tuple(name for name in self._customer_fields if name != self._devices_field)
        self._doubt = terms.doubt
        self._may_begin = may_begin
        self._name = terms.provider.name
        self._channel_name = channel_of(self._name)
        self._namespace = common.journal.namespace
        self._journal = common.journal
        self._intermediate = terms.intermediate
        self._pauses = common.memory.pauses
        self._windows = terms.windows
        self._stopped = common.memory.stopped
        self._destinations = terms.choice.senders[terms.provider.name].destinations
        self._safety = common.memory.safety
        self._limits = common.memory.limits
        self._clock = common.clock
        self._metrics = common.metrics

    # before the intent

    def begin(self, message: Delivery, now: int) -> Transition:
        """The step with which an attempt begins: its intent; or what may have come up since it was queued.

        Its time may have run out, it may be paused, its window may be closed, its recipient may have stopped
        the channel, or what is to be repeated may differ.
        """
        step = message.held_back(self._pauses, now)
        if step is None and self._windows.rules:
            step = message.shut_out(self._windows, now)
        if step is not None:
            return step
        entry = message.entry
        if not entry.doubt and self._has_stopped(message.customer):
            return transitions.deferred(entry, now, AT_ONCE, None)
        if entry.doubt or entry.content is not None:  # the property costs more
            if entry.is_sent_in_part and not self._has_rest(message.customer):
                return transitions.rest_ends(entry, State.READY, now, Outcome("stopped", None, NO_REST))
            if (step := self.hold(message)) is not None:
                return step
            digest = entry.digest
        else:
            digest = self._digest(message)
        if self._limits.any:
            message.claim = self._limits.claim(message, now)
        entry = message.becomes(entry.begun(self._name, digest, now))
        return transitions.intent(entry, now, self._intermediate, message.claim)

    async def held(self, message: Delivery, now: int) -> Transition | None:
        """The step of a message in doubt that `on_in_doubt` holds; None: it has another one.

        One that its provider is asked for is held only after the question, which has an intent.
        """
        entry = message.entry
        if self._asks(entry) or message.held_back(self._pauses, now) is not None:
            return None
        if not await self._is_held(entry) or self.obstacle(message) is not None:
            return None
        return self._verdicts.not_repeated(message.bound, State.READY, transitions.HOLDS)

    def _has_stopped(self, customer: Customer | None) -> bool:
        if self._channel_name not in self._stopped.digests or customer is None:
            return False
        return self._is_stopped(customer)

    def _has_rest(self, customer: Customer | None) -> bool:
        """Whether any device that a message is repeated for can still be reached."""
        field = self._devices_field
        if field is None or customer is None:  # the channel doesn't send to devices any more
            return False
        devices = devices_of(customer, field)
        return not all(self._is_stopped(at_device(customer, field, each)) for each in devices)

    def _is_stopped(self, customer: Customer) -> bool:
        return self._stopped.includes(self._channel_name, self.channel.recipients(customer))

    def _serves(self, entry: Entry, customer: Customer) -> bool:
        """Whether the provider is sent a customer's number; what is in doubt there stays with it."""
        found = self._destinations
        return found is None or entry.doubt or found.refusal_at(customer) is None

    def _digest(self, message: Delivery) -> bytes:
        """The digest of what a message says, to whichever devices: each has a key of its own."""
        return digest_of(message.rendered, self._values(message.customer, self._said))

    def hold(self, message: Delivery) -> Transition | None:
        """The step of a message that isn't repeated; None: it is, or its provider is asked for it first."""
        if self._asks(message.entry) or (why := self.obstacle(message)) is None:
            return None
        return self._verdicts.not_repeated(message.bound, State.READY, why)

    def obstacle(self, message: Delivery) -> str | None:
        """Why what may have arrived isn't repeated: its content would differ, or it isn't to be sent."""
        is_known_by_its_digest = message.entry.content is None
        if is_known_by_its_digest and message.flaw is not None:
            return transitions.unrendered(message.flaw)
        if not self._is_admitted(message):
            return transitions.withheld(self._safety.reason)
        if is_known_by_its_digest:
            return None if message.entry.digest == self._digest(message) else transitions.CHANGED
        if self.channel.reaches(message.customer):
            return None
        return transitions.unfit(self.channel.unreached(message.customer))

    def _is_admitted(self, message: Delivery) -> bool:
        """Whether this installation sends to the customer, at an address that the provider has."""
        safety = self._safety
        return not safety.limits or safety.admits(
            self._name, self.channel, message.entry.customer_id, message.customer
        )

    def _values(self, customer: Customer | None, names: Sequence[str]) -> Mapping[str, str]:
        """The customer's values in these fields, of those that the adapter sends."""
        if customer is None or not names:
            return NO_VALUES
        fields = customer.fields
        return {name: fields[name] for name in names if name in fields}

    def _asks(self, entry: Entry) -> bool:
        """Whether the provider is asked for a message before it is repeated, or held."""
        return entry.doubt and self.channel.lookup_after is not None

    # after the intent

    async def make(self, message: Delivery) -> Transition:
        """Make one attempt, unless the time ran out since its intent; return the step that follows."""
        entry, expires_at, may_begin = message.entry, message.expires_at, self._may_begin
        if expires_at is not None and is_expired(expires_at, now := self._clock.now()):
            return self._verdicts.expired(message, now)
        key = message_key(self._namespace, entry.id, self._name, entry.generation)
        customer = message.customer
        if self._devices_field is not None and customer is not None:
            customer = self._reachable(entry, customer, self._devices_field)
        dispatch = Dispatch(
            key, entry, customer, message.rendered, expires_at, self._clock,
            may_begin, message.size,
        )  # fmt: skip
        if entry.doubt and (step := await self._before_repeat(message, dispatch)) is not None:
            return step
        if may_begin is not None and not may_begin():
            return self._verdicts.unsent(entry, transitions.NOT_OUTLASTED)
        # A reload may have come after the intent: the router decides.
        if self._safety.limits and not self._is_admitted(message):
            return self._verdicts.unsent(entry, self._safety.reason)
        started = time.monotonic()
        try:
            verdict = await self.channel.send(dispatch)
        except Exception as error:  # one broken adapter must not take the worker with it
            log(
                Event.MESSAGE_IN_DOUBT,
                channel=self._channel_name, provider=self._name, message_id=entry.id, error=error,
            )  # fmt: skip
            verdict = InDoubt(f"the adapter failed with {type(error).__name__}")
        seconds = time.monotonic() - started
        if isinstance(verdict, AtDevices):
            return self._after_devices(message, verdict, seconds)
        if type(verdict) not in VERDICTS:  # a package's adapter may not be type-checked
            verdict = InDoubt(f"the adapter answered with a {type(verdict).__name__}, which is no verdict")
        self._metrics.attempted(self._name, verdict, seconds)
        return self._step_after(message, verdict)

    def _reachable(self, entry: Entry, customer: Customer, field: str) -> Customer:
        """The customer without the devices that can't be reached any more, or aren't sent to."""
        safety, has_stops = self._safety, self._channel_name in self._stopped.digests
        if not has_stops and not safety.limits and self._destinations is None:
            return customer
        all_ = devices_of(customer, field)
        at_each = {each: at_device(customer, field, each) for each in all_}
        reached = [each for each, one in at_each.items() if not self._is_stopped(one)]
        if not reached and not safety.limits:
            return customer
        reached = [
            each
            for each in reached
            if safety.admits(self._name, self.channel, entry.customer_id, at_each[each])
            and self._serves(entry, at_each[each])
        ]
        return customer if len(reached) == len(all_) else with_devices(customer, field, reached)

    def _step_after(self, message: Delivery, verdict: Verdict, rest: Content | None = None) -> Transition:
        entry = message.entry
        if isinstance(verdict, Accepted):
            return self._verdicts.accepted(entry, verdict)
        if isinstance(verdict, Unsent):
            self.provider.lacks_files(verdict.reason)
            return self._verdicts.unsent(entry, verdict.reason)
        if isinstance(verdict, Expired | AtDevices):
            return self._after_delay(message)
        return self._after_failure(message, verdict, rest)

    async def _before_repeat(self, message: Delivery, dispatch: Dispatch) -> Transition | None:
        """The step of a message in doubt that isn't repeated; None: it is, by the policy or an order."""
        entry = message.entry
        is_held = await self._is_held(entry)
        if self._asks(entry):
            if (step := await self.settle_by_asking(message, dispatch)) is not None:
                return step
            if (why := self.obstacle(message)) is not None:
                return self._verdicts.not_repeated(entry, State.SENDING, why)
        return self._verdicts.not_repeated(entry, State.SENDING, transitions.HOLDS) if is_held else None

    async def _is_held(self, entry: Entry) -> bool:
        """Whether `on_in_doubt` holds a message in doubt: no operator ordered its repeat."""
        return not self._doubt.repeats and not await self._journal.repeat_is_ordered(entry.id, entry.stay)

    async def settle_by_asking(self, message: Delivery, dispatch: Dispatch) -> Transition | None:
        """Ask whether the provider has a message in doubt; return the step, or None: repeat it."""
        entry = message.entry
        provider_id = await self._journal.id_in_doubt(entry.id, entry.stay)
        try:
            found = await self.channel.look_up(dispatch._replace(provider_id=provider_id))
        except Exception as error:  # as in an attempt
            found = AskLater(f"the adapter failed with {type(error).__name__}")
        if isinstance(found, Taken):
            return self._verdicts.found(entry, found)
        if isinstance(found, AskLater):
            if await self._journal.repeat_is_ordered(entry.id, entry.stay):  # it stays so: no repeat was made
                found = found._replace(reason=f"{transitions.REPEAT_ORDERED}; {found.reason}")
            return message.within_its_time(self._verdicts.ask_later(entry, found))
        return None

    def _after_delay(self, message: Delivery) -> Transition:
        """The step of a message of which the adapter sent nothing: it was too late."""
        now = self._clock.now()
        if self._may_begin is not None and not is_expired(message.expires_at, now):
            return self._verdicts.unsent(message.entry, transitions.NOT_OUTLASTED)
        return self._verdicts.expired(message, now)

    def _after_failure(
        self,
        message: Delivery,
        verdict: Refused | Stopped | TryAgain | InDoubt | Misconfigured,
        rest: Content | None,
    ) -> Transition:
        """The step after a failure; `rest` is what is repeated where that isn't the whole message."""
        entry, customer = message.entry, message.customer
        if isinstance(verdict, Refused) and verdict.unsent:
            return self._verdicts.unfit(entry, verdict)
        if isinstance(verdict, InDoubt) or (isinstance(verdict, TryAgain) and verdict.may_have_arrived):
            entry = entry._replace(content=entry.content or rest or self._content(message))
            message.claim = None
        step = self._verdicts.decide(entry, customer, verdict)
        if isinstance(verdict, Stopped) and customer is not None:
            addresses = self.channel.recipients(customer)
            step = self._with_stops(step, [(address, verdict.reason) for address in addresses])
        return message.within_its_time(step)

    def _after_devices(self, message: Delivery, found: AtDevices, seconds: float) -> Transition:
        """The step after an attempt at several devices: it is accepted when one device accepts it.

        Those that may have it, or may take it later, are repeated alone.
        """
        for each in found.each:
            self._metrics.attempted(self._name, each.verdict, seconds)
        if not is_expired(message.expires_at, self._clock.now()):
            found = devices.put_off(found)
        if found.left_out:
            self.provider.left_out(found.left_out)
        reason = devices.summary(found, self._device_digest)
        accepted, rest = devices.first_accepted(found), self._content_for(message, devices.to_repeat(found))
        if accepted is not None:
            step = self._verdicts.accepted(message.entry, accepted, reason)
            if rest is not None:
                asked = devices.pause_asked(found)
                step = message.within_its_time(self._verdicts.in_part(step, rest, asked))
        elif rest is None and message.entry.is_sent_in_part:
            step = self._verdicts.rest_refused(message.entry, devices.common(found, reason))
        else:
            if rest is not None and message.entry.content is not None:
                message.becomes(message.entry._replace(content=rest))
            verdict = devices.common(found, reason)
            if message.entry.is_sent_in_part:
                verdict = devices.of_rest(verdict)
            step = self._step_after(message, verdict, rest)
        return self._with_stops(step, devices.unreachable(found))

    def _device_digest(self, address: str) -> str:
        return self._stopped.digest(self._channel_name, address).hex()[:DIGEST_DIGITS]

    def _content_for(self, message: Delivery, rest: Sequence[str]) -> Content | None:
        """What is sent again, to these devices alone; None: to none."""
        return self._content(message, rest) if rest and self._devices_field is not None else None

    def _content(self, message: Delivery, rest: Sequence[str] | None = None) -> Content:
        """What is kept for a repeat; of a message for devices always with a list (see `DevicesChannel`)."""
        customer, field = message.customer, self._devices_field
        if customer is not None and field is not None:
            customer = with_devices(customer, field, devices_of(customer, field) if rest is None else rest)
        return Content(message.rendered, self._values(customer, self._customer_fields), message.expires_at)

    def _with_stops(self, step: Transition, recipients: Iterable[tuple[str, str]]) -> Transition:
        """The step after a try, with recipients put on the list of those who can't be reached any more."""
        stops = [
            self._stopped.stop(self._channel_name, address, step.at, reason) for address, reason in recipients
        ]
        return transitions.with_stops(step, stops) if stops else step
