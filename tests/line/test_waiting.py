"""What waits for an answer waits in the journal: who holds a place meanwhile, and what wakes it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from io import StringIO
from pathlib import Path
from statistics import median

import httpx
import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, TryAgain, Verdict
from deliveryd.directory.base import Terms
from deliveryd.directory.remote import RemoteDirectory
from deliveryd.model import Customer, format_instant
from support.logs import log_lines, log_text
from support.messages import message
from support.virtual import START, VirtualWorld, live

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})
NAMED = json.dumps({"content": {"en": {"sms": {"text": "hello {customer.name}"}}}})
MAIL = json.dumps({"content": {"en": {"email": {"subject": "s", "body": "b"}}}})
EMAIL = """
[channels.email]
adapter = "http"
url = "http://provider/email"
json = { text = "{content.body}" }
"""
FAST = """
[queue]
poll_interval = "50ms"
max_poll_interval = "100ms"
[events]
flush_interval = "20ms"
"""
HEALTHY = 1_000_000
"""The first id of messages whose settings are at hand, and the id of those settings."""

SECONDS = 20
RATE = 10


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """A world with settings of its own for healthy messages, and an empty queue."""
    world = VirtualWorld(tmp_path)
    world.service.settings[HEALTHY] = SMS
    world.service.settings[1] = SMS
    return world


@pytest.mark.slow
def test_the_debug_log_has_what_a_message_waited_for(world: VirtualWorld) -> None:
    """The journal forgets it when the message goes on, and no event is reported about it."""
    hang(world, lambda settings_id: settings_id == 1, until=30.0)
    world.service.enqueue(message(1, 1))
    with log_lines("debug") as lines:
        live(world.run_until_idle)
    [waiting] = [line for line in lines() if line["event"] == "message.waiting"]
    assert (waiting["message_id"], waiting["reason"]) == (1, "waits for settings 1 from the service")
    assert world.service.statuses(1) == ["dequeued", "sent"]


def hang(world: VirtualWorld, ids: Callable[[int], bool], until: float = float("inf")) -> None:
    """Let requests for these settings hang for as long as the client waits."""
    work = world.service.handle

    async def handle(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if (
            path.startswith("/settings/")
            and ids(int(path.rpartition("/")[2]))
            and trio.current_time() < until
        ):
            with trio.move_on_after(10.0):
                await trio.sleep_forever()
            raise httpx.ReadTimeout("nothing came")
        return work(request)

    world.service.handle = handle  # type: ignore[method-assign, assignment]


def waits_of_healthy(world: VirtualWorld) -> list[float]:
    """Let healthy messages come in evenly; the seconds until each was sent, in order of length."""
    came: dict[int, float] = {}

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.supervisor().run)
            for id_ in range(HEALTHY, HEALTHY + RATE * SECONDS):
                came[id_] = trio.current_time()
                world.service.enqueue(message(id_, HEALTHY))
                await trio.sleep(1 / RATE)
            await trio.sleep(5)
            nursery.cancel_scope.cancel()

    live(run)
    at = {dispatch.entry.id: when for when, dispatch in reversed(world.channels["sms"].attempts)}
    assert came.keys() <= at.keys(), f"{len(came.keys() - at.keys())} of {len(came)} weren't sent"
    return sorted(at[id_] - came[id_] for id_ in came)


class SlowSource:
    """A source of customers that takes four seconds for an answer."""

    batch_size = 100

    def __init__(self) -> None:
        self.asked = 0

    async def look_up(self, ids: Collection[int]) -> Mapping[int, Customer]:
        self.asked += 1
        await trio.sleep(4.0)
        return {id_: Customer(id_, {"name": "Ann"}) for id_ in ids}

    async def probe(self) -> str | None:
        return None

    async def aclose(self) -> None: ...


@pytest.fixture
def log() -> Iterator[StringIO]:
    """What was logged so far."""
    with log_text("info") as stream:
        yield stream


@pytest.mark.slow
@pytest.mark.parametrize("ids", [1, 100])
def test_messages_of_healthy_settings_are_as_fast_beside_settings_that_hang(tmp_path: Path, ids: int) -> None:
    """2,500 messages of hanging settings wait in the journal; the others wait as without them."""
    waits: dict[str, list[float]] = {}
    for case in ("alone", "beside"):
        tmp_path.joinpath(case).mkdir()
        world = VirtualWorld(tmp_path / case)
        world.add(FAST)
        world.service.settings[HEALTHY] = SMS
        if case == "beside":
            hang(world, lambda id_: id_ <= ids)
            world.service.enqueue(*(message(id_, 1 + id_ % ids) for id_ in range(2500)))
        waits[case] = waits_of_healthy(world)
    alone, beside = waits["alone"], waits["beside"]
    figures = f"{median(alone):.3f}/{alone[-2]:.3f} s alone, {median(beside):.3f}/{beside[-2]:.3f} s beside"
    assert median(beside) <= 2 * median(alone), figures
    assert beside[-2] <= 2 * alone[-2], figures


@pytest.mark.slow
def test_new_settings_are_asked_for_at_once_while_a_hundred_others_hang(world: VirtualWorld) -> None:
    """Requests that hang, or are repeated, leave half of the slots to ids that weren't asked for yet."""
    world.add(FAST)
    hang(world, lambda id_: id_ <= 100)
    world.service.settings.update(dict.fromkeys(range(5001, 5101), SMS))

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.supervisor().run)
            world.service.enqueue(*(message(id_, id_) for id_ in range(1, 101)))
            await trio.sleep(60)
            world.service.enqueue(*(message(id_, id_) for id_ in range(5001, 5101)))
            await trio.sleep(5)
            nursery.cancel_scope.cancel()

    live(run)
    at = [when for when, dispatch in world.channels["sms"].attempts if dispatch.entry.id > 5000]
    assert len(at) == 100
    assert max(at) < 63


