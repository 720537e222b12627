"""Reporting: every event, in order, in batches, through refusals and outages."""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import sniffio
from trio.testing import MockClock

from deliveryd.admin.exposition import expose
from deliveryd.delivery.memory import LineMemory
from deliveryd.delivery.posting import ABOUT_THE_EVENTS, Posting
from deliveryd.delivery.recorder import Recorder, RefusedEvent
from deliveryd.delivery.reporting import Reporting
from deliveryd.errors import ServiceError, ServiceRefused, ServiceUnavailable
from deliveryd.journal.base import OutboxRow
from deliveryd.journal.journal import Journal
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.lease import Fenced
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.metrics import Metrics
from deliveryd.model import Malformed, QueuedMessage
from deliveryd.runtime.threads import Blocking, in_thread, inline
from deliveryd.service.caller import Ready
from deliveryd.states import State
from support.line import common_on, memory_on
from support.logs import LogLines, log_lines
from support.postgres import new_database

pytestmark = pytest.mark.anyio

BATCH = 64
FLUSH = 0.25


@pytest.fixture(params=["virtual time", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Virtual time, where commits are made in the event loop; and asyncio as it is."""
    if request.param == "asyncio":
        return "asyncio", {}
    return "trio", {"clock": MockClock(autojump_threshold=0)}


in_virtual_time = pytest.mark.parametrize("anyio_backend", ["virtual time"], indirect=True)


@pytest.fixture
def lines() -> Iterator[LogLines]:
    """What was logged so far."""
    with log_lines("debug") as logged:
        yield logged


class Service:
    """Takes events, unless an error of the script is due or the batch holds an event that it refuses."""

    def __init__(self) -> None:
        self.script: deque[ServiceError | None] = deque()
        self.refuses: set[int] = set()
        self.status = 400
        self.fails_at: set[int] = set()
        self.failure: ServiceError = ServiceUnavailable("the service answered 500", status=500)
        self.largest = 1 << 30
        self.too_large = 0
        self.posts: list[list[int]] = []
        self.times: list[float] = []
        self.accepted: list[int] = []
        self.answered: list[tuple[int, str]] = []
        """Events that were accepted, or refused alone."""
        self.meanwhile: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        self._turn = anyio.Event()

    async def report(self, bodies: Sequence[str], ready: Ready) -> None:
        await ready()
        events = [(event["messageId"], event["status"]) for event in map(json.loads, bodies)]
        ids = [id_ for id_, _ in events]
        self.posts.append(ids)
        self.times.append(anyio.current_time())
        self._turn.set()
        self._turn = anyio.Event()
        await self.meanwhile()
        error = self.script.popleft() if self.script else None
        if error is not None:
            raise error
        if self.fails_at.intersection(ids):
            raise self.failure
        if sum(map(len, bodies)) > self.largest:
            self.too_large += 1
            raise ServiceRefused("the service answered 413", 413)
        if self.refuses.intersection(ids):
            self.answered += events if len(events) == 1 else []
            raise ServiceRefused(f"the service answered {self.status}", self.status)
        self.accepted += ids
        self.answered += events
        self._turn.set()
        self._turn = anyio.Event()

    async def accepts(self, count: int, seconds: float) -> None:
        """Wait until it has accepted so many events, so many seconds at most."""
        with anyio.fail_after(seconds):
            while len(self.accepted) < count:
                await self._turn.wait()

    async def posted(self, times: int) -> None:
        """Wait for so many posts."""
        while len(self.posts) < times:
            await self._turn.wait()


class WatchedRecorder(Recorder):
    """A recorder that keeps which events were accepted or refused."""

    def __init__(self, journal: Journal, memory: LineMemory, metrics: Metrics) -> None:
        super().__init__(journal, memory, metrics)
        self.accepted: list[OutboxRow] = []
        self.refused: list[OutboxRow] = []
        self.news = anyio.Event()

    async def accept(self, rows: Sequence[OutboxRow]) -> int:
        reopened = await super().accept(rows)
        self.accepted += rows
        self.news.set()
        return reopened

    async def accept_early(self, rows: Sequence[OutboxRow]) -> int:
        reopened = await super().accept_early(rows)
        self.accepted += rows
        self.news.set()
        return reopened

    async def refuse(self, row: OutboxRow, reason: str) -> RefusedEvent:
        refused = await super().refuse(row, reason)
        self.refused.append(row)
        self.news.set()
        return refused


class Station:
    """Reporting on a real journal."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.service = Service()
        self.metrics = Metrics([], "1")
        self.memory = memory_on(journal, metrics=self.metrics, batch_size=BATCH)
        self.recorder = WatchedRecorder(journal, self.memory, self.metrics)
        self.signals = self.memory.outbox
        posting = Posting(self.service, common_on(journal, self.memory, self.recorder, metrics=self.metrics))
        self.reporting = Reporting(posting, batch_size=BATCH, flush_interval=FLUSH)

    @property
    def accepted(self) -> list[OutboxRow]:
        return self.recorder.accepted

    @property
    def refused(self) -> list[OutboxRow]:
        return self.recorder.refused

    async def flushed(self, events: int) -> None:
        """Wait until the outbox is empty, and the recorder of so many events."""
        await self.reporting.flushed()
        while len(self.accepted) + len(self.refused) < events:
            await self.recorder.news.wait()
            self.recorder.news = anyio.Event()

    async def put(self, *ids: int) -> None:
        """Bring the `dequeued` events of new messages into the outbox."""
        await self.journal.take([QueuedMessage(id_, 1, 1, {}) for id_ in ids], [], 1)

    async def states(self) -> Counter[State]:
        return Counter((await self.journal.counts()).states)

    def counted(self, name: str) -> float:
        text = expose(self.metrics, "text/plain")[0].decode()
        [line] = [line for line in text.splitlines() if line.startswith(f"deliveryd_{name} ")]
        return float(line.rsplit(" ", 1)[1])


def _blocking() -> Blocking:
    return inline if sniffio.current_async_library() == "trio" else in_thread


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Station]:
    """Reporting at work."""
    async with open_journal_file(path / "journal.db", blocking=_blocking()) as journal:
        station = Station(journal)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(station.reporting.run)
            yield station
            tasks.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_worker_reports_nothing_of_what_another_one_took_over() -> None:
    """It is overtaken while the service refuses a batch: the halves aren't its to report any more."""
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    now, source = [1000.0], JournalDatabase(url)
    async with (
        open_shared_journal(source, boot_time=lambda: now[0]) as journal,
        open_shared_journal(source, boot_time=lambda: now[0]) as other,
    ):
        station = Station(journal)
        await station.put(1, 2)
        await other.follow(1, ["sms"])

        async def take_over() -> None:
            while (await other.follow(1, ["sms"])).adopted is None:
                now[0] += 1.0
            station.service.meanwhile = anyio.lowlevel.checkpoint

        station.service.refuses, station.service.meanwhile = {1}, take_over
        with pytest.raises(ExceptionGroup) as fenced:
            await station.reporting.run()
        assert fenced.value.split(Fenced)[1] is None
        assert station.service.posts == [[1, 2]]
        assert [row.message_id for row in await other.outbox(0, 9)] == [1, 2]


async def test_events_arrive_in_order_and_in_batches(tmp_path: Path) -> None:
    """Three batches and a bit go out one after the other; the journal and the line know of each."""
    async with running(tmp_path) as station:
        ids = list(range(3 * BATCH + 5))
        await station.put(*ids)
        station.signals.expect_now(len(ids))
        await station.flushed(len(ids))
        assert station.service.accepted == ids
        assert [len(post) for post in station.service.posts] == [BATCH, BATCH, BATCH, 5]
        assert [row.message_id for row in station.accepted] == ids
        assert await station.states() == {State.READY: len(ids)}
        assert station.counted("events_accepted_total") == len(ids)


@in_virtual_time
async def test_few_events_wait_for_company(tmp_path: Path) -> None:
    """They go out together after the flush interval, a full batch and what is urgent at once."""
    async with running(tmp_path) as station:
        await anyio.sleep(1.0)
        await station.put(1, 2)
        station.signals.expect(1)
        await anyio.sleep(FLUSH / 2)
        station.signals.expect(1)
        await station.service.posted(1)
        assert station.service.posts == [[1, 2]]
        assert station.service.times[0] == pytest.approx(1.0 + FLUSH, abs=0.05)

        await anyio.sleep_until(10.0)
        await station.put(*range(100, 100 + BATCH))
        station.signals.expect(BATCH)
        await station.service.posted(2)
        assert station.service.times[1] == pytest.approx(10.0, abs=0.05)

        await anyio.sleep_until(20.0)
        await station.put(3)
        station.signals.expect_now(1)
        await station.service.posted(3)
        assert station.service.times[2] == pytest.approx(20.0, abs=0.05)

        station.signals.hurry()
        await anyio.sleep_until(30.0)
        await station.put(4)
        station.signals.expect(1)
        await station.service.posted(4)
        assert station.service.times[3] == pytest.approx(30.0, abs=0.05)


@in_virtual_time
async def test_events_that_free_places_which_are_waited_for_go_out_sooner(tmp_path: Path) -> None:
    """As many as there are places missing are company enough, whenever the last one comes; but only once."""
    async with running(tmp_path) as station:
        await anyio.sleep(1.0)
        await station.put(1)
        station.signals.expect(1)
        station.signals.hasten(2)
        await anyio.sleep(0.1)
        assert not station.service.posts
        await station.put(2)
        station.signals.expect(1)
        await station.service.posted(1)
        assert station.service.times[0] == pytest.approx(1.1, abs=0.05)

        await anyio.sleep_until(10.0)
        await station.put(3, 4)
        station.signals.expect(2)
        await station.service.posted(2)
        assert station.service.times[1] == pytest.approx(10.0 + FLUSH, abs=0.05)

        await anyio.sleep_until(20.0)
        await station.put(5, 6)
        station.signals.expect(2)
        await anyio.sleep(0.1)
        station.signals.hasten(2)
        await station.service.posted(3)
        assert station.service.times[2] == pytest.approx(20.1, abs=0.05)


@in_virtual_time
async def test_what_nobody_announced_is_found_all_the_same(tmp_path: Path) -> None:
    """The outbox is looked through every few seconds, and an empty one isn't posted."""
    async with running(tmp_path) as station:
        await anyio.sleep(60)
        assert station.service.posts == []
        await station.put(1)
        await station.service.posted(1)
        assert anyio.current_time() < 66


@pytest.mark.parametrize("bad", [0, 31, 63])
@pytest.mark.parametrize("status", sorted(ABOUT_THE_EVENTS))
async def test_one_bad_event_is_found_and_set_aside(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]], bad: int, status: int
) -> None:
    """The other 63 of the batch are accepted, for the price of the parts' parts: of 8, of 2, of 1."""
    async with running(tmp_path) as station:
        station.service.refuses, station.service.status = {bad}, status
        await station.put(*range(BATCH))
        station.signals.expect_now(BATCH)
        await station.flushed(BATCH)
        good = [number for number in range(BATCH) if number != bad]
        assert sorted(station.service.accepted) == good
        assert [row.message_id for row in station.refused] == [bad]
        assert len(station.service.posts) == 1 + 8 + 4 + 2
        assert not station.reporting.down
        counts = await station.journal.counts()
        assert (counts.events_waiting, counts.events_refused) == (0, 1)
        assert await station.states() == {State.READY: BATCH - 1}
        assert station.counted("events_refused_total") == 1
    [refused] = [line for line in lines() if line["event"] == "events.refused"]
    assert (refused["message_id"], refused["reason"]) == (bad, f"dequeued: the service answered {status}")


