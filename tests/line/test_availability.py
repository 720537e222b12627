"""Channels of which all providers are down: their messages wait, or go to the next channel."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import pytest
import trio

from deliveryd.channels.base import (
    InDoubt,
    Refused,
    Verdict,
)
from deliveryd.model import SECOND
from support.messages import message
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
    ids_of,
    sent_by,
    world_of_two,
)
from support.virtual import SteppingClock, VirtualChannel, VirtualClock, VirtualWorld, live


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    return world_of_two(tmp_path)


# when all are down


@pytest.fixture
def fallback(world: VirtualWorld) -> VirtualWorld:
    """Behind sms stands email."""
    world.add(EMAIL)
    world.service.settings[1] = json.dumps(BOTH)
    world.channels["email"] = Provider()
    return world


def down_until(world: VirtualWorld, seconds: float, verdict: Verdict = BUSY) -> None:
    for name in (A, B):
        world.channels[name].verdict = lambda _: verdict if trio.current_time() < seconds else ACCEPTED


@pytest.mark.slow
def test_a_channel_that_is_down_for_too_long_leaves_its_messages_to_the_next_one(
    fallback: VirtualWorld,
) -> None:
    """Those that wait and those that come; when a provider answers, the channel takes them again."""
    down_until(fallback, 3000)
    enqueue(fallback, 100)

    async def scene() -> None:
        async with fallback.at_work():
            await anyio.sleep(890)
            assert not sent_by(fallback, "email")
            await anyio.sleep(100)
            assert ids_of(sent_by(fallback, "email")) >= set(range(1, 80))
            fallback.service.enqueue(*(message(id_) for id_ in range(101, 151)))
            await anyio.sleep(100)
            assert len(ids_of(sent_by(fallback, "email")) & set(range(101, 151))) > 45
            await anyio.sleep(2500)
            for some in (range(151, 152), range(152, 200)):
                fallback.service.enqueue(*map(message, some))
                await anyio.sleep(100)

    live(scene)
    assert all_sent(fallback, 199)
    assert not ids_of(sent_by(fallback, "email")) & set(range(151, 200))


@pytest.mark.slow
def test_the_time_that_a_channel_is_down_goes_on_over_a_restart(fallback: VirtualWorld) -> None:
    """A probe comes first, and finds it still down."""
    down_until(fallback, 3600)
    enqueue(fallback, 50)

    async def scene() -> None:
        for seconds in (600, 400):
            async with fallback.at_work():
                await anyio.sleep(seconds)
                if seconds == 600:
                    assert not sent_by(fallback, "email")

    live(scene)
    assert len(ids_of(sent_by(fallback, "email"))) >= 40


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_message_goes_on_when_only_providers_are_left_to_it_that_are_down_for_too_long(
    fallback: VirtualWorld, restarts: int
) -> None:
    """The other provider works, and refused it for good; whoever isn't refused stays in the channel."""
    fallback.channels[A].verdict = lambda one: Refused("no such recipient") if one.entry.id <= 3 else ACCEPTED
    fallback.channels[B].verdict = lambda _: BUSY
    enqueue(fallback, 50)

    async def scene() -> None:
        for seconds in (600, 400) if restarts else (1000,):
            async with fallback.at_work():
                await anyio.sleep(seconds)
                if seconds == 600:
                    assert not sent_by(fallback, "email")

    live(scene)
    assert ids_of(sent_by(fallback, "email")) == {1, 2, 3}
    assert all_sent(fallback, 50)


@pytest.mark.slow
def test_a_channel_that_works_after_a_restart_takes_its_messages(fallback: VirtualWorld) -> None:
    """Though it was down for long before: the probe that comes first is accepted."""
    down_until(fallback, 1200)
    fallback.path.write_text(fallback.path.read_text().replace(EMAIL, ""))
    enqueue(fallback, 50)

    async def scene() -> None:
        async with fallback.at_work():
            await anyio.sleep(1000)
        fallback.add(EMAIL)
        await anyio.sleep(300)
        async with fallback.at_work():
            await anyio.sleep(300)

    live(scene)
    assert all_sent(fallback, 50)
    assert not sent_by(fallback, "email")


@pytest.mark.slow
def test_a_provider_that_was_disabled_meanwhile_is_not_down_since_then(world: VirtualWorld) -> None:
    """It was down, and is enabled again with a restart: its first failure gives up nothing."""
    world.add(EMAIL)
    world.service.settings[1] = json.dumps(BOTH)
    world.channels["email"] = Provider()
    text = world.path.read_text(encoding="utf-8")
    a = text.index("[channels.sms.providers.a]")
    b = text.index("[channels.sms.providers.b]")
    alone = text[:a] + text[b:]
    disabled = text.replace("weight = 20", "weight = 20\nenabled = false")
    world.channels[B].verdict = lambda _: BUSY
    enqueue(world, 20)

    async def scene() -> None:
        for configured, seconds in ((alone, 600), (disabled, 1200), (alone, 300)):
            world.path.write_text(configured, encoding="utf-8")
            async with world.at_work():
                if seconds == 300:
                    world.service.enqueue(*(message(id_) for id_ in range(21, 41)))
                await anyio.sleep(seconds)

    live(scene)
    assert not sent_by(world, "email")


