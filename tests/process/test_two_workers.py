"""Two workers on one real PostgreSQL database, one service, one provider: one dies, the other goes on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import psycopg
import pytest

from deliveryd.channels.base import Accepted, Dispatch, InDoubt, TryAgain, Verdict
from deliveryd.errors import JournalError
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.model import SECOND, Receipt, Reported
from support.logs import log_lines
from support.postgres import new_database
from support.two_workers import LEASE, Place, Worker, both, on_database
from support.virtual import SteppingClock, VirtualClock

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    with on_database(url):
        yield Place(tmp_path, url)


async def test_two_workers_share_a_queue_and_send_each_message_once(place: Place) -> None:
    """The queue shares out the work; both end with nothing left, and the account is balanced."""
    place.enqueue(*range(1, 201))
    async with both(place):
        await place.until(lambda: place.ended(*range(1, 201)))
        assert place.count("SELECT count(*) FROM main.log WHERE taken > 0") == 2
    assert Counter(dispatch.entry.id for _, dispatch in place.attempts) == Counter(range(1, 201))
    assert all(place.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 201))
    account = place.one.running.account or place.other.running.account
    assert account is not None
    assert account.gap == 0


async def test_what_a_killed_worker_had_goes_on_with_the_other_one(place: Place) -> None:
    """Whatever state a message was in: it is sent, under one key, and reported in order."""
    held = set(range(1, 21))

    async def send(dispatch: Dispatch) -> Verdict:
        place.attempts.append((anyio.current_time(), dispatch))
        if dispatch.entry.id % 2:
            await anyio.sleep_forever()  # cut off by the kill: its outcome is unknown
        return TryAgain("busy", after=5.0)

    place.one.channel.send = send  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        await place.one.run(tasks)
        place.enqueue(*held)
        await place.until(lambda: len(place.keys()) == 20)
        await place.until(lambda: place.one.running.parts.memory.backlog.count == 10)
        await place.other.run(tasks)
        await anyio.sleep(1)
        assert not place.service.events_of(1, "sent")
        place.one.kill()
        with anyio.fail_after(LEASE + 10):
            await place.until(lambda: place.ended(*held))
        place.other.running.stop()
    assert {len(keys) for keys in place.keys().values()} == {1}
    for id_ in held:
        assert list(dict.fromkeys(place.service.statuses(id_))) == ["dequeued", "sent"]
    assert place.other.running.account is not None
    assert place.other.running.account.states == {}
    assert place.other.running.account.gap == 0


async def test_messages_that_waited_for_an_answer_to_a_killed_worker_are_asked_for_anew(place: Place) -> None:
    """Nobody else knows that it asked: they would wait for an hour."""

    def trouble(request: httpx.Request) -> httpx.Response | None:
        asked = request.url.path == "/settings/1"
        return httpx.Response(503) if asked and not place.one.is_killed else None

    place.service.trouble = trouble
    async with anyio.create_task_group() as tasks:
        await place.one.run(tasks)
        place.enqueue(1, 2, 3)
        await place.until(lambda: place.one.running.parts.memory.backlog.count == 3)
        await place.other.run(tasks)
        place.one.kill()
        await place.until(lambda: place.ended(1, 2, 3))
        place.other.running.stop()


async def test_a_worker_that_was_fenced_ends_and_sends_nothing_more(place: Place) -> None:
    """Its log says why; the other one repeats what was under way, under the same keys."""

    async def send(dispatch: Dispatch) -> Verdict:
        place.attempts.append((anyio.current_time(), dispatch))
        await anyio.sleep_forever()
        raise AssertionError

    place.one.channel.send = send  # type: ignore[method-assign]
    with log_lines("error") as lines:
        async with anyio.create_task_group() as tasks:
            await place.one.run(tasks)
            place.enqueue(1, 2, 3)
            await place.until(lambda: len(place.keys()) == 3)
            await place.other.run(tasks)
            with psycopg.connect(place.url, autocommit=True) as db:
                db.execute(
                    "UPDATE main.worker SET ended = 'fenced'"
                    " WHERE id = (SELECT min(id) FROM main.worker WHERE id > 0)"
                )
            await place.until(lambda: place.one.error is not None)
            await place.until(lambda: place.ended(1, 2, 3))
            place.other.running.stop()
        [lost] = [line for line in lines() if line["event"] == "journal.lost"]
    assert lost["reason"].startswith("another worker took over")
    assert isinstance(place.one.error, BaseExceptionGroup)
    assert place.one.error.subgroup(JournalError) is not None
    assert {len(keys) for keys in place.keys().values()} == {1}


def change_at_the_next_take(place: Place, statement: str) -> None:
    """Change the database once the first worker has asked for a batch, before the service answers."""

    def trouble(request: httpx.Request) -> None:
        if request.url.path == "/queue" and place.service.offers.waiting:
            place.service.trouble = lambda _request: None
            with psycopg.connect(place.url, autocommit=True) as db:
                db.execute(statement)

    place.service.trouble = trouble


async def test_a_batch_of_a_worker_that_was_fenced_meanwhile_is_recorded(place: Place) -> None:
    """Its process stood still between request and answer: nobody else will ever have what it has."""
    async with anyio.create_task_group() as tasks:
        await place.one.run(tasks)
        await place.until(lambda: place.one.running.parts.recorder.recovered)
        change_at_the_next_take(place, "UPDATE main.worker SET ended = 'fenced' WHERE ended IS NULL")
        place.enqueue(*range(1, 6))
        await place.until(lambda: place.one.error is not None)
        assert place.recorded() == [1, 2, 3, 4, 5]
        await place.other.run(tasks)
        await place.until(lambda: place.ended(*range(1, 6)))
        place.other.running.stop()
    assert place.count("SELECT sum(lost)::bigint FROM main.log") == 0


async def test_a_batch_that_cannot_be_recorded_any_more_is_told_and_counted(place: Place) -> None:
    """The database lost commits, so no worker may begin: the log and the audit tell of the batch."""
    with log_lines("error") as lines:
        async with anyio.create_task_group() as tasks:
            await place.one.run(tasks)
            await place.until(lambda: place.one.running.parts.recorder.recovered)
            change_at_the_next_take(place, "UPDATE main.worker SET commits = 0 WHERE ended IS NULL")
            place.enqueue(*range(1, 6))
            await place.until(lambda: place.one.error is not None)
        [lost] = [line for line in lines() if line["event"] == "queue.batch_lost"]
    assert (lost["asked"], lost["kept"]) == (5, 0)
    assert place.recorded() == []
    assert place.count("SELECT sum(lost)::bigint FROM main.log") == 1


async def test_a_retry_of_a_worker_whose_clock_is_an_hour_ahead_is_due_in_time(place: Place) -> None:
    """Due times go by the database's clock, whichever worker takes the message then."""

    place.one.clock = SteppingClock(3600 * SECOND)
    place.one.channel.verdict = lambda _dispatch: TryAgain("busy", only_this=True)
    async with anyio.create_task_group() as tasks:
        await place.one.run(tasks)
        place.enqueue(*range(1, 41))
        await place.until(lambda: len(place.keys()) == 40)
        await place.other.run(tasks)
        place.one.running.stop()
        await place.until(lambda: place.ended(*range(1, 41)))
        place.other.running.stop()


