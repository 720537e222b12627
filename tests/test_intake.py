"""Intake: how many are taken and when, and that all that was taken is in the journal."""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import sniffio
from trio.testing import MockClock

from deliveryd.admin.exposition import expose
from deliveryd.delivery.backlog import Backlog
from deliveryd.delivery.in_flight import InFlightLimit
from deliveryd.delivery.intake import CALM, Intake, TakeSize
from deliveryd.delivery.outbox_signals import OutboxSignals
from deliveryd.delivery.recorder import Recorder
from deliveryd.errors import (
    ServiceError,
    ServiceRefused,
    ServiceUnavailable,
    ServiceUnreadable,
)
from deliveryd.journal.audit import audit_journal
from deliveryd.journal.base import Journal
from deliveryd.journal.sqlite import open_journal
from deliveryd.metrics import Metrics
from deliveryd.model import Entry, Malformed, WallClock
from deliveryd.runtime.threads import Blocking, in_thread, inline
from deliveryd.runtime.wakeup import Heartbeats
from deliveryd.service.batch import Batch
from support.logs import LogLines, log_lines
from support.messages import queued_message as message

pytestmark = pytest.mark.anyio

BATCH = 10


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


def batch(*numbers: int) -> Batch:
    return Batch([message(number) for number in numbers], [])


Act = Batch | ServiceError


class ScriptedQueue:
    """Answers as told, then with nothing; tells how many were asked for, and when."""

    def __init__(self, *script: Act) -> None:
        self.script = deque(script)
        self.asked: list[int] = []
        self.times: list[float] = []
        self._turn = anyio.Event()
        self.look: Callable[[], object] = list
        self.looks: list[object] = []

    async def take(self, count: int) -> Batch:
        self.looks.append(self.look())
        self.asked.append(count)
        self.times.append(anyio.current_time())
        turn, self._turn = self._turn, anyio.Event()
        turn.set()
        await anyio.lowlevel.checkpoint()
        act = self.script.popleft() if self.script else batch()
        if isinstance(act, ServiceError):
            raise act
        return act

    async def asked_times(self, times: int) -> None:
        """Wait for so many takes."""
        while len(self.asked) < times:
            await self._turn.wait()

    def pauses(self) -> list[float]:
        """The seconds between the takes."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


class WatchedSignals(OutboxSignals):
    """Signals to the outbox that keep how many events were to be enough."""

    def __init__(self) -> None:
        super().__init__(BATCH)
        self.short: list[int] = []

    def hasten(self, events: int) -> None:
        self.short.append(events)


class WatchedRecorder(Recorder):
    """A recorder that keeps what it took, and may have an obstacle."""

    def __init__(self, journal: Journal, in_flight: InFlightLimit, metrics: Metrics) -> None:
        self.signals = WatchedSignals()
        super().__init__(
            journal, in_flight, self.signals, Backlog(), WallClock(), metrics,
            max_waiting=1000, longest_pause=3600.0,
        )  # fmt: skip
        self.taken: list[Entry] = []
        self.told: list[int] = []
        self.blocked_by: str | None = None
        self.news = anyio.Event()

    def obstacle(self) -> str | None:
        return self.blocked_by

    async def take(self, *batch: Any) -> Sequence[Entry]:
        entries = await super().take(*batch)
        self.taken += entries
        self.told.append(len(entries))
        self.news.set()
        self.news = anyio.Event()
        return entries


class Station:
    """Intake on a real journal, and what it recorded."""

    def __init__(self, queue: ScriptedQueue, journal: Journal, path: Path, most: int) -> None:
        self.queue = queue
        self.path = path
        self.in_flight = InFlightLimit(most)
        self.metrics = Metrics([], "1")
        self.recorder = WatchedRecorder(journal, self.in_flight, self.metrics)
        poll_interval = 1.0 if sniffio.current_async_library() == "trio" else 0.01
        self.intake = Intake(
            queue, self.recorder, self.metrics, Heartbeats(),
            batch_size=BATCH, poll_interval=poll_interval, max_poll_interval=30.0,
        )  # fmt: skip

    @property
    def taken(self) -> list[Entry]:
        return self.recorder.taken

    async def heard_of(self, messages: int) -> None:
        """Wait until the line has been told of so many messages."""
        while len(self.taken) < messages:
            await self.recorder.news.wait()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What the journal's file holds, as another process sees it."""
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute(query).fetchall()

    def counted(self, name: str) -> float:
        text = expose(self.metrics, "text/plain")[0].decode()
        [line] = [line for line in text.splitlines() if line.startswith(f"deliveryd_{name} ")]
        return float(line.rsplit(" ", 1)[1])