@pytest.mark.slow
def test_where_more_hang_than_there_are_slots_the_longest_request_gives_way_to_a_new_id(
    world: VirtualWorld,
) -> None:
    """Beside 1,000 ids that hang, new ones are asked for within about a second."""
    world.add(FAST)
    hang(world, lambda id_: id_ <= 1000)
    world.service.settings.update(dict.fromkeys(range(5001, 5021), SMS))
    world.service.enqueue(*(message(id_, id_) for id_ in range(1, 1001)))
    came: dict[int, float] = {}

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.supervisor().run)
            for id_ in range(5001, 5021):
                await trio.sleep(0.3)
                came[id_] = trio.current_time()
                world.service.enqueue(message(id_, id_))
            await trio.sleep(5)
            nursery.cancel_scope.cancel()

    live(run)
    waits = [when - came[dispatch.entry.id] for when, dispatch in world.channels["sms"].attempts]
    assert len(waits) == 20
    assert max(waits) < 2.0


@pytest.mark.slow
def test_messages_go_on_as_soon_as_their_settings_have_come(world: VirtualWorld) -> None:
    """All 2,500 of an id that hung for minutes are sent, once; the id was asked for alone meanwhile."""
    hang(world, lambda id_: id_ == 1, until=200.0)
    world.service.enqueue(*(message(id_) for id_ in range(2500)))
    assert 200 < live(world.run_until_idle) < 330
    assert len(world.channels["sms"].attempts) == 2500
    assert sum(path == "/settings/1" for _, path in world.service.asked) < 20
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(2500))


def test_a_restart_asks_anew_for_what_messages_wait_for(world: VirtualWorld) -> None:
    """What waited for an answer that the earlier run asked for isn't left waiting for it."""
    work = world.service.handle
    hang(world, lambda id_: id_ == 1)
    world.service.enqueue(*(message(id_) for id_ in range(50)))

    async def run() -> None:
        with trio.move_on_after(30):
            await world.run_until_idle()

    live(run)
    world.service.handle = work  # type: ignore[method-assign]
    assert live(world.run_until_idle) < 5
    assert len(world.channels["sms"].attempts) == 50


@pytest.mark.slow
def test_beside_a_directory_that_takes_four_seconds_who_needs_no_customer_is_as_fast_as_ever(
    world: VirtualWorld,
) -> None:
    """1,500 customers are asked for, a hundred at a time; the others don't wait for them."""
    world.add(FAST)
    source = SlowSource()
    world.directory = RemoteDirectory(source, Terms(cache_ttl=300.0, timeout=10.0, concurrency=2))
    world.service.settings[1] = NAMED
    world.service.enqueue(*(message(id_, 1, id_) for id_ in range(1500)))
    waits = waits_of_healthy(world)
    assert median(waits) < 0.3
    assert waits[-2] < 0.5


