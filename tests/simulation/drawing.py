"""Draws plans: by one recipe, from a seed or from Hypothesis."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from hypothesis import strategies as st

from deliveryd.journal.orders import Kind, Verb
from simulation.plan import (
    CHANNELS,
    End,
    Errand,
    Jump,
    Life,
    Message,
    Named,
    Person,
    Plan,
    Report,
    Shortage,
    Step,
    Template,
    Trouble,
    Tuning,
)

T = TypeVar("T")

ANY = (
    Trouble.NO_CONNECTION,
    Trouble.RESET_BEFORE,
    Trouble.RESET_AFTER,
    Trouble.SILENCE_BEFORE,
    Trouble.SILENCE_AFTER,
    Trouble.GATEWAY_AFTER,
    Trouble.SLOW,
    Trouble.LATE,
    Trouble.BUSY,
    Trouble.BROKEN,
    Trouble.TOO_MANY,
    Trouble.UNAUTHORIZED,
)
TROUBLES = {
    "queue": (*ANY, Trouble.GARBAGE_AFTER, Trouble.BAD_REQUEST),
    "events": (*ANY, Trouble.GARBAGE_AFTER, Trouble.NOT_FOUND, Trouble.BAD_REQUEST, Trouble.CONFLICT),
    "settings": (*ANY, Trouble.GARBAGE_AFTER, Trouble.NOT_FOUND),
    "provider": (*ANY, Trouble.SLOW, Trouble.LATE, Trouble.GARBAGE_AFTER, Trouble.BAD_REQUEST),
}

SMS = {"text": "Hello {word}, {greeting}"}
MAIL = {"subject": "News of {word}", "body": "{greeting} {word} <b>{tid.0}</b>"}
PLAIN_MAIL = {"subject": "News", "body": "{word} {braces"}
CHAT = {"text": "{word} {tid.0}", "button.text": "Go {customer.name}", "button.url": "https://example.org"}
WHOLE = {"word": "one", "tid.0": "10.50"}
GREETINGS = {"general": "dear customer", "personal": "dear {customer.name}"}
GERMAN = {"text": "Hallo {word}"}
CONTENTS: tuple[dict[str, dict[str, dict[str, str]]], ...] = (
    {"en": {"sms": GERMAN}},
    {"en": {"sms": SMS, "greetings": GREETINGS}},
    {"en": {"sms": GERMAN, "email": PLAIN_MAIL}},
    {"en": {"messenger": CHAT, "sms": GERMAN}},
    {"en": {"messenger": GERMAN, "sms": GERMAN, "email": PLAIN_MAIL}},
    {"en": {"messenger": GERMAN, "sms": GERMAN, "email": MAIL, "greetings": GREETINGS}},
    {"de": {"sms": GERMAN}, "en": {"email": PLAIN_MAIL}},
    {"de": {"email": PLAIN_MAIL}},
)

DOUBTS = (Trouble.RESET_BEFORE, Trouble.RESET_AFTER, Trouble.SILENCE_AFTER, Trouble.GATEWAY_AFTER, None)
SAID_TWICE = tuple(
    Report(delay, "delivered", copies=1, answer_lost=False, names=names)
    for delay, names in ((0.5, Named.NOTHING), (4.0, Named.ATTEMPT))
)
"""The first fits nothing while its attempt is in doubt, the second settles that."""

ABOUT_DOUBTS = (Verb.RESEND, Verb.RESEND, Verb.SETTLE_SENT, Verb.SETTLE_FAILED)
ERRANDS = (
    *((verb, Kind.MESSAGE) for verb in ABOUT_DOUBTS * 2),
    (Verb.RETRY, Kind.MESSAGE),
    (Verb.RETRY, Kind.EVENT),
    (Verb.RETRY, Kind.RECEIPT),
    (Verb.DROP, Kind.MESSAGE),
    (Verb.DROP, Kind.EVENT),
    (Verb.DROP, Kind.RECEIPT),
    (Verb.DROP, Kind.MALFORMED),
)


class Choices(Protocol):
    """Where the choices come from. The least number and the first value are the simplest ones."""

    def number(self, least: int, most: int) -> int:
        """A number."""

    def one_of(self, values: Sequence[T]) -> T:
        """One of these."""


class Seeded:
    """Choices out of a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def number(self, least: int, most: int) -> int:
        """A number."""
        return self._random.randint(least, most)

    def one_of(self, values: Sequence[T]) -> T:
        """One of these."""
        return self._random.choice(values)


class Drawn:
    """Choices of Hypothesis."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def number(self, least: int, most: int) -> int:
        """A number."""
        return self._draw(st.integers(least, most))

    def one_of(self, values: Sequence[T]) -> T:
        """One of these."""
        return values[self._draw(st.integers(0, len(values) - 1))]


def seeded_plan(seed: int) -> Plan:
    """The plan of a seed."""
    return draw_plan(Seeded(seed), seed)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans for Hypothesis."""
    choices = Drawn(draw)
    return draw_plan(choices, choices.number(0, 2**16))


def draw_plan(choices: Choices, seed: int) -> Plan:
    """Draw a plan. `seed` is what the worker's own jitter comes from."""
    plan = _mixed(choices, seed)
    match choices.number(0, 11):
        case 11:
            return _crowded(choices, plan)
        case 10:
            return _doubtful(choices, plan)
        case 9:
            return replace(plan, shortages=(Shortage(choices.number(0, 20) / 10, 30.0, seen=True),))
        case _:
            return plan


