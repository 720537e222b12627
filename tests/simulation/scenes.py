"""Scenes: plans that are bent so that one thing happens in them often, which would be rare otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from deliveryd.journal.orders import Action, ItemKind
from simulation.choosing import Choices
from simulation.contents import CONTENTS, GERMAN, GREETINGS, MALFORMED, PLAIN_MAIL, SMS, WHOLE, Content
from simulation.plan import (
    CHANNELS,
    HEALTHY,
    End,
    Errand,
    Hang,
    Jump,
    Life,
    Message,
    Named,
    Offers,
    Plan,
    Renewal,
    Report,
    Shortage,
    Step,
    Suspension,
    Template,
    Trouble,
)

DOUBTS = (
    Trouble.RESET_BEFORE,
    Trouble.RESET_AFTER,
    Trouble.SILENCE_AFTER,
    Trouble.GATEWAY_AFTER,
    Trouble.BROKEN_AFTER,
    Trouble.CUT_AFTER,
    None,
)
MAY_HAVE_ARRIVED = (
    Trouble.BUSY,
    Trouble.BUSY,
    Trouble.BUSY_AFTER,
    Trouble.RESET_AFTER,
    Trouble.GATEWAY_AFTER,
    Trouble.CUT_AFTER,
    None,
)
TAKEN_AND_DENIED = (
    Trouble.BUSY_AFTER,
    Trouble.BUSY_AFTER,
    Trouble.BROKEN_AFTER,
    Trouble.OVERDUE_AFTER,
    Trouble.RESET_AFTER,
    Trouble.TOO_MANY,
    Trouble.BAD_REQUEST,
    Trouble.CUT_REFUSAL,
    None,
)
QUEUE_FAULTS = (
    Trouble.CUT_AFTER,
    Trouble.CUT_AFTER,
    Trouble.DRIP_AFTER,
    Trouble.OVERSIZED_AFTER,
    Trouble.RESET_AFTER,
    Trouble.GARBAGE_AFTER,
    None,
    None,
)
SAID_TWICE = tuple(
    Report(delay, "delivered", copies=1, answer_lost=False, names=names)
    for delay, names in ((0.5, Named.NOTHING), (4.0, Named.KEY))
)
"""The first fits nothing while its attempt is in doubt, the second settles that."""

ABOUT_DOUBTS = (Action.RESEND, Action.RESEND, Action.RESEND_ANEW, Action.SETTLE_SENT, Action.SETTLE_FAILED)
WELL: dict[str, tuple[Trouble | None, ...]] = {"queue": (), "events": (), "settings": (), "provider": ()}
BOTH = CONTENTS[2]
"""By SMS, else by mail."""

GREETED: Content = {"en": {"sms": SMS, "greetings": GREETINGS}}

CHAT_ONLY: Content = {"en": {"messenger": GERMAN}}
"""Needs nothing of the customer."""

SMS_ONLY: Content = {"en": {"sms": GERMAN}}
MAIL_ONLY: Content = {"en": {"email": PLAIN_MAIL}}

AN_HOUR = 3600.0


def in_a_scene(choices: Choices, plan: Plan) -> Plan:
    """The plan as it is, as a rule; or bent to one of the scenes."""
    number = choices.number(0, 2 * len(SCENES))
    return SCENES[number](choices, plan) if number < len(SCENES) else plan


def _full_disk(choices: Choices, plan: Plan) -> Plan:
    return replace(plan, shortages=(Shortage(choices.number(0, 20) / 10, 30.0, seen=True),))


def _doubtful(choices: Choices, plan: Plan) -> Plan:
    """Little is heard of the providers, but later, and operators come."""
    hold = choices.one_of((CHANNELS, CHANNELS, ()))
    return replace(
        plan,
        troubles={
            **WELL,
            "events": plan.troubles["events"],
            "provider": tuple(choices.one_of(DOUBTS) for _ in range(6)),
        },
        messages=tuple(
            replace(message, reports=choices.one_of((message.reports, SAID_TWICE)))
            for message in plan.messages
        ),
        lives=tuple(replace(life, channels=CHANNELS, hold=hold) for life in plan.lives),
        errands=tuple(
            Errand(
                choices.number(0, len(plan.lives)), choices.one_of((None, 4.0, 8.0)), verb, ItemKind.MESSAGE
            )
            for verb in (choices.one_of(ABOUT_DOUBTS) for _ in range(3))
        ),
    )


def _crowded(choices: Choices, plan: Plan) -> Plan:
    """Messages wait in line before a slow provider while their time runs out."""
    expires = choices.one_of((0.7, 1.5, 3.0))
    return replace(
        plan,
        tuning=replace(plan.tuning, take=100, in_flight=100, concurrency=1),
        templates={id_: Template(CONTENTS[0], expires) for id_ in plan.templates},
        provider_seconds=0.4,
        troubles={**plan.troubles, "queue": (), "settings": (), "events": ()},
    )


def _denied(choices: Choices, plan: Plan) -> Plan:
    """Providers take messages and say that they didn't; then they report, whatever was done meanwhile."""
    expires = choices.one_of((None, None, 3.0, 8.0))
    return replace(
        plan,
        tuning=replace(plan.tuning, attempts=choices.one_of((1, 1, 2, 4))),
        templates={id_: Template(choices.one_of((BOTH, CONTENTS[4])), expires) for id_ in plan.templates},
        troubles={**WELL, "provider": tuple(choices.one_of(TAKEN_AND_DENIED) for _ in range(6))},
        messages=tuple(
            replace(message, reports=_late_reports(choices), refused=()) for message in plan.messages
        ),
        lives=tuple(replace(life, channels=CHANNELS) for life in plan.lives),
        jumps=(),
        shortages=(),
    )


