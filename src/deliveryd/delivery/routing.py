"""Routing: which channel, provider and language a message takes, and its content there. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple
from weakref import WeakKeyDictionary

from deliveryd import transitions
from deliveryd.channels.sms_text import SmsRules
from deliveryd.delivery.choice import Choice
from deliveryd.delivery.limits import SendingLimits
from deliveryd.delivery.message import LOOK_AGAIN, UNRENDERED, Delivery
from deliveryd.delivery.pauses import Pauses
from deliveryd.delivery.safety import Safety
from deliveryd.delivery.stopped import StoppedRecipients
from deliveryd.errors import LanguageUnreadable
from deliveryd.model import Customer, Entry, Rendered, Transition, channel_of, first_of
from deliveryd.rendering.content import Broken, CompiledBlock, CompiledSettings, Missing
from deliveryd.rendering.language import candidates, matching
from deliveryd.rules.windows import ALWAYS, Windows
from deliveryd.states import State


class ChannelRoute(NamedTuple):
    """A channel that messages may take: the block of the settings that it sends, and its providers.

    `sms` are rules for the text of an SMS.
    """

    block: str
    choice: Choice
    sms: SmsRules | None = None

    @property
    def takes_all(self) -> bool:
        """Whether the channel takes every message without an address, whichever provider sends."""
        return (self.sms is None or self.sms.max_parts is None) and self.choice.reaches_all


Route = Delivery | Transition
"""A message that can be sent, or the step that it takes instead: it ends, or waits."""

_Offer = tuple[str, CompiledBlock]
"""A channel, and the block that it would send."""

_Offered = tuple[str, str, CompiledBlock]
"""A channel, its provider that was chosen, and the block that it would send."""

_Place = tuple[str, str]
"""A language, and a channel whose block may be found there."""

DOWN = "provider was down"
WAS_PAUSED = "provider was paused"
WAS_REMOVED = "the provider was removed"
WAS_DISABLED = "the provider was disabled"
IS_SUPPRESSED = "the recipient is suppressed"
"""Why a message doesn't come back to a provider that may have it."""

_MOST_KEPT = 50
"""Lists of languages, of one settings id, whose offers are kept: far more than there are languages."""


class _Fixed(NamedTuple):
    """The choice is the same for every customer: this block, or None where nothing can be sent to anybody.

    It holds as long as the channel isn't unavailable to the message.
    """

    block: CompiledBlock | None
    choice: Choice | None = None