@in_virtual_time
async def test_refused_events_hardly_delay_the_others(tmp_path: Path) -> None:
    """One of 20 refused at 50 ms a post: all are settled within three times what it takes without."""
    async with running(tmp_path) as station:

        async def takes_a_while() -> None:
            await anyio.sleep(0.05)

        count, station.service.meanwhile = 16 * BATCH, takes_a_while
        station.service.refuses = set(range(7, count, 20))
        began = anyio.current_time()
        await station.put(*range(count))
        station.signals.expect_now(count)
        await station.flushed(count)
        took = anyio.current_time() - began
        assert sorted(station.service.accepted) == [n for n in range(count) if n % 20 != 7]
        assert [row.message_id for row in station.refused] == sorted(station.service.refuses)
        assert (await station.states())[State.READY] == len(station.service.accepted)
        assert took < 2.5


async def test_accepted_events_do_not_wait_for_the_search(tmp_path: Path) -> None:
    """The service takes its time with each post that has the bad event: all others are ready meanwhile."""
    async with running(tmp_path) as station:
        station.service.refuses, released = {5}, anyio.Event()

        async def dwells_on_the_bad_one() -> None:
            if 5 in station.service.posts[-1] and len(station.service.posts) > 1:
                await released.wait()

        station.service.meanwhile = dwells_on_the_bad_one
        await station.put(*range(3 * BATCH))
        station.signals.expect_now(3 * BATCH)
        while len(station.accepted) < 3 * BATCH - 8:  # all but the part of the bad one
            await station.recorder.news.wait()
            station.recorder.news = anyio.Event()
        assert await station.states() == {State.READY: 3 * BATCH - 8, State.TAKEN: 8}
        released.set()
        await station.flushed(3 * BATCH)
        assert await station.states() == {State.READY: 3 * BATCH - 1}


