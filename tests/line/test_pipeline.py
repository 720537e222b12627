"""The line in virtual time: who holds up whom, when it is idle, and what a crash leaves to the next run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import httpx
import pytest
import trio

from deliveryd.channels.base import Accepted, TryAgain, Verdict
from deliveryd.directory.base import Terms
from deliveryd.directory.remote import RemoteDirectory
from deliveryd.errors import DirectoryUnavailable
from deliveryd.model import Customer, format_instant
from support.messages import message
from support.virtual import START, VirtualWorld, live

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello {word}"}}}})


NAMED = json.dumps({"content": {"en": {"sms": {"text": "hello {customer.name}"}}}})


EMAIL = """
[channels.email]
adapter = "http"
url = "http://provider/email"
json = { text = "{content.body}" }
"""


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """A world with settings 1 and an empty queue."""
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = SMS
    return world


def sent(world: VirtualWorld, channel: str = "sms") -> Counter[int]:
    """How often each message was sent."""
    return Counter(dispatch.entry.id for _, dispatch in world.channels[channel].attempts)


# One thing broken stays one thing


@pytest.mark.slow
def test_settings_that_hang_hold_up_their_own_messages_only(world: VirtualWorld) -> None:
    """While one id's settings don't answer at all, the others are fetched and sent within seconds."""
    world.service.settings[2] = SMS
    world.service.enqueue(*(message(id_, 1 + id_ % 2) for id_ in range(1, 101)))
    work = world.service.handle

    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/settings/2" and trio.current_time() < 600:
            await trio.sleep_forever()
        return work(request)

    world.service.handle = handle  # type: ignore[method-assign, assignment]
    live(world.run_until_idle)
    at = {dispatch.entry.id: when for when, dispatch in world.channels["sms"].attempts}
    assert max(at[id_] for id_ in range(2, 101, 2)) < 5
    assert min(at[id_] for id_ in range(1, 101, 2)) > 600
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 101))


class Source:
    """A source of customers, each called Ann, that can't answer before its time."""

    batch_size = 100

    def __init__(self, opens_at: float) -> None:
        self.opens_at = opens_at
        self.asked: list[float] = []

    async def look_up(self, ids: Collection[int]) -> Mapping[int, Customer]:
        self.asked.append(trio.current_time())
        if trio.current_time() < self.opens_at:
            raise DirectoryUnavailable("the directory is being moved")
        return {id_: Customer(id_, {"name": "Ann"}) for id_ in ids}

    async def probe(self) -> str | None:
        return None

    async def aclose(self) -> None: ...


def remote(source: Source, timeout: float = 5.0) -> RemoteDirectory:
    return RemoteDirectory(source, Terms(cache_ttl=300.0, timeout=timeout, concurrency=10))


@pytest.mark.slow
def test_without_its_directory_a_message_waits_and_is_not_sent_to_nobody(world: VirtualWorld) -> None:
    """It is asked again every few seconds, not in a storm, and no error is reported meanwhile."""
    source = Source(opens_at=300.0)
    world.directory = remote(source)
    world.service.settings[1] = NAMED
    world.service.enqueue(*(message(id_) for id_ in range(1, 11)))
    live(world.run_until_idle)
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 11))
    ((at, first), *_) = world.channels["sms"].attempts
    assert first.rendered.fields == {"text": "hello Ann"}
    assert 300 < at < 310
    assert 30 < len(source.asked) < 100


@pytest.mark.slow
def test_messages_that_need_no_customer_go_while_the_directory_is_away(world: VirtualWorld) -> None:
    """Of the same settings too, where the message's own variables say the name."""
    source = Source(opens_at=300.0)
    world.directory = remote(source)
    world.service.settings[2] = NAMED
    named = {**message(3, 2), "variables": {"customer.name": "Bo"}}
    world.service.enqueue(message(1), message(2, 2), named, message(4))
    live(world.run_until_idle)
    at = {dispatch.entry.id: when for when, dispatch in world.channels["sms"].attempts}
    assert max(at[1], at[3], at[4]) < 2
    assert 300 < at[2] < 310
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in (1, 2, 3, 4))


