"""Windows: outside of them a message waits in the journal, and goes when its window opens."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from datetime import date, timedelta
from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, InDoubt, Verdict
from deliveryd.directory.base import Terms
from deliveryd.directory.remote import RemoteDirectory
from deliveryd.errors import DirectoryUnavailable
from deliveryd.model import SECOND, Customer, format_instant
from support.logs import log_text
from support.messages import message
from support.terminal import command
from support.two_providers import (
    ACCEPTED,
    BOTH,
    BUSY,
    EMAIL,
    A,
    B,
    Provider,
    all_sent,
    enqueue,
    sent_by,
    world_of_two,
)
from support.virtual import START, SteppingClock, VirtualWorld, live

pytestmark = pytest.mark.slow

HOUR = 3600
TEXT = {"content": {"en": {"sms": {"text": "hello"}}}}
RULE = """
[[rules]]
window = { from = "10:00", to = "20:00", zone = "UTC" }
"""
"""It opens two hours after the start, a Friday at 08:00 UTC."""


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """A world with one message of settings 1."""
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = json.dumps(TEXT)
    world.service.enqueue(message(1))
    return world


class Zones:
    """A directory of the zones of customers."""

    batch_size = 100

    def __init__(self, zones: Mapping[int, str]) -> None:
        self._zones = zones

    async def look_up(self, ids: Collection[int]) -> Mapping[int, Customer]:
        return {id_: Customer(id_, {"zone": self._zones[id_]}) for id_ in ids if id_ in self._zones}

    async def probe(self) -> str | None:
        return None

    async def aclose(self) -> None: ...


def sent_at(world: VirtualWorld) -> Mapping[int, float]:
    """When each message was sent, in seconds since the start; the first attempt counts."""
    times: dict[int, float] = {}
    for at, dispatch in world.channels["sms"].attempts:
        times.setdefault(dispatch.entry.id, at)
    return times


async def cut_off(world: VirtualWorld, seconds: float) -> None:
    """Run a worker, and kill it."""
    with trio.move_on_after(seconds):
        await world.supervisor().run()


def test_it_goes_when_the_window_opens_through_a_kill(world: VirtualWorld) -> None:
    """It waits without a place, and is sent once; the worker that takes over knows the window."""
    world.add(RULE)
    live(lambda: cut_off(world, 600))
    ((waits_for, due_at),) = world.journal_rows("SELECT waits_for, due_at FROM message")
    assert (waits_for, due_at) == ("window", START + 2 * HOUR * SECOND)
    explained = command("explain", "--config", world.path, 1).out
    assert "waiting for the window in which it may be sent, or until its expiry" in explained
    assert re.search(r"its window opens then\n +its window is that of rules\.0\n", explained)
    world.clock = SteppingClock(HOUR * SECOND)
    live(world.run_until_idle)
    assert 0 <= sent_at(world)[1] - HOUR < 5
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_others_pass_those_that_wait(world: VirtualWorld) -> None:
    """The first rule that names a message counts: codes may pass at any time."""
    always = '\n[[rules]]\nsettings = [2]\nwindow = { from = "00:00", to = "24:00" }\n'
    world.add(f"\n[queue]\nmax_in_flight = 10\n{always}{RULE}")
    world.service.settings[2] = json.dumps(TEXT)
    world.service.enqueue(*(message(id_) for id_ in range(2, 100)), message(100, 2))
    live(world.run_until_idle)
    times = sent_at(world)
    assert times[100] < 60
    assert all(0 <= times[id_] - 2 * HOUR < 60 for id_ in range(1, 100))


def test_what_is_queued_when_the_window_closes_waits_for_the_next_day(world: VirtualWorld) -> None:
    """The wall clock is asked before each attempt."""
    world.add('rate = "1/s"\n' + RULE.replace("10:00", "07:00").replace("20:00", "08:01"))
    world.service.enqueue(*(message(id_) for id_ in range(2, 101)))
    live(world.run_until_idle, hours=30)
    times = sorted(sent_at(world).values())
    before = [at for at in times if at < 60]
    assert 50 < len(before) < 65
    assert all(at >= 23 * HOUR for at in times[len(before) :])
    assert len(times) == 100


@pytest.mark.parametrize("hours", [1, 2])
@pytest.mark.parametrize("outside", ["expire", "send"])
def test_a_message_that_would_expire_before_it_opens(world: VirtualWorld, outside: str, hours: int) -> None:
    """It waits and expires, or is sent at once; also where both come at the same instant."""
    expires_at = format_instant(START + hours * HOUR * SECOND)
    world.service.settings[1] = json.dumps({**TEXT, "delivery": {"expiresAt": expires_at}})
    world.add(RULE.replace("}", f', outside = "{outside}" }}'))
    live(world.run_until_idle)
    ended = world.service.statuses(1)[-1], len(world.channels["sms"].attempts)
    assert ended == (("error", 0) if outside == "expire" else ("sent", 1))


@pytest.mark.parametrize("own", [True, False])
def test_what_expires_first_is_said_to_expire(world: VirtualWorld, own: bool) -> None:
    """By its settings, of which the disk cache has a copy, or by the default lifetime."""
    world.add(f'\n[content]\ndefault_lifetime = "{"3d" if own else "1h"}"\n{RULE}')
    expires_at = format_instant(START + HOUR * SECOND)
    if own:
        world.service.settings[1] = json.dumps({**TEXT, "delivery": {"expiresAt": expires_at}})
    live(lambda: cut_off(world, 600))
    explained = command("explain", "--config", world.path, 1).out
    assert re.search(r"it expires then, before its window opens\n +its window is that of rules\.0", explained)
    assert "window opens then" not in explained


def test_a_window_that_does_not_open_is_explained(world: VirtualWorld) -> None:
    """All of its days are holidays, for longer than is looked ahead."""
    first = date(2026, 1, 1)
    days = "\n".join(f"{first + timedelta(day)}" for day in range(3000))
    (world.folder / "holidays").write_text(days, "utf-8")
    world.add(RULE.replace("}", ', holidays_file = "holidays" }'))
    live(lambda: cut_off(world, 600))
    explained = command("explain", "--config", world.path, 1)
    assert "its window doesn't open within 400 days" in explained.out, explained.err


def test_it_opens_by_the_zone_of_the_customer(world: VirtualWorld) -> None:
    """In Kiritimati it is 22:00, on Lord Howe 19:00, in Berlin 09:00; nobody is woken at four."""
    world.add('\n[content]\nzone = "America/New_York"\n' + RULE.replace('"UTC"', '"customer"'))
    zones = {2: "Pacific/Kiritimati", 3: "Australia/Lord_Howe", 4: "Europe/Berlin", 5: "Mars/Olympus"}
    world.directory = RemoteDirectory(Zones(zones), Terms(cache_ttl=300.0, timeout=5.0, concurrency=10))
    world.service.enqueue(*({**message(id_), "customerId": id_} for id_ in range(2, 7)))
    live(world.run_until_idle, hours=30)
    times = sent_at(world)
    hours = {id_: round(at / HOUR, 1) for id_, at in times.items()}
    assert hours == {1: 7.0, 2: 12.0, 3: 0.0, 4: 1.0, 5: 7.0, 6: 7.0}  # 5 and 6: as in New York


def test_a_repeat_waits_too(world: VirtualWorld) -> None:
    """What may have arrived is repeated in the window, with the zone of its customer."""
    world.add('\n[content]\nzone = "UTC"\n' + RULE.replace('"UTC"', '"customer"').replace("10:00", "07:00"))
    world.add("")
    text = world.path.read_text("utf-8").replace('to = "20:00"', 'to = "08:30"')
    world.write(text.replace("json = { text", 'retry = { base = "40m", max = "40m" }\njson = { text'))
    zones = {1: "UTC"}
    world.directory = RemoteDirectory(Zones(zones), Terms(cache_ttl=300.0, timeout=5.0, concurrency=10))

    def once_in_doubt(dispatch: Dispatch) -> Verdict:
        return InDoubt("cut off") if len(world.channels["sms"].attempts) < 2 else Accepted(dispatch.key)

    world.channels["sms"].verdict = once_in_doubt
    live(world.run_until_idle, hours=30)
    (first, second) = [at for at, _ in world.channels["sms"].attempts]
    assert first < 60
    assert 23 * HOUR <= second < 24 * HOUR


def test_a_code_needs_no_directory(world: VirtualWorld) -> None:
    """What may be sent at any time, or over a channel without a window, waits for no zone."""
    always = '\n[[rules]]\nsettings = [2]\nwindow = { from = "00:00", to = "24:00" }\n'
    world.add(f'\n[content]\nzone = "UTC"{always}')
    world.add(RULE.replace('"UTC"', '"customer"'))
    world.add('[[rules]]\nchannels = ["sms"]\nwindow = { from = "10:00", to = "20:00" }\n')

    class Down(Zones):
        async def look_up(self, ids: Collection[int]) -> Mapping[int, Customer]:
            raise DirectoryUnavailable("the directory is down")

    world.directory = RemoteDirectory(Down({}), Terms(cache_ttl=300.0, timeout=5.0, concurrency=10))
    world.service.settings[2] = json.dumps(TEXT)
    world.service.enqueue(message(2, 2))
    live(lambda: cut_off(world, 60))
    assert world.service.statuses(2) == ["dequeued", "sent"]
    assert world.service.statuses(1) == ["dequeued"]


def test_a_provider_is_not_removed_unnoticed_under_a_doubt_that_waits_for_its_window(
    world: VirtualWorld,
) -> None:
    """As under one that waits for its retry: the reload is refused."""
    begin = RULE.replace("10:00", "07:00").replace("20:00", "08:01")
    text = world.path.read_text("utf-8").replace("json = { text", 'retry = { base = "2m" }\njson = { text')
    other = text.replace("[channels.sms]", "[channels.sms.providers.b]")
    world.write(text.replace("[channels.sms]", "[channels.sms.providers.a]") + begin)
    world.channels["sms/a"].verdict = lambda _dispatch: InDoubt("cut off")

    async def play() -> None:
        async with world.at_work() as worker:
            await trio.sleep(600)
            assert ("window", 1) in world.journal_rows("SELECT waits_for, doubt FROM message")
            world.write(other + begin)
            worker.reload()
            await trio.sleep(10)

    with log_text("warning") as logged:
        live(play)
    assert "would orphan messages" in logged.getvalue()
    assert ("window", 1) in world.journal_rows("SELECT waits_for, doubt FROM message")


def test_a_reload_counts_at_once(world: VirtualWorld) -> None:
    """Messages that wait for a window go when there is none any more."""
    without = world.path.read_text("utf-8")
    world.add(RULE)

    async def play() -> None:
        async with world.at_work() as worker:
            await trio.sleep(60)
            assert not world.channels["sms"].attempts
            world.write(without)
            worker.reload()
            await trio.sleep(60)

    live(play)
    assert 60 <= sent_at(world)[1] < 65


def test_a_clock_that_is_put_back_within_the_window(world: VirtualWorld) -> None:
    """What was sent stays sent; what comes then waits for the opening by the corrected clock."""
    world.add(RULE)
    world.clock = clock = SteppingClock(3 * HOUR * SECOND)

    async def play() -> None:
        async with world.at_work():
            await trio.sleep(10)
            clock.ahead = 0
            world.service.enqueue(message(2))
            await trio.sleep(3 * HOUR)

    live(play, hours=10)
    times = sent_at(world)
    assert times[1] < 10
    assert 0 <= times[2] - 2 * HOUR < 60
    assert world.service.statuses(1) == world.service.statuses(2) == ["dequeued", "sent"]


def test_a_reload_of_something_else_wakes_nothing(world: VirtualWorld) -> None:
    """What waits for a window isn't looked at again where neither windows nor routes changed."""
    world.add(RULE)
    looked_at = []

    async def play() -> None:
        async with world.at_work() as worker:
            await trio.sleep(60)
            (before,) = world.journal_rows("SELECT due_at, waits_for FROM message")
            world.write(
                world.path.read_text("utf-8").replace("json = { text", "concurrency = 3\njson = { text")
            )
            worker.reload()
            for _ in range(200):
                await trio.sleep(0.05)
                looked_at.append(world.journal_rows("SELECT due_at, waits_for FROM message") != [before])

    live(play)
    assert not any(looked_at)