@pytest.mark.slow
def test_without_another_channel_messages_wait_for_as_long_as_it_takes(world: VirtualWorld) -> None:
    down_until(world, 1800)
    enqueue(world, 200)
    live(world.run_until_idle)
    assert all_sent(world, 200)
    before = [at for name in (A, B) for at, _ in sent_by(world, name) if at < 1800]
    assert len(before) < 300


@pytest.mark.slow
def test_what_is_in_doubt_stays_although_its_channel_is_down_for_long(fallback: VirtualWorld) -> None:
    down_until(fallback, 2400, InDoubt("cut off"))
    enqueue(fallback, 100)
    live(fallback.run_until_idle)
    assert all_sent(fallback, 100)
    doubtful = {id_ for name in (A, B) for id_ in ids_of([x for x in sent_by(fallback, name) if x[0] < 2400])}
    assert not doubtful & ids_of(sent_by(fallback, "email"))


def go(provider: VirtualChannel, *, down: bool) -> None:
    """Break a provider, which can't be connected to either, or mend it."""
    assert isinstance(provider, Provider)
    provider.reachable, provider.verdict = not down, lambda _: BUSY if down else ACCEPTED


async def work(world: VirtualWorld, scene: Callable[[], Awaitable[None]]) -> None:
    """Run a worker beside a scene."""
    async with world.at_work():
        await scene()


@pytest.mark.slow
def test_a_channel_that_works_again_takes_what_went_on_to_one_that_is_down(fallback: VirtualWorld) -> None:
    """Also where no new message comes that would be its probe."""
    a, b, mail = fallback.channels[A], fallback.channels[B], fallback.channels["email"]
    enqueue(fallback, 40)

    async def scene() -> None:
        go(a, down=True)
        go(b, down=True)
        await anyio.sleep(850)
        go(mail, down=True)
        await anyio.sleep(1000)
        assert ids_of(sent_by(fallback, "email"))
        go(a, down=False)
        await anyio.sleep(200)

    live(partial(work, fallback, scene))
    assert all_sent(fallback, 40)


@pytest.mark.slow
def test_a_later_channel_that_works_again_takes_what_waits_for_the_first(world: VirtualWorld) -> None:
    """Both were given up, and the last channel has nothing for these messages."""
    tables = EMAIL.replace("email", "messenger").replace("body", "text") + EMAIL
    world.add(f'{tables}[channels]\norder = ["sms", "messenger", "email"]\n')
    blocks = {"sms": {"text": "hello"}, "messenger": {"text": "hello"}}
    world.service.settings[1] = json.dumps({"content": {"en": blocks}})
    world.channels["messenger"] = messenger = Provider()
    enqueue(world, 40)

    async def scene() -> None:
        for provider in (world.channels[A], world.channels[B], messenger):
            go(provider, down=True)
        await anyio.sleep(2000)
        go(messenger, down=False)
        await anyio.sleep(200)

    live(partial(work, world, scene))
    assert all_sent(world, 40)


# clocks that are set


@pytest.mark.slow
def test_a_clock_put_forward_gives_up_no_channel(
    fallback: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is measured for how long the channel is down, while the worker runs."""
    down_until(fallback, 800)
    enqueue(fallback, 50)
    now = VirtualClock.now
    monkeypatch.setattr(
        VirtualClock, "now", lambda self: now(self) + (3600 * SECOND if anyio.current_time() > 100 else 0)
    )
    live(fallback.run_until_idle)
    assert all_sent(fallback, 50)
    assert not sent_by(fallback, "email")


@pytest.mark.slow
def test_a_clock_put_forward_before_a_restart_gives_up_no_channel(
    fallback: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the journal keeps was put right when the clock was set: 600 of 900 seconds are over."""
    down_until(fallback, 1300)
    enqueue(fallback, 50)
    now = VirtualClock.now
    monkeypatch.setattr(
        VirtualClock, "now", lambda self: now(self) + (86_400 * SECOND if anyio.current_time() > 100 else 0)
    )

    async def scene() -> None:
        for seconds in (600, 200, 300):
            async with fallback.at_work():
                await anyio.sleep(seconds)
                assert bool(sent_by(fallback, "email")) is (seconds == 300)

    live(scene)


@pytest.mark.slow
def test_a_clock_that_was_put_forward_between_two_runs_makes_no_outage_longer(
    fallback: VirtualWorld,
) -> None:
    """Of 400 seconds: the channel is given up after 15 minutes."""
    fallback.clock = clock = SteppingClock()
    down_until(fallback, 400)
    enqueue(fallback, 50)

    async def scene() -> None:
        async with fallback.at_work():
            await anyio.sleep(60)
        clock.ahead = 3600 * SECOND
        async with fallback.at_work():
            await anyio.sleep(1500)

    live(scene)
    assert sent_by(fallback, "email") == []
    assert len(ids_of([*sent_by(fallback, A), *sent_by(fallback, B)])) == 50
