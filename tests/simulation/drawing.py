"""Draws plans: by one recipe, from a seed or from Hypothesis."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from hypothesis import strategies as st

from deliveryd.journal.orders import Action, ItemKind
from simulation.choosing import Choices, Drawn, Seeded
from simulation.clocks_of_days import with_days
from simulation.confirming import with_receipt_deadlines
from simulation.contents import CONTENTS, MALFORMED, VARIABLES
from simulation.having_devices import with_devices_of_customers
from simulation.looking_up import with_lookups
from simulation.naming import with_both_words
from simulation.new_beginnings import with_new_beginnings
from simulation.opting_out import with_opt_outs
from simulation.pages import with_pages
from simulation.plan import (
    CHANNELS,
    End,
    Errand,
    Hang,
    Jump,
    Life,
    Message,
    Named,
    Offers,
    Person,
    Plan,
    Renewal,
    Report,
    Shortage,
    Step,
    Suspension,
    Template,
    Trouble,
    Tuning,
)
from simulation.scenes import ABOUT_DOUBTS, in_a_scene
from simulation.several import with_several_providers
from simulation.strangers import with_strangers
from simulation.token_plans import with_tokens

ANY = (
    Trouble.NO_CONNECTION,
    Trouble.SLOW_CONNECTION,
    Trouble.RESET_BEFORE,
    Trouble.RESET_AFTER,
    Trouble.SILENCE_BEFORE,
    Trouble.SILENCE_AFTER,
    Trouble.GATEWAY_AFTER,
    Trouble.BROKEN_AFTER,
    Trouble.BUSY_AFTER,
    Trouble.CUT_AFTER,
    Trouble.DRIP_AFTER,
    Trouble.OVERSIZED_AFTER,
    Trouble.GARBAGE_AFTER,
    Trouble.SLOW,
    Trouble.LATE,
    Trouble.BUSY,
    Trouble.BROKEN,
    Trouble.TOO_MANY,
    Trouble.UNAUTHORIZED,
)
TROUBLES = {
    "queue": (*ANY, Trouble.BAD_REQUEST),
    "events": (*ANY, Trouble.NOT_FOUND, Trouble.BAD_REQUEST, Trouble.CONFLICT),
    "settings": (*ANY, Trouble.NOT_FOUND),
    "provider": (
        *ANY,
        Trouble.SLOW,
        Trouble.LATE,
        Trouble.BUSY_AFTER,
        Trouble.OVERDUE_AFTER,
        Trouble.BAD_REQUEST,
        Trouble.CUT_REFUSAL,
    ),
}

ERRANDS = (
    *((verb, ItemKind.MESSAGE) for verb in ABOUT_DOUBTS * 2),
    (Action.RETRY, ItemKind.MESSAGE),
    (Action.RETRY, ItemKind.EVENT),
    (Action.RETRY, ItemKind.RECEIPT),
    (Action.DROP, ItemKind.MESSAGE),
    (Action.DROP, ItemKind.EVENT),
    (Action.DROP, ItemKind.RECEIPT),
    (Action.DROP, ItemKind.MALFORMED),
)

PHONES = ("+447700900101", "+447700900102", "+447700900103", "+447700900104", None)
ADDRESSES = ("ann@example.org", "a.n@example.org", "an.n@example.org", None)


LAYERS: Mapping[str, Callable[[Choices, Plan], Plan]] = {
    "providers": with_several_providers,
    "deadlines": with_receipt_deadlines,
    "opt-outs": with_opt_outs,
    "lookups": with_lookups,
    "beginnings": with_new_beginnings,
    "naming": with_both_words,
    "days": with_days,
    "strangers": with_strangers,
    "pages": with_pages,
    "devices": with_devices_of_customers,
    "tokens": with_tokens,
}
"""What is added to some of the plans, one after the other. Each layer has choices of its own, so that a new
one leaves the plans alone to which it adds nothing.
"""


def seeded_plan(seed: int, layers: int = len(LAYERS)) -> Plan:
    """The plan of a seed, with what the first so many layers add to it."""
    plan = plan_of_single_providers(seed)
    for name, layer in list(LAYERS.items())[:layers]:
        plan = layer(Seeded(f"{name} {seed}"), plan)
    return plan


def plan_of_single_providers(seed: int) -> Plan:
    """The plan of a seed as it is without any layer: each channel has one provider."""
    return draw_plan(Seeded(seed), seed)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans for Hypothesis."""
    choices = Drawn(draw)
    plan = draw_plan(choices, choices.number(0, 2**16))
    for layer in LAYERS.values():
        plan = layer(choices, plan)
    return plan


