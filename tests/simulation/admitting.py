"""Whom an installation sends to, worked out from what its documents say, apart from the code."""

from __future__ import annotations

import hashlib

from simulation.case import Case
from simulation.expectation import address_of, persons_of
from simulation.plan import CHANNELS, Life

POSITIONS = 2**32


def position(customer_id: int) -> int:
    """The first eight hexadecimal digits of the SHA-256 of a customer's id."""
    return int(hashlib.sha256(str(customer_id).encode()).hexdigest()[:8], 16)


def is_admitted(life: Life, customer_id: int, address: str | None) -> bool:
    """Whether a life's configuration sends to a customer at an address; None: the channel needs none."""
    if life.only_to is None and life.share is None:
        return True
    if life.share is not None and position(customer_id) * 100 < int(life.share[:-1]) * POSITIONS:
        return True
    entries = life.only_to or ()
    return f"customer:{customer_id}" in entries or any(_fits(entry, address) for entry in entries)


def _fits(entry: str, address: str | None) -> bool:
    if address is None or entry.startswith("customer:"):
        return False
    if entry.startswith("*@"):
        return address.rpartition("@")[2] == entry[2:]
    return address.startswith(entry[:-1]) if entry.endswith("*") else address == entry


def may_be_withheld(case: Case) -> bool:
    """Whether a message isn't sent to its customer at one of their addresses in one of the lives."""
    return any(not all(_admitted(case, life)) for life in case.history.lives)


def is_withheld_throughout(case: Case) -> bool:
    """Whether no life sends a message to any of its customer's addresses."""
    return not any(any(_admitted(case, life)) for life in case.history.lives)


def _admitted(case: Case, life: Life) -> list[bool]:
    addresses = {
        address_of(person, channel)
        for person in persons_of(case.history.plan, case.message)
        for channel in CHANNELS
    }
    return [is_admitted(life, case.message.customer_id, address) for address in addresses]
