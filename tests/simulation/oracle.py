"""Judges a run by the interface and the promises (design 4), knowing nothing of how the worker works."""

from __future__ import annotations

from collections.abc import Iterator

from deliveryd.journal.orders import Action
from simulation import (
    rules_of_beginning,
    rules_of_choosing,
    rules_of_confirming,
    rules_of_destinations,
    rules_of_devices,
    rules_of_guarding,
    rules_of_leaving,
    rules_of_limiting,
    rules_of_pacing,
    rules_of_rejecting,
    rules_of_reporting,
    rules_of_sending,
    rules_of_sharing,
    rules_of_slowness,
    rules_of_tokens,
    rules_of_windows,
)
from simulation.case import DELIVERED, FAILED, IN_DOUBT, SENT, SET_ASIDE, cases, first_heard
from simulation.ledger import Posted, read_event
from simulation.new_beginnings import FORGETS
from simulation.plan import Offers, Trouble
from simulation.rules_of_beginning import began_anew
from simulation.rules_of_bounding import broken_limits
from simulation.rules_of_pausing import broken_pauses
from simulation.rules_of_rejecting import broken_waits
from simulation.rules_of_taking import broken_takes
from simulation.rules_of_tokens import broken_tokens
from simulation.rules_of_turns import broken_turns
from simulation.run import History
from simulation.service import id_of
from simulation.wire import BROKEN_OFF, IN_ONE_INSTANT
from simulation.world import RETENTION

RULES = (
    *rules_of_reporting.RULES,
    *rules_of_sending.RULES,
    *rules_of_choosing.RULES,
    *rules_of_confirming.RULES,
    *rules_of_rejecting.RULES,
    *rules_of_tokens.RULES,
    *rules_of_devices.RULES,
    *rules_of_limiting.RULES,
    *rules_of_destinations.RULES,
)
RULES_OF_EACH = (
    *rules_of_reporting.RULES_OF_EACH,
    *rules_of_sending.RULES_OF_EACH,
    *rules_of_choosing.RULES_OF_EACH,
    *rules_of_leaving.RULES_OF_EACH,
    *rules_of_devices.RULES_OF_EACH,
    *rules_of_windows.RULES_OF_EACH,
)
"""Rules that hold at each device of a customer by itself."""

UNANSWERED = BROKEN_OFF | {
    Trouble.RESET_BEFORE,
    Trouble.RESET_AFTER,
    Trouble.SILENCE_BEFORE,
    Trouble.SILENCE_AFTER,
}
"""Troubles after which nobody can know whether a batch was in the part of the answer that never came."""

TAKE_UNDER_WAY = 12.0
"""Seconds that a request for messages may go on trying after it was begun."""


def violations(history: History) -> list[str]:
    """Every broken promise of a run, as sentences."""
    found = list(history.ledger.complaints)
    found += _account(history)
    found += _needless_reports(history)
    found += _forgotten_early(history)
    found += _losses_said(history)
    found += _malformed_told(history)
    found += _taken_without_room(history)
    found += broken_pauses(history)
    found += broken_takes(history)
    found += broken_waits(history)
    found += broken_tokens(history)
    found += rules_of_slowness.broken_shares(history)
    found += rules_of_pacing.broken_rates(history)
    found += rules_of_guarding.broken_guards(history)
    found += broken_limits(history)
    found += broken_turns(history)
    for case in cases(history):
        anew = began_anew(case)
        rules = rules_of_beginning.RULES if anew else RULES
        for rule in (*rules, *rules_of_sharing.RULES) if history.is_shared else rules:
            found += [f"message {case.message.id}: {text}" for text in rule(case)]
        for each in case.by_device():
            at = f"message {case.message.id}" + (f" at {each.device}" if each.device else "")
            for rule in rules_of_beginning.RULES_OF_EACH if anew else RULES_OF_EACH:
                found += [f"{at}: {text}" for text in rule(each)]
    return found


def _account(history: History) -> Iterator[str]:
    """Taken = ended + in doubt + set aside: nothing is on its way any more, nothing fell out."""
    handed = {handed.id for handed in history.ledger.handed if handed.id is not None}
    known = history.rows.keys() | history.pruned | history.forgotten
    if lost := handed - known - _cut_off(history) - _in_hand(history):
        yield f"handed out and not in the journal: {sorted(lost)}"
    if invented := known - handed:
        yield f"in the journal and never handed out: {sorted(invented)}"
    for row in history.rows.values():
        if row.state not in {IN_DOUBT, SENT, DELIVERED, FAILED, SET_ASIDE}:
            yield f"message {row.id} never came to an end (state {row.state})"


