"""Rules about messages for several devices of a customer: each has its key, and the rest isn't forgotten."""

from __future__ import annotations

from collections.abc import Iterator

from deliveryd.journal.orders import Action
from simulation.case import FOR_GOOD, SENT, TAKEN_FOR_SENT, UNREADABLE, Case
from simulation.expectation import addresses, providers_of
from simulation.ledger import Asked
from simulation.plan import DEVICES

AT_A_TIME = 0.5
"""Seconds within which requests to two devices belong to one attempt: a pause before a repeat is longer."""


def _one_key_each(case: Case) -> Iterator[str]:
    """No two devices share a key, since a provider would take the message for one of them alone."""
    devices: dict[str, str] = {}
    for asked in filter(case.is_to_device, case.asked):
        if devices.setdefault(asked.key, asked.content["to"]) != asked.content["to"]:
            yield f"a key was used for {devices[asked.key]} and for {asked.content['to']}"


def _all_are_asked(case: Case) -> Iterator[str]:
    """What one device has was sent to all others that the customer has, but for those that are gone."""
    plan = case.history.plan
    if case.state != SENT or not case.is_at_devices or plan.renewal is not None or case.orders:
        return
    template = plan.templates.get(case.message.settings_id)
    if template is not None and template.expires is not None:  # the time ran out meanwhile
        return
    asked = {one.content["to"] for one in case.asked if case.is_to_device(one)}
    for device in addresses(plan, case.message, DEVICES) - asked:
        if not case._replace(device=device).may_be_stopped(DEVICES):
            yield f"was never sent to {device}"


def _rest_stays_there(case: Case) -> Iterator[str]:
    """What a device has, as the service heard, goes to no other provider."""
    if not case.is_at_devices:
        return
    sent = next((heard.order for heard in case.heard if heard.event.status == "sent"), None)
    if sent is None or Action.SETTLE_SENT in case.orders:
        return
    providers = {one.provider for one in case.accepted}
    for asked in case.asked:
        if asked.order > sent and asked.provider not in providers:
            yield f"went to {asked.provider}, though a device had it"


def _rest_is_repeated(case: Case) -> Iterator[str]:
    """A device that may take the message, or may have it, is asked as often as messages are tried."""
    if case.device is None or case.state != SENT or not case.is_at_devices or _is_disturbed(case):
        return
    last = [one for one in case.asked if case.is_to_device(one)][-1]
    if last.trouble in TAKEN_FOR_SENT | FOR_GOOD or case.may_be_stopped(DEVICES):
        return
    asked = [one for one in case.asked if one.provider == last.provider]
    tries = len(asked) + len(case.history.ledger.crashed)
    if tries < case.history.plan.tuning.attempts:
        yield f"was asked {len(asked)} times, and may take it"


def _is_disturbed(case: Case) -> bool:
    """Whether something may have ended the repeats: the time, an order, doubts that are held, other words."""
    history, plan = case.history, case.history.plan
    template = plan.templates.get(case.message.settings_id)
    if template is None or template.expires is not None or plan.renewal is not None or case.orders:
        return True
    if any(one.trouble in UNREADABLE for one in (*case.asked, *case.others)):
        return True
    taken = {one.provider for one in case.accepted if plan.sends_to_devices(one.channel)}
    taken |= {one.provider for one in case.others}
    return any(
        DEVICES in life.hold or life.needs_more or not taken <= {*providers_of(plan, life)}
        for life in history.lives
    )


def _gone_is_left_out(case: Case) -> Iterator[str]:
    """A device that is gone isn't asked again beside another one that isn't."""
    plan = case.history.plan
    if case.device is None or plan.suspensions or plan.shortages:
        return
    for asked in filter(case.is_to_device, case.asked):
        if case.has_stopped(asked) and any(_goes_along(case, asked, other) for other in case.others):
            yield "was asked again though it is gone"


def _goes_along(case: Case, asked: Asked, other: Asked) -> bool:
    """Whether a device that isn't gone was asked in the same attempt."""
    is_near = abs(other.at - asked.at) < AT_A_TIME and (other.provider, other.life) == (
        asked.provider,
        asked.life,
    )
    return is_near and not case._replace(device=other.content["to"]).may_be_stopped(DEVICES)


RULES = (_one_key_each, _all_are_asked, _rest_stays_there)
RULES_OF_EACH = (_rest_is_repeated, _gone_is_left_out)
