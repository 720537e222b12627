"""Rules that only several workers on one journal can break."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from deliveryd.journal.orders import Action
from simulation.case import Case
from simulation.wire import TIMEOUT

_ENDS = frozenset({"sent", "delivered", "error"})

EARLY = 0.01
"""Seconds by which a difference of two instants may be wrong."""


def _repeated_late_enough(case: Case) -> Iterator[str]:
    """What a killed worker's attempt may still bring about isn't repeated before its time-out is over."""
    if Action.RESEND in case.orders or Action.RESEND_ANEW in case.orders:
        return
    for earlier, later in combinations(case.asked, 2):
        if earlier.request not in case.history.ledger.cut_short or earlier.life == later.life:
            continue
        if later.at < earlier.at + TIMEOUT - EARLY:
            waited = later.at - earlier.at
            yield f"was repeated {waited:.2f} s after a worker was killed that had sent it"


def _begun_by_one(case: Case) -> Iterator[str]:
    """An attempt is one worker's: nobody else sends the message while it is answered.

    A worker that stood still until its lease was over hears of its answer long after its time-out.
    """
    for earlier, later in combinations(case.asked, 2):
        if earlier.life in case.history.ledger.crashed and later.at >= earlier.at + TIMEOUT - EARLY:
            continue
        if earlier.life != later.life and later.order < case.history.ledger.ended.get(earlier.request, 0):
            yield f"was sent by two workers at a time, at {earlier.provider} and at {later.provider}"


def _told_before_it_was_forgotten(case: Case) -> Iterator[str]:
    """A day goes with what is over and told in it; all else moves to another one."""
    told = {*case.statuses, *(event.status for event in case.refused)}
    if case.message.id in case.history.pruned and not told & _ENDS and Action.DROP not in case.orders:
        yield f"was forgotten, and the service heard only {', '.join(case.statuses) or 'nothing'} of it"


RULES = (_repeated_late_enough, _begun_by_one, _told_before_it_was_forgotten)
