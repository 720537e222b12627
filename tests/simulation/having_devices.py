"""Plans in which messenger sends to each device of a customer, some of which are gone for ever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulation.choosing import Choices
from simulation.contents import CONTENTS, WHOLE
from simulation.plan import CHANNELS, Person, Plan, Trouble
from simulation.scenes import CHAT_ONLY, WELL

ANSWERS = (
    Trouble.OPTED_OUT,
    Trouble.OPTED_OUT,
    Trouble.BAD_REQUEST,
    Trouble.TOO_MANY,
    Trouble.NO_CONNECTION,
    Trouble.BUSY,
    Trouble.BUSY_AFTER,
    Trouble.RESET_AFTER,
    Trouble.GATEWAY_AFTER,
    *(None,) * 9,
)
"""What becomes of the requests to devices."""

NOT_TAKEN = (
    Trouble.BAD_REQUEST,
    Trouble.BAD_REQUEST,
    Trouble.TOO_MANY,
    Trouble.NO_CONNECTION,
    Trouble.OPTED_OUT,
)
"""The same where none takes a message at once."""


COUNTS = (*(2, 3, 4, 5) * 3, 12, 1, 0)
"""Devices of a customer; of more than ten, some wait until others have answered."""


def with_devices_of_customers(choices: Choices, plan: Plan) -> Plan:
    """The plan as it is, or with devices; not where messages are to be confirmed, since devices don't."""
    confirms = plan.tuning.receipt_deadline is not None or plan.tuning.failed_next
    if choices.number(0, 3) < 3 or plan.is_fair or plan.has_spare or confirms:
        return plan
    people = _equipped(choices, plan.people)
    renewal = plan.renewal
    if renewal is not None:
        kept = {id_: replace(person, devices=people[id_].devices) for id_, person in renewal.people.items()}
        renewal = replace(renewal, people=choices.one_of((kept, _equipped(choices, renewal.people))))
    plan = replace(plan, has_devices=True, people=people, renewal=renewal)
    if choices.number(0, 3) == 0:
        return plan
    count = max(len(plan.messages), choices.one_of((2, 4, 8)))
    some, answers = plan.messages, choices.one_of((ANSWERS, ANSWERS, NOT_TAKEN))
    return replace(
        plan,
        tuning=replace(plan.tuning, take=choices.one_of((plan.tuning.take, 1, 2))),
        messages=tuple(
            replace(some[n % len(some)], id=n + 1, customer_id=choices.one_of(tuple(people)), variables=WHOLE)
            for n in range(count)
        ),
        templates={
            id_: replace(template, content=choices.one_of((CONTENTS[3], CONTENTS[4], CHAT_ONLY)))
            for id_, template in plan.templates.items()
        },
        troubles={
            **choices.one_of((plan.troubles, WELL)),
            "provider": tuple(choices.one_of(answers) for _ in range(choices.one_of((6, 12, 24)))),
        },
        lives=tuple(replace(life, channels=CHANNELS) for life in plan.lives),
    )


def _equipped(choices: Choices, people: Mapping[int, Person]) -> Mapping[int, Person]:
    """Most people with several devices; one has one, which isn't in a list."""
    return {
        id_: replace(person, devices=tuple(f"d{id_}.{n}" for n in range(choices.one_of(COUNTS))))
        for id_, person in people.items()
    }
