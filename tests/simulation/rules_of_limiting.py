"""Rules about whom an installation sends to: no provider is asked for anybody else."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.admitting import is_admitted, is_withheld_throughout
from simulation.case import FAILED, SET_ASIDE, Case
from simulation.ledger import Asked
from simulation.plan import Life

UNDER_WAY = 3.0
"""Seconds after a reload in which an attempt that had begun may still reach its provider."""


def _admitted_alone(case: Case) -> Iterator[str]:
    """Whoever is asked to send to a customer is asked by a configuration that sends to them."""
    for asked in case.asked:
        to = asked.content.get("to")
        if not any(is_admitted(life, case.message.customer_id, to) for life in in_force(case, asked)):
            yield f"{asked.provider} was asked for a customer whom this installation doesn't send to"


def in_force(case: Case, asked: Asked, within: float = UNDER_WAY) -> Iterator[Life]:
    """The configurations by which an attempt may have begun: a reload takes a moment."""
    ledger, lives = case.history.ledger, case.history.lives
    if case.history.is_shared:
        yield from lives
        return
    yield lives[asked.life]
    if asked.life in ledger.reloaded:
        yield lives[asked.life + 1]
    since = ledger.reconfigured.get(asked.life)
    if since is not None and asked.at <= since + within:
        yield lives[asked.life - 1]


def _ends_once(case: Case) -> Iterator[str]:
    """A message for a customer who is never sent to ends with one error."""
    if not is_withheld_throughout(case) or case.state is None:
        return
    if case.state not in {FAILED, SET_ASIDE}:
        yield f"is for a customer whom this installation doesn't send to, and is in state {case.state}"
    errors = sum(heard.event.status == "error" for heard in case.heard)
    if case.state == FAILED and not case.refused and not case.orders and errors != 1:
        yield f"is for a customer whom this installation doesn't send to, and has {errors} errors"


RULES = (_admitted_alone, _ends_once)
