"""The sums of many runs: as a table to read, and as JSON to keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

from simulation.case import cases
from simulation.oracle import violations
from simulation.plan import Trouble
from simulation.run import History

_SECONDS_OF_AN_HOUR = 3600.0


@dataclass(slots=True)
class Figures:
    """What happened in all runs so far."""

    plans: int = 0
    lives: int = 0
    crashes: int = 0
    virtual_hours: float = 0.0
    messages: int = 0
    attempts: int = 0
    in_doubt: int = 0
    """Attempts of which the worker didn't hear what became of them."""
    repeats: int = 0
    """Attempts that were sent again, under the same key."""
    moved: int = 0
    """Attempts at another provider of the channel than the one before."""
    events: int = 0
    receipts: int = 0
    went_on: int = 0
    """Messages that a later channel got although an earlier one had accepted them."""
    lookups: int = 0
    """Questions whether a provider has a message in doubt."""
    stops: int = 0
    """What was told of recipients who stop a channel or resume it."""
    devices_asked: int = 0
    """Attempts at one of several devices of a customer."""
    devices_stopped: int = 0
    """Answers that a device can't be reached any more."""
    tokens_renewed: int = 0
    token_outages: int = 0
    """Requests to token servers that brought no token."""
    orders: int = 0
    """What operators ordered."""
    commits: int = 0
    without_room: int = 0
    """Commits that found the disk full."""
    clock_jumps: int = 0
    suspensions: int = 0
    hangs: int = 0
    outages: int = 0
    """Providers that were down for a while."""
    batches_lost: int = 0
    """Batches of which the journal says that they may have been lost."""
    lies: int = 0
    """Messages that were taken and answered 503."""
    statements: int = 0
    """Statements of several workers' journals, which went on one by one."""
    blocked: int = 0
    """How often one of them waited for another worker's lock."""
    fenced: int = 0
    """Workers whose lease others ended."""
    fence_orders: int = 0
    """Workers whose lease operators ended."""
    adoptions: int = 0
    """Logs of ended workers that others took over."""
    pauses: int = 0
    """What operators paused for a while."""
    accounts: int = 0
    violations: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    """By endpoint."""
    faults: Counter[str] = field(default_factory=Counter)
    """By kind."""

    def add(self, history: History) -> list[str]:
        """Count a run; return what the oracle has against it."""
        ledger = history.ledger
        found = violations(history)
        self.plans += 1
        self.lives += len(history.lives)
        self.crashes += len(ledger.crashed)
        self.virtual_hours += ledger.seconds / _SECONDS_OF_AN_HOUR
        self.messages += len(history.plan.messages)
        self.attempts += len(ledger.asked)
        self.in_doubt += sum(case.is_doubtful(asked) for case in cases(history) for asked in case.asked)
        self.repeats += len(ledger.asked) - len({asked.key for asked in ledger.asked})
        pairs = (pair for case in cases(history) for pair in pairwise(case.asked))
        self.moved += sum(
            one.channel == other.channel and one.provider != other.provider for one, other in pairs
        )
        self.events += sum(len(post.bodies) for post in ledger.posted)
        self.receipts += len(ledger.reported)
        self.went_on += sum(
            len({one.channel for one in case.accepted}) > 1 for case in cases(history) if case.may_go_on
        )
        self.lookups += len(ledger.looked_up)
        self.stops += len(ledger.changes) + sum(one.trouble is Trouble.OPTED_OUT for one in ledger.asked)
        to_devices = [one for one in ledger.asked if history.plan.sends_to_devices(one.channel)]
        self.devices_asked += len(to_devices)
        self.devices_stopped += sum(one.trouble is Trouble.OPTED_OUT for one in to_devices)
        brought = [one for one in ledger.tokens_asked if ledger.brought_token(one)]
        self.tokens_renewed += len(brought) - len({(one.life, one.client) for one in brought})
        self.token_outages += len(ledger.tokens_asked) - len(brought)
        self.orders += len(ledger.ordered)
        self.commits += ledger.commits
        self.without_room += ledger.without_room
        self.clock_jumps += len(history.plan.jumps)
        self.suspensions += len(history.plan.suspensions)
        self.hangs += len(history.plan.hangs)
        self.outages += len(history.plan.outages)
        self.batches_lost += ledger.batches_lost
        self.lies += sum(asked.trouble is Trouble.BUSY_AFTER for asked in ledger.asked)
        self.statements += ledger.statements
        self.blocked += ledger.blocked
        self.fenced += ledger.fenced
        self.fence_orders += ledger.fence_orders
        self.adoptions += ledger.adoptions
        self.pauses += len(ledger.held)
        self.accounts += ledger.accounts
        self.violations += len(found)
        self.requests += ledger.requests
        self.faults += Counter({kind.value: times for kind, times in ledger.troubles.items() if kind})
        return found

    def add_all(self, other: Figures) -> None:
        """Add the sums of other runs."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_json(self) -> dict[str, Any]:
        """All of them, by name."""
        values = self._by_name().items()
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in values}

    def _by_name(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What `as_json` wrote."""
        counters = {name: Counter(values[name]) for name in ("requests", "faults")}
        return cls(**{**values, **counters})

    def lines(self) -> Iterator[str]:
        """The table."""
        for name, value in self._by_name().items():
            title = name.replace("_", " ")
            if isinstance(value, float):
                yield f"{title:<20} {value:10,.1f}"
            elif isinstance(value, Counter):
                yield f"{title:<20} {sum(value.values()):10,}"
                for kind, times in value.most_common():
                    yield f"  {kind:<24} {times:,}"
            else:
                yield f"{title:<20} {value:10,}"


def summed(shares: Iterable[Mapping[str, Any]]) -> Figures:
    """The sums of what `as_json` gave of each share."""
    total = Figures()
    for share in shares:
        total.add_all(Figures.from_json(share))
    return total
