"""Rules about what the service hears: all of it, in order, and nothing but what happened."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from deliveryd.journal.orders import Action
from deliveryd.model import parse_instant
from simulation.admitting import may_be_withheld
from simulation.case import (
    DELIVERED,
    FAILED,
    IN_DOUBT,
    SENT,
    SET_ASIDE,
    TAKEN_FOR_SENT,
    Case,
    Heard,
    was_failed_by_report,
)
from simulation.expectation import channels_open_in, choices, is_readable, persons_of, reaches, rendered
from simulation.ledger import Reported
from simulation.plan import SMS, Offers, Trouble
from simulation.service import instant_of, iso
from simulation.serving import may_be_unserved
from simulation.world import RETENTION, START, Wall

RANK = {"dequeued": 0.0, "sending": 1.0, "accepted": 1.0, "sent": 2.0, "error": 2.5, "delivered": 3.0}

NOT_SENT = (
    "of this installation", "is not in channels.", "a premium-rate number", "budget of ", "cap of "
)  # fmt: skip
"""What is in the reasons for which something isn't sent that could be."""

FOLLOWS = {
    "dequeued": {"sending", "accepted", "sent", "error"},
    "sending": {"sending", "accepted", "sent", "error"},
    "accepted": {"sending", "accepted", "sent", "error"},
    "sent": {"delivered", "error"},
    "error": {"sent", "delivered"},
    "delivered": set[str](),
}
"""What may be reported after a status. `error` isn't the end when the provider says later that it arrived."""

NO_WAY = ("no address of the customer", "no provider is enabled")
"""How reasons end by which a channel can't be taken."""

ANEW = {"sending", "accepted", "sent"}
"""What may follow `sent` where a message that isn't confirmed goes on to the next channel."""

FOLLOWS_GOING_ON = {
    **FOLLOWS,
    "sent": FOLLOWS["sent"] | ANEW,
    "sending": FOLLOWS["sending"] | {"delivered"},
    "accepted": FOLLOWS["accepted"] | {"delivered"},
}
"""The same there: a late receipt of the channel before may come while the next one is tried."""

DUE = {
    IN_DOUBT: frozenset({"dequeued"}),
    SENT: frozenset({"dequeued", "sent"}),
    DELIVERED: frozenset({"dequeued", "sent", "delivered"}),
    FAILED: frozenset({"dequeued", "error"}),
}
"""The events that the service has to have heard, by the state at the end."""

REFUSALS = {Trouble.BAD_REQUEST, Trouble.CONFLICT}
"""Troubles after which an event is set aside; one that was refused twice isn't told again for a minute."""

APPLIED = 200
"""The status with which the worker answers a report that it can do something with at once."""

MILLISECOND = 1_000
"""By so many microseconds the run's own seconds and its instants may differ."""


def not_retried(case: Case) -> list[Heard]:
    """The events in the order in which they were heard, but for those that an operator had reported again."""
    retried = {event.status for event in case.refused} if Action.RETRY in case.orders else set()
    return [heard for heard in case.heard if heard.event.status not in retried]


def _events_in_order(case: Case) -> Iterator[str]:
    """In the order in which they happened, except for what was refused and later retried by an operator."""
    refused = {event.status for event in case.refused}
    statuses = [heard.event.status for heard in not_retried(case)]
    follows = FOLLOWS_GOING_ON if case.may_go_on else FOLLOWS
    for earlier, later in pairwise(statuses):
        if later not in follows[earlier] and not refused & follows[earlier]:
            yield f"{later} was reported after {earlier}"
    by_operator = Action.SETTLE_SENT in case.orders
    most = {"sent": len({each.provider for each in case.accepted}) + by_operator} if case.may_go_on else {}
    for status in ("dequeued", "sent", "delivered", "error"):
        if case.statuses.count(status) > max(most.get(status, 1), 1):
            yield f"{status} was reported as several events"
    if statuses and statuses[0] != "dequeued" and "dequeued" not in refused:
        yield f"the first event was {statuses[0]}"


