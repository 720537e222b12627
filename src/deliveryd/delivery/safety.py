"""Whom this installation sends to: `[safety]`, in force from the start or a reload on.

The router ends the messages of all others. Immediately before a request to a provider it is asked again,
so that nothing passes it: neither what was queued before a reload, nor a repeat, nor an operator's order.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from functools import lru_cache

from deliveryd.channels.base import Channel
from deliveryd.channels.devices import at_device, devices_of
from deliveryd.model import Customer
from deliveryd.options.safety import (
    AllowedEntry,
    EntryKind,
    SafetyOptions,
    comparable_mail,
    limits_text,
    read_entry,
)
from deliveryd.telemetry.log_events import Event, log

NOT_ON_THE_LIST = "not on the list of this installation"
OUTSIDE_OF_THE_SHARE = "outside of the share of this installation"

_POSITIONS = 1 << 32
"""How many positions customers have by their hash; a share is the lower part of them."""

_NUMBER = re.compile(r"\+[1-9][0-9]{6,14}")
_MOST_KEPT = 1024
"""Mail addresses that are kept: each is read when the provider is chosen, and again when it is asked."""


def position_of(customer_id: int) -> int:
    """Return the position of a customer, below 2^32: the first 8 hexadecimal digits of the ID's SHA-256."""
    return int.from_bytes(hashlib.sha256(str(customer_id).encode()).digest()[:4], "big")


class Safety:
    """Who is sent to; everybody, if nothing is named. A reload replaces what is named.

    `phones` are the providers whose addresses are phone numbers, read with the filter e164: they may be sent
    without their `+`. Of the others only a text with a `+` is surely one.
    """

    def __init__(self, options: SafetyOptions | None = None, phones: Collection[str] = ()) -> None:
        self._adopt(options or SafetyOptions(), phones)

    def _adopt(self, options: SafetyOptions, phones: Collection[str]) -> None:
        self.options = options
        self.limits = options.limits
        """Whether anybody isn't sent to: if not, nothing is computed."""

        self.reason = NOT_ON_THE_LIST if options.share is None else OUTSIDE_OF_THE_SHARE
        """Why a message ends whose customer isn't sent to."""

        entries = [read_entry(text) for text in options.only_to or ()]
        self._customers = frozenset(int(value) for value in _values(entries, "customer"))
        self._phones, self._beginnings = _values(entries, "phone"), tuple(_values(entries, "phones"))
        self._mails, self._domains = _values(entries, "mail"), _values(entries, "domain")
        self.has_addresses = any(entry.kind != "customer" for entry in entries)
        """Whether a customer may be sent to because of an address."""

        self._below = int((options.share or 0.0) * _POSITIONS)
        self._phone_providers = frozenset(phones)

    def follow(self, options: SafetyOptions, phones: Collection[str]) -> None:
        """Go by these options from now on; log it where they limit, or limited before."""
        before = self.options
        self._adopt(options, phones)
        if options.limits and before != options:
            log(Event.SAFETY_LIMITED, reason=limits_text(*options.figures))
        elif before.limits and not options.limits:
            log(Event.SAFETY_LIFTED)

    def admits_customer(self, customer_id: int) -> bool:
        """Whether a customer is sent to at any address."""
        return not self.limits or customer_id in self._customers or position_of(customer_id) < self._below

    def admits(self, provider: str, channel: Channel, customer_id: int, customer: Customer | None) -> bool:
        """Whether a provider may be asked for this customer: of several devices one is enough."""
        if self.admits_customer(customer_id):
            return True
        if customer is None or not self.has_addresses:
            return False
        field = channel.devices_field
        if field is None:
            return self._lists(provider, channel.recipients(customer))
        return any(
            self._lists(provider, channel.recipients(at_device(customer, field, device)))
            for device in devices_of(customer, field)
        )

    def _lists(self, provider: str, addresses: Collection[str]) -> bool:
        """Whether all of these addresses are on the list. One that isn't known is on none."""
        return bool(addresses) and all(self.lists(provider, address) for address in addresses)

    def lists(self, provider: str, address: str) -> bool:
        """Whether an address is on the list, as it is sent to a provider."""
        if "@" in address:
            mail = _mail(address)
            return mail is not None and (mail in self._mails or mail.rpartition("@")[2] in self._domains)
        if address[:1] != "+" and provider in self._phone_providers:
            address = f"+{address}"
        return _NUMBER.fullmatch(address) is not None and (
            address in self._phones or address.startswith(self._beginnings)
        )


def _values(entries: Collection[AllowedEntry], kind: EntryKind) -> frozenset[str]:
    return frozenset(entry.value for entry in entries if entry.kind == kind)


@lru_cache(_MOST_KEPT)
def _mail(address: str) -> str | None:
    """Return a mail address as it is compared; None: it isn't exactly one."""
    from deliveryd.channels.mail.mail_headers import parse_mailbox  # noqa: PLC0415  # loads email_validator

    try:
        mailbox = parse_mailbox(address)
    except ValueError:
        return None
    return comparable_mail(mailbox.local, mailbox.domain)