async def test_later_events_of_a_message_wait_for_the_one_in_question(tmp_path: Path) -> None:
    """Its next event is posted only once the one before it is settled, also if that was refused."""
    async with running(tmp_path) as station:
        station.service.refuses = {1}
        ended = [Malformed(f"{{{id_}}}", "no message", id_) for id_ in (1, 2)]
        await station.journal.take([], ended, 1)
        station.signals.expect_now(4)
        await station.flushed(4)
        posts = [post for post in station.service.posts if len(post) == 1 or len(set(post)) == 1]
        assert station.service.posts == [[1, 1, 2, 2], *posts]
        assert station.service.accepted == [2, 2]
        assert [(row.message_id, row.status) for row in station.refused] == [(1, "dequeued"), (1, "error")]


@in_virtual_time
@pytest.mark.parametrize("seed", range(10))
async def test_each_message_is_told_in_order_whatever_is_refused(tmp_path: Path, seed: int) -> None:
    """Posts of any duration, refusals, outages: each event is answered once, after those before it."""
    draw = random.Random(seed)
    async with running(tmp_path) as station:

        async def takes_a_while() -> None:
            await anyio.sleep(draw.random())
            if draw.random() < 0.05:
                raise ServiceUnavailable("down")

        station.service.refuses = {id_ for id_ in range(100) if draw.random() < 0.05}
        station.service.meanwhile = takes_a_while
        for first in range(0, 100, 10):
            some = range(first, first + 10)
            await station.put(*(id_ for id_ in some if id_ % 2))
            ended = [Malformed(f"{{{id_}}}", "no message", id_) for id_ in some if not id_ % 2]
            await station.journal.take([], ended, 1)
            station.signals.expect_now(15)
            await anyio.sleep(draw.random())
        await station.flushed(150)
        assert len(station.accepted) + len(station.refused) == 150
        assert {row.message_id for row in station.refused} == station.service.refuses
    answered = station.service.answered
    assert len(answered) == len(set(answered)) == 150
    for id_ in range(0, 100, 2):
        assert [status for each, status in answered if each == id_] == ["dequeued", "error"]


