"""One attempt at a provider, from its recorded intent to the step that follows from the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import get_args

from deliveryd import transitions
from deliveryd.channels.base import (
    Accepted,
    AskLater,
    Channel,
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
from deliveryd.delivery.common import Common
from deliveryd.delivery.routing import Routed, is_expired
from deliveryd.delivery.terms import DispatchTerms
from deliveryd.delivery.verdicts import VerdictHandler
from deliveryd.journal.rows import digest_of
from deliveryd.model import Content, Customer, Entry, Transition, channel_of, message_key
from deliveryd.runtime.wakeup import Uses
from deliveryd.states import State
from deliveryd.telemetry.log_events import Event, log

VERDICTS = frozenset(get_args(Verdict))
NO_VALUES: Mapping[str, str] = {}


class AttemptParts:
    """What an attempt is made with, from its intent to its outcome: the adapter, and who judges its verdict.

    A dispatcher that works by new terms has new ones for new attempts. `may_begin`: see `Dispatch`.
    """

    __slots__ = (
        "breaker",
        "channel",
        "customer_fields",
        "may_begin",
        "provider",
        "refusals",
        "use",
        "verdicts",
    )

    def __init__(
        self,
        terms: DispatchTerms,
        verdicts: VerdictHandler,
        use: Uses,
        may_begin: Callable[[], bool] | None,
    ) -> None:
        self.channel = terms.channel
        self.customer_fields = tuple(terms.channel.customer_fields)
        self.verdicts = verdicts
        self.provider = terms.provider
        self.breaker = terms.provider.breaker
        self.refusals = terms.provider.refusals
        self.use = use
        self.may_begin = may_begin

    def values(self, customer: Customer | None) -> Mapping[str, str]:
        """The customer's values that the adapter sends."""
        if customer is None or not self.customer_fields:
            return NO_VALUES
        fields = customer.fields
        return {name: fields[name] for name in self.customer_fields if name in fields}

    def content(self, routed: Routed) -> Content:
        """The content of a message at the provider."""
        return routed.entry.content or Content(routed.rendered, self.values(routed.customer))

    def asks(self, entry: Entry) -> bool:
        """Whether the provider is asked for a message before it is repeated, or held."""
        return entry.doubt and self.channel.lookup_after is not None

    def obstacle(self, entry: Entry, routed: Routed) -> str | None:
        """Why what may have arrived isn't repeated: its content would differ, or can't be written."""
        if entry.content is None:  # known by its digest alone
            return None if entry.digest == digest_of(*self.content(routed)) else transitions.CHANGED
        if self.channel.reaches(routed.customer):
            return None
        return transitions.unfit(self.channel.unreached(routed.customer))

    def hold(self, routed: Routed) -> Transition | None:
        """The step of a message that isn't repeated; None: it is, or its provider is asked for it first."""
        entry = routed.entry
        if self.asks(entry) or (why := self.obstacle(entry, routed)) is None:
            return None
        return self.verdicts.not_repeated(routed.bound, State.READY, why)

    async def settle_by_asking(self, entry: Entry, dispatch: Dispatch) -> Transition | None:
        """Ask whether the provider has a message in doubt; return the step, or None: repeat it."""
        try:
            found = await self.channel.look_up(dispatch)
        except Exception as error:  # as in an attempt
            found = AskLater(f"the adapter failed with {type(error).__name__}")
        if isinstance(found, Taken):
            return self.verdicts.found(entry, found)
        return self.verdicts.ask_later(entry, found) if isinstance(found, AskLater) else None


