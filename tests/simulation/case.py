"""What is known of one message after a run: its records, brought together for the rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from deliveryd.journal.orders import Action
from simulation.expectation import addresses, persons_of
from simulation.ledger import (
    KEPT_FOR_LATER,
    UNHEARD,
    Accepted,
    Asked,
    Change,
    Event,
    Ledger,
    LookedUp,
    Ordered,
    Posted,
    Reported,
    read_event,
)
from simulation.plan import Message, Named, Trouble
from simulation.run import History
from simulation.wire import BROKEN_OFF

IN_DOUBT, SENT, DELIVERED, FAILED, SET_ASIDE = 5, 6, 7, 8, 9

TAKEN_FOR_SENT = frozenset({None, Trouble.SLOW_CONNECTION, Trouble.SLOW, Trouble.LATE})
"""Troubles after which the worker hears all the same that a provider has a message."""


NO_JSON = frozenset({Trouble.GARBAGE_AFTER, Trouble.PAGE, Trouble.PAGE_NOT_FOUND, Trouble.NOTHING})
"""Troubles whose answer isn't the JSON in which a provider's id would stand."""

UNREADABLE = NO_JSON | BROKEN_OFF
"""Troubles of which bytes of an answer come, and which leave in doubt what became of a request."""

DOUBTFUL_ANSWERS = NO_JSON | {
    Trouble.GATEWAY_AFTER,
    Trouble.BROKEN_AFTER,
    Trouble.OVERDUE_AFTER,
    Trouble.BROKEN,
    Trouble.CONFLICT,
}
"""Troubles whose answer leaves in doubt what became of a request (design 5)."""

FOR_GOOD = frozenset({Trouble.BAD_REQUEST, Trouble.CUT_REFUSAL, Trouble.UNPROCESSABLE, Trouble.OPTED_OUT})
"""Troubles whose answer refuses a message for good."""

BUSY = frozenset({Trouble.BUSY, Trouble.BUSY_AFTER})
"""Troubles after which the message wasn't taken, if the provider tells the truth."""


UNDER_WAY, AT_ONCE = 3.0, 0.5
"""Seconds that a request may take from its intent to its first byte, where connections are slow or not."""

AT_DEVICES = 6.0
"""Seconds until the answers of all devices are recorded together: some requests begin when others end."""

MAY_BE_FENCED = 6.0
"""Seconds of standing still after which others may have taken over: a lease, less the renewal's age."""

JUST_WOKEN = 1.0
"""Seconds after which a process that stood still has looked at its lease."""

ELSEWHERE = 2.0
"""Seconds more where several workers share a journal: each reads about once a second what others recorded."""

SLOW_ON_ITS_WAY = frozenset({Trouble.SLOW_CONNECTION, Trouble.NO_CONNECTION})


class Heard(NamedTuple):
    """An event of a message that the service accepted for the first time, at a second of the run."""

    order: int
    body: str
    event: Event
    at: float