async def test_a_size_that_is_too_large_is_learnt(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """Few posts find out how many bytes the service takes; then none is refused until a reload."""
    async with running(tmp_path) as station:
        station.service.largest = 1500
        await station.put(*range(8 * BATCH))
        station.signals.expect_now(8 * BATCH)
        await station.flushed(8 * BATCH)
        assert sorted(station.service.accepted) == list(range(8 * BATCH))
        found = station.service.too_large
        assert 0 < found <= 2 * 10
        await station.put(*range(1000, 1000 + 2 * BATCH))
        station.signals.expect_now(2 * BATCH)
        await station.flushed(10 * BATCH)
        assert station.service.too_large == found
        assert station.refused == []

        station.reporting.adopt(batch_size=BATCH, flush_interval=FLUSH)
        await station.put(*range(2000, 2000 + BATCH))
        station.signals.expect_now(BATCH)
        await station.flushed(11 * BATCH)
        assert station.service.too_large > found
    assert {line["count"] > 1 for line in lines() if line["event"] == "events.too_large"} == {True}


async def test_one_event_that_is_too_large_makes_no_other_post_smaller(tmp_path: Path) -> None:
    """Its refusal says nothing of how many of the others go together."""
    async with running(tmp_path) as station:
        station.service.refuses, station.service.status = {7}, 413
        await station.put(*range(8 * BATCH))
        station.signals.expect_now(8 * BATCH)
        await station.flushed(8 * BATCH)
        assert [row.message_id for row in station.refused] == [7]
        before = len(station.service.posts)
        await station.put(*range(1000, 1000 + 4 * BATCH))
        station.signals.expect_now(4 * BATCH)
        await station.flushed(12 * BATCH)
        assert list(map(len, station.service.posts[before:])) == [BATCH] * 4


async def test_several_bad_events(tmp_path: Path) -> None:
    """Each of them is found; nothing good is lost with them, and nothing is reported twice."""
    async with running(tmp_path) as station:
        station.service.refuses = {3, 4, 40, 100}
        await station.put(*range(2 * BATCH))
        station.signals.expect_now(2 * BATCH)
        await station.flushed(2 * BATCH)
        assert sorted(station.service.accepted) == [n for n in range(2 * BATCH) if n not in {3, 4, 40, 100}]
        assert [row.message_id for row in station.refused] == [3, 4, 40, 100]


@in_virtual_time
@pytest.mark.parametrize("status", [0, 301, 302, 401, 403, 404, 405, 406, 407, 410, 411, 415, 451])
async def test_a_refusal_of_who_asks_or_how_sets_nothing_aside(tmp_path: Path, status: int) -> None:
    """Wrong credentials or a wrong address are waited out: they would refuse every event there is."""
    async with running(tmp_path) as station:
        station.service.script += [ServiceRefused(f"the service answered {status}", status)] * 5
        await station.put(1, 2)
        station.signals.expect_now(2)
        await station.service.posted(5)
        assert [station.reporting.down] == [True]
        await station.flushed(2)
        assert [station.reporting.down] == [False]
        assert sorted(station.service.accepted) == [1, 2]
        assert station.service.posts[:3] == [[1, 2]] * 3
        assert len(station.service.posts) <= 7  # one for each pause, then those that are accepted
        assert station.refused == []


@in_virtual_time
async def test_an_outage_and_its_end(tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]) -> None:
    """The outbox waits, asked about ever more rarely; afterwards all of it goes out in order."""
    async with running(tmp_path) as station:
        station.service.script += [ServiceUnavailable("down")] * 12
        await station.put(*range(BATCH + 1))
        station.signals.expect_now(BATCH + 1)
        await station.service.posted(6)
        assert station.reporting.down
        await station.put(500)
        station.signals.expect_now(1)
        await station.flushed(BATCH + 2)
        assert station.service.accepted == [*range(BATCH + 1), 500]
    times = station.service.times
    pauses = [later - earlier for earlier, later in pairwise(times[:12])]
    assert 0.5 <= pauses[0] <= 1.2
    assert all(15 <= pause <= 30.2 for pause in pauses[5:])
    assert [line["event"] for line in lines()].count("events.unavailable") == 12
    assert [line["event"] for line in lines()].count("events.recovered") == 1


