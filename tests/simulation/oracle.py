"""Judges a run by the interface and the promises (design 4), knowing nothing of how the worker works."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from simulation.expectation import choices, on_the_wire, person_of, rendered
from simulation.ledger import Accepted, Asked, Event, Posted, Reported, read_event
from simulation.plan import Message, Trouble
from simulation.run import History
from simulation.service import iso
from simulation.world import START

RANK = {"dequeued": 0, "sending": 1, "accepted": 1, "sent": 2, "error": 2, "delivered": 3}
FOR_GOOD = frozenset({Trouble.BAD_REQUEST, Trouble.UNPROCESSABLE})
TAKEN_FOR_SENT = frozenset({None, Trouble.SLOW, Trouble.LATE, Trouble.GARBAGE_AFTER})
WITHOUT_ID = Trouble.GARBAGE_AFTER

IN_DOUBT, SENT, DELIVERED, FAILED, SET_ASIDE = 5, 6, 7, 8, 9
DUE = {
    IN_DOUBT: frozenset({"dequeued"}),
    SENT: frozenset({"dequeued", "sent"}),
    DELIVERED: frozenset({"dequeued", "sent", "delivered"}),
    FAILED: frozenset({"dequeued", "error"}),
}
"""The events that the service has to have heard, by the state at the end."""


class Heard(NamedTuple):
    """An event of a message that the service accepted for the first time."""

    order: int
    body: str
    event: Event


class Case(NamedTuple):
    """All that is known of one message."""

    history: History
    message: Message
    heard: tuple[Heard, ...]
    asked: tuple[Asked, ...]
    accepted: tuple[Accepted, ...]
    reported: tuple[Reported, ...]
    refused: tuple[Event, ...]
    state: int | None

    @property
    def statuses(self) -> list[str]:
        """What the service heard, in the order in which it heard it first."""
        return [heard.event.status for heard in self.heard]

    def is_doubtful(self, asked: Asked) -> bool:
        """Whether the worker can't know what became of this request."""
        return (
            asked.request not in self.history.ledger.answered and asked.trouble is not Trouble.NO_CONNECTION
        )

    def may_be_doubtful(self, asked: Asked) -> bool:
        """The same, or it knew, and died perhaps before that was in the journal."""
        return self.is_doubtful(asked) or asked.life in self.history.ledger.crashed


def violations(history: History) -> list[str]:
    """Every broken promise of a run, as sentences."""
    found = list(history.ledger.complaints)
    found += _account(history)
    found += _needless_reports(history)
    for case in _cases(history):
        for rule in RULES:
            found += [f"message {case.message.id}: {text}" for text in rule(case)]
    return found


def _cases(history: History) -> Iterator[Case]:
    ledger = history.ledger
    heard = _first_heard(ledger.posted)
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
    for message in history.plan.messages:
        row = history.rows.get(message.id)
        yield Case(
            history,
            message,
            tuple(heard[message.id]),
            tuple(asked[message.id]),
            tuple(accepted[message.id]),
            tuple(reported[message.id]),
            tuple(refused[message.id]),
            None if row is None else row.state,
        )


def _first_heard(posts: Sequence[Posted]) -> dict[int, list[Heard]]:
    heard: dict[int, list[Heard]] = defaultdict(list)
    known: set[str] = set()
    for post in posts:
        for body in post.bodies:
            if body not in known:
                known.add(body)
                event = read_event(body)
                heard[event.message_id].append(Heard(post.order, body, event))
    return heard


# the whole run


def _account(history: History) -> Iterator[str]:
    """Taken = ended + in doubt + set aside: nothing is on its way any more, nothing fell out."""
    handed = {handed.id for handed in history.ledger.handed if handed.id is not None}
    known = history.rows.keys() | history.past
    if lost := handed - known:
        yield f"handed out and not in the journal: {sorted(lost)}"
    if invented := known - handed:
        yield f"in the journal and never handed out: {sorted(invented)}"
    for row in history.rows.values():
        if row.state not in {IN_DOUBT, SENT, DELIVERED, FAILED, SET_ASIDE}:
            yield f"message {row.id} never came to an end (state {row.state})"


