"""Rules about sending: once, with leave, in time, with the right words, over the right channel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, groupby, pairwise

from deliveryd.journal.orders import Action
from simulation.admitting import may_be_withheld
from simulation.case import (
    BUSY,
    DELIVERED,
    FAILED,
    FOR_GOOD,
    IN_DOUBT,
    SENT,
    SET_ASIDE,
    TAKEN_FOR_SENT,
    UNREADABLE,
    Case,
    was_failed_by_report,
)
from simulation.expectation import addresses, choices, on_the_wire, providers_of, rendered
from simulation.ledger import KEPT_FOR_LATER, Accepted, Asked, Reported, channel_served_by
from simulation.plan import HEALTHY, Named, Trouble
from simulation.world import START

REFUSED_BY_MISTAKE = 20
"""Refusals of one provider after which messages wait there instead of ending (design 5)."""


MORE = "more"
"""A value of the customer in requests of lives whose mappings need more."""

_TRIED = re.compile(r"(?:^|; )([\w/]+): [^;]*\(tried (\d+) times\)")

SOON = 5.0
"""Seconds after which a message is sent, where nothing that it needs is broken."""


def _taken_once(case: Case) -> Iterator[str]:
    """By one provider, but for a 503 that lied, and for what an operator had begin anew."""
    if Action.RESEND_ANEW in case.orders:
        return
    for earlier, later in pairwise(case.accepted):
        if case.may_go_on and case.went_on(earlier.key, request_of(case, later)):
            continue
        if not _was_denied(case, earlier) or earlier.provider == later.provider:
            ways = ", ".join(f"{one.provider} as {one.key[13:]}" for one in case.accepted)
            yield f"was taken by providers more than once: {ways}"


def request_of(case: Case, accepted: Accepted) -> Asked:
    """The request by which a provider took it."""
    return [asked for asked in case.under_key(accepted.key) if asked.order < accepted.order][-1]


def _was_denied(case: Case, accepted: Accepted) -> bool:
    """Whether the provider that took it said 503, so that another one could take it as well."""
    asked = case.under_key(accepted.key)
    return any(one.trouble is Trouble.BUSY_AFTER for one in asked) and not any(map(case.is_doubtful, asked))


def _keys_kept(case: Case) -> Iterator[str]:
    """One key at each provider, another one only by an operator's word; it is used at no other provider."""
    providers_by_key: dict[str, str] = {}
    for asked in case.asked:
        if providers_by_key.setdefault(asked.key, asked.provider) != asked.provider:
            yield "a key was used at two providers"
    for provider in set(providers_by_key.values()):
        keys = [key for key, _ in groupby(asked.key for asked in case.asked if asked.provider == provider)]
        if len(keys) != len(set(keys)):
            yield "an old key was used again"
        if len(keys) > 1 and Action.RESEND_ANEW not in case.orders:
            yield "was repeated at its provider under another key"


def repeated_rightly(case: Case) -> Iterator[str]:
    """Under its key, with the words that may have arrived, and not once a provider has or refused it."""
    for again in case.asked:
        before = [asked for asked in case.under_key(again.key) if asked.order < again.order]
        if before:
            yield from _is_no_needless_repeat(case, before, again)


def _is_no_needless_repeat(case: Case, before: Sequence[Asked], again: Asked) -> Iterator[str]:
    last = before[-1]
    if last.trouble in TAKEN_FOR_SENT and not case.may_be_doubtful(last):
        yield "was repeated though a provider said that it has it"
    is_open = any(case.may_have_arrived(one) or case.may_be_doubtful(one) for one in before)
    is_known = not is_open and not case.may_have_been_begun_before(before[0])
    if last.trouble in FOR_GOOD and is_known and not _refuses_all(case, last) and not _goes_on(case, again):
        yield "was repeated though the provider refused it"
    arrived = [asked for asked in before if case.may_have_arrived(asked)]
    if arrived and _said(again) != _said(arrived[0]):
        yield "what may have arrived was repeated with other words"
    if arrived and again.content.get("to") != arrived[0].content.get("to"):
        yield "what may have arrived was repeated to another address"
    if arrived and MORE in again.content and MORE not in arrived[0].content:
        yield "what may have arrived was repeated with a value that isn't kept"


def _goes_on(case: Case, again: Asked) -> bool:
    """Whether all devices were to be asked again: any might take the message, and none has it, or may."""
    ended = case.history.ledger.ended
    at_it = [one for one in case.others if one.provider == again.provider]
    before = [one for one in at_it if ended.get(one.request, again.order) < again.order]
    has_it = any(one.trouble in TAKEN_FOR_SENT or case.may_have_arrived(one) for one in before)
    return bool(before) and not has_it