class Case(NamedTuple):
    """All that is known of one message. `offered_at`: when the queue first handed it out."""

    history: History
    message: Message
    offered_at: float
    heard: tuple[Heard, ...]
    asked: tuple[Asked, ...]
    accepted: tuple[Accepted, ...]
    reported: tuple[Reported, ...]
    refused: tuple[Event, ...]
    ordered: tuple[Ordered, ...]
    looked_up: tuple[LookedUp, ...]
    last_heard: str | None
    """The status that the service heard last, new or not."""
    acknowledged: frozenset[str]
    """Statuses of which the worker knows that the service accepted them."""
    state: int | None
    device: str | None = None
    """The one device whose requests these are, besides those of channels without devices; None: all are."""
    others: tuple[Asked, ...] = ()
    """Then the requests for the customer's other devices, and which of these took the message."""
    at_others: tuple[Accepted, ...] = ()

    @property
    def statuses(self) -> list[str]:
        """What the service heard, in the order in which it heard it first."""
        return [heard.event.status for heard in self.heard]

    @property
    def orders(self) -> frozenset[Action]:
        """What operators may have done with it, or with something that belongs to it."""
        return frozenset(ordered.verb for ordered in self.ordered)

    @property
    def has_dropped_reports(self) -> bool:
        """Whether an operator may have dropped a provider's report of it."""
        return any(ordered.verb is Action.DROP and ordered.provider_ids for ordered in self.ordered)

    @property
    def noted(self) -> list[Reported]:
        """Reports that the worker has, and that show by themselves which attempt they are about."""
        return [report for report in self._namings if report.answer < 300]

    @property
    def has_arrived(self) -> bool:
        """Whether the worker may have such a report, though it ended before it answered it."""
        return any(report.answer < 300 or report.answer == UNHEARD for report in self._namings)

    @property
    def _namings(self) -> Iterator[Reported]:
        for report in self.reported:
            if report.status != "enroute" and report.names is not Named.NOTHING:
                yield report

    @property
    def may_go_on(self) -> bool:
        """Whether a message that was sent may go on to the next channel."""
        tuning = self.history.plan.tuning
        return tuning.receipt_deadline is not None or tuning.failed_next

    @property
    def heard_taken(self) -> list[Asked]:
        """The requests of which the worker knows, and has recorded, that the provider took the message."""
        return [one for one in self.asked if one.trouble in TAKEN_FOR_SENT and not self.may_be_doubtful(one)]

    def went_on(self, key: str, later: Asked) -> bool:
        """Whether a message could leave the provider that took it under a key before another request.

        Nobody had confirmed it in time, or it was reported as failed and that leads to the next channel.
        """
        tuning = self.history.plan.tuning
        first = self.under_key(key)[0]
        if tuning.failed_next and any(
            report.status == "failed"
            and report.begun < later.order
            and self.acceptance_of(report).provider == first.provider
            for report in self.reported
        ):
            return True
        within = tuning.receipt_deadline
        return within is not None and later.at >= first.at + within

    def was_settled(self, key: str, later: Asked) -> bool:
        """Whether a doubt under a key was settled before a later request: the provider has it."""
        heard = self.history.ledger.answered
        found = [(one.key, one.order) for one in self.looked_up if one.found and one.request in heard]
        found += [(one.key, one.order) for one in self.asked if self._is_known_taken(one, later)]
        return any(one == key and order < later.order for one, order in found)

    def _is_known_taken(self, asked: Asked, later: Asked) -> bool:
        """Whether the worker knew at a later request that the provider took this one."""
        if asked.trouble not in TAKEN_FOR_SENT or self.is_doubtful(asked):
            return False
        ledger = self.history.ledger
        if asked.life not in ledger.crashed or asked.life in ledger.process_of(later.life):
            return True
        if any(
            one.journaled and one.provider != asked.provider and one.life in ledger.process_of(asked.life)
            for one in self.asked
            if asked.order < one.order < later.order
        ):  # it left the provider before the crash, which is judged by itself: the journal knew why
            return True
        told = {"accepted", "sent"}
        if any(event.status in told for event in self.refused):
            return True
        if any(asked.order < heard.order < later.order for heard in self.heard if heard.event.status in told):
            return True
        # Its event may still have waited: there is one more than the requests since then account for.
        since = {one.key for one in self.accepted if one.order > later.order}
        sent = [heard for heard in self.heard if heard.event.status == "sent" and heard.order > asked.order]
        return len(sent) > len(since)

    def by_device(self) -> Iterator[Case]:
        """What is known of the message at each device that was asked; the whole where there are none."""
        to = [asked.content["to"] for asked in self.asked if self.is_to_device(asked)]
        for device in dict.fromkeys(to):
            others = tuple(
                one for one in self.asked if self.is_to_device(one) and one.content["to"] != device
            )
            keys = {one.key for one in others}
            yield self._replace(
                asked=tuple(one for one in self.asked if one not in others),
                accepted=tuple(one for one in self.accepted if one.key not in keys),
                device=device,
                others=others,
                at_others=tuple(one for one in self.accepted if one.key in keys),
            )
        if not to:
            yield self

    def is_to_device(self, asked: Asked) -> bool:
        """Whether a request is one of those that a message has for each device."""
        return self.history.plan.sends_to_devices(asked.channel)

    @property
    def is_at_devices(self) -> bool:
        """Whether a device of the customer has the message, and so it may be repeated for the others."""
        plan = self.history.plan
        return any(plan.sends_to_devices(one.channel) for one in (*self.accepted, *self.at_others))

    def stops(self, channel: str, before: int | None = None) -> list[Change]:
        """What may have been recorded of this message's recipient, before a place in the order of all."""
        plan = self.history.plan
        if not plan.opt_outs and not plan.has_devices:
            return []
        known = addresses(plan, self.message, channel)
        if self.device is not None and plan.sends_to_devices(channel):
            known = {self.device}
        return [
            change
            for change in _changes(self.history)
            if change.channel == channel
            and change.address in known
            and (before is None or change.begun < before)
        ]

    def may_be_stopped(self, channel: str, before: int | None = None) -> bool:
        """Whether the recipient may count as one who stopped a channel, or the provider answered so."""
        found = self.stops(channel, before)
        if self.history.plan.sends_to_devices(channel):
            stopped = {each.address for each in found if each.stopped}
            if self.device is not None:
                return self.device in stopped
            people = persons_of(self.history.plan, self.message)
            return any(bool(each.devices) and stopped.issuperset(each.devices) for each in people)
        if any(one.trouble is Trouble.OPTED_OUT and one.channel == channel for one in self.asked):
            return True
        late = ELSEWHERE if self.history.is_shared else 0.0
        lifted: dict[str, int] = {}
        for each in found if self._are_dated_in_order else ():
            if not each.stopped and each.known is not None and each.known_at + late <= self.offered_at:
                lifted[each.address] = max(each.begun, lifted.get(each.address, 0))
        return any(
            each.stopped and (each.known is None or each.known > lifted.get(each.address, 0))
            for each in found
        )

    def has_stopped(self, by: Asked) -> bool:
        """Whether the recipient had stopped a channel long before a request, beyond all doubt."""
        found = [each for each in self.stops(by.channel, by.order) if each.address == by.content.get("to")]
        stops = [each for each in found if each.stopped and each.known is not None]
        latest = max(stops, key=lambda each: each.begun, default=None)
        is_slow = by.trouble in SLOW_ON_ITS_WAY or bool(self.history.plan.hangs)
        within = (UNDER_WAY if is_slow else AT_ONCE) + (ELSEWHERE if self.history.is_shared else 0.0)
        within += AT_DEVICES * self.is_to_device(by)
        if latest is None or latest.known_at + within > by.at:
            return False
        resumed = [each for each in found if not each.stopped]
        return not any(
            (each.known or by.order) > latest.begun or not self._are_dated_in_order for each in resumed
        )

    @property
    def _are_dated_in_order(self) -> bool:
        """Whether of two changes of what recipients stopped the later one has the later instant.

        The latest instant counts, as a provider states it and a worker's clock bounds it.
        """
        history = self.history
        return not history.skew and all(jump.seconds >= 0 for jump in history.plan.jumps)

    def acceptance_of(self, report: Reported) -> Accepted:
        """What a report is about."""
        return next(one for one in self.accepted if one.provider_id == report.provider_id)

    def under_key(self, key: str) -> list[Asked]:
        """All requests with an idempotency key."""
        return [asked for asked in self.asked if asked.key == key]

    def is_doubtful(self, asked: Asked) -> bool:
        """Whether the worker can't know what became of this request."""
        if asked.trouble in BUSY or asked.trouble is Trouble.NO_CONNECTION:
            return False
        return asked.request not in self.history.ledger.answered or asked.trouble in DOUBTFUL_ANSWERS

    def is_unreadable_again(self, asked: Asked) -> bool:
        """Whether its answer can't be read, and so it was a repeat in vain, after which none follows."""
        earlier = [one for one in self.under_key(asked.key) if one.order < asked.order]
        is_repeat_refused = any(
            self.may_have_arrived(first) and then.trouble in FOR_GOOD
            for first, then in combinations(earlier, 2)
        )
        in_doubt = is_repeat_refused or any(map(self.may_be_doubtful, earlier))
        return asked.trouble in UNREADABLE and (in_doubt or self.may_have_been_begun_before(asked))

    def may_be_forgotten(self, report: Reported) -> bool:
        """Whether it may be pruned, or dropped, before its attempt is in doubt; or it repeats such a one."""
        may_go = self.history.retention is not None or self.has_dropped_reports
        return self._is_pruned_in_time(report) or (
            may_go and any(one.answer == KEPT_FOR_LATER for one in self._alike(report))
        )

    def _is_pruned_in_time(self, report: Reported) -> bool:
        """Whether it became too old before the log of a dead worker was taken over, which had the message.

        Others answer such reports as noted and put them into the log's inbox. Whoever takes the log over
        keeps them, dated when they came, until the attempt counts as in doubt. A lease is over after seconds
        and what fits nothing is kept for days, so that only a run with a shorter retention can prune them.
        """
        if self.history.retention is None:
            return False
        before = [asked for asked in self.asked if asked.order < report.order]
        has_died = any(
            asked.life in self.history.ledger.crashed and asked.life != report.life for asked in before
        )
        came_at = min(one.at for one in self._alike(report))
        return has_died and self.asked[-1].at >= came_at + self.history.retention

    def _alike(self, report: Reported) -> Iterator[Reported]:
        """This report, and all others about the same acceptance."""
        return (one for one in self.reported if one.provider_id == report.provider_id)

    def may_not_know(self, report: Reported, asked: Asked) -> bool:
        """Whether a report, which another worker took in, may not have come to who made a request."""
        ledger = self.history.ledger
        if not self.history.is_shared or report.life == asked.life:
            return False
        still = [each for each in (*ledger.stood_still, *ledger.cut_off) if each.life == asked.life]
        since = max([report.at, *(each.ended for each in still if each.begun <= asked.at)])
        return asked.at <= since + ELSEWHERE

    def may_have_arrived(self, asked: Asked) -> bool:
        """Whether its repeats must say the same."""
        return asked.trouble in BUSY or self.is_doubtful(asked)

    def may_be_doubtful(self, asked: Asked) -> bool:
        """Whether the worker can't know it, or knew it, and died perhaps before that was in the journal."""
        return self.is_doubtful(asked) or asked.life in self.history.ledger.crashed

    def may_have_been_begun_before(self, asked: Asked) -> bool:
        """Whether an earlier life may have died between the intent to make this request and the request."""
        if self.history.is_shared:  # lives have their numbers by their beginnings
            return bool(self.history.ledger.crashed - {asked.life})
        return any(life < asked.life for life in self.history.ledger.crashed)