def _blocking() -> Blocking:
    return inline if sniffio.current_async_library() == "trio" else in_thread


@asynccontextmanager
async def running(
    path: Path,
    *script: Act,
    most: int = 1000,
    before: Callable[[Station], None] = lambda _station: None,
) -> AsyncIterator[Station]:
    """Intake at work on this script, stopped in the end."""
    async with open_journal(path / "journal.db", blocking=_blocking()) as journal:
        station = Station(ScriptedQueue(*script), journal, path / "journal.db", most)
        before(station)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(station.intake.run)
            yield station
            station.intake.stop()


async def test_a_batch_goes_into_the_journal_before_the_line_hears_of_it(tmp_path: Path) -> None:
    """Each message is durable, in the queue's order, with its `dequeued` event, and then handed on."""
    async with running(tmp_path, batch(3, 1, 2)) as station:
        await station.queue.asked_times(1)
    assert [entry.id for entry in station.taken] == [3, 1, 2]
    assert station.taken[0][:4] == message(3)
    assert station.rows("SELECT id FROM message ORDER BY id") == [(1,), (2,), (3,)]
    assert station.rows("SELECT message_id, status FROM event ORDER BY seq") == [
        (3, "dequeued"),
        (1, "dequeued"),
        (2, "dequeued"),
    ]
    assert station.counted("messages_taken_total") == 3


@in_virtual_time
async def test_a_full_batch_is_followed_by_the_next_at_once(tmp_path: Path) -> None:
    """While the queue has enough, nobody waits; the first short batch is followed by a pause."""
    full = [batch(*range(start, start + BATCH)) for start in (0, 10, 20)]
    async with running(tmp_path, *full, batch(30)) as station:
        await station.queue.asked_times(5)
    assert station.queue.asked[:4] == [BATCH] * 4
    *at_once, pause = station.queue.pauses()[:4]
    assert all(gap < 0.5 for gap in at_once)
    assert 0.8 <= pause <= 1.2
    assert len(station.taken) == 31


@in_virtual_time
async def test_an_empty_queue_is_asked_ever_more_rarely(tmp_path: Path) -> None:
    """The pauses grow to `max_poll_interval`, each a little different; something new brings them back."""
    async with running(tmp_path, *[batch()] * 11, batch(1)) as station:
        await station.queue.asked_times(14)
    pauses = station.queue.pauses()
    assert all(1.6 * 2**n - 0.3 <= pause <= 2.0 * 2**n + 0.3 for n, pause in enumerate(pauses[:4]))
    assert all(24 <= pause <= 30.3 for pause in pauses[4:11])
    assert len({round(pause, 3) for pause in pauses[4:11]}) > 3
    assert 0.8 <= pauses[11] <= 1.3
    assert station.recorder.told == [1]


@in_virtual_time
async def test_an_outage_is_waited_out(tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]) -> None:
    """Failures of every kind make the pauses grow; the first answer ends the outage and its pauses."""
    failures = [ServiceUnavailable("down"), ServiceRefused("no", 401), ServiceUnreadable("what?")]
    async with running(tmp_path, *failures * 4, batch(), batch(7)) as station:
        await station.queue.asked_times(3)
        assert [station.intake.down] == [True]
        await station.queue.asked_times(15)
        assert [station.intake.down] == [False]
    pauses = station.queue.pauses()
    assert pauses[0] < 2.5
    assert all(15 <= pause <= 30.3 for pause in pauses[5:12])
    assert pauses[12] < 2.5
    assert [entry.id for entry in station.taken] == [7]
    logged = [line["event"] for line in lines()]
    assert logged.count("queue.unavailable") == 12
    assert logged.count("queue.resumed") == 1
    assert {line["reason"] for line in lines() if line["event"] == "queue.unavailable"} == {
        "down",
        "no",
        "what?",
    }


