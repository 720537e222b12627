"""The choice of one of a channel's providers for a message.

Rendezvous hashing: each provider has a score for each message, which depends on nothing else, and the highest
one is chosen. So a message chooses the same provider while nothing changed, and one that is left out gives
its messages to the others by their weights, and has the same ones again afterwards. A weight that is lowered
moves only as many messages away from its provider as it has to, and none between the others.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from deliveryd.channels.base import Channel
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.provider import Provider
from deliveryd.delivery.safety import Safety
from deliveryd.model import Customer, Entry, Spent, channel_of
from deliveryd.rules.windows import Windows

if TYPE_CHECKING:
    from deliveryd.delivery.destinations import Destinations

_BITS = 52
"""Bits of a hash that a score is made of: as many as a float has after the point."""


class Idle:
    """The standing of a provider where nothing is sent."""

    is_down = is_paused = has_failed = is_reached = False

    def takes(self, _settings_id: int) -> bool:
        """It takes every message."""
        return True

    def refuses(self, _settings_id: int) -> bool:
        """It refuses nothing."""
        return False

    def choose(self) -> None:
        """Nothing is sent."""

    def suspect(self) -> None:
        """Nothing is sent."""


Standing = Provider | Idle
"""Whether a provider takes messages now."""


class Sender(NamedTuple):
    """A provider that messages may go to. One that isn't enabled only settles what is in doubt there.

    Weight 0: only when no other can. `destinations`: the numbers that it is sent; None: all.
    """

    adapter: Channel
    standing: Standing
    weight: int = 1
    is_enabled: bool = True
    destinations: Destinations | None = None

    @property
    def is_down(self) -> bool:
        """Whether its breaker is open; one that is paused doesn't count as down."""
        return self.standing.is_down and not self.standing.is_paused


