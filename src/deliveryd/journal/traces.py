"""What is recognized as a customer's, or as about a message, in texts that nobody could read as more."""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

_CUSTOMER = re.compile(r'"customerId"\s*:\s*"?\s*(-?[0-9][0-9.eE+-]{0,40})')
_REFERENCE = re.compile(r"(?:[0-9a-f]+-(-?[0-9]{1,19})-[0-9a-z]{1,9}|(-?[0-9]{1,19}))")
_WORD = re.compile(r"[0-9A-Za-z_.-]+")
"""What may be a key, a message's id or a provider's id in the text of a report."""


class PersonalData(NamedTuple):
    """What a journal stores about a customer.

    Ids of messages, digests of malformed elements, numbers of unmatched receipts, and digests of reports that
    can't be read.
    """

    messages: list[int]
    malformed: list[str]
    receipts: list[int]
    reports: list[str]


def names_customer(raw: str, customer_id: int) -> bool:
    """Whether a malformed element has this customer id, in any notation of the number."""
    return any(_is(number, customer_id) for number in _CUSTOMER.findall(raw))


def _is(number: str, customer_id: int) -> bool:
    try:
        return Decimal(number) == customer_id
    except InvalidOperation:
        return False


def named_by(reference: str) -> int | None:
    """The message whose id or key a receipt's reference is; None: it is neither."""
    found = _REFERENCE.fullmatch(reference)
    return None if found is None else int(found[1] or found[2])


def is_about(raw: str, ids: Collection[int], provider_ids: Collection[str]) -> bool:
    """Whether a report names one of these messages: by its id, by one of its keys, or by a provider's id."""
    if any(word in provider_ids or named_by(word) in ids for word in _WORD.findall(raw)):
        return True
    return any(id_ in raw for id_ in provider_ids if _WORD.fullmatch(id_) is None)