def test_an_answer_of_a_slow_directory_is_there_when_its_messages_are_woken(world: VirtualWorld) -> None:
    """Also where answers aren't kept: each customer is asked for once, and each message sent once."""
    source = SlowSource()
    world.directory = RemoteDirectory(source, Terms(cache_ttl=0.001, timeout=10.0, concurrency=2))
    world.service.settings[1] = NAMED
    world.service.enqueue(*(message(id_, 1, id_) for id_ in range(300)))
    assert live(world.run_until_idle) < 20
    assert sorted(dispatch.entry.id for _, dispatch in world.channels["sms"].attempts) == list(range(300))
    assert source.asked <= 6


def fails_once(world: VirtualWorld, share: int) -> dict[int, list[float]]:
    """Of each so many messages one fails at its first try; when the messages were tried."""
    tried: dict[int, list[float]] = {}
    channel = world.channels["sms"]

    def verdict(dispatch: Dispatch) -> Verdict:
        times = tried.setdefault(dispatch.entry.id, [])
        times.append(trio.current_time())
        if len(times) == 1 and dispatch.entry.id % share == 0:
            return TryAgain("busy")
        return Accepted(None)

    channel.verdict = verdict
    return tried


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 2])
def test_repeats_go_before_a_backlog_of_new_messages(world: VirtualWorld, channels: int) -> None:
    """Half of them within a second of their due time, however many messages wait to be sent first."""
    world.add('retry = { attempts = 5, base = "500ms", max = "500ms" }\nconcurrency = 10\n')
    if channels == 2:
        world.add(EMAIL)
        world.service.settings[2] = MAIL
    tried = fails_once(world, 5)
    world.service.enqueue(*(message(id_, 1 if channels == 1 or id_ % 4 else 2) for id_ in range(2000)))
    live(world.run_until_idle)
    late = sorted(times[1] - times[0] - 0.5 for times in tried.values() if len(times) == 2)
    assert len(late) > 250
    assert median(late) < 1.0
    assert late[-10] < 2.0


@pytest.mark.slow
def test_repeats_take_half_of_the_attempts_at_most_while_new_messages_wait(world: VirtualWorld) -> None:
    """A provider that keeps failing for some doesn't keep the others from their first try."""
    world.add('retry = { attempts = 9, base = "50ms", max = "50ms" }\nconcurrency = 10\n')
    world.add("breaker = { failures = 0 }\n")
    channel = world.channels["sms"]
    channel.verdict = lambda dispatch: TryAgain("busy") if dispatch.entry.id < 900 else Accepted(None)
    world.service.enqueue(*(message(id_) for id_ in range(1000)))
    live(world.run_until_idle)
    firsts: dict[int, int] = {}
    for number, (_, dispatch) in enumerate(channel.attempts):
        firsts.setdefault(dispatch.entry.id, number)
    assert max(firsts.values()) <= 2 * 1000 + 100


def test_what_has_expired_takes_no_permit_of_the_rate(world: VirtualWorld) -> None:
    """A message behind 94 that expire in the queue of a slow channel is sent as if they weren't there."""
    world.add('rate = "2/s"\n')
    expires_at = format_instant(START + 3_000_000)
    world.service.settings[2] = json.dumps({**json.loads(SMS), "delivery": {"expiresAt": expires_at}})
    world.service.enqueue(*(message(id_, 2) for id_ in range(1, 101)), message(1000))
    live(world.run_until_idle)
    at = {dispatch.entry.id: when for when, dispatch in world.channels["sms"].attempts}
    assert at[1000] < 5
    ended = [event["timestamp"] for event in world.service.events if event["status"] == "error"]
    assert len(ended) > 90
    assert max(ended) < format_instant(START + 9_000_000)


@pytest.mark.slow
def test_a_warning_says_what_most_messages_wait_for_when_half_of_the_bound_is_reached(
    world: VirtualWorld, log: StringIO
) -> None:
    """Once at a half and once at four fifths; messages that wait for settings count."""
    world.add("[queue]\nbatch_size = 10\nmax_in_flight = 20\nmax_waiting = 100\n")
    hang(world, lambda id_: id_ == 1, until=300.0)
    world.service.enqueue(*(message(id_) for id_ in range(120)))
    live(world.run_until_idle)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    told = [line for line in lines if line["event"] == "journal.filling"]
    assert [line["level"] for line in told] == ["warning", "warning"]
    assert 50 <= told[0]["waiting"] < 80 <= told[1]["waiting"]
    assert all("settings 1" in line["reason"] and line["limit"] == 100 for line in told)
    assert sum(line["event"] == "queue.paused" for line in lines) >= 1