@in_virtual_time
async def test_the_pause_that_the_service_asks_for_is_kept(tmp_path: Path) -> None:
    """429 with a `Retry-After` of minutes: nothing is posted before that."""
    async with running(tmp_path) as station:
        station.service.script.append(ServiceUnavailable("busy", 300.0))
        await station.put(1)
        station.signals.expect_now(1)
        await station.service.posted(2)
        assert 300 <= station.service.times[1] - station.service.times[0] < 301


@in_virtual_time
async def test_an_outage_in_the_middle_of_a_split(tmp_path: Path) -> None:
    """The search goes on where it was: what was accepted before the outage is not reported again."""
    async with running(tmp_path) as station:
        station.service.refuses = {40}
        station.service.script += [None, None, *[ServiceUnavailable("down")] * 5]
        await station.put(*range(BATCH))
        station.signals.expect_now(BATCH)
        await station.flushed(BATCH)
        assert sorted(station.service.accepted) == [number for number in range(BATCH) if number != 40]
        assert [row.message_id for row in station.refused] == [40]


@in_virtual_time
async def test_a_worker_that_ends_does_not_sit_out_a_pause(tmp_path: Path) -> None:
    """`hurry` makes one more attempt at once, however long the pause still was."""
    async with running(tmp_path) as station:
        station.service.script.append(ServiceUnavailable("down", 86_400.0))
        await station.put(1)
        station.signals.expect_now(1)
        await station.service.posted(1)
        await anyio.sleep(1)
        station.signals.hurry()
        await station.flushed(1)
        assert station.service.accepted == [1]
        assert anyio.current_time() < 10


def _many_answers() -> list[ServiceError]:
    return [
        ServiceUnavailable("the service answered 500", status=500),
        ServiceUnavailable("the service answered 504", status=504),
        ServiceUnavailable("no answer within 10 s", was_sent=True),
        ServiceRefused("the service answered 403", 403),
    ]


@pytest.mark.slow
@in_virtual_time
@pytest.mark.parametrize("failure", _many_answers(), ids=str)
async def test_an_event_that_the_service_fails_at_holds_up_no_other(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]], failure: ServiceError
) -> None:
    """The others are accepted within a minute, later ones at once; it is told once it can be."""
    async with running(tmp_path) as station:
        station.service.fails_at, station.service.failure = {7}, failure
        await station.put(*range(3 * BATCH))
        station.signals.expect_now(3 * BATCH)
        await station.service.accepts(3 * BATCH - 1, 60)
        await anyio.sleep(60)
        assert (station.reporting.failing, station.reporting.down) == (1, False)
        before = len(station.service.posts)
        for begin in range(1000, 1050):
            await station.put(begin)
            station.signals.expect_now(1)
            await station.service.accepts(3 * BATCH + begin - 1000, 1)
        await anyio.sleep(4 * 3600)
        alone = [post for post in station.service.posts[before:] if 7 in post]
        assert set(map(tuple, alone)) == {(7,)}
        assert len(alone) < 15
        station.service.fails_at = set()
        await station.flushed(3 * BATCH + 50)
        assert Counter(station.service.accepted) == Counter([*range(3 * BATCH), *range(1000, 1050)])
        assert station.refused == []
        assert station.reporting.failing == 0
    failing = [line for line in lines() if line["event"] == "events.failing"]
    assert [line["message_id"] for line in failing] == [7]


