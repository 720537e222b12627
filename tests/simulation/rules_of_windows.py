"""Rules about when messages may be sent: no provider is asked outside of a window, or after a lifetime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from deliveryd.model import SECOND, parse_instant
from simulation.case import Case
from simulation.expectation import persons_of
from simulation.ledger import Asked
from simulation.plan import Trouble
from simulation.rules_of_limiting import in_force

ON_ITS_WAY = 5
"""Seconds after its intent within which a request reaches its provider."""

KNOWN = ("UTC", "Etc/GMT-1")


def _asked_in_a_window(case: Case) -> Iterator[str]:
    """Each request leaves while the wall clock of its customer shows a time within the window."""
    zones = {person.zone for person in persons_of(case.history.plan, case.message)}
    for asked in case.asked:
        if asked.trouble is Trouble.NO_CONNECTION:
            continue
        rules = [_rule_for(case, asked.channel, life.windows) for life in in_force(case, asked)]
        if not any(rule is None or _is_open(rule, zones or {None}, asked) for rule in rules):
            yield f"was sent by {asked.provider} outside of its window"


def _rule_for(case: Case, channel: str, rules: tuple[Mapping[str, Any], ...]) -> Mapping[str, Any] | None:
    for rule in rules:
        if case.message.settings_id in (rule["settings"] or (case.message.settings_id,)) and channel in (
            rule["channels"] or (channel,)
        ):
            return rule
    return None


def _is_open(rule: Mapping[str, Any], zones: set[str | None], asked: Asked) -> bool:
    window = rule["window"]
    if window["outside"] == "send":
        return True
    if window["zone"] != "customer":
        zones = {window["zone"]}
    return any(
        _shown(asked.now - ahead * SECOND, zone if zone in KNOWN else "UTC") != window["to"]
        for zone in zones
        for ahead in (0, ON_ITS_WAY)
    )


def _shown(instant: int, zone: str | None) -> str:
    """The minute that the wall clock shows, as in "08:00"."""
    moment = datetime.fromtimestamp(instant // SECOND, UTC).astimezone(ZoneInfo(zone or "UTC"))
    return f"{moment:%H:%M}"


def _sent_in_its_lifetime(case: Case) -> Iterator[str]:
    """Nothing is sent later after the take than the lifetime allows, in whichever life it was taken."""
    template = case.history.plan.templates.get(case.message.settings_id)
    if template is None or template.expires is not None or case.history.plan.jumps[1:]:
        return
    taken = [heard.event.fields["timestamp"] for heard in case.heard if heard.event.status == "dequeued"]
    for asked in case.asked:
        lifetimes = [life.lifetime for life in in_force(case, asked)]
        if not taken or None in lifetimes or asked.trouble is Trouble.NO_CONNECTION:
            continue
        longest = max(each for each in lifetimes if each is not None)
        if asked.now > parse_instant(taken[0]) + int((longest + 1.0) * SECOND):
            yield f"was sent by {asked.provider} after its lifetime of {longest:g} s"


RULES_OF_EACH = (_asked_in_a_window, _sent_in_its_lifetime)