def _times_in_order(case: Case) -> Iterator[str]:
    """By the clock as it stood, put right or not, but never before the message's previous event."""
    wall = Wall(case.history.plan.jumps)
    by_database = case.history.is_shared or case.history.ages_by_database
    previous = 0
    for heard in not_retried(case):
        instant = instant_of(heard.event.fields["timestamp"])
        if instant < previous:
            yield f"{heard.event.status} is told to have happened before what came before it"
        # a worker may go on by the database's clock as it was before that was set
        latest = wall.furthest(heard.at) if by_database else wall.highest(case.offered_at, heard.at)
        shown = latest + case.history.skew
        if instant > max(shown + MILLISECOND, previous + MILLISECOND):
            yield f"{heard.event.status} bears an instant that no clock had shown"
        previous = instant


def _latest_is_heard_last(case: Case) -> Iterator[str]:
    """However often events are reported again, what the service heard last is what happened last."""
    refused = {event.status for event in case.refused}
    if refused and Action.RETRY in case.orders:
        return
    latest = max((RANK[status] for status in case.statuses if status not in refused), default=0)
    if any(RANK[status] >= latest for status in refused):  # accepted once, and refused when it was repeated
        return
    if case.may_go_on and case.last_heard in ANEW:  # the next channel was tried since
        return
    if case.last_heard is not None and RANK[case.last_heard] < latest:
        yield f"{case.last_heard} was reported last of {', '.join(case.statuses)}"


def _events_complete(case: Case) -> Iterator[str]:
    """What the journal says of the end was heard by the service, unless it refused to."""
    refused = {event.status for event in case.refused}
    heard = set(case.statuses)
    if case.state is not None and (missing := DUE.get(case.state, frozenset()) - heard - refused):
        yield f"never reported: {', '.join(sorted(missing))}"
    ends = {"sent", "delivered", "error"} & (heard | refused)
    if case.state == IN_DOUBT and (case.may_go_on or case.is_at_devices):
        ends -= {"sent"}
    if case.state in {IN_DOUBT, SET_ASIDE} and ends:
        yield f"{', '.join(sorted(ends))} was reported of a message that hasn't ended"
    if case.state == SENT and ("delivered" in heard or "error" in heard):
        yield "reported more than the journal knows"


def _set_aside_rightly(case: Case) -> Iterator[str]:
    """For as long as its `dequeued` is refused, and no longer."""
    refused = {event.status for event in case.refused}
    heard = set(case.statuses)
    if case.state == SET_ASIDE and "dequeued" not in refused:
        yield "was set aside, though its dequeued was not refused"
    if case.state == SET_ASIDE and "dequeued" in case.acknowledged and Action.DROP not in case.orders:
        yield "is set aside, though its dequeued was accepted when it was offered again"
    plan = case.history.plan
    is_pardoned = case.message.pardon == 1 and not REFUSALS & {*plan.troubles["events"]}
    is_offered = plan.offers is Offers.UNTIL_DEQUEUED and is_pardoned
    if case.state == SET_ASIDE and is_offered and "dequeued" not in heard and Action.DROP not in case.orders:
        yield "is set aside, though the service offers it and would accept its dequeued"
    if case.state not in {None, SET_ASIDE} and "dequeued" in refused and "dequeued" not in heard:
        yield "went on, though its dequeued was refused"


