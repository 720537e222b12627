"""Which phone numbers a provider is sent, and with what weight, by their countries.

The keys are `countries` and `prefixes`, its own and its channel's, and its `weights`.

Premium-rate numbers are refused, unless the channel allows them. A provider that isn't sent a number doesn't
reach the customer: another one of the channel takes the message, else the next channel. What is in doubt
stays with its provider, as with suppressed recipients: it may have the message, and is asked under its key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from deliveryd.channels.base import Channel
from deliveryd.channels.destination_rules import DestinationRule
from deliveryd.channels.devices import at_device, devices_of
from deliveryd.channels.number_ranges import country_of, is_premium, premium_ranges
from deliveryd.model import Customer

_HEAD = 4
"""Characters of an address after which its calling code is known."""

_MOST_KEPT = 1000
"""Heads of addresses that are kept: as many as three digits can be."""

_NUMBER = re.compile(r"\+[1-9][0-9]{6,14}")


class _PremiumRanges(dict[str, Callable[[str], object] | None]):
    """What all premium-rate numbers match that begin with a key; None: there are none.

    Few numbers match that aren't. `without_plus`: digits alone are a number as well.
    """

    def __init__(self, *, without_plus: bool) -> None:
        self._without_plus = without_plus

    def __missing__(self, head: str) -> Callable[[str], object] | None:
        if len(self) >= _MOST_KEPT:
            self.clear()
        self[head] = premium_ranges(head, without_plus=self._without_plus and head[:1] != "+")
        return self[head]


class Destinations:
    """Which numbers a provider is sent: those that all `rules` name.

    `allow_premium`: the key that would allow premium-rate numbers; None: they are allowed. `reads_phones`:
    the addresses are phone numbers, read with the filter e164, which may be sent without their `+`. Of the
    others only a text with a `+` is surely one.
    """

    def __init__(
        self,
        channel: Channel,
        rules: Sequence[DestinationRule],
        allow_premium: str | None,
        *,
        reads_phones: bool = False,
        weights: Mapping[str, int] | None = None,
    ) -> None:
        self.rules = tuple(rules)
        self.weights = weights or {}
        self._channel = channel
        self._recipients = channel.recipients
        self._devices_field = channel.devices_field
        self._refuses_premium_only = not rules and channel.devices_field is None
        self._allow_premium = allow_premium
        self._reads_phones = reads_phones
        self._premium = _PremiumRanges(without_plus=reads_phones)

    def refusal(self, customer: Customer | None) -> str | None:
        """Return why the provider isn't sent to a customer; None: it is. Of several devices one is enough.

        The reason quotes no number, but its country.
        """
        if self._refuses_premium_only and customer is not None:  # each message comes here
            for address in self._recipients(customer):
                matches = self._premium[address[:_HEAD]]
                if matches is not None and matches(address):
                    break
            else:
                return None
        if customer is None:
            return self._unsure
        if (field := self._devices_field) is None:
            return self.refusal_at(customer)
        each = (at_device(customer, field, device) for device in devices_of(customer, field))
        reasons = [self.refusal_at(one) for one in each]
        return None if None in reasons else next(iter(reasons), self._unsure)

    def refusal_at(self, customer: Customer) -> str | None:
        """The same for a customer with one device, or where a provider has no devices."""
        addresses = self._recipients(customer)
        reasons = (why for address in addresses if (why := self._refusal_of(address)) is not None)
        return next(reasons, None if addresses else self._unsure)

    def weight_for(self, customer: Customer | None) -> int | None:
        """Return the weight in the country of a customer's first number; None: there is none of its own."""
        if customer is None or not self.weights:
            return None
        address = next(iter(self._recipients(customer)), "")
        number = f"+{address}" if self._reads_phones and address[:1] != "+" else address
        return self.weights.get(country_of(number) or "") if _NUMBER.fullmatch(number) else None

    def _refusal_of(self, address: str) -> str | None:
        number = address
        if address[:1] != "+":
            if not self._reads_phones:
                return self._unsure
            number = f"+{address}"
        if self._allow_premium is not None:
            matches = self._premium[address[:_HEAD]]
            if matches is not None and matches(address) and is_premium(number):
                return f"a premium-rate number in {_country(number)}, and {self._allow_premium} isn't set"
        return self._refusal_by_rules(number) if self.rules else None

    def _refusal_by_rules(self, number: str) -> str | None:
        if not _NUMBER.fullmatch(number):
            return self._unsure
        for rule in self.rules:
            if rule.prefixes and number.startswith(rule.prefixes):
                continue
            if rule.countries is None or _country(number) not in rule.countries:
                return f"a number in {_country(number)} is not in {rule.keys}"
        return None

    @property
    def _unsure(self) -> str | None:
        """Why an address isn't sent to that isn't surely a phone number with its country code."""
        if not self.rules:
            return None
        return f"not surely a phone number with its country code, which {self.rules[0].keys} needs"


def _country(number: str) -> str:
    return country_of(number) or "no country"