def _forgotten_early(history: History) -> Iterator[str]:
    """Nothing is so old within a run that it may be forgotten, whatever the clock shows."""
    # With several workers the clock of the database is everybody's, and days may last some seconds.
    days = history.ages_by_database and any(jump.seconds >= RETENTION for jump in history.plan.jumps)
    if history.pruned and not history.is_shared and not days:
        yield f"forgotten though too little time passed: {sorted(history.pruned)}"


def _in_hand(history: History) -> set[int | None]:
    """What a worker of several was handed just before it was struck: it may not have been recorded yet."""
    if not history.is_shared:
        return set()
    last = {handed.life: handed.request for handed in history.ledger.handed}
    return {
        handed.id
        for handed in history.ledger.handed
        if handed.life in history.ledger.crashed and handed.request == last[handed.life]
    }


def _cut_off(history: History) -> set[int | None]:
    """What a queue that hands out each element once handed out in a part of an answer that never came."""
    if history.plan.offers is not Offers.ONCE:
        return set()
    return {id_of(raw) for taken in history.ledger.taken.values() for raw in taken.raws[taken.whole :]}


def _losses_said(history: History) -> Iterator[str]:
    """Each request that left and brought no whole answer may have lost a batch, and the journal says so."""
    ledger = history.ledger
    survived = [each for each in ledger.polled if each.life not in ledger.crashed | ledger.only_said]
    least = sum(polled.trouble in UNANSWERED for polled in survived)
    held_until = [each.at + each.seconds for each in history.plan.hangs]
    most = sum(
        polled.request not in ledger.answered
        or polled.trouble is Trouble.GARBAGE_AFTER
        or any(abs(polled.at - until) < IN_ONE_INSTANT for until in held_until)
        for polled in ledger.polled
    )
    if not least <= ledger.batches_lost <= most:
        yield f"{ledger.batches_lost} batches are said to be lost, of {least} to {most}"


def _malformed_told(history: History) -> Iterator[str]:
    """`dequeued`, then `error`, each once, of every element without the rest but with an id."""
    heard = first_heard(history.ledger.posted)
    own = {message.id for message in history.plan.messages}
    refused = {event.message_id for event in map(read_event, history.ledger.refused_events)}
    forgot = {
        id_ for ordered in history.ledger.ordered if ordered.verb in FORGETS for id_ in ordered.message_ids
    }
    for id_ in (history.rows.keys() | history.pruned) - own - refused - forgot:
        events = [one.event for one in heard[id_]]
        if [event.status for event in events] != ["dequeued", "error"]:
            yield f"malformed message {id_}: {', '.join(event.status for event in events)} was reported"
        elif not (events[1].details or "").startswith("malformed message"):
            yield f"malformed message {id_}: an error that isn't true: {events[1].details}"


def _needless_reports(history: History) -> Iterator[str]:
    """An event is reported again only when its acceptance may not have been heard, or its id came again."""
    ledger = history.ledger
    retried = {
        id_ for ordered in ledger.ordered if ordered.verb is Action.RETRY for id_ in ordered.message_ids
    }
    last: dict[str, Posted] = {}
    for post in ledger.posted:
        for body in post.bodies:
            before = last.get(body)
            last[body] = post
            if before is None or before.request not in ledger.answered or before.life != post.life:
                continue
            id_, status, *_ = read_event(body)
            # Two of the first may look alike while the wall clock stands still.
            if status in {"sending", "accepted"} or id_ in retried:
                continue
            if sum(handed.id == id_ for handed in ledger.handed if handed.order < post.order) < 2:
                yield f"message {id_}: an event was reported again for no reason"


def _taken_without_room(history: History) -> Iterator[str]:
    """Nothing more is asked for once the disk of the journal is known to be full."""
    for shortage in history.plan.shortages:
        if not shortage.seen:
            continue
        begin, end = shortage.at + TAKE_UNDER_WAY, shortage.at + shortage.seconds
        for polled in history.ledger.polled:
            if begin < polled.at < end:
                yield f"messages were asked for at {polled.at:.1f}, with a full disk"
                break