def test_a_message_expires_while_its_directory_is_away(world: VirtualWorld) -> None:
    """That it is over can be said without the customer."""
    world.directory = remote(Source(opens_at=1e9))
    settings = json.loads(NAMED) | {"delivery": {"expiresAt": format_instant(START + 60_000_000)}}
    world.service.settings[1] = json.dumps(settings)
    world.service.enqueue(message(1))
    assert 60 < live(world.run_until_idle) < 70
    assert world.service.statuses(1) == ["dequeued", "error"]


def test_a_slow_look_up_holds_up_nobody_else(world: VirtualWorld) -> None:
    """Neither messages of other settings nor those of other customers, where each is asked for alone."""

    class Slow(Source):
        batch_size = 1

        async def look_up(self, ids: Collection[int]) -> Mapping[int, Customer]:
            await trio.sleep(60 if 1 in ids else 0)
            return await super().look_up(ids)

    world.directory = remote(Slow(opens_at=0.0), timeout=100.0)
    world.service.settings[2] = world.service.settings[1] = NAMED
    world.service.enqueue(
        message(1), *({**message(id_, 1 + id_ % 2), "customerId": id_} for id_ in range(2, 51))
    )
    live(world.run_until_idle)
    at = {dispatch.entry.id: when for when, dispatch in world.channels["sms"].attempts}
    assert max(at[id_] for id_ in range(2, 51)) < 2
    assert at[1] > 60


@pytest.mark.slow
def test_too_many_waiting_messages_stop_the_taking_until_they_have_gone(world: VirtualWorld) -> None:
    """A journal that fills with what can't be sent takes no more in than it is allowed to."""
    world.add("[queue]\nbatch_size = 5\nmax_in_flight = 10\nmax_waiting = 20\n")
    world.service.enqueue(*(message(id_) for id_ in range(1, 61)))
    channel = world.channels["sms"]
    channel.verdict = lambda dispatch: (
        TryAgain("busy", after=60.0) if trio.current_time() < 200 else Accepted(dispatch.key)
    )
    taken: list[int] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.run_until_idle)
            await trio.sleep(150)
            taken.append(60 - world.service.offers.waiting)

    live(run)
    assert 20 <= taken[0] <= 30
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 61))
    assert not world.service.offers.waiting


@pytest.mark.slow
def test_messages_that_found_no_room_in_their_lane_are_all_sent_once(world: VirtualWorld) -> None:
    """A dispatcher has half of six places; what it can't hold is parked in the journal and comes back."""
    world.add(f"concurrency = 2\n{EMAIL}[queue]\nbatch_size = 6\nmax_in_flight = 6\n")
    world.service.enqueue(*(message(id_) for id_ in range(1, 61)))
    world.channels["sms"].seconds = 1.0
    seconds = live(world.run_until_idle)
    assert sent(world) == dict.fromkeys(range(1, 61), 1)
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 61))
    assert 30 < seconds < 36


@pytest.mark.slow
def test_places_that_are_waited_for_do_not_wait_for_the_flush_interval(world: VirtualWorld) -> None:
    """While the queue has more and no place is free, ends are reported once they make room for a take."""
    world.add('[queue]\nbatch_size = 5\nmax_in_flight = 10\n[events]\nflush_interval = "10s"\n')
    world.service.enqueue(*(message(id_) for id_ in range(1, 201)))
    world.channels["sms"].seconds = 0.1
    assert live(world.run_until_idle) < 20 * 0.5 + 2 * 10
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 201))
    posts = sum(path == "/events" for _, path in world.service.asked)
    assert posts <= 2 * 200 / 5 + 2


