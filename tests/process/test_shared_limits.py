"""A provider's limits with several workers: they keep its rate together, and probe it in turns."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path

import anyio
import psycopg
import pytest
import trio

from deliveryd.delivery.choice import Choice, Sender
from deliveryd.delivery.dispatcher import Dispatcher
from deliveryd.delivery.pace import ProbeTurns, SharedPace
from deliveryd.delivery.policy import DispatchPolicy, DoubtPolicy, RetryPolicy
from deliveryd.delivery.provider import Provider
from deliveryd.delivery.terms import DispatchTerms
from deliveryd.journal.base import Allotment, SharedLimits
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.connection import Connected, connect_to_write
from deliveryd.journal.postgresql.pacing import Pacing
from deliveryd.journal.postgresql.schema import prepare_schema
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.metrics import Metrics
from deliveryd.model import Entry, QueuedMessage
from deliveryd.options.units import Rate, parse_rate
from deliveryd.runtime.breaker import Breaker, BreakerPolicy
from deliveryd.runtime.threads import inline
from deliveryd.runtime.wakeup import AutoResetEvent
from support.line import common_on, memory_on
from support.postgres import new_database
from support.routes import delivery
from support.virtual import SteppingClock, VirtualChannel, VirtualClock, live

pytestmark = pytest.mark.slow

SECOND = 1_000_000
SLICES = 0.5
"""Seconds of the rate that may be reserved: the slice in progress and the next one."""

DEMAND = 1000


class Endless(Pacing):
    """The limits of a worker whose lease has no end."""

    def lease_covers(self, seconds: float) -> bool:  # for ever
        """Whether nobody can adopt a message meanwhile."""
        return True


@pytest.fixture
def source() -> JournalDatabase:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    with connect_to_write(JournalDatabase(url), 9) as db:
        prepare_schema(db)
    return JournalDatabase(url)


class Workers:
    """Workers that send as much as they may, in virtual time. `sent`: who sent when."""

    def __init__(self, source: JournalDatabase, rate: str) -> None:
        self.rate: Rate = parse_rate(rate)
        self.clock = SteppingClock()
        self.sent: list[tuple[float, int]] = []
        self._connect: Callable[[], Connected] = partial(connect_to_write, source, 9)

    async def send(self, name: int, limits: SharedLimits | None = None) -> None:
        with closing(Pacing(self._connect, inline, self.clock)) as pacing:
            pace, wakeup = SharedPace("sms", self.rate, limits or pacing), AutoResetEvent()
            async with anyio.create_task_group() as tasks:
                while True:
                    pace.reserve(tasks, wakeup, DEMAND)
                    count = pace.allowed(DEMAND)
                    pace.spend(count)
                    self.sent += [(trio.current_time(), name)] * count
                    await wakeup.wait(pace.wait())

    async def send_parts(self, name: int, parts: int) -> None:
        """Send messages of so many parts each, as long as there is a permit."""
        with closing(Pacing(self._connect, inline, self.clock)) as pacing:
            pace, wakeup = SharedPace("sms", self.rate, pacing), AutoResetEvent()
            async with anyio.create_task_group() as tasks:
                while True:
                    pace.reserve(tasks, wakeup, DEMAND)
                    while pace.allowed(1):
                        pace.spend(parts)
                        self.sent += [(trio.current_time(), name)] * parts
                    await wakeup.wait(pace.wait())

    def between(self, begin: float, end: float) -> int:
        return sum(begin <= at < end for at, _ in self.sent)

    def most_within(self, seconds: float) -> int:
        """The largest number of attempts within any so many seconds."""
        instants = sorted(at for at, _ in self.sent)
        most = first = 0
        for number, at in enumerate(instants):
            while instants[first] <= at - seconds:
                first += 1
            most = max(most, number - first + 1)
        return most

    @property
    def per_second(self) -> float:
        return self.rate.permits / self.rate.per


@pytest.mark.parametrize(("count", "parts"), [(1, 3), (2, 3), (3, 12)])
def test_workers_together_keep_a_rate_in_parts(source: JournalDatabase, count: int, parts: int) -> None:
    """What a message has beyond its permit is paid before the worker's next one, and none starves."""
    workers = Workers(source, "50 parts/s")

    async def scene() -> None:
        with trio.move_on_after(60):
            async with trio.open_nursery() as nursery:
                for name in range(count):
                    nursery.start_soon(workers.send_parts, name, parts)

    live(scene)
    expected = 60 * workers.per_second
    assert expected * 0.95 <= len(workers.sent) <= expected * 1.01 + count * parts
    assert workers.most_within(1.0) <= workers.per_second * 1.25 + count * parts
    assert min(Counter(name for _, name in workers.sent).values()) >= expected / count / 3


