"""Routing: which channel, provider and language a message takes, and its content there. Pure functions."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple
from weakref import WeakKeyDictionary

from deliveryd.channels.sms_text import SmsRules
from deliveryd.delivery.choice import Choice
from deliveryd.delivery.pauses import Pauses
from deliveryd.delivery.stopped import StoppedRecipients
from deliveryd.errors import LanguageUnreadable
from deliveryd.journal.pauses import Pause
from deliveryd.model import Customer, Entry, Rendered, channel_of, first_of, size_of
from deliveryd.rendering.content import Broken, CompiledBlock, CompiledSettings, Missing
from deliveryd.rendering.language import candidates, matching
from deliveryd.transitions import WAS_REMOVED, expiry_details


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
        is_limited = self.sms is not None and self.sms.max_parts is not None
        return not is_limited and self.choice.reaches_all


class Routed(NamedTuple):
    """A message that can be sent: by which provider, to whom, what, and until when.

    `size`: the number of characters that work on it may grow with.
    """

    entry: Entry
    provider: str
    customer: Customer | None
    rendered: Rendered
    expires_at: int | None
    size: int = 0

    @property
    def bound(self) -> Entry:
        """The message, bound to the provider."""
        return self.entry.bound(self.provider)


class Held(NamedTuple):
    """A message that waits for the end of a pause, or until it expires."""

    entry: Entry
    pause: Pause
    expires_at: int | None


class Undeliverable(NamedTuple):
    """A message that ends here, and the details of its `error` event. `expired_at`: its time ran out then."""

    entry: Entry
    details: str
    expired_at: int | None = None

    @classmethod
    def because(cls, entry: Entry, *reasons: str) -> Undeliverable:
        """The message ends for these reasons, and for those of the providers that were tried before."""
        return cls(entry, entry.ending(*reasons))


def is_expired(expires_at: int | None, now: int) -> bool:
    """Whether nothing may be sent any more (interface 8)."""
    return expires_at is not None and now > expires_at


Route = Routed | Undeliverable | Held


_Offer = tuple[str, CompiledBlock]
"""A channel, and the block that it would send."""


_Offered = tuple[str, str, CompiledBlock]
"""A channel, its provider that was chosen, and the block that it would send."""

_Place = tuple[str, str]
"""A language, and a channel whose block may be found there."""

UNRENDERED = Rendered("", "", {})
"""The content of a message in doubt that can't be rendered any more: its provider may be asked for it."""

