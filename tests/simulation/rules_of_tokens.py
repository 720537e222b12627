"""Rules about tokens: one request for each however many wait, renewed before its end, and no message pays."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from simulation.case import DELIVERED, IN_DOUBT, SENT, Case
from simulation.ledger import TokenAsked
from simulation.plan import Trouble
from simulation.run import History

AFTER_A_FAILURE = 100.0
"""Seconds after which a message is sent once the token server is well: its longest pause, and a breaker's."""

EARLIEST_RENEWAL = 0.75
"""The share of its life before which no token is renewed that wasn't refused."""


def _sent_for_all_that(case: Case) -> Iterator[str]:
    """No try is used up by a token that ended or didn't come, and no message waits long."""
    plan = case.history.plan
    terms = plan.tokens
    if terms is None or terms.well_from is None or plan.reloads or plan.halts:
        return
    is_held = case.state == IN_DOUBT and bool(case.history.ledger.crashed)
    if case.state not in {SENT, DELIVERED} and not is_held:
        yield f"wasn't sent, since there was no token (state {case.state})"
    in_line = len(plan.messages) * (plan.provider_seconds + 0.1)
    taken = case.accepted[0].order if case.accepted else None
    at = next((asked.at for asked in reversed(case.asked) if taken and asked.order < taken), 0.0)
    if at > terms.well_from + len(plan.troubles["token"]) * AFTER_A_FAILURE + AFTER_A_FAILURE + in_line:
        yield f"was held up until second {at:.0f}, and tokens were to be had from {terms.well_from:.0f} on"


def broken_tokens(history: History) -> Iterator[str]:
    """One request at a time for each client, none without need, and no token is shown after its end.

    A client that a reload replaces ends beside the new one; what stood still may show a token that ended.
    """
    plan, ledger = history.plan, history.ledger
    terms = plan.tokens
    if terms is None or plan.reloads:
        return
    asked: dict[tuple[int, str], list[TokenAsked]] = defaultdict(list)
    for each in ledger.tokens_asked:
        asked[each.life, each.client].append(each)
    for (_, client), requests in asked.items():
        for earlier, later in pairwise(requests):
            if ledger.ended.get(earlier.request, later.order + 1) > later.order:
                yield f"{client} had two requests for a token under way"
    failed = len(plan.troubles.get("token", ())) + ledger.troubles[Trouble.UNAUTHORIZED]
    hangs = sum(hang.seconds + 1.0 for hang in plan.hangs)
    due = ledger.seconds / (terms.lifetime * EARLIEST_RENEWAL) + len(history.lives) + len(terms.revoked)
    for client, count in Counter(each.client for each in ledger.tokens_asked).items():
        if count > due + failed + hangs + 1:
            yield f"{client} had {count} requests for a token, and needed {due:.0f}"
    ended = sum(each.had_ended and bool(each.client) for each in ledger.tokens_refused)
    if ended and not plan.suspensions:
        yield f"{ended} requests showed a token that had ended"


RULES = (_sent_for_all_that,)
