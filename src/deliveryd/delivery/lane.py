"""What a dispatcher works by, and what its attempts are made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import anyio

from deliveryd import transitions
from deliveryd.channels.base import AskLater, Channel, Dispatch, Taken
from deliveryd.delivery.choice import Choice
from deliveryd.delivery.doubt import DoubtPolicy
from deliveryd.delivery.listening import Awaited
from deliveryd.delivery.policy import DispatchPolicy
from deliveryd.delivery.provider import Provider
from deliveryd.delivery.routing import Routed
from deliveryd.delivery.verdicts import VerdictHandler
from deliveryd.journal.sql.rows import digest_of
from deliveryd.model import Content, Customer, Entry, Transition
from deliveryd.states import State

NO_VALUES: Mapping[str, str] = {}


class Lane(NamedTuple):
    """What a dispatcher works by: all of it follows from the configuration.

    `share` is how many places are the provider's own.
    """

    provider: Provider
    choice: Choice
    channel: Channel
    policy: DispatchPolicy
    doubt: DoubtPolicy
    share: int
    intermediate: frozenset[str]
    awaited: Awaited | None = None


class AdapterUse:
    """How many attempts are made with an adapter, from their intents to their outcomes."""

    def __init__(self) -> None:
        self._under_way = 0
        self._unused: anyio.Event | None = None

    def begin(self, attempts: int) -> None:
        """Count attempts that begin."""
        self._under_way += attempts

    def end(self, attempts: int) -> None:
        """Count attempts that ended."""
        self._under_way -= attempts
        if self._unused is not None and not self._under_way:
            self._unused.set()

    def retire(self) -> anyio.Event:
        """No more attempts begin; the event is set when the last one has ended."""
        self._unused = anyio.Event()
        self.end(0)
        return self._unused


class Kit:
    """What an attempt is made with, from its intent to its outcome: the adapter, and who judges its verdict.

    A dispatcher that works by another lane has a new one for new attempts. `may_begin`: see `Dispatch`.
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
        self, lane: Lane, verdicts: VerdictHandler, use: AdapterUse, may_begin: Callable[[], bool] | None
    ) -> None:
        self.channel = lane.channel
        self.customer_fields = tuple(lane.channel.customer_fields)
        self.verdicts = verdicts
        self.provider = lane.provider
        self.breaker = lane.provider.breaker
        self.refusals = lane.provider.refusals
        self.use = use
        self.may_begin = may_begin

    def values(self, customer: Customer | None) -> Mapping[str, str]:
        """The customer's values that the adapter sends."""
        if customer is None or not self.customer_fields:
            return NO_VALUES
        fields = customer.fields
        return {name: fields[name] for name in self.customer_fields if name in fields}

    def content(self, routed: Routed) -> Content:
        """What a message says at the provider."""
        return routed.entry.content or Content(routed.rendered, self.values(routed.customer))

    def asks(self, entry: Entry) -> bool:
        """Whether the provider is asked for a message before it is repeated, or held."""
        return entry.doubt and self.channel.lookup_after is not None

    def obstacle(self, entry: Entry, routed: Routed) -> str | None:
        """Why what may have arrived isn't repeated: it would say something else, or can't be written."""
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
