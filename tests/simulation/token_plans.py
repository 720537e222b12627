"""Plans in which requests need tokens that end, from a server that fails and hangs."""

from __future__ import annotations

from dataclasses import replace

from simulation.choosing import Choices
from simulation.contents import WHOLE
from simulation.plan import (
    CHANNELS,
    HEALTHY,
    PROVIDERS,
    SERVER,
    End,
    Hang,
    Life,
    Message,
    Offers,
    Plan,
    Step,
    Template,
    TokenTerms,
    Trouble,
)
from simulation.scenes import CHAT_ONLY, WELL

FAILURES = (
    Trouble.NO_CONNECTION,
    Trouble.RESET_BEFORE,
    Trouble.RESET_AFTER,
    Trouble.SILENCE_BEFORE,
    Trouble.SILENCE_AFTER,
    Trouble.GATEWAY_AFTER,
    Trouble.GARBAGE_AFTER,
    Trouble.CUT_AFTER,
    Trouble.BUSY,
    Trouble.BROKEN,
    Trouble.TOO_MANY,
    Trouble.UNAUTHORIZED,
    Trouble.BAD_REQUEST,
    Trouble.PAGE,
    Trouble.NOTHING,
    Trouble.LATE,
)
"""What the token server does instead of giving a token."""


CLIENTS = (
    ("service",),
    PROVIDERS["messenger"],
    PROVIDERS["sms"],
    ("service", *(provider for channel in CHANNELS for provider in PROVIDERS[channel])),
)
"""Who needs tokens."""


def with_tokens(choices: Choices, plan: Plan) -> Plan:
    """The plan as it is, or with tokens for some requests; or all is well but the server of the tokens."""
    number = choices.number(0, 19)
    if number < 16 or plan.is_fair or plan.has_spare:
        return plan
    lifetime = choices.one_of((8.0, 20.0, 60.0, 3600.0))
    hangs = _hangs(choices)
    failures = tuple(choices.one_of(FAILURES) for _ in range(choices.one_of((0, 0, 1, 3, 6))))
    revoked = tuple(sorted(float(choices.number(1, 40)) for _ in range(choices.one_of((0, 1, 1, 2)))))
    terms = TokenTerms(choices.one_of(CLIENTS), lifetime, revoked)
    if number == 19:
        plan = _well(choices, plan)
        well_from = max([0.0, *revoked, *(hang.at + hang.seconds for hang in hangs)])
        terms = replace(terms, clients=("service", "messenger"), well_from=well_from)
    # Where no breaker opens, a try without a token counts like any other.
    tuning = replace(plan.tuning, breaker=plan.tuning.breaker or choices.one_of((10, 1)))
    return replace(
        plan,
        tuning=tuning,
        troubles={**plan.troubles, "token": failures},
        hangs=(*plan.hangs, *hangs),
        tokens=terms,
    )


def _well(choices: Choices, plan: Plan) -> Plan:
    """The plan with one channel of one provider, and without whatever goes wrong."""
    return replace(
        plan,
        tuning=replace(
            plan.tuning, take=100, in_flight=choices.one_of((1, 5, 20)), concurrency=choices.one_of((1, 4)),
            attempts=choices.one_of((1, 2)), post=500, breaker=choices.one_of((10, 1)), intermediate=(),
            cache_ttl=300.0, service_timeout=2.0, unavailable_after=900.0, lookup_after=None,
            receipt_deadline=None, failed_next=False,
        ),
        weights={"messenger": 1},
        messages=tuple(Message(n + 1, HEALTHY, 1, WHOLE) for n in range(choices.one_of((5, 20, 60)))),
        malformed=(),
        templates={HEALTHY: Template(CHAT_ONLY, None)},
        troubles=WELL,
        provider_seconds=choices.one_of((0.1, 1.0)),
        most_events=500,
        directory_down=(),
        directory_seconds=0.0,
        jumps=(),
        shortages=(),
        errands=(),
        lives=_lives(choices),
        offers=Offers.AGAIN,
        hangs=(),
        suspensions=(),
        renewal=None,
        outages=(),
        opt_outs=(),
        strangers=(),
        moved=None,
        has_devices=False,
    )  # fmt: skip


def _hangs(choices: Choices) -> tuple[Hang, ...]:
    if choices.number(0, 1):
        return ()
    return (Hang(SERVER, float(choices.number(0, 20)), choices.one_of((1.0, 4.0, 30.0))),)


def _lives(choices: Choices) -> tuple[Life, ...]:
    """One, or a second after a kill; doubts are held or repeated."""
    hold = choices.one_of(((), CHANNELS[:1]))
    last = Life(CHANNELS[:1], hold, None)
    if choices.number(0, 2):
        return (last,)
    step = choices.one_of((Step.COMMIT_BEFORE, Step.COMMIT_AFTER, Step.SENT, Step.EVENTS_POSTED))
    return (replace(last, end=End(step, choices.number(1, 8), is_crash=True)), last)
