"""Rules about what providers reject while they accept others: it costs itself, and nobody else notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from simulation.case import TAKEN_FOR_SENT, Case
from simulation.ledger import Asked, read_event
from simulation.plan import Trouble
from simulation.rules_of_sending import REFUSED_BY_MISTAKE
from simulation.run import History

IN_TIME = 5.0
"""Seconds beyond its time in line after which a message is accepted that providers don't reject."""


def tries_at(case: Case, asked: Sequence[Asked]) -> int:
    """How many requests to one provider may count as tries.

    A rejection does if others were taken since the one before, which then counts as well.
    """
    rejected = [one for one in asked if one.trouble is Trouble.UNAUTHORIZED]
    shown = sum(_may_know_of_others(case, *each) for each in pairwise(rejected))
    return len(asked) - len(rejected) + shown + (shown > 0)


def _may_know_of_others(case: Case, before: Asked, later: Asked) -> bool:
    """Whether the answer that another message was taken may have come between two rejections."""
    ledger = case.history.ledger
    return any(
        one.provider == later.provider
        and one.message_id != later.message_id
        and one.trouble in TAKEN_FOR_SENT
        and one.order < later.order
        and ledger.ended.get(one.request, later.order) > before.order
        for one in ledger.asked
    )


def _rejected_in_bounds(case: Case) -> Iterator[str]:
    """A message that is rejected while others are taken is tried as often as configured."""
    rejections, attempts = case.history.plan.rejections, case.history.plan.tuning.attempts
    if rejections is None or case.message.id not in rejections.messages:
        return
    for provider in case.history.plan.weights:
        asked = [one for one in case.asked if (one.provider, one.trouble) == (provider, Trouble.UNAUTHORIZED)]
        shown = sum(_knows_of_others(case, *each) for each in pairwise(asked))
        if shown > max(attempts - 1, 1):
            yield f"was rejected {len(asked)} times by {provider}, which took others meanwhile"


def _knows_of_others(case: Case, before: Asked, later: Asked) -> bool:
    """Whether between two rejections another message was asked for, and taken."""
    ledger = case.history.ledger
    return any(
        one.provider == later.provider
        and one.message_id != later.message_id
        and one.trouble in TAKEN_FOR_SENT
        and ledger.ended[before.request] < one.order
        and ledger.ended.get(one.request, later.order) < later.order
        for one in ledger.asked
    )


def _others_in_time(case: Case) -> Iterator[str]:
    """What providers reject holds up no other message (promise 6)."""
    plan, rejections = case.history.plan, case.history.plan.rejections
    if rejections is None:
        return
    well = {each.id for each in plan.messages if each.settings_id not in rejections.settings}
    if case.message.id not in well - rejections.messages:
        return
    in_line = len(well) * plan.provider_seconds / plan.tuning.concurrency
    taken = next((one.at for one in case.asked if one.trouble in TAKEN_FOR_SENT), float("inf"))
    if taken - case.offered_at > in_line + IN_TIME:
        yield f"was held up for {taken - case.offered_at:.1f} s by what providers reject"


def broken_waits(history: History) -> Iterator[str]:
    """A refused template costs a few messages: the others wait until the provider takes it."""
    plan, rejections = history.plan, history.plan.rejections
    if rejections is None:
        return
    id_of = {message.id: message.settings_id for message in plan.messages}
    most = REFUSED_BY_MISTAKE + plan.tuning.concurrency
    ended = {event.message_id for post in history.ledger.posted for event in map(read_event, post.bodies)
             if event.status == "error"}  # fmt: skip
    lost = Counter(id_of[id_] for id_ in ended - rejections.messages)
    for settings_id in rejections.settings:
        if lost[settings_id] > most:
            yield f"settings {settings_id} cost {lost[settings_id]} messages while they were refused"


RULES = (_rejected_in_bounds, _others_in_time)
