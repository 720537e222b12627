"""Rules about receipt deadlines, recipients who stopped a channel, and providers that are asked."""

from __future__ import annotations

from collections.abc import Iterator

from deliveryd.journal.orders import Action
from simulation.case import FAILED, SENT, TAKEN_FOR_SENT, Case, Heard
from simulation.expectation import choices, rendered
from simulation.ledger import Asked, LookedUp
from simulation.plan import CHANNELS

EARLY = 0.001
"""Seconds by which a difference of two instants may be wrong."""


def _left_in_time(case: Case) -> Iterator[str]:
    """What was sent leaves its channel when its time is over or it failed, and goes to a later one."""
    if Action.RESEND_ANEW in case.orders:
        return
    for taken in case.heard_taken:
        for later in case.asked:
            if later.order > taken.order and later.provider != taken.provider:
                if not case.may_go_on or not case.went_on(taken.key, later):
                    yield f"went to {later.provider} though {taken.provider} had it"
                elif later.channel == taken.channel:
                    yield f"went to another provider of {taken.channel}, which had it"


def _unconfirmed_goes_on(case: Case) -> Iterator[str]:
    """What nobody confirmed, or what was reported as failed, doesn't end while a later channel could send."""
    plan = case.history.plan
    if not case.may_go_on or not _is_undisturbed(case) or case.state not in {SENT, FAILED}:
        return
    taken = case.heard_taken
    if not taken or case.asked[-1] != taken[-1]:
        return
    if case.state == SENT and plan.tuning.receipt_deadline is None:
        return
    if case.state == FAILED and not plan.tuning.failed_next:
        return
    history = case.history
    if history.is_shared and case.message.settings_id in history.ledger.unusable_settings:
        return  # another worker than the one that sent it may have had such an answer
    if any(event.status == "dequeued" for event in case.refused):
        return  # it may have been at rest, set aside, when the run was found to be over
    later = CHANNELS[CHANNELS.index(taken[-1].channel) + 1 :]
    for options in choices(plan, case.message, later):
        if options and not rendered(plan, case.message, options[0])[1]:
            yield f"ended after {taken[-1].provider}, though {options[0].channel} could take it"


def _is_undisturbed(case: Case) -> bool:
    """Whether the channels were the same all the time, and nobody interfered."""
    plan = case.history.plan
    template = plan.templates.get(case.message.settings_id)
    if template is None or template.expires is not None or plan.renewal is not None or plan.jumps:
        return False
    if case.orders or plan.opt_outs or plan.outages or plan.shortages or plan.suspensions or plan.hangs:
        return False
    return all(
        set(life.channels) == set(CHANNELS) and not life.removed and not life.disabled
        for life in case.history.lives
    )


def _all_are_named(case: Case) -> Iterator[str]:
    """An error names each provider that had the message and didn't deliver it."""
    for heard in case.heard:
        if heard.event.status == "error":
            for provider in _accepting_before(case, heard):
                if f"{provider}: " not in (heard.event.details or ""):
                    yield f"an error that doesn't name {provider}: {heard.event.details}"


def _accepting_before(case: Case, heard: Heard) -> set[str]:
    return {taken.provider for taken in case.heard_taken if taken.order < heard.order}


def _stops_heeded(case: Case) -> Iterator[str]:
    """Nothing is begun for a recipient who stopped the channel."""
    plan = case.history.plan
    if plan.suspensions or plan.shortages:
        return
    seen: set[str] = set()
    for asked in case.asked:
        is_begun_here = asked.key not in seen and not case.may_have_been_begun_before(asked)
        if is_begun_here and case.has_stopped(asked):
            yield f"went to {asked.content.get('to')}, who had stopped {asked.channel}"
        seen.add(asked.key)


def _asked_before_a_repeat(case: Case) -> Iterator[str]:
    """A doubt is settled by asking, before a repeat and not too early; what is there isn't repeated."""
    after = case.history.plan.tuning.lookup_after
    if after is None:
        return
    for again in case.asked:
        if case.is_to_device(again):
            continue
        doubt = _latest_doubt_before(case, again.key, again.order)
        if doubt is None:
            continue
        between = [one for one in _questions(case, again.key) if doubt.order < one.order < again.order]
        if not between:
            yield f"was repeated at {again.provider} though nobody had asked whether it is there"
    for question in case.looked_up:
        yield from _asked_rightly(case, question, after)


def _asked_rightly(case: Case, question: LookedUp, after: float) -> Iterator[str]:
    doubt = _latest_doubt_before(case, question.key, question.order)
    # By an order it is asked at once; the machines' clocks differ.
    may_be_early = Action.RESEND in case.orders or case.history.is_shared
    if doubt is not None and not may_be_early and question.at < doubt.at + after - EARLY:
        template = case.history.plan.templates.get(case.message.settings_id)
        if template is not None and template.expires is not None and case.history.plan.jumps:
            return  # it was due when it would have expired by the clock as it was
        yield f"{question.provider} was asked {question.at - doubt.at:.1f} s after the doubt"
    ledger = case.history.ledger
    is_heard = question.request in ledger.answered and question.trouble in TAKEN_FOR_SENT
    if question.found and is_heard and question.life not in ledger.crashed:
        later = [one for one in case.under_key(question.key) if one.order > question.order]
        if later:
            yield f"was repeated though {question.provider} had said that it has it"


def _questions(case: Case, key: str) -> list[LookedUp]:
    return [one for one in case.looked_up if one.key == key]


def _latest_doubt_before(case: Case, key: str, order: int) -> Asked | None:
    doubts = [one for one in case.under_key(key) if one.order < order and case.is_doubtful(one)]
    return doubts[-1] if doubts else None


RULES = (
    _left_in_time,
    _unconfirmed_goes_on,
    _all_are_named,
    _stops_heeded,
    _asked_before_a_repeat,
)
