"""Plans in which what was sent has to be confirmed in time, or goes on to the next channel when it failed."""

from __future__ import annotations

from dataclasses import replace

from simulation.choosing import Choices
from simulation.contents import CONTENTS
from simulation.plan import CHANNELS, Message, Named, Plan, Report

SEVERAL_CHANNELS = (CONTENTS[2], CONTENTS[3], CONTENTS[4], CONTENTS[4], CONTENTS[5])


def with_receipt_deadlines(choices: Choices, plan: Plan) -> Plan:
    """The plan as it is, or with deadlines of receipts and failures that lead to the next channel."""
    if choices.number(0, 5) < 4 or plan.is_fair or plan.has_spare:
        return plan
    deadline = choices.one_of((2.0, 2.0, 5.0, 15.0, None))
    return replace(
        plan,
        tuning=replace(
            plan.tuning,
            receipt_deadline=deadline,
            failed_next=deadline is None or choices.number(0, 1) > 0,
        ),
        templates={
            id_: replace(template, content=choices.one_of((template.content, *SEVERAL_CHANNELS)))
            for id_, template in plan.templates.items()
        },
        messages=tuple(_reported(choices, message) for message in plan.messages),
        lives=tuple(
            replace(life, channels=choices.one_of((life.channels, CHANNELS, CHANNELS))) for life in plan.lives
        ),
        jumps=choices.one_of((plan.jumps, ())),
    )


def _reported(choices: Choices, message: Message) -> Message:
    """The message with the reports that it had, with none, or with one about the time of the deadline."""
    around = Report(
        delay=choices.one_of((1.0, 1.9, 2.1, 3.0, 6.0)),
        status=choices.one_of(("delivered", "failed")),
        copies=1,
        answer_lost=False,
        names=choices.one_of((Named.NOTHING, Named.NOTHING, Named.KEY, Named.MESSAGE)),
    )
    return replace(message, reports=choices.one_of((message.reports, (), (around,))))