class Router:
    """Chooses by design 5: the customer's language, then `languages`; in each the first channel of `order`.

    Of a channel's providers it is the one that its `Choice` names.

    An adapter that reaches an unknown customer needs no address, and reaches all.
    """

    def __init__(
        self,
        channels: Mapping[str, ChannelRoute],
        order: Sequence[str],
        languages: Sequence[str],
        stopped: StoppedRecipients,
        pauses: Pauses,
        *,
        safety: Safety | None = None,
        windows: Windows = ALWAYS,
        limits: SendingLimits | None = None,
    ) -> None:
        self._channels = channels
        self._windows = windows
        self._limits = limits or SendingLimits(b"")
        self._safety = safety or Safety()
        self._adapters = {
            name: sender.adapter
            for channel in channels.values()
            for name, sender in channel.choice.senders.items()
        }
        self._pauses = pauses
        self._stopped = stopped
        self._enabled = frozenset(each for channel in channels.values() for each in channel.choice.enabled)
        self._order = [name for name in order if name in channels and channels[name].choice.is_enabled]
        self._positions = {name: place for place, name in enumerate(order)}
        self._languages = tuple(languages)
        self._choices: WeakKeyDictionary[CompiledSettings, _Fixed | None] = WeakKeyDictionary()
        self._kept: WeakKeyDictionary[CompiledSettings, dict[tuple[str, ...], list[_Offer]]]
        self._kept = WeakKeyDictionary()

    def route(self, message: Delivery, now: int) -> Route | None:
        """Choose language, channel and provider, and fill in the text; or end the walk, with a step.

        None: it depends on the customer, who is to be looked up.
        """
        entry, settings = message.entry, message.settings
        if entry.provider is not None or entry.via is not None:
            entry = message.becomes(self.without_removed(entry))
            if entry.doubt and entry.provider not in self._adapters:
                return transitions.held_without_provider(entry, State.READY, now)
        if (step := message.held_back(self._pauses, now)) is not None:
            return step
        if entry.content is not None:
            provider = entry.provider or entry.via or ""
            customer = Customer(entry.customer_id, entry.content.values)
            why = None if entry.doubt else self._why_kept_from(provider, entry, customer)
            if why is None:
                return self._open(self._repeat(message, provider, entry.content.rendered, customer, now), now)
            entry = message.becomes(entry.left(why))
        if not isinstance(settings, CompiledSettings):
            return self._open(_end(message, [str(settings)], now), now)
        if not message.looked_up and self._needs_customer(entry, settings):
            return None
        if self._safety.limits or self._windows.rules or self._limits.any:
            return self._within_limits(message, settings, now)
        return self._first_usable(message, settings, now)

    def route_on(self, message: Delivery, now: int) -> Route | None:
        """Go on where `route` returned None, with the customer, in the same turn of the event loop."""
        if message.entry.content is not None or not isinstance(message.settings, CompiledSettings):
            return self.route(message, now)
        if self._safety.limits or self._windows.rules or self._limits.any:
            return self._within_limits(message, message.settings, now)
        return self._first_usable(message, message.settings, now)

    def _within_limits(self, message: Delivery, settings: CompiledSettings, now: int) -> Route | None:
        """The first offer that can be sent, if this installation sends to the customer, and does so now."""
        route = self._withheld(message, now) if self._safety.limits else None
        if route is None and self._limits.any and not message.entry.doubt:
            return self._limits.route(
                message,
                now,
                lambda without: self._open(self._first_usable(message, settings, now, None, without), now),
            )
        return self._open(route or self._first_usable(message, settings, now), now)

    def _open(self, route: Route | None, now: int) -> Route | None:
        """The message, if the window of its channel is open; else the step by which it waits for that.

        None: the window opens by the zone of its customer, who isn't known yet.
        """
        if not self._windows.rules or not isinstance(route, Delivery):
            return route
        rule = self._windows.rule_for(route.entry.settings_id, channel_of(route.provider))
        if rule is not None and rule.needs_customer and not route.looked_up:
            route.provider = ""
            return None
        step = route.shut_out(self._windows, now)
        if step is not None and any(each.choice.is_unavailable for each in self._channels.values()):
            step = transitions.no_later_than(step, now + LOOK_AGAIN)
        return step or route

    def without_removed(self, entry: Entry) -> Entry:
        """A message that has left its provider if that was removed or disabled; one in doubt stays."""
        provider = entry.provider or entry.via
        if provider is None or provider in self._enabled or entry.doubt:
            return entry
        return entry.left(WAS_DISABLED if provider in self._adapters else WAS_REMOVED)

    def _needs_customer(self, entry: Entry, settings: CompiledSettings) -> bool:
        """Whether a message depends on its customer: on their language, an address, or their name."""
        if self._safety.limits and not self._safety.admits_customer(entry.customer_id):
            return self._safety.has_addresses
        order = self._order_for(entry)
        if order is not self._order:
            choice = self._choice(settings, order)
        else:
            try:
                choice = self._choices[settings]
            except KeyError:
                choice = self._choices[settings] = self._choice(settings, order)
        if choice is None:
            return True
        via = choice.choice
        if via is not None and via.given_up and not entry.doubt and via.is_unavailable_to(entry, None):
            return True
        return choice.block is not None and choice.block.needs_name(entry.variables)

    def _repeat(
        self, message: Delivery, provider: str, rendered: Rendered, customer: Customer, now: int
    ) -> Route | None:
        """What may have arrived goes to its provider again; or elsewhere, while that takes nothing."""
        if isinstance(message.settings, CompiledSettings) and self._leaves(message.entry, provider):
            if not message.looked_up:
                return None
            elsewhere = self._elsewhere(message, message.settings, provider, now)
            if elsewhere is not None:
                return elsewhere
        if self._pauses.any and (pause := self._pauses.at(provider)) is not None:
            return message.parked(pause, now)
        return message.to(provider, rendered, customer)

    def _first_usable(
        self,
        message: Delivery,
        settings: CompiledSettings,
        now: int,
        channels: Container[str] | None = None,
        without: Collection[str] = (),
    ) -> Route:
        """The first offer, of some channels or of any, that can be sent by a provider but those `without`.

        It is one of an unavailable channel only if there is no other. The message is held if that is paused,
        whatever its content would be.
        """
        entry, customer = message.entry, message.customer
        try:
            tags = candidates(customer.language if customer else None, self._languages)
        except LanguageUnreadable as error:
            return _end(message, [str(error)], now)
        unfit: dict[str, str] = {}
        waiting: list[_Offered] = []
        stopped = self._stopped.digests
        for name, block in self._offers_for(entry, settings, tags):
            choice = self._channels[name].choice
            provider = choice.provider_for(entry, customer, without)
            if provider is None or name in unfit or (channels is not None and name not in channels):
                continue
            if name in stopped and not entry.doubt and self._has_stopped(name, provider, customer):
                continue
            if self._pauses.any and (pause := self._pauses.at(provider)) is not None:
                return message.parked(pause, now)
            offered = name, provider, block
            if choice.needs_claim and not choice.claim_for(message, provider, self._windows, now):
                waiting.append(offered)
            elif (route := self._render(message, settings, tags, offered, unfit, now)) is not None:
                return route
        for offered in waiting:
            if (route := self._render(message, settings, tags, offered, unfit, now)) is not None:
                return route
        return _end(message, self._why_none(entry, settings, customer, tags, unfit), now)

    def _render(  # noqa: PLR0917 - the values that `_first_usable` has
        self,
        message: Delivery,
        settings: CompiledSettings,
        tags: tuple[str, ...],
        offered: _Offered,
        unfit: dict[str, str],
        now: int,
    ) -> Route | None:
        """The message with its content there; None: an SMS that isn't sent, which `unfit` notes."""
        channel, provider, block = offered
        entry = message.entry
        rendered = block.render(entry.variables, message.customer)
        if not isinstance(rendered, Rendered):
            before = (f"{name}: {reason}" for name, reason in unfit.items())
            why = self._why_not(entry, settings, tags, (channel, block), rendered)
            return _end(message, (*before, *why), now)
        if (rules := self._channels[channel].sms) is not None:
            rendered = rules.apply(rendered)
            if not entry.doubt and (flaw := rules.flaw(rendered)) is not None:
                unfit[channel] = flaw
                return None
        return message.to(provider, rendered, message.customer)

    def _withheld(self, message: Delivery, now: int) -> Route | None:
        """The end of a message whose customer isn't sent to at any address; None: it goes on.

        One in doubt goes to its provider, which may have it: there it is asked for, or held.
        """
        entry, customer = message.entry, message.customer
        providers = self._adapters if not entry.doubt else [entry.provider or ""]
        if any(self._admits(provider, entry, customer) for provider in providers):
            return None
        if entry.doubt:
            return message.to(entry.provider or "", UNRENDERED, customer)
        return transitions.undeliverable(entry, now, entry.ending(self._safety.reason))

    def _admits(self, provider: str, entry: Entry, customer: Customer | None) -> bool:
        """Whether this installation sends to the customer of a message at the address that a provider has."""
        safety = self._safety
        return not safety.limits or safety.admits(
            provider, self._adapters[provider], entry.customer_id, customer
        )

    def _why_kept_from(self, provider: str, entry: Entry, customer: Customer) -> str | None:
        """Why a message that may have arrived, but isn't in doubt, isn't repeated; None: it is."""
        if self._has_stopped(channel_of(provider), provider, customer):
            return IS_SUPPRESSED
        if not self._admits(provider, entry, customer):
            return self._safety.reason
        return self._refusal(provider, customer)

    def _refusal(self, provider: str, customer: Customer | None) -> str | None:
        """Why a provider isn't sent the customer's number; None: it is."""
        return self._channels[channel_of(provider)].choice.refusal(provider, customer)

    def _has_stopped(self, channel: str, provider: str, customer: Customer | None) -> bool:
        """Whether the recipient, at the address that a provider has, is suppressed on a channel."""
        if customer is None:
            return False
        return self._stopped.includes(channel, self._adapters[provider].recipients(customer))

    def _leaves(self, entry: Entry, provider: str) -> bool:
        channel = channel_of(provider)
        return self._pauses.of_channel(channel) is None and self._channels[channel].choice.leaves(
            entry, provider
        )

    def _elsewhere(
        self, message: Delivery, settings: CompiledSettings, provider: str, now: int
    ) -> Delivery | None:
        """Where a message goes that its provider didn't take, and that is down or paused now, if anywhere.

        It goes to no channel that is down, but may be a probe of one of whose providers another one works; of
        settings that a provider refuses, it is no probe: it couldn't come back.
        """
        reason = WAS_PAUSED if self._pauses.of_provider(provider) is not None else DOWN
        moved = Delivery(message.entry.bound(provider).left(reason), settings)
        moved.of(message.customer)
        working = {name for name, channel in self._channels.items() if not channel.choice.is_given_up}
        for channels in (working, (channel_of(provider),)):
            found = self._first_usable(moved, settings, now, channels)
            if found is moved and self._is_taken(moved, now):
                return moved
        return None

    def _is_taken(self, message: Delivery, now: int) -> bool:
        """Whether the provider takes a message that may not come back."""
        choice = self._channels[channel_of(message.provider)].choice
        standing = choice.senders[message.provider].standing
        if self._limits.any and self._limits.shortage(message, now) is not None:
            return False
        return not choice.is_down and not standing.refuses(message.entry.settings_id)

    def _offers_for(
        self, entry: Entry, settings: CompiledSettings, tags: tuple[str, ...]
    ) -> Iterable[_Offer]:
        """The offers for a message; those for one at its beginning are the same for all, and kept."""
        order = self._order_for(entry)
        if order is not self._order:
            return self._offers(settings, order, tags)
        try:
            return self._kept[settings][tags]
        except KeyError:
            kept = self._kept.setdefault(settings, {})
            if len(kept) >= _MOST_KEPT:
                kept.clear()
            kept[tags] = list(self._offers(settings, order, tags))
            return kept[tags]

    def _order_for(self, entry: Entry) -> Sequence[str]:
        """The channels with a provider that a message may go to."""
        if not entry.spent and not entry.doubt:
            return self._order
        if entry.doubt:
            names: Sequence[str] = [channel_of(entry.provider or "")]
        else:
            sent_at = self._positions.get(channel_of(entry.sent_by or ""), -1)
            names = [name for name in self._order if self._positions[name] > sent_at]
        return [
            name for name in names if name in self._channels and self._channels[name].choice.open_to(entry)
        ]

    def _offers(
        self, settings: CompiledSettings, order: Sequence[str], tags: Sequence[str]
    ) -> Iterator[_Offer]:
        """Each channel with a block for it, in the order in which they are tried."""
        for tag in matching(tuple(tags), tuple(settings.languages)):
            blocks = settings.languages[tag].blocks
            for name in order:
                block = blocks.get(self._channels[name].block)
                if block is not None:
                    yield name, block

    def _choice(self, settings: CompiledSettings, order: Sequence[str]) -> _Fixed | None:
        """What is chosen for customers of any language and with any address, if it is the same for all."""
        found: set[tuple[str, str] | None] = set()
        block = via = None
        for tag in (None, *settings.languages):
            try:
                tags = candidates(tag, self._languages)
            except LanguageUnreadable:  # the key of a block is no language
                continue
            first = next(self._offers(settings, order, tags), None)
            if first is not None and not self._channels[first[0]].takes_all:
                return None
            if first is not None:
                block, via = first[1], self._channels[first[0]].choice
            else:
                block = None
            found.add((first[0], first[1].language) if first is not None else None)
            if len(found) > 1:
                return None
        return _Fixed(block, via)

    def _why_not(
        self,
        entry: Entry,
        settings: CompiledSettings,
        tags: Sequence[str],
        chosen: tuple[str, CompiledBlock],
        flaw: Missing | Broken,
    ) -> Iterator[str]:
        """Why the chosen block can't be filled, and why better ones, or a greeting, can't be read."""
        channel, block = chosen
        yield f"{channel}: {flaw.reason}" if entry.spent else flaw.reason
        passed_over = takewhile(
            lambda place: place != (block.language, channel), self._candidates(entry, settings, tags)
        )
        yield from self._unreadable(settings, passed_over)
        greetings = settings.languages[block.language].unreadable.get("greetings")
        if greetings is not None and isinstance(flaw, Missing) and "greeting" in flaw.names:
            yield greetings

    def _candidates(self, entry: Entry, settings: CompiledSettings, tags: Sequence[str]) -> Iterator[_Place]:
        """Where a message may find its block, in the order in which it is looked for."""
        order = self._order_for(entry)
        there = matching(tuple(tags), tuple(settings.languages))
        return ((tag, name) for tag in there for name in order)

    def _why_none(
        self,
        entry: Entry,
        settings: CompiledSettings,
        customer: Customer | None,
        tags: Sequence[str],
        unfit: Mapping[str, str],
    ) -> Iterator[str]:
        """Why nothing can be sent, besides the reasons of the providers that were tried."""
        order = self._order_for(entry)
        offered = {name for name, _ in self._offers(settings, order, tags)}
        if offered:
            for name in order:
                if name in offered:
                    yield self._why_unreached(name, entry, customer, unfit.get(name))
        elif not entry.spent:
            names = [name for name, each in self._channels.items() if not each.choice.is_enabled]
            disabled = dict.fromkeys(name for name, _ in self._offers(settings, names, tags))
            if disabled:
                yield from (f"{name}: no provider is enabled" for name in disabled)
            else:
                yield f"no content for a configured channel in {', '.join(tags)}"
        everywhere = (*tags, *settings.languages)
        if next(self._offers(settings, order, everywhere), None) is None:
            tags = everywhere  # it was the same for all customers, so that this one wasn't looked up
        yield from self._unreadable(settings, self._candidates(entry, settings, tags))

    def _why_unreached(self, channel: str, entry: Entry, customer: Customer | None, unfit: str | None) -> str:
        """Why no provider of a channel takes the message."""
        choice = self._channels[channel].choice
        senders = choice.open_to(entry) or choice.senders
        if unfit is None and any(self._has_stopped(channel, name, customer) for name in senders):
            return f"the recipient is suppressed on {channel}"
        reasons = [unfit] if unfit else [self._unreached(name, entry, customer) for name in senders]
        return f"{channel}: {', '.join(dict.fromkeys(reasons))}"

    def _unreached(self, provider: str, entry: Entry, customer: Customer | None) -> str:
        """Why a provider doesn't reach the customer: no address, `[safety]`, or the number that it has."""
        adapter = self._adapters[provider]
        if not adapter.reaches(customer):
            return adapter.unreached(customer)
        if not self._admits(provider, entry, customer):
            return self._safety.reason
        return self._refusal(provider, customer) or adapter.unreached(customer)

    def _unreadable(self, settings: CompiledSettings, places: Iterable[_Place]) -> Iterator[str]:
        """Why blocks at these places can't be read; each reason once."""
        found: dict[str, None] = {}
        for tag, name in places:
            language = settings.languages.get(tag)
            if language is not None and (reason := language.unreadable.get(self._channels[name].block)):
                found[reason] = None
        yield from first_of(found)


def _end(message: Delivery, reasons: Iterable[str], now: int) -> Route:
    """Nothing can be sent: the message ends for these reasons, and those of providers that were tried before.

    One in doubt goes to its provider all the same, which may have it.
    """
    entry = message.entry
    if entry.doubt:
        message.flaw = "; ".join(reasons)
        return message.to(entry.provider or "", UNRENDERED, message.customer)
    return transitions.undeliverable(entry, now, entry.ending(*reasons))