def _receipts_told(case: Case) -> Iterator[str]:
    """What a provider reported, and heard that it was noted, becomes an event, whatever was told before."""
    # What fits nothing for as long as the journal keeps anything is forgotten; so is what ended before.
    # A clock that is days ahead has only a shared journal forget.
    days = any(jump.seconds >= RETENTION for jump in case.history.plan.jumps)
    is_old = (case.history.is_shared and (case.history.pruned or days)) or case.history.retention
    if is_old or case.has_dropped_reports or case.state is None:
        return
    known = [*case.noted, *_known_by_provider_id(case)]
    delivered = [report for report in known if report.status == "delivered"]
    if delivered and case.state != DELIVERED:
        yield f"a report of delivered was noted, and it ended in state {case.state}"
    latest = case.asked[-1].key if case.asked else None
    if case.asked and case.history.rows[case.message.id].provider not in {None, case.asked[-1].provider}:
        latest = None  # it is with another provider, which its request didn't reach
    failed = [
        report for report in known if report.status == "failed" and case.acceptance_of(report).key == latest
    ]
    if failed and case.state in {IN_DOUBT, SENT}:
        yield f"a report of failed was noted, and it ended in state {case.state}"


def _known_by_provider_id(case: Case, *, at_once: bool = False) -> Iterator[Reported]:
    """Reports about what the worker knows by the provider's own id: by an answer, or by another report.

    `at_once`: it knew it when the report came.
    """
    named: dict[str, int] = {}
    for report in case.noted:
        named.setdefault(report.provider_id, report.order if at_once else 0)
    for report in case.reported:
        if report.answer >= 300 or report.status == "enroute":
            continue
        asked = case.under_key(case.acceptance_of(report).key)
        if named.get(report.provider_id, report.order) < report.order or any(
            one.trouble in TAKEN_FOR_SENT and not case.may_be_doubtful(one) for one in asked
        ):
            yield report


def _delivered_truly(case: Case) -> Iterator[str]:
    """With the instant that the provider gave, and with the first of the channels that reported it."""
    for heard in case.heard:
        if heard.event.status != "delivered":
            continue
        fields = heard.event.fields
        told = [report for report in case.reported if report.status == "delivered"]
        if fields.get("reportedAt") not in {report.reported_at for report in told}:
            yield "delivered with a wrong reportedAt"
        known = {*case.noted, *_known_by_provider_id(case, at_once=True)}
        applied = [
            report.order
            for report in told
            if report.answer == APPLIED and report in known and not case.may_be_forgotten(report)
        ]
        # What was kept for later may have been applied since, or may not; what came at a time, in any order.
        first = min(applied, default=math.inf)
        channels = {case.acceptance_of(report).channel for report in told if report.begun < first}
        if fields.get("channel") not in channels:
            yield f"delivered with the channel {fields.get('channel')}, which isn't the first that said so"


def errors_explained(case: Case) -> Iterator[str]:
    """Each error says what is true."""
    for heard in case.heard:
        if heard.event.status == "error" and not _is_true(case, heard.event.details or "", heard.at):
            yield f"an error that isn't true: {heard.event.details}"
    for event in case.refused:
        if event.status == "error" and not _is_true(case, event.details or "", case.history.ledger.seconds):
            yield f"an error that isn't true: {event.details}"


def _doubts_told(case: Case) -> Iterator[str]:
    """The service hears of a doubt that was left when the message's time ran out, or its tries.

    By an operator's word a message begins anew, and what was before that is over.
    """
    if Action.RESEND_ANEW in case.orders:
        return
    for heard in case.heard:
        if heard.event.status != "error" or not case.asked:
            continue
        before = [asked for asked in case.under_key(case.asked[-1].key) if asked.order < heard.order]
        is_left = any(map(case.is_doubtful, before)) and not any(
            asked.trouble in TAKEN_FOR_SENT and not case.may_be_doubtful(asked) for asked in before
        )
        details = heard.event.details or ""
        is_told = any(words in details for words in ("unknown", "operator", "the provider reported"))
        if is_left and not case.has_arrived and not is_told:
            yield f"an error that says nothing of its doubt: {details}"


def _is_true(case: Case, details: str, told_at: float) -> bool:
    return all(_is_reason(case, reason, told_at) for reason in details.split("; "))


