"""Intake: how many are taken and when, and that all that was taken is in the journal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from deliveryd.errors import (
    ServiceRefused,
    ServiceUnavailable,
    ServiceUnreadable,
)
from deliveryd.model import Malformed
from deliveryd.service.batch import Batch
from deliveryd.service.caller import Ready
from support.intake_station import (
    BATCH,
    ScriptedQueue,
    Station,
    batch,
    in_virtual_time,
    running,
)
from support.logs import LogLines, log_lines
from support.messages import queued_message as message

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["virtual time", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Virtual time, where commits are made in the event loop; and asyncio as it is."""
    if request.param == "asyncio":
        return "asyncio", {}
    return "trio", {"clock": MockClock(autojump_threshold=0)}


@pytest.fixture
def lines() -> Iterator[LogLines]:
    """What was logged so far."""
    with log_lines("debug") as logged:
        yield logged


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
    assert station.counted('queue_takes_total{batch="full"}') == 3
    assert station.counted('queue_takes_total{batch="short"}') == 1


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
        assert station.signals.short[-10:] == [
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
    _created, paused, resumed = lines()[:3]
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


class SlowQueue(ScriptedQueue):
    """Calls `ready` before it answers, and once more after each `again`."""

    def __init__(self) -> None:
        super().__init__(batch(1))
        self.requests = 0
        self.again = anyio.Event()
        self.answer = anyio.Event()

    async def take(self, count: int, ready: Ready | None) -> Batch:
        assert ready is not None
        await ready()
        self.requests += 1
        await self.again.wait()
        await ready()
        self.requests += 1
        await self.answer.wait()
        return await super().take(count, ready)


@in_virtual_time
async def test_an_answer_is_waited_for_as_long_as_its_request_had(tmp_path: Path) -> None:
    """A reload that shortens the time-out doesn't cost the batch that was asked for before it."""
    queue = SlowQueue()
    async with running(tmp_path, queue=queue) as station:
        queue.again.set()
        while queue.requests < 2:
            await anyio.lowlevel.checkpoint()
        station.intake.adopt(
            batch_size=BATCH, take_ahead=0, poll_interval=1.0, max_poll_interval=30.0, answered_within=1.0
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(station.intake.end)
            await anyio.sleep(40)
            assert 19 < station.intake.answer_due <= 20
            queue.answer.set()
            await station.heard_of(1)
    assert (station.intake.answer_due, station.intake.lost_a_batch) == (0.0, False)


@in_virtual_time
async def test_a_batch_is_recorded_after_the_process_was_suspended(tmp_path: Path) -> None:
    """A process that ends and is suspended meanwhile has passed all its deadlines when it resumes."""
    queue = SlowQueue()
    async with running(tmp_path, queue=queue) as station:
        queue.again.set()
        while queue.requests < 2:
            await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(station.intake.end)
            await wait_all_tasks_blocked()
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, MockClock)
            clock.jump(3600)
            queue.answer.set()
    assert (station.rows("SELECT id FROM message"), station.intake.lost_a_batch) == ([(1,)], False)


@in_virtual_time
async def test_an_end_waits_for_an_answer_only_so_long(tmp_path: Path) -> None:
    """A batch whose answer doesn't come in time is given up, and that is known."""
    queue = SlowQueue()
    async with running(tmp_path, queue=queue) as station:
        queue.again.set()
        while queue.requests < 2:
            await anyio.lowlevel.checkpoint()
        await station.intake.end()
    assert (anyio.current_time() < 70, station.intake.lost_a_batch) == (True, True)


async def test_a_stopped_intake_repeats_no_request(tmp_path: Path) -> None:
    """What is asked for after the drain began would bound the worker's end anew; no batch is lost by it."""
    queue = SlowQueue()
    async with running(tmp_path, queue=queue) as station:
        while not queue.requests:
            await anyio.lowlevel.checkpoint()
        station.intake.stop()
        queue.again.set()
    assert (queue.requests, station.intake.lost_a_batch) == (1, False)


@in_virtual_time
async def test_stopping_ends_every_pause(tmp_path: Path) -> None:
    """A worker that ends doesn't sit out the pause after a failure."""
    async with running(tmp_path, ServiceUnavailable("down", 86_400.0)) as station:
        await station.queue.asked_times(1)
    assert anyio.current_time() < 1