def _needless_reports(history: History) -> Iterator[str]:
    """An event is reported again only when its acceptance may not have been heard, or its id came again."""
    ledger = history.ledger
    last: dict[str, Posted] = {}
    for post in ledger.posted:
        for body in post.bodies:
            before = last.get(body)
            last[body] = post
            if before is None or before.request not in ledger.answered or before.life != post.life:
                continue
            id_, status, *_ = read_event(body)
            if status in {
                "sending",
                "accepted",
            }:  # two of them may look alike while the wall clock stands still
                continue
            if sum(handed.id == id_ for handed in ledger.handed if handed.order < post.order) < 2:
                yield f"message {id_}: an event was reported again for no reason"


# one message


def _events_in_order(case: Case) -> Iterator[str]:
    statuses = case.statuses
    for earlier, later in pairwise(statuses):
        if RANK[later] < RANK[earlier] and later != "error":
            yield f"{later} was reported after {earlier}"
        if earlier in {"error", "delivered"}:
            yield f"{later} was reported after {earlier}"
    for status in ("dequeued", "sent", "delivered", "error"):
        if statuses.count(status) > 1:
            yield f"{status} was reported as several events"
    refused = {event.status for event in case.refused}
    if statuses and statuses[0] != "dequeued" and "dequeued" not in refused:
        yield f"the first event was {statuses[0]}"


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


def _sent_once(case: Case) -> Iterator[str]:
    if len(case.accepted) > 1:
        ways = ", ".join(f"{one.channel} as {one.key[13:]}" for one in case.accepted)
        yield f"was taken by providers more than once: {ways}"
    for earlier, later in pairwise(case.asked):
        under_key = [
            asked for asked in case.asked if asked.key == earlier.key and asked.order <= earlier.order
        ]
        if later.key == earlier.key and not any(map(case.may_be_doubtful, under_key)):
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
    if known and case.state in {FAILED, IN_DOUBT} and not _failed_report(case):
        yield "a provider said that it has the message, yet it ended otherwise"
    if case.state in {SENT, DELIVERED} and not case.accepted:
        yield "ended as sent, and no provider has it"
    if case.state in {SENT, DELIVERED} and not any(asked.trouble in TAKEN_FOR_SENT for asked in case.asked):
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


def _failed_report(case: Case) -> bool:
    return any(report.status == "failed" and report.answer < 300 for report in case.reported)


def _receipts_told(case: Case) -> Iterator[str]:
    """What a provider reported, and heard that it was noted, becomes an event."""
    noted = [report for report in case.reported if report.answer < 300 and report.status != "enroute"]
    named = [asked for asked in case.asked if asked.trouble in TAKEN_FOR_SENT - {WITHOUT_ID}]
    known = [asked for asked in named if not case.may_be_doubtful(asked)]
    if case.state == SENT and noted and known and not case.history.past:
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
    if details.startswith(("settings ", "the answer isn't JSON")):
        return case.message.settings_id in ledger.unusable_settings
    if "the provider reported" in details:
        return _failed_report(case)
    if details.startswith("no content") or "no address" in details:
        lives = case.history.lives
        return bool(case.asked) or any(not choices(plan, case.message, life.channels) for life in lives)
    if "unknown" in details:
        return any(case.may_be_doubtful(asked) for asked in case.asked) or bool(ledger.crashed)
    tried = {asked.channel for asked in case.asked}
    return any(details.startswith(f"{channel}: ") for channel in tried)


RULES = (
    _events_in_order,
    _events_complete,
    _sent_once,
    _sent_with_leave,
    _said_right,
    _channels_changed_rightly,
    _ended_truly,
    _receipts_told,
    _errors_explained,
)