@in_virtual_time
async def test_an_outage_while_only_failing_events_are_left_ends_without_a_new_one(tmp_path: Path) -> None:
    """The repeat of one meets a service that is down; once it works, all are told and nothing else waits."""
    async with running(tmp_path) as station:
        station.service.fails_at = {0, 1}
        await station.put(*range(BATCH))
        station.signals.expect_now(BATCH)
        await station.service.accepts(BATCH - 2, 60)
        await anyio.sleep(60)
        assert (station.reporting.failing, station.reporting.down) == (2, False)
        station.service.script += [ServiceUnavailable("down")] * 3
        station.service.fails_at = set()
        with anyio.fail_after(600):
            await station.flushed(BATCH)
        assert not station.service.script
        assert sorted(station.service.accepted) == [*range(BATCH)]
        assert (station.reporting.failing, station.reporting.down) == (0, False)


@in_virtual_time
async def test_a_single_batch_with_an_event_that_the_service_fails_at(tmp_path: Path) -> None:
    """Smaller posts find some that are accepted, though nothing else waits; the rest follows."""
    async with running(tmp_path) as station:
        station.service.fails_at = {0}
        await station.put(*range(BATCH))
        station.signals.expect_now(BATCH)
        await station.service.accepts(BATCH - 1, 60)


@pytest.mark.slow
@in_virtual_time
async def test_every_third_event_fails_and_all_others_are_accepted(tmp_path: Path) -> None:
    """Within minutes, and those of one message stay in order."""
    async with running(tmp_path) as station:
        station.service.fails_at = set(range(0, 300, 3))
        ended = [Malformed(f"{{{id_}}}", "no message", id_) for id_ in range(0, 300, 2)]
        await station.put(*range(1, 300, 2))
        await station.journal.take([], ended, 1)
        station.signals.expect_now(450)
        good = sum(2 - id_ % 2 for id_ in range(300) if id_ % 3)
        await station.service.accepts(good, 600)
        await anyio.sleep(60)
        assert station.reporting.failing == 100
        station.service.fails_at = set()
        await station.flushed(450)
    assert len(station.service.answered) == len(set(station.service.answered)) == 450
    for id_ in range(0, 300, 2):
        assert [s for each, s in station.service.answered if each == id_] == ["dequeued", "error"]


@pytest.mark.slow
@in_virtual_time
async def test_the_service_fails_at_all_events_in_front_of_the_others(tmp_path: Path) -> None:
    """More than are read before the first is settled: those behind them are accepted in hours."""
    async with running(tmp_path) as station:
        bad, good = 5 * BATCH, 2 * BATCH
        station.service.fails_at = set(range(bad))
        await station.put(*range(bad + good))
        station.signals.expect_now(bad + good)
        await station.service.accepts(good, 6 * 3600)
        await station.put(*range(10_000, 10_000 + good))
        station.signals.expect_now(good)
        await station.service.accepts(2 * good, 3600)
        station.service.fails_at = set()
        await station.flushed(bad + 2 * good)
        assert Counter(station.service.accepted).most_common(1)[0][1] == 1


@in_virtual_time
async def test_events_behind_a_failing_one_leave_the_outbox(tmp_path: Path) -> None:
    """A restart doesn't post them again, and reads don't get slower while it waits."""
    async with running(tmp_path) as station:
        station.service.fails_at = {0}
        await station.put(*range(BATCH))
        station.signals.expect_now(BATCH)
        await anyio.sleep(60)
        for begin in range(1000, 1000 + 20 * BATCH, BATCH):
            await station.put(*range(begin, begin + BATCH))
            station.signals.expect_now(BATCH)
            await anyio.sleep(1)
        assert len(station.service.accepted) == 21 * BATCH - 1
        assert (await station.journal.counts()).events_waiting <= 2 * BATCH


