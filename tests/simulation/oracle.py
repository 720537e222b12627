"""Judges a run by the interface and the promises (design 4), knowing nothing of how the worker works."""

from __future__ import annotations

from collections.abc import Iterator

from deliveryd.journal.orders import Verb
from simulation import rules_of_reporting, rules_of_sending
from simulation.case import DELIVERED, FAILED, IN_DOUBT, SENT, SET_ASIDE, cases
from simulation.ledger import Posted, read_event
from simulation.run import History

RULES = (*rules_of_reporting.RULES, *rules_of_sending.RULES)
TAKE_UNDER_WAY = 12.0
"""Seconds that a request for messages may go on trying after it was begun."""


def violations(history: History) -> list[str]:
    """Every broken promise of a run, as sentences."""
    found = list(history.ledger.complaints)
    found += _account(history)
    found += _needless_reports(history)
    found += _taken_without_room(history)
    for case in cases(history):
        for rule in RULES:
            found += [f"message {case.message.id}: {text}" for text in rule(case)]
    return found


def _account(history: History) -> Iterator[str]:
    """Taken = ended + in doubt + set aside: nothing is on its way any more, nothing fell out."""
    handed = {handed.id for handed in history.ledger.handed if handed.id is not None}
    known = history.rows.keys() | history.past
    if lost := handed - known:
        yield f"handed out and not in the journal: {sorted(lost)}"
    if invented := known - handed:
        yield f"in the journal and never handed out: {sorted(invented)}"
    for row in history.rows.values():
        if row.state not in {IN_DOUBT, SENT, DELIVERED, FAILED, SET_ASIDE}:
            yield f"message {row.id} never came to an end (state {row.state})"


def _needless_reports(history: History) -> Iterator[str]:
    """An event is reported again only when its acceptance may not have been heard, or its id came again."""
    ledger = history.ledger
    retried = {id_ for ordered in ledger.ordered if ordered.verb is Verb.RETRY for id_ in ordered.message_ids}
    last: dict[str, Posted] = {}
    for post in ledger.posted:
        for body in post.bodies:
            before = last.get(body)
            last[body] = post
            if before is None or before.request not in ledger.answered or before.life != post.life:
                continue
            id_, status, *_ = read_event(body)
            # Two of the first may look alike while the wall clock stands still.
            if status in {"sending", "accepted"} or id_ in retried:
                continue
            if sum(handed.id == id_ for handed in ledger.handed if handed.order < post.order) < 2:
                yield f"message {id_}: an event was reported again for no reason"


def _taken_without_room(history: History) -> Iterator[str]:
    """Nothing more is asked for once the disk of the journal is known to be full."""
    for shortage in history.plan.shortages:
        if not shortage.seen:
            continue
        begin, end = shortage.at + TAKE_UNDER_WAY, shortage.at + shortage.seconds
        for polled in history.ledger.polled:
            if begin < polled.at < end:
                yield f"messages were asked for at {polled.at:.1f}, with a full disk"
                break