def test_ids_that_the_queue_gives_again_while_they_are_under_way_are_sent_once(world: VirtualWorld) -> None:
    """In the same batch, while the attempt is under way, while it waits for a retry, and after its end."""
    channel = world.channels["sms"]
    channel.seconds = 2.0
    verdicts: list[Verdict] = [TryAgain("busy", after=30.0), Accepted("p1")]
    channel.verdict = lambda _dispatch: verdicts.pop(0)

    async def run() -> None:
        async with world.at_work():
            world.service.enqueue(message(1), message(1))
            for _ in range(40):
                await trio.sleep(2)
                world.service.enqueue(message(1))
            await trio.sleep(60)

    live(run)
    assert sent(world) == {1: 2}
    assert not verdicts
    assert world.service.statuses(1)[:2] == ["dequeued", "dequeued"]
    assert "error" not in world.service.statuses(1)
    first = world.service.statuses(1).index("sent")
    assert set(world.service.statuses(1)[first:]) == {"dequeued", "sent"}


# --until-idle


def test_an_empty_queue_is_idle_at_once(world: VirtualWorld) -> None:
    """One empty answer of the queue is enough."""
    assert live(world.run_until_idle) < 1
    assert [path for _, path in world.service.asked] == ["/queue"]


def test_elements_that_are_no_messages_are_reported_before_the_end(world: VirtualWorld) -> None:
    """The one with an id ends in an error, the others are set aside, and the worker stays for the error."""
    world.service.enqueue('{"id": 5, "settingsId": "x"}', "17", '"text"', "null")
    world.service.trouble = lambda request: (
        httpx.Response(503) if request.url.path == "/events" and trio.current_time() < 100 else None
    )
    assert 100 < live(world.run_until_idle) < 140
    assert world.service.statuses(5) == ["dequeued", "error"]
    assert len(world.service.events) == 2


@pytest.mark.slow
def test_it_is_not_idle_while_an_event_cannot_be_posted(world: VirtualWorld) -> None:
    """The message was sent in the first second; the worker stays until the service has heard of it."""
    world.service.enqueue(message(1))
    world.service.trouble = lambda request: (
        httpx.Response(503) if b'"sent"' in request.content and trio.current_time() < 500 else None
    )
    assert live(world.run_until_idle) > 500
    assert world.channels["sms"].attempts[0][0] < 2
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_it_is_not_idle_while_the_queue_gives_no_answer(world: VirtualWorld) -> None:
    """That the queue is empty has to be seen."""
    world.service.trouble = lambda _request: httpx.Response(503) if trio.current_time() < 500 else None
    assert live(world.run_until_idle) > 500


def slow_takes(world: VirtualWorld, seconds: float) -> None:
    """From the third on, a take is carried out at its beginning and answered after so many seconds."""
    work = world.service.handle

    async def handle(request: httpx.Request) -> httpx.Response:
        answer = work(request)
        takes = sum(path == "/queue" for _, path in world.service.asked)
        if request.url.path == "/queue" and takes > 2:
            await trio.sleep(seconds)
        return answer

    world.service.handle = handle  # type: ignore[method-assign, assignment]


def test_what_a_last_take_brings_is_sent_before_the_end(world: VirtualWorld) -> None:
    """The line runs dry while a take is under way: its message is neither lost nor left lying."""
    slow_takes(world, 8.0)
    world.channels["sms"].seconds = 5.0

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            world.service.enqueue(message(1))
            nursery.start_soon(world.run_until_idle)
            await trio.sleep(1.9)
            world.service.enqueue(message(2))

    live(run)
    assert not world.service.offers.waiting
    assert world.service.statuses(2) == ["dequeued", "sent"]


def test_a_take_under_way_is_finished_when_the_worker_is_stopped(world: VirtualWorld) -> None:
    """The queue may never give it again: it is in the journal, reported, and the next run sends it."""
    slow_takes(world, 8.0)

    async def run() -> None:
        async with world.at_work():
            await trio.sleep(3)
            world.service.enqueue(message(2))
            await trio.sleep(4)

    live(run)
    assert world.service.statuses(2) == ["dequeued"]
    assert not world.channels["sms"].attempts
    live(world.run_until_idle)
    assert world.service.statuses(2) == ["dequeued", "sent"]