def _is_reason(case: Case, reason: str, told_at: float) -> bool:
    """Whether a part of an error's details is true."""
    plan, ledger = case.history.plan, case.history.ledger
    _, said, names = reason.rpartition("missing placeholders: ")
    if said:
        return any(
            rendered(plan, case.message, choice)[1] == names.split(", ")
            for life in case.history.lives
            for known in choices(plan, case.message, life.channels)
            for choice in known
        )
    if "expired at " in reason:
        return _has_expired(case, reason, told_at)
    if reason.startswith(("settings ", "the answer is")):
        return case.message.settings_id in ledger.unusable_settings or _has_bad_block(case)
    if "the provider reported" in reason:
        return was_failed_by_report(case)
    if "settled by an operator" in reason:
        return Action.SETTLE_FAILED in case.orders
    if reason.startswith(("no content", "the recipient is suppressed ")) or reason.endswith(NO_WAY):
        return _is_about_channels(case, reason)
    if any(words in reason for words in NOT_SENT):
        return may_be_withheld(case) or may_be_unserved(case, SMS) or _ends_by_a_limit(case, reason)
    if "unknown" in reason or "couldn't be asked" in reason:
        return any(map(case.may_have_arrived, case.asked)) or bool(ledger.crashed)
    if reason.startswith("device "):
        return any(map(case.is_to_device, case.asked))
    tried = {asked.provider for asked in case.asked}
    return any(reason.startswith(f"{provider}: ") for provider in tried) or _has_bad_block(case)


def _ends_by_a_limit(case: Case, reason: str) -> bool:
    """Whether messages with these settings end by a limit of this kind."""
    kind = "budget" if "budget of " in reason else "cap" if "cap of " in reason else "none"
    limits = [rule[kind] for rule in case.history.lives[0].limits if kind in rule and _names(rule, case)]
    return any(kind == "budget" or limit["over"] == "error" for limit in limits)


def _names(rule: Mapping[str, Any], case: Case) -> bool:
    return case.message.settings_id in (rule["settings"] or (case.message.settings_id,))


def _has_expired(case: Case, reason: str, told_at: float) -> bool:
    plan = case.history.plan
    template = plan.templates.get(case.message.settings_id)
    expires = template.expires if template else None
    if expires is None and any(life.lifetime is not None for life in case.history.lives):
        shown = Wall(plan.jumps).highest(case.offered_at, told_at)
        return parse_instant(reason.rpartition("expired at ")[2]) < shown
    if expires is None or not reason.endswith(f"expired at {iso(START + int(expires * 1e6))}"):
        return False
    return Wall(plan.jumps).highest(case.offered_at, told_at) > START + int(expires * 1e6)


def _is_about_channels(case: Case, reason: str) -> bool:
    """Whether it is true that no channel can be taken, or one of them."""
    plan, lives = case.history.plan, case.history.lives
    if reason.startswith("the recipient is suppressed "):
        return case.may_be_stopped(reason.rpartition(" ")[2])
    open_channels = [channels_open_in(plan, life) for life in lives]
    if reason.endswith("no provider is enabled"):
        channel = reason.partition(":")[0]
        return any(channel not in channels for channels in open_channels)
    if reason.endswith("no address of the customer"):
        channel = reason.partition(":")[0]
        return any(not reaches(plan, channel, person) for person in persons_of(plan, case.message))
    found = (known for channels in open_channels for known in choices(plan, case.message, channels))
    return bool(case.asked) or not all(found)


def _has_bad_block(case: Case) -> bool:
    template = case.history.plan.templates.get(case.message.settings_id)
    return template is not None and any(
        not is_readable(channel, fields)
        for blocks in template.content.values()
        for channel, fields in blocks.items()
        if channel != "greetings"
    )


RULES = (
    _events_in_order,
    _times_in_order,
    _latest_is_heard_last,
    _events_complete,
    _set_aside_rightly,
    _receipts_told,
    _delivered_truly,
    errors_explained,
)
RULES_OF_EACH = (_doubts_told,)