async def test_a_pause_that_one_worker_is_ordered_holds_messages_at_both(place: Place) -> None:
    """An operator speaks to whichever worker is at hand."""

    async def order(verb: Action) -> None:
        handler = place.one.running._orders
        await handler.carry_out(Order(verb, ItemKind.CHANNEL, ("sms",)), "ops")

    async with both(place):
        await place.until(lambda: place.one.running.parts.recorder.recovered)
        await order(Action.PAUSE)
        pauses = place.other.running.parts.memory.pauses
        await place.until(lambda: pauses.any, seconds=3.0)
        place.enqueue(*range(1, 41))
        memories = [worker.running.parts.memory for worker in (place.one, place.other)]
        await place.until(lambda: all(each.backlog.paused == 40 for each in memories))
        assert not place.attempts
        await order(Action.RESUME)
        await place.until(lambda: place.ended(*range(1, 41)))
    assert Counter(dispatch.entry.id for _, dispatch in place.attempts) == Counter(range(1, 41))


async def test_a_receipt_that_comes_to_the_other_worker_is_told_in_order(place: Place) -> None:
    """Any worker takes any receipt; the service hears `delivered` once, after `sent`."""
    place.one.channel.verdict = place.other.channel.verdict = lambda dispatch: Accepted(
        f"p{dispatch.entry.id}"
    )
    async with both(place):
        place.enqueue(*range(1, 21))
        await place.until(lambda: place.ended(*range(1, 21)))
        now = VirtualClock().now()
        for worker, ids in ((place.one, range(1, 11)), (place.other, range(11, 21))):
            reports: list[Reported] = [
                Receipt(
                    "sms", f"p{id_}", delivered=True, status="delivered", reported_at=now, received_at=now
                )
                for id_ in ids
            ]
            await worker.running.parts.recorder.receive(reports)
        await place.until(lambda: all(place.service.events_of(id_, "delivered") for id_ in range(1, 21)))
    for id_ in range(1, 21):
        assert place.service.statuses(id_) == ["dequeued", "sent", "delivered"]


