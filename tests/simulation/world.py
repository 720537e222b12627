"""What all stand-ins share: the plan, the ledger, the time of day, and the hand that ends a worker's life."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from copy import copy
from pathlib import Path
from typing import Self

import anyio
import anyio.lowlevel
import trio
from trio.testing import MockClock

from deliveryd.errors import DirectoryUnavailable
from deliveryd.field_lists import compact_json
from deliveryd.http.wire import Headers
from deliveryd.model import Customer, WallClock
from deliveryd.runtime.threads import Blocking, inline
from simulation.expectation import providers_of
from simulation.kept import KeptJournal
from simulation.ledger import Ledger
from simulation.plan import Jump, Life, Person, Plan, Step, Trouble

START = 1_800_000_000_000_000
"""The instant at which virtual time begins."""

SECOND = 1_000_000

TICK = 1e-6
"""Seconds between what a clock shows and what it shows next."""

RETENTION = 7 * 86400.0
"""Seconds that the journal keeps what is over, unless it is told otherwise."""


class Wall:
    """The time of day, which jumps as the plan says, forwards and back."""

    def __init__(self, jumps: tuple[Jump, ...]) -> None:
        self._jumps = jumps

    def time_ns(self) -> int:
        """The present instant in nanoseconds, as the module `time` tells it."""
        return self.at(anyio.current_time()) * 1000

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def clock_gettime_ns(self, _clock: int) -> int:
        """What the module `time` tells of a clock that nobody sets."""
        return int(anyio.current_time() * SECOND) * 1000

    def at(self, seconds: float) -> int:
        """The instant at a second of the run."""
        jumped = sum(jump.seconds for jump in self._jumps if jump.at <= seconds)
        return START + int((seconds + jumped) * SECOND)

    def highest(self, begin: float, end: float) -> int:
        """The latest instant that a worker's clock showed between two seconds of the run.

        It may stand still for a second when this one is put back by less.
        """
        begin = max(begin - 1.0, 0.0)
        turns = [jump.at - TICK for jump in self._jumps] + [jump.at for jump in self._jumps]
        return max(self.at(min(max(moment, begin), end)) for moment in (begin, end, *turns))

    def furthest(self, end: float) -> int:
        """The latest instant at a second of the run for whoever didn't notice some of the steps before it."""
        moments = (0.0, *(jump.at for jump in self._jumps if jump.at <= end))
        return max(self.at(moment) + int((end - moment) * SECOND) for moment in moments)


class Accepting:
    """Asks for no tokens."""

    def accepts(self, _client: str, _headers: Headers) -> bool:
        """Whether a request of one of the worker's clients, with these headers, is let in."""
        return True