@in_virtual_time
async def test_a_pause_ends_while_the_journal_moves_the_failing_event(tmp_path: Path) -> None:
    """On a slow disk, and a new batch is refused meanwhile: all goes on, and the event is told at last."""
    async with running(tmp_path) as station:
        put_last, moving = station.journal.put_last, anyio.Event()

        async def slowly(rows: Sequence[OutboxRow]) -> None:
            moving.set()
            await anyio.sleep(60)
            await put_last(rows)

        async def meanwhile() -> None:
            if 2000 in station.service.posts[-1] and not moving.is_set():
                await moving.wait()
                await anyio.sleep(30)

        station.journal.put_last = slowly  # type: ignore[method-assign]
        station.service.fails_at = {0}
        await station.put(*range(BATCH))
        station.signals.expect_now(BATCH)
        await station.service.accepts(BATCH - 1, 60)
        station.service.refuses, station.service.meanwhile = {1000, 2000}, meanwhile
        await station.put(*range(1000, 1000 + BATCH), *range(2000, 2000 + BATCH))
        station.signals.expect_now(2 * BATCH)
        await station.service.accepts(3 * BATCH - 3, 600)
        station.service.fails_at = set()
        await station.flushed(3 * BATCH)
        assert Counter(station.service.answered).most_common(1)[0][1] == 1