def _refuses_all(case: Case, refused: Asked) -> bool:
    """Whether a provider refused so much that its refusals count as its fault, not the messages'."""
    return (
        sum(
            asked.trouble in FOR_GOOD - {Trouble.OPTED_OUT}
            and asked.provider == refused.provider
            and asked.order <= refused.order
            for asked in case.history.ledger.asked
        )
        >= REFUSED_BY_MISTAKE
    )


def _unreadable_repeated_once(case: Case) -> Iterator[str]:
    """An answer that can't be read to a repeat of what was in doubt leaves the decision to somebody."""
    if case.orders or case.history.ledger.crashed or case.history.is_shared or case.device is not None:
        return
    for again in case.asked:
        before = [asked for asked in case.under_key(again.key) if asked.order < again.order]
        if any(map(case.is_unreadable_again, before)):
            yield "was repeated though neither a try nor its repeat had an answer that can be read"


def _stays_while_in_doubt(case: Case) -> Iterator[str]:
    """What one provider may have goes to no other, of this channel or the next, but by an operator's word."""
    if Action.RESEND_ANEW in case.orders:
        return
    for earlier, later in combinations(case.asked, 2):
        if case.was_settled(earlier.key, later) and case.went_on(earlier.key, later):
            continue
        if earlier.provider != later.provider and case.is_doubtful(earlier):
            yield f"went to {later.provider} while it was in doubt at {earlier.provider}"
            return


def _said(asked: Asked) -> dict[str, str]:
    return {name: text for name, text in asked.content.items() if name not in {"to", MORE}}


def sent_with_leave(case: Case) -> Iterator[str]:
    """Only after `dequeued` was accepted, with the intent in the journal, and in time."""
    dequeued = [heard.order for heard in case.heard if heard.event.status == "dequeued"]
    template = case.history.plan.templates.get(case.message.settings_id)
    for asked in case.asked:
        if not dequeued or asked.order < dequeued[0]:
            yield "was sent before its dequeued was accepted"
        if not asked.journaled and asked.trouble is not Trouble.NO_CONNECTION:  # of which nothing came
            yield "was sent without an intent in the journal"
        has_left = asked.trouble is not Trouble.NO_CONNECTION
        expires = template.expires if template else None
        if has_left and expires is not None and asked.now > START + int(expires * 1e6):
            yield "was sent after it had expired"
        if case.state == SET_ASIDE:
            yield "was sent though it is set aside"


def said_right(case: Case) -> Iterator[str]:
    """In the right words, over a channel that it may take, to an address that the directory knows."""
    plan = case.history.plan
    for asked in case.asked:
        lives = [case.history.lives[each] for each in case.history.ledger.process_of(asked.life)]
        found = [known for life in lives for known in choices(plan, case.message, life.channels)]
        options = [option for known in found for option in known if option.channel == asked.channel]
        if not options:
            yield f"went over {asked.channel}, which can't be"
            continue
        ways = [rendered(plan, case.message, option) for option in options]
        if not any(not missing for _, missing in ways):
            yield f"was sent without values for {ways[0][1]}"
        expected = [on_the_wire(fields) for fields, _ in ways]
        if _said(asked) not in expected:
            yield f"said {_said(asked)} instead of {expected}"
        if asked.content.get("to") not in addresses(plan, case.message, asked.channel):
            yield f"went to {asked.content.get('to')}"
        other = "email" if asked.channel == "sms" else "sms"
        if MORE in asked.content and asked.content[MORE] not in addresses(plan, case.message, other):
            yield f"said {asked.content[MORE]} of somebody else"


def _ended_truly(case: Case) -> Iterator[str]:
    known = case.heard_taken
    if case.may_go_on:
        known = [asked for asked in known if not case.went_on(asked.key, case.asked[-1])]
    is_by_order = case.is_at_devices and (case.state == IN_DOUBT or Action.SETTLE_FAILED in case.orders)
    if known and case.state in {FAILED, IN_DOUBT} and not was_failed_by_report(case) and not is_by_order:
        yield "a provider said that it has the message, yet it ended otherwise"
    if case.state in {SENT, DELIVERED} and Action.SETTLE_SENT not in case.orders:
        if not case.accepted:
            yield "ended as sent, and no provider has it"
        is_known = any(asked.trouble in TAKEN_FOR_SENT for asked in case.asked) or case.has_arrived
        if not is_known and not any(question.found for question in case.looked_up):
            yield "ended as sent without an answer that says so"
    if case.state == IN_DOUBT:
        yield from _held_rightly(case)