def _doubtful(choices: Choices, plan: Plan) -> Plan:
    """The same, where little is heard of the providers, but later, and operators come."""
    hold = choices.one_of((CHANNELS, CHANNELS, ()))
    return replace(
        plan,
        troubles={
            "queue": (),
            "settings": (),
            "events": plan.troubles["events"],
            "provider": tuple(choices.one_of(DOUBTS) for _ in range(6)),
        },
        messages=tuple(
            replace(message, reports=choices.one_of((message.reports, SAID_TWICE)))
            for message in plan.messages
        ),
        lives=tuple(replace(life, channels=CHANNELS, hold=hold) for life in plan.lives),
        errands=tuple(
            Errand(choices.number(0, len(plan.lives)), choices.one_of((None, 4.0, 8.0)), verb, Kind.MESSAGE)
            for verb in (choices.one_of(ABOUT_DOUBTS) for _ in range(3))
        ),
    )


def _crowded(choices: Choices, plan: Plan) -> Plan:
    """The same, where messages wait in line before a slow provider while their time runs out."""
    expires = choices.one_of((0.7, 1.5, 3.0))
    return replace(
        plan,
        tuning=replace(plan.tuning, take=100, in_flight=100, concurrency=1),
        templates={id_: Template(CONTENTS[0], expires) for id_ in plan.templates},
        provider_seconds=0.4,
        troubles={**plan.troubles, "queue": (), "settings": (), "events": ()},
    )


def _mixed(choices: Choices, seed: int) -> Plan:
    templates = {id_: _template(choices) for id_ in range(1, choices.number(1, 4) + 1)}
    people = {id_: _person(choices) for id_ in range(1, choices.number(1, 4) + 1)}
    count = choices.one_of(
        (1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 8) * 4 + (12, 40)
    )  # short plans are fast ones
    lives = tuple(_life(choices) for _ in range(choices.one_of((1, 1, 1, 2, 2, 3))))
    return Plan(
        seed=seed,
        tuning=_tuning(choices),
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
    )


def _tuning(choices: Choices) -> Tuning:
    return Tuning(
        take=choices.one_of((100, 7, 2)),
        in_flight=choices.one_of((100, 10, 3, 1)),
        concurrency=choices.one_of((10, 2, 1, 1)),
        attempts=choices.one_of((4, 2, 1)),
        post=choices.one_of((500, 500, 4, 1)),
        intermediate=choices.one_of(((), (), ("sending", "accepted"))),
        breaker=choices.one_of((10, 10, 3, 1, 0)),
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
        phone=choices.one_of(("+447700900101", "+447700900102", "+447700900103", "+447700900104", None)),
        email=choices.one_of(("ann@example.org", "a.n@example.org", "an.n@example.org", None)),
    )


def _message(
    choices: Choices, id_: int, templates: dict[int, Template], people: dict[int, Person]
) -> Message:
    variables = choices.one_of(
        (*(WHOLE,) * 8, {"word": "{tid.0}", "tid.0": "7"}, {"word": "w"}, {"tid.0": "7"})
    )
    return Message(
        id=id_,
        settings_id=choices.number(1, len(templates) + (choices.number(0, 20) == 20)),
        customer_id=choices.number(1, len(people) + (choices.number(0, 5) == 5)),
        variables=variables,
        reports=_reports(choices),
        again=tuple(choices.number(1, 6) for _ in range(choices.one_of((0, 0, 0, 0, 1, 2)))),
        refused=choices.one_of(((),) * 12 + (("dequeued",), ("sent",), ("error",), ("delivered",))),
        pardon=choices.one_of((0, 0, 1, 2)),
    )


def _reports(choices: Choices) -> tuple[Report, ...]:
    count = choices.one_of((0, 0, 1, 1, 2))
    return tuple(
        Report(
            delay=choices.one_of((0.0, 0.5, 4.0)),
            status=choices.one_of(("delivered", "delivered", "failed", "enroute")),
            copies=choices.one_of((1, 1, 2)),
            answer_lost=choices.number(0, 5) == 5,
            names=choices.one_of((Named.NOTHING, Named.NOTHING, Named.ATTEMPT, Named.MESSAGE)),
        )
        for _ in range(count)
    )


def _malformed(choices: Choices) -> tuple[str, ...]:
    kinds = (
        {"id": 900, "settingsId": "x", "customerId": 1, "variables": {}},
        {"id": 901},
        {"customerId": 2},
        "text",
        {"id": 902, "settingsId": 1, "customerId": 1, "variables": {"a": [1]}},
    )
    count = choices.one_of((0, 0, 0, 1, 2))
    return tuple(json.dumps(choices.one_of(kinds)) for _ in range(count))


def _troubles(choices: Choices, endpoint: str) -> tuple[Trouble | None, ...]:
    most = 3 if endpoint == "settings" else 8  # without settings nothing else can go wrong
    count = choices.one_of((0, 2, most, most))
    return tuple(choices.one_of((None, None, None, *TROUBLES[endpoint])) for _ in range(count))


def _jumps(choices: Choices) -> tuple[Jump, ...]:
    count = choices.one_of((0, 0, 0, 1, 2))
    return tuple(
        Jump(choices.number(0, 80) / 10, choices.one_of((-10.0, -1.0, 3.0, 3600.0, 8 * 86400.0)))
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


def _errand(choices: Choices, lives: int) -> Errand:
    verb, kind = choices.one_of(ERRANDS)
    return Errand(
        life=choices.number(0, lives),
        after=choices.one_of((None, 0.5, 2.0, 4.0, 8.0)),
        verb=verb,
        kind=kind,
    )
