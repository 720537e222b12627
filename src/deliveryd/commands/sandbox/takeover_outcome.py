"""What became of the messages of a killed worker: what has to hold, and what is shown of each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from deliveryd.journal.reconciliation import Audit
from deliveryd.states import State

_TO_BE_REPORTED = ("dequeued", "sent", "delivered")
"""What the service has to hear of each message, in this order."""

_HELD = {
    State.TAKEN: "taken",
    State.READY: "ready",
    State.SENDING: "in doubt",
}


class Killed(NamedTuple):
    """What a worker left. `at`: seconds of the monotonic clock. `receipts`: attempts to report by then."""

    at: float
    held: Mapping[int, State]
    events: int
    receipts: int


class Fate(NamedTuple):
    """One message. `asked`: the workers that asked the provider to send it.

    `accepted`: those whose request it accepted as a new one.
    """

    id: int
    channel: str
    asked: list[str]
    accepted: list[str]
    keys: frozenset[str]
    statuses: Sequence[str]

    @property
    def is_sent_once(self) -> bool:
        """Whether the provider has it once, however often it was asked under one key."""
        return len(self.accepted) == 1 and len(self.keys) == 1

    @property
    def is_reported(self) -> bool:
        """Whether the service heard all of it in order; an event may be repeated."""
        return tuple(dict.fromkeys(self.statuses)) == _TO_BE_REPORTED


class ReceiptsTaken(NamedTuple):
    """Receipts that were answered with success, by worker; `elsewhere`: not at the one that had sent."""

    by: Mapping[str, int]
    elsewhere: int


class Takeover(NamedTuple):
    """All that was seen. `adopted_after` is seconds, None: never; `status` is the survivor's exit status."""

    killed: Killed
    adopted_after: float | None
    fates: Sequence[Fate]
    receipts: ReceiptsTaken
    audit: Audit
    status: int


class Observation(NamedTuple):
    """Something that has to hold, and what was seen of it."""

    holds: bool
    text: str

    @property
    def line(self) -> Text:
        """Return it as a line."""
        mark = ("holds  ", "green") if self.holds else ("FAILS  ", "bold red")
        return Text.assemble(mark, self.text)


def checks_of(takeover: Takeover) -> Sequence[Observation]:
    """Return what has to hold."""
    return [
        _adoption(takeover),
        _doubts(takeover),
        _sent(takeover.fates),
        _reported(takeover.fates),
        _receipts(takeover),
        _account(takeover),
    ]


def in_words(held: Mapping[int, State]) -> str:
    """Return how many messages a worker had, in which states."""
    counts = Counter(held.values())
    named = ", ".join(f"{counts[state]} {name}" for state, name in _HELD.items() if counts[state])
    return f"{counted(len(held), 'message')}: {named}" if held else "no message"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def table_of(takeover: Takeover) -> Table:
    """Return the messages that the killed worker had, and what became of them: a row for each kind."""
    held = takeover.killed.held
    table = Table(
        title='The messages that "one" had when it was killed',
        title_justify="left",
        show_lines=True,
        expand=True,
    )
    table.add_column("messages", ratio=1, min_width=20)
    table.add_column("they were", no_wrap=True)
    table.add_column("requests by", no_wrap=True)
    table.add_column("the provider")
    table.add_column("reported")
    kinds: defaultdict[tuple[str, ...], list[Fate]] = defaultdict(list)
    for fate in takeover.fates:
        if fate.id in held:
            kinds[(_HELD.get(held[fate.id], "-"), *_shown(fate))].append(fate)
    for shown in sorted(kinds):
        ids = " ".join(str(fate.id) for fate in kinds[shown])
        table.add_row(Text(f"{len(kinds[shown])}: {ids}"), *map(Text, shown))
    return table


def _shown(fate: Fate) -> tuple[str, str, str]:
    return (
        ", then ".join(fate.asked) or "-",
        _at_the_provider(fate),
        " → ".join(dict.fromkeys(fate.statuses)) or "-",
    )


def _at_the_provider(fate: Fate) -> str:
    if len(fate.accepted) != 1:
        return f"has it {len(fate.accepted)} times"
    if len(fate.asked) == 1:
        return "has it"
    if len(fate.keys) > 1:
        return f"was given {len(fate.keys)} keys"
    if fate.accepted[0] != fate.asked[-1]:
        return "had it, and knew the key"
    return "has it: the first was cut off"


def _adoption(takeover: Takeover) -> Observation:
    killed, after = takeover.killed, takeover.adopted_after
    what = f"{counted(len(killed.held), 'message')} and {counted(killed.events, 'event')}"
    if after is None:
        return Observation(False, f'"two" never adopted what "one" had: {what}')
    text = f'{after:.1f} s after the kill the lease was over, and "two" adopted {what}'
    return Observation(bool(killed.held), text)


def _doubts(takeover: Takeover) -> Observation:
    doubts = [fate for fate in takeover.fates if takeover.killed.held.get(fate.id) is State.SENDING]
    repeated = [fate for fate in doubts if fate.asked[-1:] == ["two"]]
    known = sum(fate.accepted[:1] == ["one"] for fate in repeated)
    text = (
        f"of {counted(len(doubts), 'attempt')} in doubt {len(repeated)} were repeated under their keys;"
        f" providers had {known} of these messages already"
    )
    return Observation(all(len(fate.keys) == 1 for fate in doubts) and len(repeated) == len(doubts), text)


def _sent(fates: Sequence[Fate]) -> Observation:
    wrong = [fate.id for fate in fates if not fate.is_sent_once]
    text = f"{len(fates)} messages were sent, each to its customer once"
    return Observation(not wrong, _but(text, wrong))


def _reported(fates: Sequence[Fate]) -> Observation:
    wrong = [fate.id for fate in fates if not fate.is_reported]
    text = f"the service heard of each: {', '.join(_TO_BE_REPORTED)}, in this order"
    return Observation(not wrong, _but(text, wrong))


def _receipts(takeover: Takeover) -> Observation:
    by, elsewhere = takeover.receipts
    counts = ", ".join(f'{by.get(name, 0)} by "{name}"' for name in ("one", "two"))
    text = f"receipts were taken {counts}; {elsewhere} of them for what the other one had sent"
    return Observation(sum(by.values()) >= len(takeover.fates) and elsewhere > 0, text)


def _account(takeover: Takeover) -> Observation:
    audit, status = takeover.audit, takeover.status
    text = f"the journal's account: {audit.account.taken} taken, gap {audit.gap}"
    problems = [
        *(["the audit found something that is broken"] if audit.findings or audit.account.gap else []),
        *([f'"two" ended with status {status}'] if status else []),
    ]
    is_whole = audit.is_balanced and audit.account.taken == len(takeover.fates)
    return Observation(is_whole and not status, "; ".join([text, *problems]))


def _but(text: str, wrong: Sequence[int]) -> str:
    if not wrong:
        return text
    more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    return f"{text}; but not {', '.join(map(str, wrong[:5]))}{more}"