def _late_reports(choices: Choices) -> tuple[Report, ...]:
    return tuple(
        Report(
            delay=choices.one_of((0.0, 0.3, 0.8, 1.5, 3.0, 6.0, 12.0)),
            status=choices.one_of(("delivered", "delivered", "failed")),
            copies=choices.one_of((1, 1, 2)),
            answer_lost=False,
            names=choices.one_of((Named.KEY, Named.KEY, Named.MESSAGE, Named.NOTHING)),
        )
        for _ in range(choices.one_of((1, 1, 2, 3)))
    )


def _hanging(choices: Choices, plan: Plan) -> Plan:
    """Some settings, the directory, or the name server of a provider give no answer; all else is well."""
    what = choices.one_of(("settings", "settings", "settings", "directory", "host email"))
    others = choices.one_of((1, 3, 12, 12))
    seconds = choices.one_of((15.0, 40.0))
    hung = MAIL_ONLY if what == "host email" else SMS_ONLY
    hangs = [f"settings {id_}" for id_ in range(2, others + 2)] if what == "settings" else [what]
    every = choices.one_of((2, 4, 8, 8))
    count = every * choices.number(2, 6)
    return replace(
        plan,
        tuning=replace(
            plan.tuning, take=100, in_flight=choices.one_of((4, 4, 10)), concurrency=10, post=500, breaker=10,
            service_timeout=10.0, cache_ttl=300.0,
        ),
        messages=tuple(
            Message(id_, HEALTHY if id_ % every == 0 else choices.number(2, others + 1), 1, WHOLE)
            for id_ in range(1, count + 1)
        ),
        malformed=(),
        templates={HEALTHY: Template(CHAT_ONLY, None)}
        | {id_: Template(hung, None) for id_ in range(2, others + 2)},
        people={1: replace(plan.people[1], phone="+447700900101", email="ann@example.org", language="en")},
        troubles=WELL,
        provider_seconds=0.01,
        most_events=500,
        directory_down=(),
        jumps=(),
        shortages=(),
        errands=(),
        lives=(replace(plan.lives[0], channels=CHANNELS, end=None),),
        hangs=tuple(Hang(one, 0.0, seconds) for one in hangs),
        suspensions=(),
        renewal=None,
        directory_seconds=0.0,
        is_fair=True,
    )  # fmt: skip