def cases(history: History) -> Iterator[Case]:
    """All messages of a run, each with what is known of it."""
    ledger = history.ledger
    heard = first_heard(ledger.posted)
    offered = {handed.id: handed.at for handed in reversed(ledger.handed)}
    asked: dict[int, list[Asked]] = defaultdict(list)
    for request in ledger.asked:
        asked[request.message_id].append(request)
    accepted: dict[int, list[Accepted]] = defaultdict(list)
    message_of: dict[str, int] = {}
    for acceptance in ledger.accepted:
        accepted[acceptance.message_id].append(acceptance)
        message_of[acceptance.provider_id] = acceptance.message_id
    reported: dict[int, list[Reported]] = defaultdict(list)
    for report in ledger.reported:
        reported[message_of[report.provider_id]].append(report)
    refused: dict[int, list[Event]] = defaultdict(list)
    for body in ledger.refused_events:
        event = read_event(body)
        refused[event.message_id].append(event)
    ordered: dict[int, list[Ordered]] = defaultdict(list)
    for order in ledger.ordered:
        about = {message_of[id_] for id_ in order.provider_ids if id_ in message_of}
        for message_id in about.union(order.message_ids):
            ordered[message_id].append(order)
    looked_up: dict[int, list[LookedUp]] = defaultdict(list)
    for question in ledger.looked_up:
        looked_up[question.message_id].append(question)
    latest = [post for post in ledger.posted if not _is_left_over(history, post)]
    last = {event.message_id: event.status for event in map(read_event, _all_bodies(latest))}
    acknowledged = _acknowledged(ledger)
    for message in history.plan.messages:
        row = history.rows.get(message.id)
        yield Case(
            history,
            message,
            offered.get(message.id, 0.0),
            tuple(heard[message.id]),
            tuple(asked[message.id]),
            tuple(accepted[message.id]),
            tuple(reported[message.id]),
            tuple(refused[message.id]),
            tuple(ordered[message.id]),
            tuple(looked_up[message.id]),
            last.get(message.id),
            frozenset(acknowledged[message.id]),
            None if row is None else row.state,
        )