class Attempts:
    """Attempts at one provider whose intents are recorded."""

    def __init__(self, provider: str, common: Common) -> None:
        self._provider = provider
        self._channel_name = channel_of(provider)
        self._namespace = common.journal.namespace
        self._journal = common.journal
        self._stopped = common.memory.stopped
        self._clock = common.clock
        self._metrics = common.metrics

    async def make(self, entry: Entry, routed: Routed, parts: AttemptParts) -> Transition:
        """Make one attempt, unless the time ran out since its intent; return the step that follows."""
        channel, verdicts = parts.channel, parts.verdicts
        if routed.expires_at is not None and is_expired(routed.expires_at, now := self._clock.now()):
            return verdicts.expired(entry, routed, now)
        key = message_key(self._namespace, entry.id, self._provider, entry.beginning)
        dispatch = Dispatch(
            key, entry, routed.customer, routed.rendered, routed.expires_at, self._clock,
            may_begin=parts.may_begin, size=routed.size,
        )  # fmt: skip
        if (
            entry.doubt
            and parts.asks(entry)
            and (step := await self._ask(entry, routed, parts, dispatch)) is not None
        ):
            return step
        if parts.may_begin is not None and not parts.may_begin():
            return verdicts.unsent(entry, transitions.NOT_OUTLASTED)
        started = time.monotonic()
        try:
            verdict = await channel.send(dispatch)
        except Exception as error:  # one broken adapter must not take the worker with it
            log(
                Event.MESSAGE_IN_DOUBT,
                channel=self._channel_name, provider=self._provider, message_id=entry.id, error=error,
            )  # fmt: skip
            verdict = InDoubt(f"the adapter failed with {type(error).__name__}")
        if type(verdict) not in VERDICTS:  # a package's adapter may not be type-checked
            verdict = InDoubt(f"the adapter answered with a {type(verdict).__name__}, which is no verdict")
        self._metrics.attempted(self._provider, verdict, time.monotonic() - started)
        if isinstance(verdict, Accepted):
            if verdict.lacks_id:
                parts.provider.lacks_id()
                self._metrics.without_id.add_at(self._provider)
            return verdicts.accepted(entry, verdict)
        if isinstance(verdict, Unsent):
            parts.provider.lacks_files(verdict.reason)
            return verdicts.unsent(entry, verdict.reason)
        if isinstance(verdict, Expired):
            return self._after_delay(entry, routed, parts)
        return self._after_failure(entry, routed, parts, verdict)

    async def _ask(
        self, entry: Entry, routed: Routed, parts: AttemptParts, dispatch: Dispatch
    ) -> Transition | None:
        """Ask whether the provider has a message in doubt; return the step, or None: repeat it."""
        provider_id = await self._journal.id_in_doubt(entry.id, entry.key)
        step = await parts.settle_by_asking(entry, dispatch._replace(provider_id=provider_id))
        if step is not None:
            return step
        why = parts.obstacle(entry, routed)
        return None if why is None else parts.verdicts.not_repeated(entry, State.SENDING, why)

    def _after_delay(self, entry: Entry, routed: Routed, parts: AttemptParts) -> Transition:
        """The step of a message of which the adapter sent nothing: it was too late."""
        now = self._clock.now()
        if parts.may_begin is not None and not is_expired(routed.expires_at, now):
            return parts.verdicts.unsent(entry, transitions.NOT_OUTLASTED)
        return parts.verdicts.expired(entry, routed, now)

    def _after_failure(
        self,
        entry: Entry,
        routed: Routed,
        parts: AttemptParts,
        verdict: Refused | Stopped | TryAgain | InDoubt | Misconfigured,
    ) -> Transition:
        if isinstance(verdict, Refused) and verdict.unsent:
            return parts.verdicts.unfit(entry, verdict)
        if isinstance(verdict, InDoubt) or (isinstance(verdict, TryAgain) and verdict.may_have_arrived):
            entry = entry._replace(content=parts.content(routed))
        step = parts.verdicts.decide(entry, routed.customer, verdict)
        if isinstance(verdict, Stopped):
            step = self._with_stop(step, parts.channel, routed.customer, verdict)
        return step if routed.expires_at is None else transitions.no_later_than(step, routed.expires_at + 1)

    def _with_stop(
        self, step: Transition, channel: Channel, customer: Customer | None, verdict: Stopped
    ) -> Transition:
        """The step after a try, with the recipient put on the list of those who can't be reached any more."""
        address = channel.recipient(customer) if customer is not None else None
        if address is None:
            return step
        stop = self._stopped.stop(self._channel_name, address, step.at, verdict.reason)
        return transitions.with_stop(step, stop)