def _offering(choices: Choices, plan: Plan) -> Plan:
    """The queue's answers break off, and it offers what it has once, or until its `dequeued`."""
    offers = choices.one_of((Offers.ONCE, Offers.UNTIL_DEQUEUED))
    elements = [choices.one_of(MALFORMED) for _ in range(choices.one_of((0, 2, 10)))]
    return replace(
        plan,
        tuning=replace(plan.tuning, take=choices.one_of((7, 7, 100))),
        malformed=tuple(json.dumps(element) for element in elements),
        troubles={**plan.troubles, "queue": tuple(choices.one_of(QUEUE_FAULTS) for _ in range(8))},
        messages=tuple(replace(message, pardon=message.pardon or 1, again=()) for message in plan.messages),
        shortages=(),
        offers=offers,
    )


def _corrected(choices: Choices, plan: Plan) -> Plan:
    """The clock is wrong and is put right, while retries wait and messages are about to expire."""
    began = choices.number(0, 10) / 10
    ahead = choices.one_of((AN_HOUR, AN_HOUR, -AN_HOUR, 60.0))
    busy = (Trouble.BUSY, Trouble.TOO_MANY, Trouble.SILENCE_BEFORE, None)
    last = replace(plan.lives[-1], end=None)
    return replace(
        plan,
        tuning=replace(plan.tuning, attempts=4),
        templates={
            id_: replace(template, expires=choices.one_of((None, None, 1800.0, AN_HOUR + 5.0)))
            for id_, template in plan.templates.items()
        },
        troubles={**WELL, "provider": tuple(choices.one_of(busy) for _ in range(8))},
        jumps=(Jump(began, ahead), Jump(began + choices.number(5, 40) / 10, -ahead)),
        lives=choices.one_of((plan.lives, (last,))),
        suspensions=(),
    )


def _suspended(choices: Choices, plan: Plan) -> Plan:
    """The process stands still while providers' answers are on their way."""
    return replace(
        plan,
        provider_seconds=0.4,
        troubles={**WELL, "provider": plan.troubles["provider"]},
        suspensions=(Suspension(choices.number(5, 250) / 100, choices.one_of((5.0, 300.0))),),
    )


def _renamed(choices: Choices, plan: Plan) -> Plan:
    """Customers are known by other names when their messages are repeated, also after a crash."""
    people = {
        id_: replace(person, name="Ann", language="en", phone="+447700900101", email="ann@example.org")
        for id_, person in plan.people.items()
    }
    renamed = {id_: replace(person, name="Anna", phone="+447700900109") for id_, person in people.items()}
    crash = End(choices.one_of((Step.SENT, Step.COMMIT_BEFORE)), choices.number(1, 9), is_crash=True)
    return replace(
        plan,
        tuning=replace(plan.tuning, attempts=4, cache_ttl=0.1, breaker=0),
        templates={id_: Template(choices.one_of((GREETED, CONTENTS[3])), None) for id_ in plan.templates},
        people=people,
        renewal=Renewal(choices.number(1, 15) / 10, renamed),
        troubles={**WELL, "provider": tuple(choices.one_of(TAKEN_AND_DENIED) for _ in range(6))},
        lives=(Life(CHANNELS, (), crash), Life(CHANNELS, (), None)),
        jumps=(),
        shortages=(),
    )


def _late(choices: Choices, plan: Plan) -> Plan:
    """Connections take long, and meanwhile the time of messages runs out."""
    slow = (Trouble.SLOW_CONNECTION, Trouble.SLOW_CONNECTION, Trouble.BUSY, None)
    hangs = (Hang("host sms", choices.number(0, 10) / 10, choices.one_of((0.8, 1.6))),)
    return replace(
        plan,
        templates={
            id_: replace(template, expires=choices.one_of((0.4, 0.9, 1.4, 2.0)))
            for id_, template in plan.templates.items()
        },
        troubles={**WELL, "provider": tuple(choices.one_of(slow) for _ in range(6))},
        hangs=choices.one_of(((), hangs)),
        jumps=(),
        shortages=(),
    )


SCENES: tuple[Callable[[Choices, Plan], Plan], ...] = (
    _full_disk,
    _doubtful,
    _crowded,
    _denied,
    _denied,
    _hanging,
    _offering,
    _corrected,
    _suspended,
    _renamed,
    _late,
)
