"""Judges a stage by its ledger and its journal, knowing the promises (design 4) and nothing of the worker."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from crashes.ledger import (
    Asked,
    Began,
    Ended,
    Handed,
    Ordered,
    Record,
    Refused,
    Reported,
    Stood,
    Taken,
    Told,
    Torn,
    read_ledger,
)
from crashes.scenario import DUE, FAILED, Due, Fate, Scenario
from crashes.stage import KILLED, Stage
from deliveryd.journal.attention import Audit
from deliveryd.journal.reader import file_reader
from deliveryd.states import State

WITHOUT_KEYS = frozenset({"email"})
"""Channels whose providers can't know that they have a message already."""

BUSY = 503
"""What a provider answers that doesn't have the message, and may take it later."""

LEAVE_SOME = (Fate.HELD, Fate.REPORTED, Fate.UNCONFIRMED)
"""Fates by which a worker may end with status 1: held in doubt, or a report that came at its end."""

BAD_ENTRIES = ('"event": "worker.died"', '"event": "journal.gap"', "Traceback")


class At(NamedTuple):
    """A record's place: its number in the ledger, and the life that it was seen in."""

    order: int
    life: int


@dataclass(frozen=True, slots=True)
class Case:
    """All that was seen of one message."""

    id: int
    fate: Fate
    state: State | None
    killed: frozenset[int]
    """Lives that ended by SIGKILL."""
    stood: tuple[int, ...] = ()
    """Places in the ledger at which a worker went on that had stood still for longer than its patience."""
    handed: list[tuple[At, Handed]] = field(default_factory=list)
    told: list[tuple[At, Told]] = field(default_factory=list)
    asked: list[tuple[At, Asked]] = field(default_factory=list)
    taken: list[tuple[At, Taken]] = field(default_factory=list)
    reported: list[tuple[At, Reported]] = field(default_factory=list)
    ordered: list[tuple[At, Ordered]] = field(default_factory=list)

    @property
    def due(self) -> Due:
        """What must be true in the end.

        An attempt that was in doubt, whether its request was made or not, changes that: a channel that holds
        such attempts keeps the message, and none lets it go over another one, where it could arrive twice.
        """
        due = DUE[self.fate]
        if self.state is State.IN_DOUBT:
            asked = due.channels if self.asked else ()
            states = due.states | {State.IN_DOUBT} if self.may_be_held else due.states
            return Due(due.statuses[:-1] or due.statuses, states, asked)
        if self.fate is Fate.REPORTED and self.state is State.SENT:
            return due._replace(statuses=due.statuses[:-1])
        if self.fate is Fate.UNCONFIRMED and len({asked.channel for _, asked in self.asked}) == 1:
            return Due(due.statuses[:-1], due.states, due.channels[:1])
        if self.fate is Fate.STOPPED and all(asked.channel == "email" for _, asked in self.asked):
            return due._replace(channels=("email",))
        if self.fate in (Fate.FALLBACK, Fate.STOPPED) and self.state is State.FAILED and self.was_disturbed:
            return Due(("dequeued", "error"), FAILED, due.channels[:1])
        return due

    @property
    def may_be_held(self) -> bool:
        """Whether a try may have been a repeat, and a part of an answer came that can't be read."""
        is_repeated = len(self.asked) > 1 or bool(self.killed or self.stood)
        return is_repeated and any(asked.unreadable for _, asked in self.asked)

    @property
    def was_disturbed(self) -> bool:
        """Whether an attempt may ever have been in doubt."""
        return bool(self.killed or self.stood or any(asked.lost for _, asked in self.asked))

    def is_doubtful(self, at: At, asked: Asked, until: At) -> bool:
        """Whether the worker may not know at a later place what became of this request."""
        return asked.lost or at.life in self.killed or self.stood_still(at, until)

    def stood_still(self, at: At, until: At) -> bool:
        """Whether an answer may have come too late for a worker that stood still meanwhile.

        The time for a provider's first request may have run out before the worker, going on, has written it.
        """
        firsts = {asked.key: first for first, asked in reversed(self.asked)}
        is_first = at in firsts.values()
        return any((at.order < stood or is_first) and stood < until.order for stood in self.stood)

    def made_late(self, at: At) -> bool:
        """Whether a request may have been made when the worker that goes on has given it up in doubt.

        What it was about to write when it stood still is written as its time runs out.
        """
        return any(stood < at.order for stood in self.stood)