@pytest.mark.parametrize(
    ("rate", "count"), [("50/s", 1), ("50/s", 2), ("50/s", 3), ("50/s", 20), ("1000/s", 3), ("7/s", 3)]
)
def test_workers_together_keep_the_rate_and_none_starves(
    source: JournalDatabase, rate: str, count: int
) -> None:
    """Over a minute within three per cent, in no second a slice more, each at least a third of its part."""
    workers = Workers(source, rate)

    async def scene() -> None:
        with trio.move_on_after(60):
            async with trio.open_nursery() as nursery:
                for name in range(count):
                    nursery.start_soon(workers.send, name)

    live(scene)
    expected = 60 * workers.per_second
    assert expected * 0.97 <= len(workers.sent) <= expected * 1.01 + 1
    assert workers.most_within(1.0) <= workers.per_second * 1.25 + 1
    shares = Counter(name for _, name in workers.sent)
    assert len(shares) == count
    assert min(shares.values()) >= expected / count / 3


def test_a_slow_rate_is_shared_one_by_one(source: JournalDatabase) -> None:
    """Nothing is reserved long ahead: a worker that is started and killed all the time takes none away."""
    workers = Workers(source, "6/m")

    async def scene() -> None:
        with trio.move_on_after(1200):
            async with trio.open_nursery() as nursery:
                for name in range(3):
                    nursery.start_soon(workers.send, name)

    live(scene)
    assert 118 <= len(workers.sent) <= 121
    assert workers.most_within(9.5) == 1
    assert min(Counter(name for _, name in workers.sent).values()) >= 20


