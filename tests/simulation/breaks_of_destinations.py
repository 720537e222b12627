"""Deliberate breaks of which phone numbers providers are sent."""

from __future__ import annotations

import pytest

from deliveryd.channels import number_ranges
from deliveryd.delivery import destinations
from deliveryd.delivery.choice import Choice
from deliveryd.delivery.destinations import Destinations
from deliveryd.delivery.routing import Router
from deliveryd.model import Customer, Entry
from deliveryd.worker import handover

Patch = pytest.MonkeyPatch


def first_rule_alone(patch: Patch) -> None:
    """Where the channel names numbers, its providers' own tables don't count."""
    made = Destinations.__init__

    def init(
        self: Destinations, channel: object, rules: list[object], *others: object, **named: object
    ) -> None:
        made(self, channel, rules[:1], *others, **named)  # type: ignore[arg-type]

    patch.setattr(Destinations, "__init__", init)


def countries_by_calling_code(patch: Patch) -> None:
    """All numbers with a calling code are in the first of the countries that share it."""
    patch.setattr(destinations, "country_of", lambda number: number_ranges._plan_of(number[:4])[1][0])


def premium_rates_allowed(patch: Patch) -> None:
    """Nothing is refused but by countries and prefixes."""
    patch.setattr(destinations, "is_premium", lambda _number: False)


def put_off_where_it_was(patch: Patch) -> None:
    """What a provider put off is repeated there, whatever numbers it is sent by then."""
    patch.setattr(Router, "_why_kept_from", lambda *_arguments: None)


def queued_by_the_numbers_before(patch: Patch) -> None:
    """What is queued when a reload changes the numbers stays where it is."""
    patch.setattr(handover, "_routing", lambda config: config.channels.order)


def doubts_refused(patch: Patch) -> None:
    """What is in doubt at a provider goes to none any more when that isn't sent its number."""

    def reaches(self: Choice, name: str, _entry: Entry, customer: Customer | None) -> bool:
        return self.senders[name].adapter.reaches(customer) and self.refusal(name, customer) is None

    patch.setattr(Choice, "_reaches", reaches)