@in_virtual_time
async def test_the_pause_that_the_service_asks_for_is_kept(tmp_path: Path) -> None:
    """429 with a `Retry-After` of minutes: the queue is asked again after that, and not before."""
    async with running(tmp_path, ServiceUnavailable("busy", 300.0)) as station:
        await station.queue.asked_times(2)
    assert 300 <= station.queue.pauses()[0] < 301


async def test_never_more_than_there_are_free_places(tmp_path: Path) -> None:
    """`take` is the smaller of the batch size and the free places; without any nothing is taken."""
    full, rest = batch(*range(10)), batch(*range(10, 15))
    async with running(tmp_path, full, rest, batch(15, 16), most=15) as station:
        await station.queue.asked_times(2)
        assert station.queue.asked == [10, 5]
        await station.heard_of(15)
        station.in_flight.release([0, 14])
        await station.queue.asked_times(3)
    assert station.queue.asked[:3] == [10, 5, 2]


@in_virtual_time
async def test_places_that_free_up_one_by_one_make_one_batch(tmp_path: Path) -> None:
    """Intake waits a moment for room for a whole batch instead of taking single messages."""
    async with running(tmp_path, batch(*range(10)), most=10) as station:
        await station.heard_of(10)
        await anyio.sleep(5)
        for number in range(10):
            station.in_flight.release([number])
            await anyio.sleep(0.001)
        await station.queue.asked_times(2)
        assert station.recorder.signals.short[-10:] == [
            10,
            9,
            8,
            7,
            6,
            5,
            5,
            5,
            5,
            5,
        ]  # what the line is asked for meanwhile
    assert station.queue.asked[:2] == [10, 10]


@in_virtual_time
async def test_fewer_places_than_a_batch_are_no_reason_to_wait(tmp_path: Path) -> None:
    """With `max_in_flight` below `batch_size` all places together count as a whole batch."""
    async with running(tmp_path, batch(0, 1, 2), most=3) as station:
        await station.queue.asked_times(1)
        assert station.queue.times == [0.0]
    assert station.queue.asked == [3]