class World:
    """The stage of one run."""

    def __init__(self, plan: Plan, folder: Path, kept: KeptJournal) -> None:
        self.plan = plan
        self.ledger = Ledger()
        self.wall = Wall(plan.jumps)
        self.clock = WallClock()
        """The worker's own."""
        self.blocking: Blocking = inline
        """Where the worker does what blocks."""
        self.kept = kept
        self.folder = folder
        self.life = -1
        self.lives: list[Life] = []
        self.providers: Collection[str] = ()
        """Those that this life's configuration has."""
        self._life: Life | None = None
        self._steps: Counter[Step] = Counter()
        self._requests: Counter[str] = Counter()
        self._lookups = 0
        self.base_url = "http://service"
        """Where the service is."""
        self.issuer: Accepting = Accepting()
        """Whose tokens the service and the providers accept."""
        self.forgotten: list[int] = []
        """Messages that an operator had forgotten; the queue gives them again."""
        self.patience = trio.CancelScope()
        """Ends a run that takes too long."""
        self.kill: Callable[[], None] = lambda: None
        self.stop: Callable[[], None] = lambda: None

    def begin(self, life: Life, kill: Callable[[], None]) -> None:
        """A worker starts."""
        self.life = len(self.lives)
        self._life = life
        self.providers = providers_of(self.plan, life)
        self.lives.append(life)
        self._steps.clear()
        self.kill = kill

    def reconfigure(self, life: Life) -> None:
        """The worker goes on with the configuration of another life, which ends as this one would have."""
        self.ledger.reloaded.add(self.life)
        self.life += 1
        self.ledger.reconfigured[self.life] = anyio.current_time()
        self.lives.append(life)
        self.providers = providers_of(self.plan, life)

    def for_worker(self, clock: WallClock) -> Self:
        """The same stage for one of several workers, with a life and a clock of its own."""
        own = copy(self)
        own.clock, own._life, own._steps = clock, None, Counter()
        return own

    async def awake(self) -> None:
        """Return when the worker's process runs: what it wants to do waits until then."""

    async def step(self, step: Step) -> None:
        """The worker comes by a step, at which its life may end."""
        self._steps[step] += 1
        end = self._life.end if self._life is not None else None
        if end is None or end.step is not step or end.nth != self._steps[step]:
            return
        if end.is_crash:
            self.ledger.crashed.add(self.life)
            self.kill()
            await anyio.lowlevel.checkpoint()
        else:
            self.stop()

    def next_trouble(self, endpoint: str, provider: str | None) -> Trouble | None:
        """What happens to the next request there; to a provider that is down, all come to the same."""
        self.ledger.requests[endpoint] += 1
        trouble = self.outage(provider) if provider is not None else None
        if trouble is None:
            schedule = self.plan.troubles.get(endpoint, ())
            number = self._requests[endpoint]
            self._requests[endpoint] += 1
            trouble = schedule[number] if number < len(schedule) else None
        self.ledger.troubles[trouble] += trouble is not None
        return trouble

    def outage(self, provider: str) -> Trouble | None:
        """What every request to a provider comes to now, if it is down."""
        now = anyio.current_time()
        found = (
            outage.trouble
            for outage in self.plan.outages
            if outage.provider == provider and outage.at <= now < outage.at + outage.seconds
        )
        return next(found, None)

    def hangs_for(self, what: str) -> float:
        """For how many seconds more something gives no answer."""
        now = anyio.current_time()
        ends = (hang.at + hang.seconds for hang in self.plan.hangs if hang.what == what and hang.at <= now)
        return max((end - now for end in ends), default=0.0)

    async def suspend(self) -> None:
        """Have the worker's process stand still as planned: what comes meanwhile lies there when it wakes."""
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        for suspension in sorted(self.plan.suspensions, key=lambda suspension: suspension.at):
            await anyio.sleep_until(suspension.at)
            clock.jump(suspension.seconds)

    @property
    def batch_size(self) -> int:
        """How many customers it can be asked for at once."""
        return 10

    async def look_up(self, ids: Collection[int]) -> Mapping[int, Customer]:
        """Who these customers are. Raises DirectoryUnavailable."""
        self._lookups += 1
        await anyio.sleep(max(self.hangs_for("directory"), self.plan.directory_seconds))
        down = self.plan.directory_down
        if self._lookups <= len(down) and down[self._lookups - 1]:
            raise DirectoryUnavailable("the directory is down")
        renewal = self.plan.renewal
        is_renewed = renewal is not None and renewal.at <= anyio.current_time()
        people = renewal.people if renewal is not None and is_renewed else self.plan.people
        return {id_: _customer(id_, people[id_]) for id_ in ids if id_ in people}

    async def probe(self) -> str | None:
        """It is there."""
        return None

    async def aclose(self) -> None:
        """Nothing is held open."""


def _customer(id_: int, person: Person) -> Customer:
    known = {
        "name": person.name,
        "language": person.language,
        "phone": person.phone,
        "email": person.email,
        "tokens": _listed(person.devices),
        "zone": person.zone,
    }
    return Customer(id_, {name: value for name, value in known.items() if value is not None})


def _listed(devices: tuple[str, ...]) -> str | None:
    """Devices as a directory has them: a list, or a single one alone."""
    return compact_json(list(devices)) if len(devices) > 1 else next(iter(devices), None)
