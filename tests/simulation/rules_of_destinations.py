"""Rules about which phone numbers providers are sent: no others come to them, but doubts of theirs."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.case import FAILED, SET_ASIDE, SLOW_ON_ITS_WAY, Case
from simulation.expectation import enabled_in
from simulation.ledger import Asked, channel_served_by
from simulation.plan import SMS
from simulation.rules_of_limiting import UNDER_WAY, in_force
from simulation.serving import phones_of, serves, serving_in

AT_ONCE = 0.2
"""Seconds after a reload in which all other attempts that had begun reach their providers."""


def _served_alone(case: Case) -> Iterator[str]:
    """A provider is asked by a configuration by which it is sent the number, or repeats what is in doubt."""
    for asked in case.asked:
        to = asked.content.get("to")
        is_slow = asked.trouble in SLOW_ON_ITS_WAY or _stands_still(case)
        lives = in_force(case, asked, UNDER_WAY if is_slow else AT_ONCE)
        if asked.channel != SMS or any(serves(life, asked.provider, to) for life in lives):
            continue
        if not _is_repeat_of_doubt(case, asked):
            yield f"{asked.provider} was asked to send to a number that it isn't sent"


def _stands_still(case: Case) -> bool:
    """Whether a request may be on its way for seconds, whatever its provider does."""
    plan = case.history.plan
    return bool(plan.suspensions) or any(hang.what.startswith("host ") for hang in plan.hangs)


def _is_repeat_of_doubt(case: Case, asked: Asked) -> bool:
    """Whether an earlier try there may be in doubt, or may have been begun by a life that died."""
    before = [one for one in case.under_key(asked.key) if one.order < asked.order]
    return any(map(case.may_be_doubtful, before)) or case.may_have_been_begun_before(asked)


def _ends_once(case: Case) -> Iterator[str]:
    """A message by SMS alone to a number that no provider is sent ends with one error, and no request."""
    plan = case.history.plan
    template = plan.templates.get(case.message.settings_id)
    if template is None or case.state is None or phones_of(case) == {None}:
        return
    blocks = {block for content in template.content.values() for block in content} - {"greetings"}
    lives = case.history.lives
    if blocks != {SMS} or any(
        serving_in(case, life, [one for one in enabled_in(plan, life) if channel_served_by(one) == SMS])
        for life in lives
    ):
        return
    if case.asked:
        yield "is to a number that nothing is sent to, and a provider was asked"
    if case.state not in {FAILED, SET_ASIDE}:
        yield f"is to a number that nothing is sent to, and is in state {case.state}"
    errors = sum(heard.event.status == "error" for heard in case.heard)
    if case.state == FAILED and not case.refused and not case.orders and errors != 1:
        yield f"is to a number that nothing is sent to, and has {errors} errors"


RULES = (_served_alone, _ends_once)