# beside a channel that is down


def world_with_fallback(folder: Path, closed: str) -> VirtualWorld:
    """Two providers of sms, which are down for 20 minutes, and email behind them; one has a window."""
    world = world_of_two(folder)
    world.add(EMAIL + RULE.replace("window", f'channels = ["{closed}"]\nwindow'))
    world.service.settings[1] = json.dumps(BOTH)
    world.channels["email"] = Provider()
    for name in (A, B):
        world.channels[name].verdict = lambda _: BUSY if trio.current_time() < 1200 else ACCEPTED
    enqueue(world, 30)
    return world


def test_what_waits_for_the_window_of_a_later_channel_looks_again_at_the_first(tmp_path: Path) -> None:
    """When a provider of the first one works again: it goes there, before the window of the other opens."""
    world = world_with_fallback(tmp_path, "email")

    async def play() -> None:
        async with world.at_work():
            await trio.sleep(1100)
            rows = world.journal_rows("SELECT waits_for FROM message")
            assert rows.count(("window",)) > 15
            await trio.sleep(900)
            assert all_sent(world, 30)

    live(play)
    assert not sent_by(world, "email")


def test_one_that_works_keeps_what_waits_for_its_window(tmp_path: Path) -> None:
    """It has two providers, of which a message claims one; the next channel has no window."""
    world = world_with_fallback(tmp_path, "sms")
    for name in (A, B):
        world.channels[name].verdict = lambda _: ACCEPTED
    live(world.run_until_idle)
    assert not sent_by(world, "email")
    assert all_sent(world, 30)


def test_messages_outside_of_their_window_are_no_probes(tmp_path: Path) -> None:
    """Those that may be sent are, though many come beside them that may not; these go on to email."""
    world = world_with_fallback(tmp_path, "sms")
    world.write(world.path.read_text("utf-8").replace("[[rules]]", "[[rules]]\nsettings = [2]"))
    world.service.settings[2] = json.dumps(BOTH)

    async def play() -> None:
        async with world.at_work():
            await trio.sleep(1000)
            for first in range(1000, 2000, 6):
                world.service.enqueue(*(message(first + each, 2) for each in range(5)), message(first + 5))
                await trio.sleep(2)

    live(play)
    asked = [one for name in (A, B) for one in sent_by(world, name)]
    assert {dispatch.entry.settings_id for _, dispatch in asked} == {1}
    assert min(at for at, _ in asked if at > 1200) < 1240
    assert 2 in {dispatch.entry.settings_id for _, dispatch in sent_by(world, "email")}