def _held_rightly(case: Case) -> Iterator[str]:
    crashes = case.history.ledger.crashed
    refused_later = any(asked.trouble in BUSY for asked in case.asked)
    last = case.history.lives[-1]
    provider = case.history.rows[case.message.id].provider or ""
    is_configured = provider in providers_of(case.history.plan, last)
    if case.is_at_devices and not is_configured:
        return
    if any(map(case.is_to_device, case.heard_taken)):
        yield "is held in doubt, though a device has it"
    if not any(map(case.may_be_doubtful, case.asked)) and not crashes and not refused_later:
        yield "is held in doubt without any doubt"
    has_new_mappings = any(life.needs_more for life in case.history.lives)
    plan = case.history.plan
    is_unusable = plan.moved is not None and case.message.settings_id in case.history.ledger.unusable_settings
    says_something_else = bool(crashes) and (plan.renewal is not None or has_new_mappings or is_unusable)
    fits_no_more = last.needs_more and any(
        case.may_have_arrived(asked) and MORE not in asked.content for asked in case.asked
    )
    if not is_configured or channel_served_by(provider) in last.hold:
        return
    if any(map(case.is_unreadable_again, case.asked)) or may_be_withheld(case):
        return
    to_devices = case.history.plan.sends_to_devices(channel_served_by(provider))
    if to_devices and any(asked.trouble in UNREADABLE for asked in case.asked):  # another device was in doubt
        return
    if not says_something_else and not fits_no_more:
        yield "is held in doubt, though its channel repeats"
    asked_last = max((asked.order for asked in case.asked if asked.provider == provider), default=0)
    # A 503 is no doubt, also if its worker crashed later: nothing is asked about it.
    has_lookup = case.history.plan.tuning.lookup_after is not None and not to_devices
    can_be_asked = has_lookup and any(
        map(case.is_doubtful, (asked for asked in case.asked if asked.provider == provider))
    )
    if can_be_asked and not any(question.order > asked_last for question in case.looked_up):
        yield "is held in doubt, and its provider wasn't asked"


def _tries_made(case: Case) -> Iterator[str]:
    """No try is counted without a request, but one whose worker crashed: it may have been made."""
    crashes = len(case.history.ledger.crashed)
    for heard in case.heard:
        for provider, tries in _TRIED.findall(heard.event.details or ""):
            made = sum(asked.provider == provider for asked in case.asked)
            if made + crashes < int(tries):
                yield f"is said to be tried {tries} times at {provider}, which had {made} requests"


def _not_sent_after_its_end(case: Case) -> Iterator[str]:
    """Neither after the service heard of its end, nor after a report that showed that it had arrived."""
    goes_on = case.may_go_on or case.is_at_devices
    final = {"delivered", "error"} if goes_on else {"sent", "delivered", "error"}
    ends = [heard.order for heard in case.heard if heard.event.status in final]
    if case.asked and ends and case.asked[-1].order > ends[0]:
        yield "was sent after its end was reported"
    if case.has_dropped_reports:
        return
    for report in case.noted:
        if case.may_be_forgotten(report):
            continue
        key = _key_meant(case, report)
        later = [
            asked
            for asked in case.asked
            if asked.order > report.order and (report.status == "delivered" or asked.key == key)
            if asked.trouble is not Trouble.NO_CONNECTION and not case.may_not_know(report, asked)
        ]
        # One that was kept for later met an attempt with an intent, though its request came afterwards.
        if len(later) > _was_kept(case, report):
            yield "was sent again after a report that showed that it had arrived"
            break


def _was_kept(case: Case, report: Reported) -> bool:
    """Whether the worker kept a report for later, or the same one that came before this was answered.

    Reports that come together are recorded together, and answered in any order.
    """
    return any(
        one.answer == KEPT_FOR_LATER and one.begun <= report.order
        for one in case.noted
        if (one.provider_id, one.status) == (report.provider_id, report.status)
    )


def _key_meant(case: Case, report: Reported) -> str:
    """The key that a report names; by the message's id it means the latest one at the provider."""
    accepted = case.acceptance_of(report)
    if report.names is Named.KEY:
        return accepted.key
    at_provider = (asked for asked in case.asked if asked.provider == accepted.provider)
    return [asked.key for asked in at_provider if asked.order < report.order][-1]


def _sent_soon(case: Case) -> Iterator[str]:
    """What hangs holds up nobody who doesn't need it (promise 6)."""
    if not case.history.plan.is_fair or case.message.settings_id != HEALTHY:
        return
    first = case.asked[0].at if case.asked else float("inf")
    if first > SOON:
        yield f"was held up for {first:.1f} s by what it doesn't need"


RULES_OF_EACH = (
    _taken_once,
    _keys_kept,
    repeated_rightly,
    _unreadable_repeated_once,
    _stays_while_in_doubt,
)
RULES = (
    sent_with_leave,
    said_right,
    _ended_truly,
    _tries_made,
    _not_sent_after_its_end,
    _sent_soon,
)