async def test_a_doubt_that_both_find_at_their_start_is_repeated_by_one(place: Place) -> None:
    """The other one's step isn't taken, and counts nothing."""
    place.one.channel.verdict = lambda _dispatch: InDoubt("cut off")
    held = 'on_in_doubt = "hold"\n'
    for worker in (place.one, place.other):
        worker.write(worker.path.read_text().replace("timeout =", f"{held}timeout ="))
    async with anyio.create_task_group() as tasks:
        await place.one.run(tasks)
        place.enqueue(*range(1, 4))
        await place.until(lambda: place.count("SELECT count(*) FROM main.message WHERE state = 5") == 3)
        place.one.running.stop()
    again = Worker(place.one.folder / "again", place.one)
    place.other.write(place.other.path.read_text().replace(held, ""))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(again.run, tasks)
        await place.other.run(tasks)
        await place.until(lambda: place.ended(*range(1, 4)))
        again.running.stop()
        place.other.running.stop()
    assert {len(keys) for keys in place.keys().values()} == {1}
    assert set(Counter(dispatch.entry.id for _, dispatch in place.attempts).values()) == {2}
    assert again.error is place.other.error is None


async def test_until_idle_waits_for_what_the_other_worker_has(place: Place) -> None:
    """It ends when the journal has nothing left to do, whoever does it."""
    place.one.channel.seconds = 2.0
    async with anyio.create_task_group() as tasks:
        await place.one.run(tasks)
        place.enqueue(*range(1, 6))
        await place.until(lambda: place.one.channel.under_way == 5)
        await place.other.run(tasks, until_idle=True)
        await place.until(lambda: place.other.running.account is not None)
        assert place.ended(*range(1, 6))
        place.one.running.stop()


async def test_until_idle_waits_for_what_a_killed_worker_left(place: Place) -> None:
    """Also while that one's lease isn't over, and nobody may take over."""
    place.one.channel.seconds = 60.0
    async with anyio.create_task_group() as tasks:
        await place.one.run(tasks)
        place.enqueue(*range(1, 6))
        await place.until(lambda: place.one.channel.under_way == 5)
        place.one.kill()
    async with anyio.create_task_group() as tasks:
        await place.other.run(tasks, until_idle=True)
    assert place.ended(*range(1, 6))


async def test_workers_that_die_and_come_under_load_lose_nothing_and_leak_no_place(
    place: Place, tmp_path: Path
) -> None:
    """Eight ends, most of them without a word, at any moment; each message is sent under one key, in order.

    But for what the service handed out and the worker had no time to record: the interface has no way back.
    """
    drawn = random.Random(3)
    workers: list[Worker] = []

    def verdict(dispatch: Dispatch) -> Verdict:
        fate = drawn.random()
        if fate < 0.08:
            return InDoubt("cut off") if fate < 0.03 else TryAgain("busy", only_this=True)
        return Accepted(f"p{dispatch.entry.id}")

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            worker = Worker(tmp_path / f"worker{number}", place.one)
            worker.channel.seconds, worker.channel.verdict = 0.05, verdict
            await worker.run(tasks)
            workers.append(worker)
            if len(workers) < 2:
                continue
            place.enqueue(*range(100 * number + 1, 100 * number + 101))
            attempts = len(place.attempts) + drawn.randrange(1, 120)
            await place.until(lambda: len(place.attempts) >= attempts or not place.service.offers.waiting)  # noqa: B023
            if number < 9:
                victim = workers.pop(drawn.randrange(2))
                (victim.kill if drawn.random() < 0.7 else victim.running.stop)()
        await place.until(lambda: not place.service.offers.waiting)
        await place.until(lambda: place.ended(*place.recorded()), seconds=60)
        memories = [worker.running.parts.memory for worker in workers]
        await place.until(lambda: all(each.is_idle for each in memories))
        assert [worker.error for worker in workers] == [None, None]
        for worker in workers:
            worker.running.stop()
    assert {len(keys) for keys in place.keys().values()} == {1}
    for id_ in place.recorded():
        assert list(dict.fromkeys(place.service.statuses(id_))) == ["dequeued", "sent"]
    account = workers[0].running.account
    assert account is not None
    assert (account.taken, account.gap, account.states) == (len(place.recorded()), 0, {})
    assert 900 - account.taken <= 8 * 5  # one batch of each