def test_what_one_worker_has_no_use_for_goes_to_the_others(source: JournalDatabase) -> None:
    workers = Workers(source, "100/s")

    async def trickle() -> None:
        """A message every second."""
        with closing(Pacing(workers._connect, inline, workers.clock)) as pacing:
            await trickle_through(SharedPace("sms", workers.rate, pacing))

    async def trickle_through(pace: SharedPace) -> None:
        wakeup = AutoResetEvent()
        async with anyio.create_task_group() as tasks:
            for second in range(30):
                await trio.sleep_until(trio.current_time() // 1 + 1)
                while not pace.allowed(1):
                    pace.reserve(tasks, wakeup, 1)
                    await wakeup.wait(pace.wait())
                pace.spend(1)
                workers.sent.append((trio.current_time(), 1))
                assert trio.current_time() < second + 2.0, "it waited long for its turn"

    async def scene() -> None:
        with trio.move_on_after(30.5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(workers.send, 0)
                nursery.start_soon(trickle)

    live(scene)
    assert sum(name == 1 for _, name in workers.sent) == 30
    assert sum(name == 0 for _, name in workers.sent) >= 29 * 100


def test_a_worker_that_dies_gives_its_share_back_by_itself(source: JournalDatabase) -> None:
    workers = Workers(source, "100/s")

    async def scene() -> None:
        with trio.move_on_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(workers.send, 0)
                with trio.move_on_after(10):
                    await workers.send(1)

    live(scene)
    assert workers.between(10, 11) >= 100 * (1 - SLICES) - 2
    assert 970 <= workers.between(11, 20) * 10 / 9 <= 1010


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_step_of_the_databases_clock_neither_stops_the_workers_nor_lets_them_burst(
    source: JournalDatabase, hours: int
) -> None:
    """Beyond what is reserved at that moment."""
    workers = Workers(source, "100/s")

    async def scene() -> None:
        with trio.move_on_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(workers.send, 0)
                nursery.start_soon(workers.send, 1)
                await trio.sleep(10)
                workers.clock.ahead = hours * 3600 * SECOND

    live(scene)
    instants = sorted(at for at, _ in workers.sent)
    assert max(b - a for a, b in pairwise(instants)) < 2.0
    assert workers.between(9, 12) <= 300 + 100 * SLICES + 2
    assert workers.between(12, 20) >= 780


@pytest.mark.parametrize("milliseconds", [-900, -300, 300])
def test_a_small_step_of_the_databases_clock_costs_less_than_it_is_long(
    source: JournalDatabase, milliseconds: int
) -> None:
    workers = Workers(source, "100/s")

    async def scene() -> None:
        with trio.move_on_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(workers.send, 0)
                nursery.start_soon(workers.send, 1)
                await trio.sleep(10)
                workers.clock.ahead = milliseconds * 1000

    live(scene)
    assert 2000 - 110 <= len(workers.sent) <= 2000 + 32 + 2


def test_no_send_waits_for_an_answer_while_there_is_demand(source: JournalDatabase) -> None:
    """Slices are reserved ahead: answers that take a tenth of a second cost a lone worker nothing."""
    workers = Workers(source, "100/s")

    class Slow(Pacing):
        async def allot(self, provider: str, interval: float, wanted: int) -> Allotment:
            answer = await super().allot(provider, interval, wanted)
            await trio.sleep(0.1)
            return answer

    async def scene() -> None:
        with closing(Slow(workers._connect, inline, workers.clock)) as slow, trio.move_on_after(20):
            await workers.send(0, limits=slow)

    live(scene)
    assert workers.between(1, 20) >= 19 * 100 * 0.98


def test_dispatchers_of_two_workers_keep_one_rate(source: JournalDatabase, tmp_path: Path) -> None:
    """Each with a journal of its own here; what they share is the provider's rate."""
    attempts: list[float] = []
    policy = DispatchPolicy(
        100, parse_rate("20/s"), RetryPolicy(3, 1.0, 10.0), BreakerPolicy(3, 1.0, 60.0), resend_in_doubt=True
    )

    async def worker(name: str, clock: VirtualClock) -> None:
        channel, metrics = VirtualChannel(), Metrics(["sms"], "0")
        async with open_journal_file(tmp_path / f"{name}.db", blocking=inline) as journal:
            memory = memory_on(journal, clock, metrics, places=0, batch_size=1)
            provider = Provider("sms", policy.breaker, memory.backlog, memory.pauses, clock)
            with closing(Endless(partial(connect_to_write, source, 9), inline, clock)) as shared:
                choice = Choice({"sms": Sender(channel, provider)})
                terms = DispatchTerms(
                    provider, choice, channel, policy, DoubtPolicy("sms", policy), 500, frozenset()
                )
                journal.limits = shared
                dispatcher = Dispatcher(terms, common_on(journal, memory, None, metrics))
                await journal.take([QueuedMessage(id_, 1, 1, {}) for id_ in range(500)], [], clock.now())
                await journal.accept(await journal.outbox(0, 500), clock.now())
                for id_ in range(500):
                    entry = Entry(id_, 1, 1, {}, provider="sms")
                    assert not dispatcher.offer(delivery(entry, "sms"))
                with trio.move_on_after(20):
                    await dispatcher.run()
        attempts.extend(at for at, _ in channel.attempts)

    async def scene() -> None:
        clock = VirtualClock()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker, "a", clock)
            nursery.start_soon(worker, "b", clock)

    live(scene)
    assert 0.96 * 400 <= len(attempts) <= 402


# processes


PROCESS = """
import sys, time, anyio
from functools import partial
from deliveryd.delivery.pace import SharedPace
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.connection import connect_to_write
from deliveryd.journal.postgresql.pacing import Pacing
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.metrics import Metrics
from deliveryd.model import Entry, QueuedMessage
from deliveryd.options.units import Rate
from deliveryd.runtime.threads import in_thread
from deliveryd.runtime.wakeup import AutoResetEvent

async def work():
    pacing = Pacing(partial(connect_to_write, JournalDatabase(sys.argv[1]), 9), in_thread, None)
    pace, wakeup = SharedPace("sms", Rate(200, 1.0), pacing), AutoResetEvent()
    async with anyio.create_task_group() as tasks:
        while True:
            pace.reserve(tasks, wakeup, 1000)
            count = pace.allowed(1000)
            pace.spend(count)
            for _ in range(count):
                print(time.monotonic(), flush=True)
            await wakeup.wait(pace.wait())

anyio.run(work)
"""


@pytest.fixture
def processes(source: JournalDatabase) -> Iterator[list[subprocess.Popen[str]]]:
    started = [
        subprocess.Popen([sys.executable, "-c", PROCESS, source.url], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    yield started
    for process in started:
        process.kill()
        process.communicate()


def test_processes_keep_the_rate_by_the_databases_own_clock(processes: list[subprocess.Popen[str]]) -> None:
    """Three of them; one is killed, and the others go on with all of it."""
    sent: list[list[float]] = [[] for _ in processes]

    def read(number: int, until: float) -> None:
        output = processes[number].stdout
        assert output is not None
        while not sent[number] or sent[number][-1] < until:
            sent[number].append(float(output.readline()))

    for number in range(3):
        read(number, 0.0)
    began = max(times[-1] for times in sent)
    for number in range(3):
        read(number, began + 3)
    processes[0].kill()
    for number in (1, 2):
        read(number, began + 6)

    def count(begin: float, end: float) -> int:
        return sum(began + begin <= at < began + end for times in sent for at in times)

    assert count(0, 6) <= 1.2 * 200 * 6  # each for itself would send three times as many
    # In the best second, as a busy machine keeps processes waiting; two parts of three would be 0.67.
    assert max(count(4 + tenth / 10, 5 + tenth / 10) for tenth in range(11)) >= 0.8 * 200
    # Each sends; how much each gets is for the machine's scheduler to say.
    assert all(any(began <= at < began + 3 for at in times) for times in sent)


# probes


@pytest.mark.parametrize("count", [1, 5])
def test_workers_probe_a_provider_that_is_down_in_turns(source: JournalDatabase, count: int) -> None:
    """In ten minutes not many more probes than one worker makes; and all recover within seconds of it."""
    policy = BreakerPolicy(1, 1.0, 60.0)
    clock = VirtualClock()
    probes: list[tuple[float, int]] = []
    recovered: dict[int, float] = {}
    up_at = 600.0

    async def worker(name: int) -> None:
        pacing = Pacing(partial(connect_to_write, source, 9), inline, clock)
        turns, breaker = ProbeTurns("sms", pacing), Breaker(policy)
        breaker.open()
        try:
            async with anyio.create_task_group() as tasks:
                while breaker.is_open:
                    await trio.sleep(max(breaker.wait(), 0.0))
                    breaker.probe()
                    if not await turns.take(breaker, policy):
                        continue
                    probes.append((trio.current_time(), name))
                    if trio.current_time() < up_at:
                        breaker.failed()
                    else:
                        breaker.answered()
                turns.follow(breaker, tasks)
        finally:
            pacing.close()
        recovered[name] = trio.current_time()

    async def scene() -> None:
        async with trio.open_nursery() as nursery:
            for name in range(count):
                nursery.start_soon(worker, name)

    live(scene)
    in_outage = [name for at, name in probes if at < up_at]
    assert len(in_outage) <= 40
    assert len(set(in_outage)) == count, "each one's network has a chance"
    assert max(recovered.values()) - min(recovered.values()) <= 11.0
    assert min(recovered.values()) <= up_at + 66.0


def test_a_turn_to_probe_survives_steps_of_the_databases_clock(source: JournalDatabase) -> None:
    async def scene() -> None:
        clock = SteppingClock()
        pacing = Pacing(partial(connect_to_write, source, 9), inline, clock)
        assert await pacing.claim_probe("sms", 10.0, 60.0) == 0.0
        assert await pacing.claim_probe("sms", 1.0, 60.0) == pytest.approx(10.0)
        clock.ahead = -3600 * SECOND
        assert await pacing.claim_probe("sms", 1.0, 60.0) == 0.0
        assert await pacing.claim_probe("sms", 1.0, 60.0) == pytest.approx(10.0)  # as long as the last one
        await pacing.free_probe("sms")
        assert await pacing.claim_probe("sms", 1.0, 60.0) == 0.0
        pacing.close()

    live(scene)


def test_the_rate_needs_no_flush_to_disk(source: JournalDatabase) -> None:
    """What a reservation costs the database is a short statement, however slow its disk or its standby is."""
    with psycopg.connect(source.url, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        admin.execute("SELECT pg_reload_conf()")
        try:

            async def ask() -> None:
                pacing = Pacing(partial(connect_to_write, source, 9), inline, None)
                with anyio.fail_after(30):
                    assert (await pacing.allot("sms", 0.01, 100)).attempts == 25
                pacing.close()

            anyio.run(ask)
        finally:
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("SELECT pg_reload_conf()")
