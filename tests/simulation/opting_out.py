"""Plans in which customers stop a channel: by a provider's answer, by its report, by an operator's word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deliveryd.journal.orders import Action, ItemKind
from simulation.choosing import Choices
from simulation.contents import CONTENTS
from simulation.plan import PROVIDERS, Errand, OptOut, Plan, Trouble

ADDRESSED = ("sms", "email")
"""The channels that send to an address of the customer's."""

ANSWERS = (Trouble.OPTED_OUT, Trouble.BUSY, None, None, None)


def with_opt_outs(choices: Choices, plan: Plan) -> Plan:
    """The plan as it is, or with customers who stop a channel and resume it."""
    if choices.number(0, 5) < 5 or plan.is_fair or plan.has_spare:
        return plan
    count = max(len(plan.messages), choices.one_of((4, 8, 12)))
    some = plan.messages
    messages = tuple(replace(some[n % len(some)], id=n + 1) for n in range(count))
    people = tuple(plan.people)
    return replace(
        plan,
        tuning=replace(plan.tuning, take=choices.one_of((plan.tuning.take, 1, 2))),
        templates={
            id_: replace(template, content=choices.one_of((template.content, CONTENTS[2], CONTENTS[4])))
            for id_, template in plan.templates.items()
        },
        messages=messages,
        troubles={
            **plan.troubles,
            "provider": tuple(choices.one_of(ANSWERS) for _ in range(choices.one_of((0, 4, 8)))),
        },
        opt_outs=tuple(_opt_outs(choices, people)),
        errands=(
            *plan.errands,
            *(_errand(choices, len(plan.lives)) for _ in range(choices.one_of((0, 0, 1, 2)))),
        ),
        jumps=(),
    )


def _opt_outs(choices: Choices, people: tuple[int, ...]) -> Iterator[OptOut]:
    """Some who stop or resume a channel, and a third of whom resumes it soon."""
    for _ in range(choices.one_of((1, 2, 4))):
        opt_out = OptOut(
            at=choices.number(0, 60) / 10,
            provider=PROVIDERS[choices.one_of(ADDRESSED)][0],
            customer_id=choices.one_of(people),
            stopped=choices.number(0, 2) < 2,
        )
        yield opt_out
        if choices.number(0, 2) == 0:
            yield replace(opt_out, at=opt_out.at + choices.number(1, 20) / 10, stopped=False)


def _errand(choices: Choices, lives: int) -> Errand:
    return Errand(
        life=choices.number(0, lives),
        after=choices.one_of((None, 0.5, 2.0, 4.0)),
        verb=choices.one_of((Action.LIFT, Action.LIFT, Action.STOP)),
        kind=ItemKind.RECIPIENT,
    )