def draw_plan(choices: Choices, seed: int) -> Plan:
    """Draw a plan. `seed` is what the worker's own jitter comes from."""
    return in_a_scene(choices, _mixed(choices, seed))


def _mixed(choices: Choices, seed: int) -> Plan:
    templates = {id_: _template(choices) for id_ in range(1, choices.number(1, 4) + 1)}
    people = {id_: _person(choices) for id_ in range(1, choices.number(1, 4) + 1)}
    count = choices.one_of(
        (1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 8) * 4 + (12, 40)
    )  # short plans are fast ones
    lives = tuple(_life(choices) for _ in range(choices.one_of((1, 1, 1, 2, 2, 3))))
    renewal = _renewal(choices, people)
    return Plan(
        seed=seed,
        tuning=_tuning(choices, renewal),
        messages=tuple(_message(choices, id_, templates, people) for id_ in range(1, count + 1)),
        malformed=_malformed(choices),
        templates=templates,
        people=people,
        troubles={endpoint: _troubles(choices, endpoint) for endpoint in TROUBLES},
        provider_seconds=choices.one_of((0.01, 0.01, 0.4)),
        most_events=choices.one_of((500, 500, 500, 3, 1)),
        directory_down=tuple(choices.number(0, 1) > 0 for _ in range(choices.one_of((0, 0, 0, 2)))),
        jumps=_jumps(choices),
        shortages=_shortages(choices),
        errands=tuple(_errand(choices, len(lives)) for _ in range(choices.one_of((0, 0, 0, 2, 4)))),
        lives=lives,
        offers=choices.one_of((Offers.AGAIN, Offers.AGAIN, Offers.ONCE)),
        hangs=_hangs(choices),
        suspensions=_suspensions(choices),
        renewal=renewal,
        directory_seconds=choices.one_of((0.0,) * 5 + (0.3,)),
    )


def _tuning(choices: Choices, renewal: Renewal | None) -> Tuning:
    return Tuning(
        take=choices.one_of((100, 7, 2)),
        in_flight=choices.one_of((100, 10, 3, 1)),
        concurrency=choices.one_of((10, 2, 1, 1)),
        attempts=choices.one_of((4, 2, 1)),
        post=choices.one_of((500, 500, 4, 1)),
        intermediate=choices.one_of(((), (), ("sending", "accepted"))),
        breaker=choices.one_of((10, 10, 3, 1, 0)),
        cache_ttl=300.0 if renewal is None else 0.1,
    )


def _life(choices: Choices) -> Life:
    channels = choices.one_of(
        (CHANNELS, CHANNELS, CHANNELS, ("sms",), ("sms", "email"), ("messenger", "email"))
    )
    hold = choices.one_of(((), (), (), ("sms",), CHANNELS, CHANNELS))
    end = End(
        choices.one_of((*Step, Step.COMMIT_BEFORE, Step.COMMIT_AFTER)),
        choices.number(1, choices.one_of((4, 10, 40))),
        is_crash=choices.number(0, 3) < 3,
    )
    return Life(channels, hold, end)


def _template(choices: Choices) -> Template:
    expires = choices.one_of((None,) * 20 + (-5.0, 0.5, 1.0, 2.0, 4.0, 8.0))
    return Template(choices.one_of(CONTENTS), expires)


def _person(choices: Choices) -> Person:
    return Person(
        name=choices.one_of(("Ann", None)),
        language=choices.one_of((None, "en", "en", "de", "de-AT", "fr")),
        phone=choices.one_of(PHONES),
        email=choices.one_of(ADDRESSES),
    )