class Account(NamedTuple):
    """What came of a stage."""

    violations: list[str]
    messages: int = 0
    lives: int = 0
    kills: int = 0
    repeats_in_doubt: int = 0
    doubles: int = 0
    """Messages that a provider without idempotency keys took twice."""
    lost_to_the_gap: int = 0
    """Messages that the service handed out for good, and that were not in the journal yet (design 4)."""
    events: int = 0


def judge(stage: Stage) -> Account:
    """Everything that is wrong, as sentences, and the sums."""
    records = list(read_ledger(stage.folder / "ledger.jsonl"))
    states = _states(stage.journal)
    statuses = {record.life: record.status for record in records if isinstance(record, Ended)}
    killed = frozenset(life for life, status in statuses.items() if status == KILLED)
    cases = _cases(stage.scenario, records, states, killed)
    gone = {case.id for case in cases if case.state is None and _is_lost_to_the_gap(case, stage)}
    found = [*_lives(stage, statuses), *_journal(file_reader(stage.journal).audit())]
    found += [f"message {id_} was never in the queue" for id_ in states.keys() - stage.scenario.fates.keys()]
    for case in cases:
        if case.id not in gone:
            found += [
                f"message {case.id} ({case.fate.name}): {text}" for rule in RULES for text in rule(case)
            ]
    return Account(
        found,
        messages=len(cases),
        lives=len(statuses),
        kills=len(killed),
        repeats_in_doubt=sum(len(case.asked) - len({asked.key for _, asked in case.asked}) for case in cases),
        doubles=sum(sum(not taken.again for _, taken in case.taken) > 1 for case in cases),
        lost_to_the_gap=len(gone),
        events=sum(len(case.told) for case in cases),
    )


def _states(journal: Path) -> Mapping[int, State]:
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db:
        return {id_: State(state) for id_, state in db.execute("SELECT id, state FROM message")}


def _cases(
    scenario: Scenario, records: list[Record], states: Mapping[int, State], killed: frozenset[int]
) -> list[Case]:
    stood = tuple(order for order, record in enumerate(records) if isinstance(record, Stood))
    cases = {id_: Case(id_, fate, states.get(id_), killed, stood) for id_, fate in scenario.fates.items()}
    life = 0
    for order, record in enumerate(records):
        at = At(order, life)
        match record:
            case Began():
                life = record.life
            case Handed(id=int(id_)):
                cases[id_].handed.append((at, record))
            case Told():
                cases[record.id].told.append((at, record))
            case Asked():
                cases[record.id].asked.append((at, record))
            case Taken():
                cases[record.id].taken.append((at, record))
            case Reported():
                cases[record.id].reported.append((at, record))
            case Ordered():
                cases[record.id].ordered.append((at, record))
            case Handed() | Ended() | Stood() | Refused() | Torn():
                pass
    return list(cases.values())


def _is_lost_to_the_gap(case: Case, stage: Stage) -> bool:
    """Whether its only answer came to a worker that was killed, and the service offers nothing twice."""
    untouched = not case.told and not case.asked
    return stage.forgetful and untouched and all(at.life in case.killed for at, _ in case.handed)


# the whole stage


def _lives(stage: Stage, statuses: Mapping[int, int]) -> Iterator[str]:
    may_leave_some = any(stage.scenario.ids_of(fate) for fate in LEAVE_SOME)
    good = {0, KILLED, 1} if may_leave_some else {0, KILLED}
    for life, status in statuses.items():
        if status not in good:
            yield f"the worker of life {life} ended with {status}"
    for line in stage.log.splitlines():
        if any(entry in line for entry in BAD_ENTRIES):
            yield f"the log has {line}"


def _journal(result: Audit) -> Iterator[str]:
    if not result.is_balanced:
        yield f"the journal isn't balanced: gap {result.gap}, {result.findings}"
    if result.events_waiting:
        yield f"{result.events_waiting} events were never reported"


