"""Rules about sending: once, with leave, in time, with the right words, over the right channel."""

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
from simulation.expectation import choices, on_the_wire, person_of, rendered
from simulation.plan import Trouble
from simulation.world import START

KEPT_FOR_LATER = 202
"""The status with which the worker answers a report that fits nothing yet."""

FOR_GOOD = frozenset({Trouble.BAD_REQUEST, Trouble.UNPROCESSABLE})


def _sent_once(case: Case) -> Iterator[str]:
    if len(case.accepted) > 1:
        ways = ", ".join(f"{one.channel} as {one.key[13:]}" for one in case.accepted)
        yield f"was taken by providers more than once: {ways}"
    for earlier, later in pairwise(case.asked):
        under_key = [
            asked for asked in case.asked if asked.key == earlier.key and asked.order <= earlier.order
        ]
        in_doubt = any(map(case.may_be_doubtful, under_key)) or case.may_have_been_begun_before(under_key[0])
        if later.key == earlier.key and not in_doubt:
            yield "an attempt was repeated that was not in doubt"
        if later.key != earlier.key and any(map(case.is_doubtful, under_key)):
            yield "an attempt in doubt was followed by a new one"
    keys = [asked.key for asked in case.asked]
    runs = 1 + sum(earlier != later for earlier, later in pairwise(keys)) if keys else 0
    if runs != len(set(keys)):
        yield "an old key was used again"


def _sent_with_leave(case: Case) -> Iterator[str]:
    """Only after `dequeued` was accepted, with the intent in the journal, and in time."""
    dequeued = [heard.order for heard in case.heard if heard.event.status == "dequeued"]
    template = case.history.plan.templates.get(case.message.settings_id)
    for asked in case.asked:
        if not dequeued or asked.order < dequeued[0]:
            yield "was sent before its dequeued was accepted"
        if not asked.journaled:
            yield "was sent without an intent in the journal"
        if template and template.expires is not None and asked.now > START + int(template.expires * 1e6):
            yield "was sent after it had expired"
        if case.state == SET_ASIDE:
            yield "was sent though it is set aside"


def _said_right(case: Case) -> Iterator[str]:
    plan = case.history.plan
    person = person_of(plan, case.message)
    for asked in case.asked:
        configured = case.history.lives[asked.life].channels
        options = {option.channel: option for option in choices(plan, case.message, configured)}
        option = options.get(asked.channel)
        if option is None:
            yield f"went over {asked.channel}, which can't be"
            continue
        fields, missing = rendered(plan, case.message, option)
        if missing:
            yield f"was sent without values for {missing}"
        expected = on_the_wire(fields)
        if address := {"sms": person.phone, "email": person.email}.get(asked.channel):
            expected["to"] = address
        if dict(asked.content) != expected:
            yield f"said {dict(asked.content)} instead of {expected}"
    if case.asked and case.asked[0].channel not in _best_at_first(case, case.asked[0].life):
        yield f"went over {case.asked[0].channel} first"


def _best_at_first(case: Case, life: int) -> set[str]:
    """The best channel now, and in earlier lives that may have died between an intent and its request."""
    died = [earlier for earlier in range(life) if earlier in case.history.ledger.crashed]
    found = (
        choices(case.history.plan, case.message, case.history.lives[one].channels) for one in (life, *died)
    )
    return {options[0].channel for options in found if options}


def _channels_changed_rightly(case: Case) -> Iterator[str]:
    """Another channel only after the first refused for good, gave up, or is configured no more or anew."""
    for earlier, later in pairwise(case.asked):
        if earlier.channel == later.channel:
            continue
        channel = earlier.channel
        before = [asked for asked in case.asked if asked.order <= earlier.order and asked.channel == channel]
        reconfigured = case.history.lives[earlier.life].channels != case.history.lives[later.life].channels
        tries = sum(asked.trouble is not Trouble.UNAUTHORIZED for asked in before)
        gave_up = tries >= case.history.plan.tuning.attempts
        if earlier.trouble not in FOR_GOOD and not gave_up and not reconfigured:
            yield f"left {channel} too early"


def _ended_truly(case: Case) -> Iterator[str]:
    known = [
        asked for asked in case.asked if asked.trouble in TAKEN_FOR_SENT and not case.may_be_doubtful(asked)
    ]
    if known and case.state in {FAILED, IN_DOUBT} and not was_failed_by_report(case):
        yield "a provider said that it has the message, yet it ended otherwise"
    if case.state in {SENT, DELIVERED} and Verb.SETTLE_SENT not in case.orders:
        if not case.accepted:
            yield "ended as sent, and no provider has it"
        if not any(asked.trouble in TAKEN_FOR_SENT for asked in case.asked) and not case.has_arrived:
            yield "ended as sent without an answer that says so"
    if case.state == IN_DOUBT and not any(case.may_be_doubtful(asked) for asked in case.asked):
        crashes = case.history.ledger.crashed
        if not crashes:
            yield "is held in doubt without any doubt"
    if case.state == IN_DOUBT:
        last = case.history.lives[-1]
        lane = case.history.rows[case.message.id].lane
        if lane in last.channels and lane not in last.hold:
            yield "is held in doubt, though its channel repeats"


def _not_sent_after_its_end(case: Case) -> Iterator[str]:
    """Neither after the service heard of its end, nor after a report that showed that it had arrived."""
    ends = [heard.order for heard in case.heard if heard.event.status in {"sent", "delivered", "error"}]
    if case.asked and ends and case.asked[-1].order > ends[0]:
        yield "was sent after its end was reported"
    for report in case.arrivals:
        later = sum(asked.order > report.order for asked in case.asked)
        # One that was kept for later met an attempt with an intent, though its request came afterwards.
        if later > (report.answer == KEPT_FOR_LATER) and not case.has_dropped_reports:
            yield "was sent again after a report that showed that it had arrived"
            break


def _doubt_settled_by_report(case: Case) -> Iterator[str]:
    """A report that names its attempt, or its message, settles what became of it."""
    if any(case.arrivals) and case.state in {IN_DOUBT, SENT} and not case.has_dropped_reports:
        yield f"a report showed that it had arrived, and it ended in state {case.state}"


RULES = (
    _sent_once,
    _sent_with_leave,
    _said_right,
    _channels_changed_rightly,
    _ended_truly,
    _not_sent_after_its_end,
    _doubt_settled_by_report,
)
