"""Which phone numbers a channel and its providers are sent, worked out apart from the code."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from simulation.case import Case
from simulation.expectation import address_of, enabled_in, persons_of
from simulation.plan import SMS, Life

NUMBERS: Mapping[str, str | None] = {
    "+4915112345678": "DE",
    "+4917187654321": "DE",
    "+436641234567": "AT",
    "+447400123456": "GB",
    "+447797712345": "JE",
    "+447700900101": None,
    "+499001234567": "DE",
    "+16475550123": "CA",
    "+12015550123": "US",
}
"""Numbers and their countries; None: it is in none."""

PREMIUM = "+499001234567"


def serves(life: Life, provider: str, phone: str | None) -> bool:
    """Whether a life's configuration sends a number to a provider of the channel SMS."""
    if phone is None or (phone == PREMIUM and not life.allows_premium):
        return phone is None
    tables = [each for each in life.served if each.provider in {None, provider}]
    return all(
        NUMBERS.get(phone) in (each.countries or ()) or phone.startswith(each.prefixes or ("-",))
        for each in tables
    )


def phones_of(case: Case) -> set[str | None]:
    """The phone numbers of a message's customer."""
    return {address_of(person, SMS) for person in persons_of(case.history.plan, case.message)}


def serving_in(case: Case, life: Life, providers: Collection[str]) -> list[str]:
    """Those of some providers of the channel SMS that serve the customer of a message in a life."""
    return [each for each in providers if any(serves(life, each, phone) for phone in phones_of(case))]


def may_be_unserved(case: Case, channel: str) -> bool:
    """Whether the number isn't sent to by one of a channel's providers in one of the lives."""
    if channel != SMS:
        return False
    return any(
        len(serving_in(case, life, own)) < len(own)
        for life in case.history.lives
        for own in [[each for each in enabled_in(case.history.plan, life) if each.partition("/")[0] == SMS]]
    )
