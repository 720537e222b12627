"""Plans in which something else answers in the place of the service, or of a provider."""

from __future__ import annotations

from dataclasses import replace

from simulation.choosing import Choices
from simulation.plan import Plan, Trouble

RARE = 6
"""One of so many plans is one of these."""

IN_ITS_PLACE = (Trouble.PAGE, Trouble.PAGE_NOT_FOUND, None)
ANSWERS = {
    "queue": (*IN_ITS_PLACE, Trouble.NOTHING),
    "events": IN_ITS_PLACE,  # nothing at all is an answer to events
    "settings": (*IN_ITS_PLACE, Trouble.NOTHING),
    "provider": (*IN_ITS_PLACE, Trouble.NOTHING, Trouble.GARBAGE_AFTER, Trouble.CUT_AFTER),
    "lookup": (*IN_ITS_PLACE, Trouble.NOTHING),
}


def with_pages(choices: Choices, plan: Plan) -> Plan:
    """The plan as it is, or with a proxy or a portal between the worker and the others for a while."""
    if choices.number(1, RARE) < RARE or plan.is_fair or plan.has_spare:
        return plan
    troubles = dict(plan.troubles)
    for endpoint, answers in ANSWERS.items():
        found = tuple(choices.one_of(answers) for _ in range(choices.one_of((0, 2, 6))))
        troubles[endpoint] = (*found, *troubles.get(endpoint, ()))
    return replace(plan, troubles=troubles)