def _is_left_over(history: History, post: Posted) -> bool:
    """Whether a worker sent it when it woke, and others had gone on with what it had.

    It had stopped right before the first byte, where no look at its lease can come between.
    """
    if not history.is_shared or post.life not in history.ledger.crashed:
        return False
    woken = (
        each.ended
        for each in history.ledger.stood_still
        if each.life == post.life and each.ended - each.begun >= MAY_BE_FENCED
    )
    if not any(ended <= post.at <= ended + JUST_WOKEN for ended in woken):
        return False
    before = (each for each in history.ledger.posted if each.order < post.order and each.life != post.life)
    told = {body for each in before for body in each.bodies}
    return told.issuperset(set(post.bodies).difference(history.ledger.refused_events))


def _changes(history: History) -> Iterator[Change]:
    """What providers reported of recipients, operators ordered, and answers said."""
    ledger = history.ledger
    yield from ledger.changes
    for asked in ledger.asked:
        address = asked.content.get("to")
        if asked.trouble is Trouble.OPTED_OUT and address is not None:
            is_kept = asked.life not in ledger.crashed
            yield Change(
                asked.order, asked.channel, address, True, asked.order if is_kept else None, asked.at
            )


def was_failed_by_report(case: Case) -> bool:
    """Whether a provider reported that it couldn't deliver the message."""
    return any(
        report.status == "failed" and (report.answer < 300 or report.answer == UNHEARD)
        for report in case.reported
    )


def _acknowledged(ledger: Ledger) -> dict[int, set[str]]:
    acknowledged: dict[int, set[str]] = defaultdict(set)
    for post in ledger.posted:
        if post.request in ledger.answered and post.life not in ledger.crashed:
            for event in map(read_event, post.bodies):
                acknowledged[event.message_id].add(event.status)
    return acknowledged


def _all_bodies(posts: Sequence[Posted]) -> Iterator[str]:
    return (body for post in posts for body in post.bodies)


def first_heard(posts: Sequence[Posted]) -> dict[int, list[Heard]]:
    """The events of each message, without those that were heard before."""
    heard: dict[int, list[Heard]] = defaultdict(list)
    known: set[str] = set()
    for post in posts:
        for body in post.bodies:
            if body not in known:
                known.add(body)
                event = read_event(body)
                heard[event.message_id].append(Heard(post.order, body, event, post.at))
    return heard