# one message


def _ended(case: Case) -> Iterator[str]:
    if case.state is None:
        yield "isn't in the journal"
    elif case.state not in case.due.states:
        yield f"is {case.state.name} in the end"
    if not case.handed:
        yield "was never handed out"


def _told(case: Case) -> Iterator[str]:
    """Each event once, in order; again only when the service's answer, or the whole message, came again."""
    first = dict.fromkeys(told.body for _, told in case.told)
    statuses = [next(told.status for _, told in case.told if told.body == body) for body in first]
    if statuses != list(case.due.statuses):
        yield f"the service heard {statuses}"
    last: dict[str, tuple[At, Told]] = {}
    for at, told in case.told:
        before = last.get(told.body)
        last[told.body] = at, told
        if before is None or before[1].lost or before[0].life < at.life or case.stood_still(before[0], at):
            continue
        if sum(handed.order < at.order for handed, _ in case.handed) < 2:
            yield f"{told.status} was reported again for no reason"


def _sent_with_leave(case: Case) -> Iterator[str]:
    leave = min((at.order for at, told in case.told if told.status == "dequeued"), default=None)
    for at, asked in case.asked:
        if leave is None or at.order < leave:
            yield "was sent before its dequeued was accepted"
        if not asked.intents and not case.made_late(at):
            yield f"was sent over {asked.channel} without an intent in the journal"


def _sent_the_right_way(case: Case) -> Iterator[str]:
    ways = list(dict.fromkeys(asked.channel for _, asked in case.asked))
    if ways != list(case.due.channels):
        yield f"went over {ways}"


def _sent_once(case: Case) -> Iterator[str]:
    keys = {taken.key for _, taken in case.taken}
    if len(keys) > (2 if case.fate is Fate.UNCONFIRMED else 1):
        yield f"was taken by providers under {len(keys)} keys"
    for channel in {taken.channel for _, taken in case.taken} - WITHOUT_KEYS:
        if sum(not taken.again for _, taken in case.taken if taken.channel == channel) > 1:
            yield f"was taken twice by the provider of {channel}"
    for (at, earlier), (until, later) in pairwise(case.asked):
        under_key = [each for each in case.asked if each[0].order <= at.order and each[1].key == earlier.key]
        doubtful = any(case.is_doubtful(*each, until) for each in under_key)
        never_asked = bool(case.killed) and earlier.intents > len(under_key)
        was_busy = earlier.status == BUSY
        if later.key == earlier.key and not doubtful and not never_asked and not was_busy:
            yield "an attempt was repeated that was neither put off nor in doubt"
        goes_on = case.fate is Fate.UNCONFIRMED and later.channel != earlier.channel
        if later.key != earlier.key and (earlier.lost or earlier.status < 300) and not goes_on:
            yield "an attempt in doubt was followed by another one"
        if later.key != earlier.key and later.channel == earlier.channel:
            yield f"had a second key at the provider of {later.channel}"
    if case.fate is Fate.HELD and len(case.asked) > 1:
        repeated = case.asked[1][0].order
        if not any(at.order < repeated for at, _ in case.ordered):
            yield "was held in doubt, and sent again without an order"


def _sent_truly(case: Case) -> Iterator[str]:
    if case.state in {State.SENT, State.DELIVERED} and not case.taken:
        yield "ended as sent, and no provider has it"
    if case.state is State.FAILED and case.taken:
        yield "ended in an error, and a provider has it"
    if case.state is State.IN_DOUBT and not case.was_disturbed:
        yield "is held in doubt without any doubt"


def _reports_told(case: Case) -> Iterator[str]:
    if case.fate in (Fate.STAYS, Fate.UNCONFIRMED):
        return
    noted = any(report.answered == 200 for _, report in case.reported)
    if noted and case.state is not State.DELIVERED:
        yield "a report was noted and forgotten"
    if case.state is State.DELIVERED and not case.reported:
        yield "is delivered, and nobody reported that"


RULES = (_ended, _told, _sent_with_leave, _sent_the_right_way, _sent_once, _sent_truly, _reports_told)
