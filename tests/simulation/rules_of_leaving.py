"""Rules about messages that leave a provider: what was said there belongs to that provider alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from deliveryd.journal.orders import Action
from simulation.case import Case
from simulation.ledger import Asked


def _comes_back_to_none(case: Case) -> Iterator[str]:
    """A provider that a message left, and that may have it, counts as spent, also after it was removed."""
    if Action.RESEND_ANEW in case.orders:
        return
    left: set[str] = set()
    for before, asked in pairwise(case.asked):
        if asked.provider != before.provider and _may_be_at(case, before):
            left.add(before.provider)
        if asked.provider in left:
            yield f"came back to {asked.provider}, which it had left and which may have it"
            return


def _may_be_at(case: Case, last: Asked) -> bool:
    """Whether the provider of a request may have the message after it."""
    return any(case.may_have_arrived(one) for one in case.under_key(last.key) if one.order <= last.order)


RULES_OF_EACH = (_comes_back_to_none,)