def _renewal(choices: Choices, people: dict[int, Person]) -> Renewal | None:
    """The same customers under other names, with other languages or at other addresses."""
    if choices.number(0, 9) < 9:
        return None
    renewed = {
        id_: Person(
            name=choices.one_of((person.name, "Anna", "Anna")),
            language=choices.one_of((person.language, person.language, "de")),
            phone=person.phone and choices.one_of((person.phone, "+447700900109")),
            email=person.email and choices.one_of((person.email, "anna@example.org")),
        )
        for id_, person in people.items()
    }
    return Renewal(choices.number(1, 40) / 10, renewed)


def _message(
    choices: Choices, id_: int, templates: dict[int, Template], people: dict[int, Person]
) -> Message:
    refused = choices.one_of(
        ((),) * 18 + (("dequeued",), ("dequeued",), ("sent",), ("error",), ("delivered",))
    )
    again = tuple(choices.number(1, 6) for _ in range(choices.one_of((0, 0, 0, 0, 1, 2))))
    return Message(
        id=id_,
        settings_id=choices.number(1, len(templates) + (choices.number(0, 20) == 20)),
        customer_id=choices.number(1, len(people) + (choices.number(0, 5) == 5)),
        variables=choices.one_of(VARIABLES),
        reports=_reports(choices),
        again=again if "dequeued" not in refused else (2, 4),
        refused=refused,
        pardon=choices.one_of((0, 0, 1, 1, 2)),
    )


def _reports(choices: Choices) -> tuple[Report, ...]:
    count = choices.one_of((0, 0, 1, 1, 2, 3))
    return tuple(
        Report(
            delay=choices.one_of((0.0, 0.5, 1.0, 2.5, 4.0, 9.0)),
            status=choices.one_of(("delivered", "delivered", "failed", "enroute")),
            copies=choices.one_of((1, 1, 2)),
            answer_lost=choices.number(0, 5) == 5,
            names=choices.one_of((Named.NOTHING, Named.NOTHING, Named.KEY, Named.KEY, Named.MESSAGE)),
        )
        for _ in range(count)
    )


def _malformed(choices: Choices) -> tuple[str, ...]:
    count = choices.one_of((0, 0, 0, 0, 1, 2, 5))
    return tuple(json.dumps(choices.one_of(MALFORMED)) for _ in range(count))


def _troubles(choices: Choices, endpoint: str) -> tuple[Trouble | None, ...]:
    most = 3 if endpoint == "settings" else 8  # without settings nothing else can go wrong
    count = choices.one_of((0, 2, most, most))
    return tuple(choices.one_of((None, None, None, *TROUBLES[endpoint])) for _ in range(count))


def _jumps(choices: Choices) -> tuple[Jump, ...]:
    count = choices.one_of((0, 0, 0, 1, 2))
    return tuple(
        Jump(choices.number(0, 80) / 10, choices.one_of((-3600.0, -10.0, -1.0, 3.0, 3600.0, 8 * 86400.0)))
        for _ in range(count)
    )


def _shortages(choices: Choices) -> tuple[Shortage, ...]:
    count = choices.one_of((0,) * 7 + (1,))
    return tuple(
        Shortage(
            at=choices.number(0, 60) / 10,
            seconds=choices.one_of((0.5, 3.0, 30.0)),
            seen=choices.number(0, 1) > 0,
        )
        for _ in range(count)
    )


def _hangs(choices: Choices) -> tuple[Hang, ...]:
    count = choices.one_of((0,) * 7 + (1, 2))
    what = ("settings 1", "settings 2", "directory", *(f"host {name}" for name in CHANNELS), "host service")
    return tuple(
        Hang(choices.one_of(what), choices.number(0, 40) / 10, choices.one_of((1.0, 5.0, 30.0)))
        for _ in range(count)
    )


def _suspensions(choices: Choices) -> tuple[Suspension, ...]:
    count = choices.one_of((0,) * 7 + (1,))
    return tuple(
        Suspension(choices.number(0, 400) / 100, choices.one_of((5.0, 60.0, 300.0))) for _ in range(count)
    )


def _errand(choices: Choices, lives: int) -> Errand:
    verb, kind = choices.one_of(ERRANDS)
    return Errand(
        life=choices.number(0, lives),
        after=choices.one_of((None, 0.5, 2.0, 4.0, 8.0)),
        verb=verb,
        kind=kind,
    )
