"""Two workers on one PostgreSQL database while a change of the configuration is rolled out: one has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from deliveryd.channels.base import Dispatch, TryAgain, Verdict
from deliveryd.journal.orders import Action, ItemKind, Order
from support.postgres import new_database
from support.two_providers import BOTH, EMAIL
from support.two_workers import TIMEOUT, Place, Worker, on_database

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MAIL_FIRST = f'[channels]\norder = ["email", "sms"]\n{EMAIL}timeout = "{TIMEOUT}"\n'


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
    asked = len(place.service.asked)
    await place.until(lambda: len(place.service.asked) >= asked + 15)


def mailed(place: Place) -> list[int]:
    return [dispatch.entry.id for _, dispatch in place.one.channels["email"].attempts]


async def test_what_is_paused_on_a_channel_that_only_the_other_worker_has_stays_paused(place: Place) -> None:
    """A worker that starts without the channel sends nothing of it elsewhere; the end of the pause does."""
    async with anyio.create_task_group() as tasks:
        await place.one.run(tasks)
        await pause(place.one, "email")
        place.enqueue(1, 2, 3)
        await place.until(lambda: place.one.running.parts.memory.backlog.paused == 3)
        await place.other.run(tasks)
        other = place.other.running.parts.memory
        await turn(place)
        assert other.backlog.paused == 3
        assert not place.attempts
        await pause(place.other, "email", Action.RESUME)
        await place.until(lambda: place.ended(1, 2, 3))
        place.one.running.stop()
        place.other.running.stop()


async def test_what_a_killed_worker_had_on_a_channel_that_the_next_one_lacks(place: Place) -> None:
    """As after its removal: what may have arrived is held, what waited goes over the next channel."""

    async def send(dispatch: Dispatch) -> Verdict:
        place.one.channels["email"].attempts.append((anyio.current_time(), dispatch))
        if dispatch.entry.id <= 3:
            await anyio.sleep_forever()  # cut off by the kill
        return TryAgain("busy", only_this=True, after=600.0)

    place.one.channels["email"].send = send  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        await place.one.run(tasks)
        place.enqueue(*range(1, 7))
        await place.until(lambda: len(mailed(place)) == 6)
        await place.until(lambda: place.one.running.parts.memory.backlog.count == 3)
        await place.other.run(tasks)
        place.one.kill()
        await place.until(lambda: place.ended(4, 5, 6))
        await place.until(lambda: place.count("SELECT count(*) FROM main.message WHERE state = 5") == 3)
        place.other.running.stop()
    assert sorted(dispatch.entry.id for _, dispatch in place.attempts) == [4, 5, 6]
    assert [place.service.statuses(id_) for id_ in (1, 2, 3)] == [["dequeued"]] * 3