DOWN = "provider was down"
WAS_PAUSED = "provider was paused"
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
    ) -> None:
        self._channels = channels
        self._pauses = pauses
        self._stopped = stopped
        self._providers = frozenset(each for channel in channels.values() for each in channel.choice.senders)
        self._order = [name for name in order if name in channels and channels[name].choice.is_enabled]
        self._positions = {name: place for place, name in enumerate(order)}
        self._languages = tuple(languages)
        self._choices: WeakKeyDictionary[CompiledSettings, _Fixed | None] = WeakKeyDictionary()
        self._kept: WeakKeyDictionary[CompiledSettings, dict[tuple[str, ...], list[_Offer]]]
        self._kept = WeakKeyDictionary()

    def needs_customer(self, entry: Entry, settings: CompiledSettings, now: int) -> bool:
        """Whether a message depends on its customer: on their language, an address, or their name."""
        if settings.expires_at is not None and is_expired(settings.expires_at, now):
            return False
        if entry.content is not None:
            entry = self._without_removed(entry)
            if (name := self._repeats(entry)) is not None:
                return self._leaves(entry, name)
        if entry.spent or entry.doubt:
            choice = self._choice(settings, self._order_for(entry))
        else:
            try:
                choice = self._choices[settings]
            except KeyError:
                choice = self._choices[settings] = self._choice(settings, self._order)
        if choice is None:
            return True
        via = choice.choice
        if via is not None and via.given_up and not entry.doubt and via.is_unavailable_to(entry, None):
            return True
        return choice.block is not None and choice.block.needs_name(entry.variables)

    def route(self, entry: Entry, settings: CompiledSettings, customer: Customer | None, now: int) -> Route:
        """Where a message goes now, and its content; or why it can't be sent at all, or not now.

        `customer` is None when they aren't in the directory, and when they don't matter.
        """
        if settings.expires_at is not None and is_expired(settings.expires_at, now):
            details = entry.ending(expiry_details(settings.expires_at))
            return Undeliverable(entry, details, settings.expires_at)
        if entry.content is not None:
            entry = self._without_removed(entry)
        if entry.content is not None and (name := self._repeats(entry)) is not None:
            elsewhere = self._elsewhere(entry, name, settings, customer)
            if elsewhere is not None:
                return elsewhere
            if self._pauses.any and (pause := self._pauses.at(name)) is not None:
                return Held(entry, pause, settings.expires_at)
            said, values = entry.content
            customer = Customer(entry.customer_id, values)
            size = size_of(entry, said, customer)
            return Routed(entry, name, customer, said, settings.expires_at, size)
        route = self._first_usable(entry, settings, customer)
        if entry.doubt and isinstance(route, Undeliverable) and entry.provider in self._providers:
            return Routed(entry, entry.provider, customer, UNRENDERED, settings.expires_at)
        return route

    def route_without(self, entry: Entry, reason: str) -> Route:
        """Where a message goes whose settings can't be used for this reason.

        It ends, unless a provider may have it: that one is asked for it, or gets the same again.
        """
        if entry.doubt or entry.content is not None:
            nothing = CompiledSettings(entry.settings_id, None, {}, ())
            route = self.route(entry, nothing, None, 0)
            if not isinstance(route, Undeliverable):
                return route
        return Undeliverable.because(entry, reason)

    def _first_usable(
        self,
        entry: Entry,
        settings: CompiledSettings,
        customer: Customer | None,
        channels: Container[str] | None = None,
    ) -> Route:
        """The first offer, of some channels or of any, that can be sent.

        It is one of an unavailable channel only if there is no other. The message is held if that is paused,
        whatever its content would be.
        """
        try:
            tags = candidates(customer.language if customer else None, self._languages)
        except LanguageUnreadable as error:
            return Undeliverable.because(entry, str(error))
        unfit: dict[str, str] = {}
        waiting: list[_Offered] = []
        stopped = self._stopped.digests
        for name, block in self._offers_for(entry, settings, tags):
            choice = self._channels[name].choice
            provider = choice.provider_for(entry, customer)
            if provider is None or name in unfit or (channels is not None and name not in channels):
                continue
            if name in stopped and not entry.doubt and self._has_stopped(name, provider, customer):
                continue
            if self._pauses.any and (pause := self._pauses.at(provider)) is not None:
                return Held(entry, pause, settings.expires_at)
            offered = name, provider, block
            if not choice.claim(entry, customer, provider):
                waiting.append(offered)
            elif (routed := self._render(entry, settings, customer, tags, offered, unfit)) is not None:
                return routed
        for offered in waiting:
            if (routed := self._render(entry, settings, customer, tags, offered, unfit)) is not None:
                return routed
        return Undeliverable.because(entry, *self._why_none(entry, settings, customer, tags, unfit))

    def _render(  # noqa: PLR0917 - the values that `route` has
        self,
        entry: Entry,
        settings: CompiledSettings,
        customer: Customer | None,
        tags: tuple[str, ...],
        offered: _Offered,
        unfit: dict[str, str],
    ) -> Routed | Undeliverable | None:
        """Its content there; None: an SMS that isn't sent, which `unfit` notes."""
        channel, provider, block = offered
        rendered = block.render(entry.variables, customer)
        if not isinstance(rendered, Rendered):
            why = self._why_not(entry, settings, tags, (channel, block), rendered)
            return Undeliverable.because(entry, *_named(unfit), *why)
        if (rules := self._channels[channel].sms) is not None:
            rendered = rules.apply(rendered)
            if not entry.doubt and (flaw := rules.flaw(rendered)) is not None:
                unfit[channel] = flaw
                return None
        size = size_of(entry, rendered, customer)
        return Routed(entry, provider, customer, rendered, settings.expires_at, size)

    def _without_removed(self, entry: Entry) -> Entry:
        """A message with content to repeat; it has left its provider if that was removed."""
        is_there = (entry.provider or entry.via) in self._providers
        return entry if is_there or entry.doubt else entry.left(WAS_REMOVED)

    def _repeats(self, entry: Entry) -> str | None:
        """The provider to which a message repeats what may have arrived there, if it does so."""
        provider = entry.provider or entry.via
        return provider if entry.content is not None and provider in self._providers else None

    def _has_stopped(self, channel: str, provider: str, customer: Customer | None) -> bool:
        """Whether the recipient, at the address that a provider has, is suppressed on a channel."""
        if customer is None:
            return False
        adapter = self._channels[channel].choice.senders[provider].adapter
        return self._stopped.includes(channel, adapter.recipient(customer))

    def _leaves(self, entry: Entry, provider: str) -> bool:
        channel = channel_of(provider)
        return self._pauses.of_channel(channel) is None and self._channels[channel].choice.leaves(
            entry, provider
        )

    def _elsewhere(
        self, entry: Entry, provider: str, settings: CompiledSettings, customer: Customer | None
    ) -> Routed | None:
        """Where a message goes that its provider didn't take, and that is down or paused now, if anywhere.

        It goes to no channel that is down, but may be a probe of one of whose providers another one works; of
        settings that a provider refuses, it is no probe: it couldn't come back.
        """
        if not self._leaves(entry, provider):
            return None
        reason = WAS_PAUSED if self._pauses.of_provider(provider) is not None else DOWN
        moved = entry.bound(provider).left(reason)
        working = {name for name, channel in self._channels.items() if not channel.choice.is_given_up}
        for channels in (working, (channel_of(provider),)):
            found = self._first_usable(moved, settings, customer, channels)
            if isinstance(found, Routed) and self._is_taken(found):
                return found
        return None

    def _is_taken(self, routed: Routed) -> bool:
        """Whether the provider takes a message that may not come back."""
        choice = self._channels[channel_of(routed.provider)].choice
        standing = choice.senders[routed.provider].standing
        return not choice.is_down and not standing.refuses(routed.entry.settings_id)

    def _offers_for(
        self, entry: Entry, settings: CompiledSettings, tags: tuple[str, ...]
    ) -> Iterable[_Offer]:
        """The offers for a message; those for one at its beginning are the same for all, and kept."""
        if entry.spent or entry.doubt:
            return self._offers(settings, self._order_for(entry), tags)
        kept = self._kept.setdefault(settings, {})
        offers = kept.get(tags)
        if offers is None:
            if len(kept) >= _MOST_KEPT:
                kept.clear()
            offers = kept[tags] = list(self._offers(settings, self._order, tags))
        return offers

    def _order_for(self, entry: Entry) -> Sequence[str]:
        """The channels with a provider that a message may go to."""
        if not entry.spent and not entry.doubt:
            return self._order
        names = [channel_of(entry.provider or "")] if entry.doubt else self._after(entry.sent_by)
        return [
            name for name in names if name in self._channels and self._channels[name].choice.open_to(entry)
        ]

    def _after(self, provider: str | None) -> Sequence[str]:
        """The channels behind that of a provider in the order; all of them for None."""
        if provider is None or channel_of(provider) not in self._positions:
            return self._order
        place = self._positions[channel_of(provider)]
        return [name for name in self._order if self._positions[name] > place]

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
        if entry.doubt:
            yield f"{entry.provider}: the attempt can't be repeated"
        elif offered:
            for name in order:
                if name in offered:
                    yield self._why_unreached(name, customer, unfit.get(name))
        elif not entry.spent:
            channels = {
                name: channel for name, channel in self._channels.items() if not channel.choice.is_enabled
            }
            disabled = list(dict.fromkeys(name for name, _ in self._offers(settings, list(channels), tags)))
            if disabled:
                yield from (f"{name}: no provider is enabled" for name in disabled)
            else:
                yield f"no content for a configured channel in {', '.join(tags)}"
        everywhere = (*tags, *settings.languages)
        if next(self._offers(settings, order, everywhere), None) is None:
            tags = everywhere  # it was the same for all customers, so that this one wasn't looked up
        yield from self._unreadable(settings, self._candidates(entry, settings, tags))

    def _why_unreached(self, channel: str, customer: Customer | None, unfit: str | None) -> str:
        """Why no provider of a channel takes the message."""
        senders = self._channels[channel].choice.senders
        if unfit is None and any(self._has_stopped(channel, name, customer) for name in senders):
            return f"the recipient is suppressed on {channel}"
        reasons = [unfit] if unfit else [each.adapter.unreached(customer) for each in senders.values()]
        return f"{channel}: {', '.join(dict.fromkeys(reasons))}"

    def _unreadable(self, settings: CompiledSettings, places: Iterable[_Place]) -> Iterator[str]:
        """Why blocks at these places can't be read; each reason once."""
        found: dict[str, None] = {}
        for tag, name in places:
            language = settings.languages.get(tag)
            if language is not None and (reason := language.unreadable.get(self._channels[name].block)):
                found[reason] = None
        yield from first_of(found)


def _named(reasons: Mapping[str, str]) -> Iterator[str]:
    return (f"{channel}: {reason}" for channel, reason in reasons.items())