class Choice:
    """Chooses among the providers of one channel, which `senders` has by their identities.

    None reaches a customer at an address that `safety` doesn't admit.
    """

    def __init__(self, senders: Mapping[str, Sender], safety: Safety | None = None) -> None:
        self.senders = senders
        self._safety = safety or Safety()
        self.enabled = {name: sender for name, sender in senders.items() if sender.is_enabled}
        """Those that new messages may go to."""
        only = next(iter(self.enabled.items())) if len(self.enabled) == 1 else None
        self._only = None if only is None else (only[0], only[1].adapter, only[1].destinations)
        self.given_up: frozenset[str] = frozenset()
        """The enabled providers that were down for so long that messages go to the next channel."""
        self.is_unavailable = False
        """Whether all enabled providers are given up."""
        self.needs_claim = self._only is None
        """Whether a message has to claim its provider: there are several, or the only one is given up."""
        self.changes = 0
        """How often what is queued for a provider that is down was to be routed again."""
        self._weights: Mapping[str, float] = {name: sender.weight for name, sender in self.enabled.items()}
        self._salts = {name: hashlib.blake2b(name.encode(), digest_size=16).digest() for name in senders}

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Choose by these weights of enabled providers instead of those of the configuration."""
        self._weights = {**self._weights, **weights}

    @property
    def is_enabled(self) -> bool:
        """Whether any of the providers takes new messages."""
        return bool(self.enabled)

    def give_up(self, providers: Collection[str]) -> None:
        """Give up these of the enabled providers, and no others."""
        self.given_up = frozenset(self.enabled.keys() & providers)
        self.is_unavailable = self.is_enabled and len(self.given_up) == len(self.enabled)
        self.needs_claim = self._only is None or self.is_unavailable

    def is_unavailable_to(self, entry: Entry, customer: Customer | None) -> bool:
        """Whether all providers are given up that may still take a message and reach its customer."""
        return bool(self.given_up) and all(
            name in self.given_up for name in self.open_to(entry) if self._reaches(name, entry, customer)
        )

    @property
    def down(self) -> list[str]:
        """The enabled providers that are down."""
        return [name for name, each in self.enabled.items() if each.is_down]

    def has_failed(self, name: str) -> bool:
        """Whether a provider that is down failed since the start, or is given up already."""
        return name in self.given_up or self.enabled[name].standing.has_failed

    @property
    def reached(self) -> list[str]:
        """The providers that are given up, and that a message may be a probe of."""
        return [name for name in self.given_up if self.enabled[name].standing.is_reached]

    @property
    def is_down(self) -> bool:
        """Whether all providers that are enabled are down."""
        return self.is_enabled and all(each.is_down for each in self.enabled.values())

    @property
    def is_given_up(self) -> bool:
        """Whether messages go to the next channel, and none of the providers came back since."""
        return self.is_unavailable and self.is_down

    @property
    def is_down_with_others(self) -> bool:
        """Whether all of several providers are down."""
        return len(self.enabled) > 1 and self.is_down

    @property
    def reaches_all(self) -> bool:
        """Whether no address is needed, whichever provider sends, or settles what is in doubt there."""
        return all(
            sender.adapter.reaches(None) and self.refusal(name, None) is None
            for name, sender in self.senders.items()
        )

    def refusal(self, name: str, customer: Customer | None) -> str | None:
        """Return why a provider isn't sent a customer's number; None: it is."""
        destinations = self.senders[name].destinations
        return None if destinations is None else destinations.refusal(customer)

    def open_to(self, entry: Entry) -> Mapping[str, Sender]:
        """The providers that a message may go to, whether they take any now or not."""
        if entry.doubt:
            # It is repeated where it was made, or nowhere: another provider would send it twice.
            return {name: sender for name, sender in self.senders.items() if name == entry.provider}
        if not entry.spent:
            return self.enabled
        return {name: sender for name, sender in self.enabled.items() if not is_spent(entry.spent, name)}

    def provider_for(
        self, entry: Entry, customer: Customer | None, without: Collection[str] = ()
    ) -> str | None:
        """The provider that takes a message; None: none of them reaches the customer, or all are spent.

        It is none of those `without`, and one that is paused only if there is no other.
        """
        if self._only is not None and not entry.spent and not entry.doubt and not without:
            name, adapter, destinations = self._only
            if self._safety.limits:
                return name if self._reaches(name, entry, customer) else None
            if not adapter.reaches(customer):
                return None
            return name if destinations is None or destinations.refusal(customer) is None else None
        found = {
            name: sender
            for name, sender in self.open_to(entry).items()
            if name not in without and self._reaches(name, entry, customer)
        }
        if len(found) < 2:
            return next(iter(found), None)
        settings_id = entry.settings_id
        ready = (
            {name: each for name, each in found.items() if each.standing.takes(settings_id)}
            or {name: each for name, each in found.items() if not each.standing.is_paused}
            or found
        )
        weights = {name: weight for name in ready if (weight := self.weight_of(name, customer))}
        weights = weights or dict.fromkeys(ready, 1.0)
        return max(weights, key=lambda name: self._score(entry.id, name, weights[name]))

    def weight_of(self, name: str, customer: Customer | None) -> float:
        """The weight by which an enabled provider is chosen for a customer; a slow one has less."""
        weight, destinations = self._weights[name], self.senders[name].destinations
        there = None if destinations is None else destinations.weight_for(customer)
        if there is None:
            return weight
        configured = self.senders[name].weight
        return there * weight / configured if configured else there

    def claim(self, entry: Entry, customer: Customer | None, provider: str) -> bool:
        """Whether a message may go to the provider that was chosen; one that is down has it as its probe.

        None may but a probe, and what is in doubt, while the channel is unavailable to the message.
        """
        standing = self.senders[provider].standing
        if (
            provider in self.given_up
            and not entry.doubt
            and not standing.takes(entry.settings_id)
            and self.is_unavailable_to(entry, customer)
        ):
            return False
        standing.choose()
        return True

    def claim_for(self, message: Delivery, provider: str, windows: Windows, now: int) -> bool:
        """The same for a message that its window may shut out: then it is no probe."""
        entry, customer = message.entry, message.customer
        if windows.rules and message.opening(windows, channel_of(provider), now) is not None:
            return entry.doubt or not self.is_unavailable_to(entry, customer)
        return self.claim(entry, customer, provider)

    def has_other(self, name: str) -> bool:
        """Whether another provider works and takes messages instead of this one."""
        return any(
            other != name and not sender.standing.is_down and not sender.standing.is_paused
            for other, sender in self.enabled.items()
        )

    def has_other_for(self, entry: Entry, name: str) -> bool:
        """The same for one message, which is repeated where it was made while it is in doubt."""
        return not entry.doubt and any(self._others(entry, name))

    def can_move(
        self, entry: Entry, customer: Customer | None, name: str, without: Collection[str] = ()
    ) -> bool:
        """Whether another provider, none of those `without`, takes a message that waits for this one."""
        return not entry.doubt and any(
            other not in without and self._reaches(other, entry, customer)
            for other in self._others(entry, name)
        )

    def leaves(self, entry: Entry, name: str) -> bool:
        """Whether a message that may have arrived at a provider, but isn't in doubt, may go to another."""
        standing = self.senders[name].standing
        if standing.is_paused:
            return self.has_other_for(entry, name)
        return standing.is_down and (
            self.has_other_for(entry, name) or (name in self.given_up and not entry.doubt)
        )

    def _reaches(self, name: str, entry: Entry, customer: Customer | None) -> bool:
        """Whether a provider reaches the customer of a message, at an address that is admitted."""
        sender, safety = self.senders[name], self._safety
        adapter, destinations = sender.adapter, sender.destinations
        if not adapter.reaches(customer):
            return False
        if destinations is not None and not entry.doubt and destinations.refusal(customer) is not None:
            return False
        return not safety.limits or safety.admits(name, adapter, entry.customer_id, customer)

    def _others(self, entry: Entry, name: str) -> Iterator[str]:
        return (
            other
            for other, sender in self.open_to(entry).items()
            if other != name and sender.standing.takes(entry.settings_id)
        )

    def _score(self, message_id: int, name: str, weight: float) -> float:
        number = message_id.to_bytes(8, "big", signed=True)
        digest = hashlib.blake2b(number, digest_size=8, key=self._salts[name]).digest()
        share = ((int.from_bytes(digest, "big") >> (64 - _BITS)) + 0.5) / (1 << _BITS)
        return -weight / math.log(share)


def is_spent(spent: Sequence[Spent], provider: str) -> bool:
    """Whether a provider failed for good with a message, or its whole channel ended for it."""
    return any(
        provider == each.provider or (each.ends_channel and channel_of(provider) == channel_of(each.provider))
        for each in spent
    )
