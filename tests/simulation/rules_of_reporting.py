"""Rules about what the service hears: all of it, in order, and nothing but what happened."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from deliveryd.journal.orders import Verb
from simulation.case import (
    DELIVERED,
    FAILED,
    IN_DOUBT,
    SENT,
    SET_ASIDE,
    TAKEN_FOR_SENT,
    Case,
    was_failed_by_report,
)
from simulation.expectation import choices, rendered
from simulation.plan import Trouble
from simulation.service import iso
from simulation.world import START

RANK = {"dequeued": 0, "sending": 1, "accepted": 1, "sent": 2, "error": 2, "delivered": 3}
WITHOUT_ID = Trouble.GARBAGE_AFTER

DUE = {
    IN_DOUBT: frozenset({"dequeued"}),
    SENT: frozenset({"dequeued", "sent"}),
    DELIVERED: frozenset({"dequeued", "sent", "delivered"}),
    FAILED: frozenset({"dequeued", "error"}),
}
"""The events that the service has to have heard, by the state at the end."""

RETENTION = 7 * 86400.0
"""Seconds that the journal keeps what is over, unless it is told otherwise."""


def _events_in_order(case: Case) -> Iterator[str]:
    """In the order in which they happened, except for what was refused and later retried by an operator."""
    retried = {event.status for event in case.refused} if Verb.RETRY in case.orders else set()
    statuses = [status for status in case.statuses if status not in retried]
    for earlier, later in pairwise(statuses):
        if RANK[later] < RANK[earlier] and later != "error":
            yield f"{later} was reported after {earlier}"
        if earlier in {"error", "delivered"}:
            yield f"{later} was reported after {earlier}"
    for status in ("dequeued", "sent", "delivered", "error"):
        if case.statuses.count(status) > 1:
            yield f"{status} was reported as several events"
    refused = {event.status for event in case.refused}
    if statuses and statuses[0] != "dequeued" and "dequeued" not in refused:
        yield f"the first event was {statuses[0]}"


def _latest_is_heard_last(case: Case) -> Iterator[str]:
    """However often events are reported again, what the service heard last is what happened last."""
    refused = {event.status for event in case.refused}
    if refused and Verb.RETRY in case.orders:
        return
    latest = max((RANK[status] for status in case.statuses if status not in refused), default=0)
    if any(RANK[status] >= latest for status in refused):  # accepted once, and refused when it was repeated
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
    if case.state in {IN_DOUBT, SET_ASIDE} and ends:
        yield f"{', '.join(sorted(ends))} was reported of a message that hasn't ended"
    if case.state == SENT and ("delivered" in heard or "error" in heard):
        yield "reported more than the journal knows"
    if case.state == SET_ASIDE and "dequeued" not in refused:
        yield "was set aside, though its dequeued was not refused"
    if case.state is not None and "dequeued" in refused and case.state != SET_ASIDE:
        accepted_too = "dequeued" in heard
        if not accepted_too:
            yield "went on, though its dequeued was refused"


def _receipts_told(case: Case) -> Iterator[str]:
    """What a provider reported, and heard that it was noted, becomes an event."""
    noted = [report for report in case.reported if report.answer < 300 and report.status != "enroute"]
    named = [asked for asked in case.asked if asked.trouble in TAKEN_FOR_SENT - {WITHOUT_ID}]
    known = [asked for asked in named if not case.may_be_doubtful(asked)]
    # What fits nothing for as long as the journal keeps anything is forgotten; so is what ended before.
    is_old = case.history.past or any(jump.seconds >= RETENTION for jump in case.history.plan.jumps)
    if case.state == SENT and noted and known and not is_old and not case.has_dropped_reports:
        yield f"a report of {noted[0].status} was noted and forgotten"
    for heard in case.heard:
        if heard.event.status == "delivered":
            fields = heard.event.fields
            instants = {report.reported_at for report in case.reported if report.status == "delivered"}
            if fields.get("reportedAt") not in instants:
                yield "delivered with a wrong reportedAt"
            if fields.get("channel") not in {accepted.channel for accepted in case.accepted}:
                yield "delivered with a wrong channel"


def _errors_explained(case: Case) -> Iterator[str]:
    for event in [heard.event for heard in case.heard] + list(case.refused):
        if event.status == "error" and not _is_true(case, event.details or ""):
            yield f"an error that isn't true: {event.details}"


def _is_true(case: Case, details: str) -> bool:
    plan, ledger = case.history.plan, case.history.ledger
    template = plan.templates.get(case.message.settings_id)
    if details.startswith("missing placeholders: "):
        named = details.removeprefix("missing placeholders: ").split(", ")
        return any(
            rendered(plan, case.message, choice)[1] == named
            for life in case.history.lives
            for choice in choices(plan, case.message, life.channels)
        )
    if details.startswith("expired at "):
        expires = template.expires if template else None
        return expires is not None and details == f"expired at {iso(START + int(expires * 1e6))}"
    if details.startswith(("settings ", "the answer is")):
        return case.message.settings_id in ledger.unusable_settings
    if "the provider reported" in details:
        return was_failed_by_report(case)
    if "settled by an operator" in details:
        return Verb.SETTLE_FAILED in case.orders
    if details.startswith("no content") or "no address" in details:
        lives = case.history.lives
        return bool(case.asked) or any(not choices(plan, case.message, life.channels) for life in lives)
    if "unknown" in details:
        return any(case.may_be_doubtful(asked) for asked in case.asked) or bool(ledger.crashed)
    tried = {asked.channel for asked in case.asked}
    return any(details.startswith(f"{channel}: ") for channel in tried)


RULES = (
    _events_in_order,
    _latest_is_heard_last,
    _events_complete,
    _receipts_told,
    _errors_explained,
)
