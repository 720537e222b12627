"""Two workers on one PostgreSQL database while a change of the configuration is rolled out: one has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from deliveryd.channels.base import InDoubt
from deliveryd.journal.orders import Action, ItemKind, Order
from support.postgres import new_database
from support.two_providers import BOTH, EMAIL
from support.two_workers import Place, Worker, on_database

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MAIL_FIRST = f'[channels]\norder = ["email", "sms"]\n{EMAIL}'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """One worker has the channel email, before sms; the other one has sms alone."""
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    with on_database(url):
        place = Place(tmp_path, url)
        place.one.add(MAIL_FIRST)
        place.service.settings[1] = json.dumps(BOTH)
        yield place


async def pause(worker: Worker, channel: str, verb: Action = Action.PAUSE) -> None:
    await worker.running._orders.carry_out(Order(verb, ItemKind.CHANNEL, (channel,)), "ops")


async def turn(place: Place) -> None:
    """Let the workers look around for a while: they ask the queue in between."""
    asked = len(place.service.requests)
    await place.until(lambda: len(place.service.requests) >= asked + 15)


def mailed(place: Place) -> list[int]:
    return [dispatch.entry.id for _, dispatch in place.one.channels["email"].attempts]


async def test_what_is_paused_on_a_channel_that_only_the_other_worker_has_stays_paused(place: Place) -> None:
    """A worker that starts without the channel sends nothing of it elsewhere; the end of the pause does."""
    async with anyio.create_task_group() as tasks:
        await place.one.run(tasks)
        await pause(place.one, "email")
        place.enqueue(1, 2, 3)
        await place.until(lambda: place.one.running.parts.recorder.backlog.paused == 3)
        await place.other.run(tasks)
        other = place.other.running.parts.recorder
        await place.until(lambda: other.pauses.any)
        await turn(place)
        assert other.backlog.paused == 3
        assert not place.attempts
        await pause(place.other, "email", Action.RESUME)
        await place.until(lambda: place.ended(1, 2, 3))
        place.one.running.stop()
        place.other.running.stop()


async def test_a_doubt_at_a_provider_that_a_reload_removes_is_repeated_by_the_other_worker(
    place: Place,
) -> None:
    """It was queued there, and isn't held for an operator: the other worker still has the provider."""
    before = place.one.path.read_text()
    place.one.write(
        before.replace('timeout = "1s"', 'timeout = "1s"\nrate = "1/h"').replace(
            '["email", "sms"]', '["sms", "email"]'
        )
    )
    place.one.channel.verdict = lambda _dispatch: InDoubt("cut off")
    async with anyio.create_task_group() as tasks:
        await place.one.run(tasks)
        place.enqueue(1)
        queue = place.one.running.parts.stations.dispatchers["sms"]
        await place.until(lambda: len(place.attempts) == 1 and queue.queued == 1)
        await place.other.run(tasks)
        place.one.write(before.replace("channels.sms", "channels.messenger").replace('"sms"', '"messenger"'))
        await place.until(lambda: "sms" in place.one.running.parts.recorder.pausing.elsewhere)
        assert place.one.running.reloader is not None
        await place.one.running.reloader.reload(accept_orphans=True)
        await place.until(lambda: place.ended(1))
        place.one.running.stop()
        place.other.running.stop()
    assert [len(keys) for keys in place.keys().values()] == [1]
    assert len(place.attempts) == 2