def test_a_long_pause_of_one_id_is_over_when_the_service_answers_for_another(world: VirtualWorld) -> None:
    """A `Retry-After` of a day is believed for an hour at most, and while nothing else answers."""
    world.service.settings[2] = SMS
    answers = iter([httpx.Response(503, headers={"Retry-After": "86400"})])
    world.service.trouble = lambda request: next(answers, None) if request.url.path == "/settings/1" else None

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            world.service.enqueue(message(1, 1))
            nursery.start_soon(world.run_until_idle)
            await trio.sleep(30)
            world.service.enqueue(message(2, 2))

    assert live(run) < 100
    assert len(world.channels["sms"].attempts) == 2


@pytest.mark.slow
def test_an_hour_is_the_longest_pause_that_the_service_can_ask_for(world: VirtualWorld) -> None:
    """With nothing else to learn from, the id is asked for again after an hour."""
    answers = iter([httpx.Response(503, headers={"Retry-After": "86400"})])
    world.service.trouble = lambda request: next(answers, None) if request.url.path == "/settings/1" else None
    world.service.enqueue(message(1, 1))
    assert 3600 <= live(world.run_until_idle) < 3700


@pytest.mark.slow
def test_a_channel_that_works_again_leaves_alone_what_its_provider_asked_to_wait(world: VirtualWorld) -> None:
    """An hour was asked for while the provider was down, which may be about that recipient alone."""
    channel = world.channels["sms"]
    world.add('concurrency = 1\nbreaker = { failures = 3, pause = "10s", max_pause = "20s" }\n')
    channel.verdict = lambda dispatch: (
        TryAgain("down", after=3600.0 if dispatch.entry.id == 1 else None)
        if trio.current_time() < 60
        else Accepted(None)
    )
    world.service.enqueue(*(message(id_) for id_ in range(1, 21)))
    assert 3600 < live(world.run_until_idle) < 3700
    at = {dispatch.entry.id: at for at, dispatch in channel.attempts}
    assert all(at[id_] < 200 for id_ in range(2, 21))
    assert at[1] > 3600


@pytest.mark.slow
def test_a_restart_leaves_a_provider_alone_that_asked_for_it(world: VirtualWorld) -> None:
    """A hundred were told to come in an hour, which goes on over the restart."""
    channel = world.channels["sms"]
    channel.verdict = lambda _dispatch: TryAgain("provider answered 429", after=3600.0)
    world.service.enqueue(*(message(id_) for id_ in range(100)))

    async def run(seconds: float) -> None:
        with trio.move_on_after(seconds):
            await world.run_until_idle()

    live(lambda: run(30))
    channel.attempts.clear()
    live(lambda: run(1800))
    assert not channel.attempts
    channel.verdict = lambda dispatch: Accepted(dispatch.key)
    assert live(world.run_until_idle) > 1000
    assert all(world.service.statuses(id_)[-1] == "sent" for id_ in range(100))


@pytest.mark.slow
def test_what_expires_while_it_waits_for_its_next_try_is_told_at_once(world: VirtualWorld) -> None:
    """The provider asked for an hour; the message's time is over after ten minutes."""
    world.service.settings[1] = json.dumps(
        {"delivery": {"expiresAt": format_instant(START + 600 * 1_000_000)}, **json.loads(SMS)}
    )
    world.channels["sms"].verdict = lambda _dispatch: TryAgain("provider answered 429", after=3600.0)
    world.service.enqueue(message(1, 1))
    assert 600 <= live(world.run_until_idle) < 610
    assert world.service.statuses(1) == ["dequeued", "error"]


@pytest.mark.slow
def test_the_journal_says_what_a_message_waits_for(world: VirtualWorld) -> None:
    """By the name of the settings, while they are awaited; nothing is left of it afterwards."""
    hang(world, lambda id_: id_ == 1, until=100.0)
    world.service.enqueue(message(1))

    def waits_for() -> list[str | None]:
        with sqlite3.connect(world.folder / "journal.db") as db:
            found = [row[0] for row in db.execute("SELECT waits_for FROM message")]
        db.close()
        return found

    async def run() -> None:
        with trio.move_on_after(50):
            await world.run_until_idle()

    live(run)
    assert waits_for() == ["settings 1"]
    live(world.run_until_idle)
    assert waits_for() == [None]