@in_virtual_time
async def test_nothing_is_taken_while_the_journal_holds_too_much(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """A line that can't take more stops the taking, says so once, and goes on by itself."""

    def refuse(station: Station) -> None:
        station.recorder.blocked_by = "the disk is full"

    async with running(tmp_path, before=refuse) as station:
        await anyio.sleep(60)
        assert station.queue.asked == []
        station.recorder.blocked_by = None
        await station.queue.asked_times(1)
        assert anyio.current_time() < 62
    paused, resumed = lines()[:2]
    assert (paused["event"], paused["reason"]) == ("queue.paused", "the disk is full")
    assert resumed["event"] == "queue.resumed"


async def test_malformed_elements_are_set_aside_and_logged_without_their_content(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """They are in the journal as they came, with `dequeued` and `error` where they have an id."""
    bad = [
        Malformed('{"id": 5, "variables": "Ada"}', "settingsId: is missing", 5),
        Malformed('"Ada"', "expected an object", None),
    ]
    async with running(tmp_path, Batch([message(1)], bad)) as station:
        await station.queue.asked_times(2)
    assert station.rows("SELECT raw, reason, message_id FROM malformed ORDER BY message_id DESC") == [
        tuple(element) for element in bad
    ]
    assert station.rows("SELECT message_id, status FROM event ORDER BY seq") == [
        (1, "dequeued"),
        (5, "dequeued"),
        (5, "error"),
    ]
    logged = [line for line in lines() if line["event"] == "queue.element_malformed"]
    assert [(line["reason"], line.get("message_id")) for line in logged] == [
        ("settingsId: is missing", 5),
        ("expected an object", None),
    ]
    assert "Ada" not in json.dumps(lines())
    assert station.counted("messages_malformed_total") == 2


async def test_a_batch_of_nothing_but_malformed_elements_is_told_too(tmp_path: Path) -> None:
    """Their events wait in the outbox, so that the line has to hear of them."""
    async with running(tmp_path, Batch([], [Malformed("{}", "id: is missing", None)])) as station:
        await station.queue.asked_times(2)
    assert station.recorder.told == [0]


@in_virtual_time
async def test_an_id_seen_again_is_not_taken_again(tmp_path: Path) -> None:
    """Within a batch or later: the first one counts. A queue that only repeats itself is not hammered."""
    twice = Batch([message(1), message(1)._replace(settings_id=9), message(2)], [])
    async with running(tmp_path, twice, batch(2, 1), *[batch(*[1] * BATCH)] * 3) as station:
        await station.queue.asked_times(6)
    assert [(entry.id, entry.settings_id) for entry in station.taken] == [(1, 1), (2, 1)]
    assert station.counted("messages_taken_total") == 2
    assert station.counted("messages_repeated_total") == 33
    assert all(pause > 1.5 for pause in station.queue.pauses()[1:5])


async def test_it_is_known_whether_the_queue_was_empty(tmp_path: Path) -> None:
    """An answer without anything new is an empty one, one with something new isn't."""

    def watch(station: Station) -> None:
        station.queue.look = lambda: station.intake.found_empty

    async with running(tmp_path, batch(1), batch(), batch(1), batch(2), before=watch) as station:
        await station.queue.asked_times(5)
    assert station.queue.looks[:5] == [False, False, True, True, False]


async def test_stopping_finishes_the_take_that_is_under_way(tmp_path: Path) -> None:
    """What the queue has given is in the journal when intake ends, and nothing more is asked for."""
    async with running(tmp_path, batch(*range(10))) as station:
        await station.queue.asked_times(1)
        station.intake.stop()
    assert len(station.queue.asked) == 1
    assert station.rows("SELECT count(*) FROM message") == [(10,)]


@in_virtual_time
async def test_stopping_ends_every_pause(tmp_path: Path) -> None:
    """A worker that ends doesn't sit out the pause after a failure."""
    async with running(tmp_path, ServiceUnavailable("down", 86_400.0)) as station:
        await station.queue.asked_times(1)
    assert anyio.current_time() < 1


def broken(*numbers: int) -> Batch:
    """What came of an answer that was cut off."""
    return Batch([message(number) for number in numbers], [], ServiceUnavailable("cut off"))


async def test_a_batch_that_breaks_off_is_kept_and_its_loss_is_told(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """What was whole goes the way of any message; the log, the metrics and the journal tell of the rest."""
    async with running(tmp_path, broken(1, 2), broken(), batch()) as station:
        await station.queue.asked_times(3)
    assert [entry.id for entry in station.taken] == [1, 2]
    told = [line for line in lines() if line["event"] == "queue.batch_lost"]
    assert [(line["asked"], line["kept"], line["level"]) for line in told] == [
        (10, 2, "error"), (5, 0, "error"),
    ]  # fmt: skip
    assert {line["reason"] for line in told} == {"cut off"}
    assert station.counted("queue_batches_lost_total") == 2
    assert audit_journal(station.path).lost.batches == 2
    assert audit_journal(station.path).is_balanced


@in_virtual_time
async def test_after_a_batch_without_anything_the_queue_counts_as_down(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """Readiness says so until something comes; the pauses grow as in any outage."""
    async with running(tmp_path, *[broken()] * 6, broken(1), batch()) as station:
        await station.queue.asked_times(6)
        assert [station.intake.down, station.intake.found_empty] == [True, False]
        await station.queue.asked_times(8)
        assert [station.intake.down] == [False]
    assert 10 < station.queue.pauses()[5] < 30.3
    assert [line["event"] for line in lines()].count("queue.resumed") == 1


@in_virtual_time
async def test_a_batch_that_does_not_come_whole_makes_the_next_ones_smaller(tmp_path: Path) -> None:
    """Each one halves what is asked for; full answers bring it back, slowly near the size that failed."""
    numbers = iter(range(10_000))

    def full(size: int) -> Batch:
        return batch(*[next(numbers) for _ in range(size)])

    script = [broken(), broken(), full(2), *[full(4) for _ in range(CALM)], full(5)]
    async with running(tmp_path, *script, most=10_000) as station:
        await station.queue.asked_times(len(script))
    assert station.queue.asked[: len(script)] == [10, 5, 2, *[4] * CALM, 5]


@in_virtual_time
async def test_a_gateway_that_waits_in_vain_for_the_service_makes_the_next_ones_smaller(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """504 and 408 mean that a batch takes too long; 503 says nothing of its size, and none is lost."""
    script = [ServiceUnavailable("no", None, status) for status in (504, 503, 408)]
    async with running(tmp_path, *script, batch()) as station:
        await station.queue.asked_times(4)
    assert station.queue.asked[:4] == [10, 5, 5, 2]
    assert "queue.batch_lost" not in [line["event"] for line in lines()]


def test_the_size_that_failed_is_approached_slowly_and_an_outage_is_forgotten_fast() -> None:
    """A size that fails may lose messages; that even one message didn't come says nothing of sizes."""
    size = TakeSize(100)
    size.fell_short(100)
    assert size.now == 50
    rounds = 0
    while size.now < 100:
        size.came_whole(size.now, size.now)
        rounds += 1
    assert rounds == 7 * CALM
    for _ in range(8):
        size.fell_short(size.now)
    assert size.now == 1
    for _ in range(7):
        size.came_whole(size.now, size.now)
    assert size.now == 100


def test_an_answer_with_less_than_was_asked_for_says_nothing_of_larger_ones() -> None:
    """Only full ones make the next ones larger, and only those that asked for all there was to ask for."""
    size = TakeSize(100)
    size.fell_short(100)
    for _ in range(100):
        size.came_whole(50, 49)
        size.came_whole(7, 7)
    assert size.now == 50


def nameless(count: int, *numbers: int) -> Batch:
    """Elements that can't be reported, and some messages."""
    bad = [Malformed(f'"{number}"', "expected an object", None) for number in range(count)]
    return Batch([message(number) for number in numbers], bad)


@in_virtual_time
async def test_what_is_behind_elements_without_an_id_is_taken_too(tmp_path: Path) -> None:
    """While the queue gives some, as many more are asked for, and what they bring is asked for at once."""
    script = nameless(10), nameless(20), nameless(25, 1, 2, 3, 4, 5), nameless(25, *range(6, 16)), batch()
    async with running(tmp_path, *script) as station:
        await station.queue.asked_times(6)
    assert station.queue.asked[:6] == [10, 20, 30, 35, 35, 10]
    assert station.queue.times[3] < 1
    assert len(station.taken) == 15


@in_virtual_time
async def test_no_more_than_a_thousand_are_taken_beyond_a_batch(tmp_path: Path) -> None:
    """However many can't be reported; a queue that holds nothing else is not hammered."""
    async with running(tmp_path, nameless(5000), *[nameless(1010)] * 3) as station:
        await station.queue.asked_times(4)
    assert station.queue.asked[:4] == [10, 1010, 1010, 1010]
    assert all(pause > 1.5 for pause in station.queue.pauses()[1:3])


async def test_without_places_nothing_is_taken_for_elements_without_an_id_either(tmp_path: Path) -> None:
    """They come on top of the places that there are, never instead of them."""
    full = Batch([message(number) for number in range(7)], nameless(3).malformed)
    async with running(tmp_path, full, batch(*range(10, 13)), most=7) as station:
        await station.heard_of(7)
        await anyio.wait_all_tasks_blocked()
        assert station.queue.asked == [7]
        station.in_flight.release([0])
        await station.queue.asked_times(2)
    assert station.queue.asked == [7, 4]


async def test_a_malformed_element_that_comes_again_is_not_logged_again(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """A queue that can't be told of it gives it with each answer: one line says it, the metric counts."""
    async with running(tmp_path, nameless(1), nameless(1, 1), nameless(2, 2)) as station:
        await station.queue.asked_times(4)
    assert [line["event"] for line in lines()].count("queue.element_malformed") == 2
    assert station.counted("messages_malformed_total") == 4


def test_places() -> None:
    """A message holds one place however often it is held, and frees one however often it is freed."""
    in_flight = InFlightLimit(3)
    in_flight.hold([1, 2])
    in_flight.hold([2])
    assert (in_flight.held, in_flight.free, in_flight.most) == (2, 1, 3)
    in_flight.hold([3, 4])
    assert (in_flight.held, in_flight.free) == (4, 0)
    in_flight.release([4, 4, 9])
    assert (in_flight.held, in_flight.free) == (3, 0)
