"""Rules about messages that an operator had begin anew or forgot, in place of most others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

from deliveryd.journal.orders import Action
from simulation.case import BUSY, SET_ASIDE, Case, was_failed_by_report
from simulation.new_beginnings import BEGINS, FORGETS
from simulation.plan import Trouble
from simulation.rules_of_reporting import DUE, errors_explained, not_retried
from simulation.rules_of_sending import repeated_rightly, request_of, said_right, sent_with_leave
from simulation.service import instant_of

_ACCEPTS = frozenset({Action.BEGIN_ANEW_ANYWAY, Action.FORGET_ANYWAY, Action.RESEND_ANEW})
"""Orders after which a message may arrive twice."""

_SETTLES = frozenset({Action.SETTLE_FAILED})
_ENDS = frozenset({"sent", "delivered", "error"})


def began_anew(case: Case) -> bool:
    """Whether an operator may have had it begin anew, or forgot it."""
    return bool(case.orders & (BEGINS | FORGETS))


def _ordered_between(case: Case, verbs: frozenset[Action], first: int, last: int) -> bool:
    return any(first < ordered.order < last for ordered in case.ordered if ordered.verb in verbs)


def _no_key_comes_twice(case: Case) -> Iterator[str]:
    """A key is one provider's, and after an end that the service heard no key from before is used.

    But what was sent may go on to a provider that didn't take it before, under that one's key.
    """
    providers: dict[str, str] = {}
    for asked in case.asked:
        if providers.setdefault(asked.key, asked.provider) != asked.provider:
            yield "a key was used at two providers"
    for heard in not_retried(case):
        if heard.event.status in _ENDS:
            before = {asked.key for asked in case.asked if asked.order < heard.order}
            if heard.event.status == "sent" and case.device is not None:
                before = {each.key for each in case.heard_taken if each.order < heard.order}
            elif heard.event.status == "sent" and case.may_go_on:
                at = instant_of(heard.event.fields["timestamp"])
                begun = {asked.key for asked in case.asked if asked.now <= at}
                before = {each.key for each in case.accepted if each.order < heard.order} & begun
            after = {asked.key for asked in case.asked if asked.order > heard.order}
            if before & after:
                yield f"a key from before its {heard.event.status} was used again"


def _doubts_accepted(case: Case) -> Iterator[str]:
    """Nothing in doubt is sent under another key, but by the word of an operator who accepted duplicates."""
    for earlier, later in combinations(case.asked, 2):
        if earlier.key == later.key or not case.is_doubtful(earlier) or case.was_settled(earlier.key, later):
            continue
        if later.trouble is Trouble.NO_CONNECTION or case.has_arrived:
            continue
        if not _ordered_between(case, _ACCEPTS | _SETTLES, earlier.order, later.order):
            yield f"was sent as {later.key[13:]} while it was in doubt as {earlier.key[13:]}"
            return


def _taken_twice_by_order(case: Case) -> Iterator[str]:
    """Under two keys only if duplicates were accepted, the first one failed, or nobody confirmed it."""
    for earlier, later in pairwise(case.accepted):
        asked = case.under_key(earlier.key)
        was_denied = any(one.trouble in BUSY for one in asked) and not any(map(case.is_doubtful, asked))
        failed = was_failed_by_report(case) and case.orders & (BEGINS | FORGETS)
        allowed = _ordered_between(case, _ACCEPTS | _SETTLES, earlier.order, later.order)
        went_on = case.may_go_on and case.went_on(earlier.key, request_of(case, later))
        if not (was_denied or failed or allowed or went_on):
            yield f"was taken as {earlier.key[13:]} and as {later.key[13:]}, which nobody accepted"


def _end_was_told(case: Case) -> Iterator[str]:
    refused = {event.status for event in case.refused}
    heard = set(case.statuses)
    if case.state is not None and (missing := DUE.get(case.state, frozenset()) - heard - refused):
        yield f"never reported: {', '.join(sorted(missing))}"


def _sent_with_leave(case: Case) -> Iterator[str]:
    """But for what was forgotten after it was sent, and set aside when it came again."""
    if case.state != SET_ASIDE:
        yield from sent_with_leave(case)


RULES = (_end_was_told, _sent_with_leave, said_right, errors_explained)
RULES_OF_EACH = (_no_key_comes_twice, _doubts_accepted, _taken_twice_by_order, repeated_rightly)
