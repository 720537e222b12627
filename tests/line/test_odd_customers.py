"""Customers for whom the directory fails: they hold up their own messages only, which end with the reason."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest
import trio

from deliveryd.directory.base import Terms
from deliveryd.directory.remote import MOST_FAILED_ALONE, RemoteDirectory
from deliveryd.errors import CustomerUnreadable, DirectoryUnavailable
from deliveryd.model import Customer
from support.messages import message
from support.virtual import VirtualWorld, live

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello {customer.name}"}}}})
ODD = range(1, 13)
REASON = "answered 403"
ENDED = f"the customer directory fails for this customer alone: {REASON}"


class Crm:
    """A source that answers for all but some."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.odd: Collection[int] = ODD
        self.asked: list[Collection[int]] = []
        self.pause = 0.0
        self._answered_at = -math.inf

    async def look_up(self, ids: Collection[int]) -> Mapping[int, Customer]:
        self.asked.append(ids)
        await trio.sleep(0.05)
        if any(id_ in self.odd for id_ in ids):
            raise CustomerUnreadable(REASON)
        if trio.current_time() < self._answered_at + self.pause:
            raise DirectoryUnavailable("answered 503")
        self._answered_at = trio.current_time()
        return {id_: Customer(id_, {"name": "Ann", "phone": "+447700900101"}) for id_ in ids}

    async def probe(self) -> str | None:
        return None

    async def aclose(self) -> None:
        """Nothing is open."""


@pytest.fixture(params=[1, 50], ids=["one by one", "in batches"])
def crm(request: pytest.FixtureRequest) -> Crm:
    return Crm(request.param)


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = SMS
    return world


def play(world: VirtualWorld, crm: Crm, scene: Callable[[], object], seconds: int) -> None:
    """The odd ones come first, then a message for another customer every five seconds."""

    async def run() -> None:
        world.directory = RemoteDirectory(crm, Terms(cache_ttl=300.0, timeout=10.0, concurrency=2))
        supervisor = world.supervisor()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            world.service.enqueue(*(message(id_, 1, id_) for id_ in ODD))
            for second in range(5, seconds, 5):
                await trio.sleep_until(second)
                world.service.enqueue(message(1000 + second, 1, 1000 + second))
            scene()
            await trio.sleep(60)
            supervisor.stop()

    live(run)


@pytest.mark.slow
def test_they_hold_up_nobody_and_end_with_the_reason(world: VirtualWorld, crm: Crm) -> None:
    play(world, crm, lambda: None, 2 * 3600)
    sent = {made.entry.id: at for at, made in world.channels["sms"].attempts}
    assert sent.keys() == {1000 + second for second in range(5, 2 * 3600, 5)}
    assert max(at - (id_ - 1000) for id_, at in sent.items()) < 90
    for id_ in ODD:
        assert world.service.statuses(id_) == ["dequeued", "error"]
        assert world.service.events_of(id_, "error")[0]["details"] == ENDED
    asked_alone = [ids for ids in crm.asked if set(ids) <= set(ODD)]
    assert len(asked_alone) < len(ODD) * (MOST_FAILED_ALONE + 5)


@pytest.mark.slow
def test_a_directory_that_turns_away_more_than_it_answers_ends_no_message(
    world: VirtualWorld, crm: Crm
) -> None:
    """It answers one question in five seconds, and the others with 429 or 503: it is the one at fault."""
    crm.odd, crm.pause = (), 5.0
    if crm.batch_size > 1:
        crm.pause = 60.0
    play(world, crm, lambda: None, 1200)
    assert not [event for event in world.service.events if event["status"] == "error"]


@pytest.mark.slow
def test_what_waits_is_sent_once_the_directory_is_corrected(world: VirtualWorld, crm: Crm) -> None:
    play(world, crm, lambda: setattr(crm, "odd", ()), 60)
    assert {made.entry.id for _, made in world.channels["sms"].attempts} >= set(ODD)