@in_virtual_time
async def test_a_refusal_is_told_though_a_failing_event_is_ahead_of_it(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """Within minutes, with few other events, so that an operator can mend it."""
    async with running(tmp_path) as station:
        station.service.fails_at = {0}
        await station.put(0, 1)
        station.signals.expect_now(2)
        await station.service.accepts(1, 60)
        station.service.refuses = {2}
        await station.put(2, 3)
        station.signals.expect_now(2)
        await station.service.accepts(2, 60)
        await anyio.sleep(180)
        assert [row.message_id for row in station.refused] == [2]
    assert [line["message_id"] for line in lines() if line["event"] == "events.refused"] == [2]


@pytest.mark.slow
@in_virtual_time
async def test_more_failing_events_than_are_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beyond stay in the journal; new events are accepted all the same."""
    monkeypatch.setattr("deliveryd.delivery.reporting.MOST_KEPT_BACK", BATCH)
    async with running(tmp_path) as station:
        station.service.fails_at = set(range(0, 10_000, 2))
        for begin in range(0, 14 * BATCH, BATCH):
            await station.put(*range(begin, begin + BATCH))
            station.signals.expect_now(BATCH)
            await anyio.sleep(300)
        await station.service.accepts(7 * BATCH, 4 * 3600)
        assert len(station.reporting._unsettled) <= 6 * BATCH
        await station.put(10_001)
        await station.service.accepts(7 * BATCH + 1, 600)


@pytest.mark.slow
@in_virtual_time
async def test_failing_events_are_repeated_one_by_one_behind_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pauses of all are over by then, and they have more events than may be in memory."""
    monkeypatch.setattr("deliveryd.delivery.reporting.MOST_UNSETTLED", 1)
    failing = range(1000, 1000 + 2 * BATCH)
    async with running(tmp_path) as station:
        station.service.fails_at = set(failing)
        await station.journal.take([], [Malformed(f"{{{id_}}}", "x", id_) for id_ in failing], 1)
        station.signals.expect_now(2 * len(failing))
        for id_ in range(100):
            await station.put(id_)
            await anyio.sleep(60)
        assert station.reporting.failing == len(failing)
        station.service.script += [ServiceUnavailable("down")] * 600
        began = anyio.current_time()
        await anyio.sleep(4 * 3600)
        assert not station.service.script
        posts = Counter(int(at) for at in station.service.times if at > began)
        assert max(posts.values()) <= 2


@pytest.mark.slow
@in_virtual_time
async def test_failing_events_take_no_turn_of_the_search_for_refused_ones(tmp_path: Path) -> None:
    """200 without an answer are due at once, and a new batch is refused: its others don't wait."""
    async with running(tmp_path) as station:

        async def no_answer() -> None:
            if station.service.fails_at.intersection(station.service.posts[-1]):
                await anyio.sleep(10)

        count = 200
        for begin in range(0, count, 10):
            station.service.fails_at = set(range(begin + 10))
            await station.put(*range(begin, begin + 10), begin + 10_000)
            station.signals.expect_now(11)
            await anyio.sleep(120)
            await station.put(begin + 20_000)
        await anyio.sleep(3600)
        assert station.reporting.failing == count
        accepted = len(station.service.accepted)
        station.service.script = deque([ServiceUnavailable("no answer")] * 600)
        await station.put(30_000)
        await station.service.accepts(accepted + 1, 6 * 3600)
        station.service.meanwhile = no_answer
        await anyio.sleep(2)
        station.service.refuses = {40_000}
        await station.put(*range(40_000, 40_000 + BATCH))
        station.signals.expect_now(BATCH)
        await station.service.accepts(accepted + BATCH, 15)


@pytest.mark.slow
@in_virtual_time
async def test_messages_with_failing_events_take_no_places(tmp_path: Path) -> None:
    """Intake goes on; a message has its place again once its `dequeued` is accepted."""
    async with running(tmp_path) as station:
        count, places = BATCH, station.memory.in_flight
        bad, good = range(count), range(1000, 1000 + count)
        station.service.fails_at = set(bad)
        messages = [QueuedMessage(id_, 1, 1, {}) for each in zip(bad, good, strict=True) for id_ in each]
        await station.recorder.take(messages, [])
        await station.service.accepts(count, 6 * 3600)
        await station.put(*range(2000, 2200))
        await anyio.sleep(3600)
        assert station.reporting.failing == count
        assert places.held == count
        station.service.fails_at = set()
        await station.flushed(2 * count + 200)
        assert places.held == 2 * count
        assert {entry.id for entry in station.memory.ready.take()} == {*bad, *good}


@pytest.mark.slow
@in_virtual_time
async def test_an_outage_in_which_everything_fails_costs_a_post_a_pause(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """Six hours of 500, also beginning within a search: no events are blamed, and few posts end it."""
    async with running(tmp_path) as station:
        station.service.refuses = {7}
        await station.put(*range(BATCH))
        station.signals.expect_now(BATCH)
        await station.service.posted(4)
        station.service.fails_at = set(range(5000))
        await station.put(*range(100, 100 + 3 * BATCH))
        station.signals.expect_now(3 * BATCH)
        await anyio.sleep(6 * 3600)
        assert station.reporting.down
        during = len(station.service.posts)
        assert during < 6 * 3600 / 15 + 50
        station.service.fails_at = set()
        await station.flushed(4 * BATCH)
        assert len(station.service.posts) - during < 50
        assert [row.message_id for row in station.refused] == [7]
        assert Counter(station.service.accepted) == Counter(
            [*(n for n in range(BATCH) if n != 7), *range(100, 100 + 3 * BATCH)]
        )
    assert [line["event"] for line in lines()].count("events.recovered") == 1


@pytest.mark.slow
@in_virtual_time
async def test_a_reload_counts_while_some_events_are_always_refused(tmp_path: Path) -> None:
    """Posts of new events have the new size from then on."""
    async with running(tmp_path) as station:

        async def takes_a_while() -> None:
            await anyio.sleep(0.05)

        station.service.meanwhile = takes_a_while
        station.service.refuses = set(range(0, 100_000, 10))
        await station.put(*range(40 * BATCH))
        station.signals.expect_now(40 * BATCH)
        await station.service.posted(20)
        station.reporting.adopt(batch_size=4 * BATCH, flush_interval=FLUSH)
        await station.flushed(40 * BATCH)
        assert max(map(len, station.service.posts)) == 4 * BATCH


class CountingJournal:
    """Counts the rows that are read of a journal's outbox."""

    def __init__(self, journal: Journal) -> None:
        self.rows = 0
        self._read = journal.outbox
        journal.outbox = self.outbox  # type: ignore[method-assign]

    async def outbox(self, after: int, limit: int) -> list[OutboxRow]:
        rows = await self._read(after, limit)
        self.rows += len(rows)
        return rows


@pytest.mark.slow
@in_virtual_time
async def test_many_refused_events_are_read_about_once(tmp_path: Path) -> None:
    """2,000 of 10,000 are refused at 5 ms a post: what is unsettled isn't read again and again."""
    async with running(tmp_path) as station:

        async def takes_a_while() -> None:
            await anyio.sleep(0.005)

        counted, count = CountingJournal(station.journal), 10_000
        station.service.meanwhile = takes_a_while
        station.service.refuses = set(range(0, count, 5))
        await station.put(*range(count))
        station.signals.expect_now(count)
        while len(station.accepted) + len(station.refused) < count:
            await station.recorder.news.wait()
            station.recorder.news = anyio.Event()
        assert counted.rows < 2 * count


async def test_nothing_left_means_flushed(tmp_path: Path) -> None:
    """An empty outbox is flushed; one that only refusals emptied is too."""
    async with running(tmp_path) as station:
        await station.reporting.flushed()
        station.service.refuses = {1}
        await station.put(1)
        station.signals.expect_now(1)
        await station.flushed(1)
        assert [row.message_id for row in station.refused] == [1]
