"""A service that refuses a `dequeued` and hands the message out again, in virtual time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from deliveryd.journal.reader import file_reader
from support.logs import LogLines, log_lines
from support.messages import message
from support.virtual import VirtualWorld, live

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})
HOUR = 3600.0


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = SMS
    return world


@pytest.fixture
def lines() -> Iterator[LogLines]:
    """What was logged so far."""
    with log_lines("info") as logged:
        yield logged


class Offering:
    """A queue that hands messages out until it has accepted their `dequeued`; some it refuses at first."""

    def __init__(self, world: VirtualWorld, *ids: int, refusals: float) -> None:
        self.ids = ids
        self.refusals = refusals
        self.refused: Counter[int] = Counter()
        self._world = world
        world.service.trouble = self.answer

    def answer(self, request: httpx.Request) -> httpx.Response | None:
        service = self._world.service
        if request.url.path == "/queue":
            offered = [message(id_) for id_ in self.ids if "dequeued" not in service.statuses(id_)]
            return httpx.Response(200, json=offered)
        if request.url.path != "/events":
            return None
        of = {event["messageId"] for event in json.loads(request.content) if event["status"] == "dequeued"}
        wrong = {id_ for id_ in of if self.refused[id_] < self.refusals}
        if not wrong:
            return None
        if len(of) == 1:
            self.refused.update(wrong)
        return httpx.Response(400)


def test_a_message_whose_dequeued_is_accepted_at_the_second_offer_is_sent(world: VirtualWorld) -> None:
    """Each once, without an operator; the journal adds up."""
    Offering(world, *range(1, 11), refusals=1)
    live(world.run_until_idle)
    sent = Counter(dispatch.entry.id for _, dispatch in world.channels["sms"].attempts)
    assert sent == dict.fromkeys(range(1, 11), 1)
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 11))
    assert file_reader(world.folder / "journal.db").audit().is_balanced


@pytest.mark.slow
def test_a_dequeued_that_is_refused_for_hours_costs_few_posts_few_lines_and_one_row(
    world: VirtualWorld, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """The queue hands the message out every few seconds; when the service gives in, it is sent."""
    queue = Offering(world, 1, refusals=float("inf"))

    async def run() -> None:
        async with world.at_work() as worker:
            await trio.sleep(6 * HOUR)
            assert queue.refused[1] in range(11, 14)  # at once, after 1, 2, 4, 8, 16, 32 minutes, then hourly
            assert (await worker.parts.journal.counts()).events_refused == 1
            queue.refusals = 0
            await trio.sleep(1.1 * HOUR)
            assert world.service.statuses(1) == ["dequeued", "sent"]

    live(run, hours=8)
    events = Counter(line["event"] for line in lines())
    assert events["events.refused"] == events["message.set_aside"] == events["message.reopened"] == 1
    assert events["events.refused_again"] <= 7
    again = [line["count"] for line in lines() if line["event"] == "events.refused_again"]
    assert sum(again) >= 9
    assert file_reader(world.folder / "journal.db").audit().is_balanced


def test_a_crash_between_the_acceptance_and_the_sending_loses_nothing(world: VirtualWorld) -> None:
    """A message that became ready from where it was set aside is taken up by the next run."""
    Offering(world, 1, refusals=1)

    async def run_until_accepted() -> None:
        worker = world.supervisor()
        with trio.CancelScope() as life:
            async with trio.open_nursery() as nursery:
                begin = worker._start_loops

                def start(parts: Any, health: Any, loops: Any) -> None:
                    accepted = parts.recorder._accepted

                    async def die(rows: Any, reopened: Any) -> Any:
                        if not reopened:
                            return await accepted(rows, reopened)
                        life.cancel()
                        return 0

                    parts.recorder._accepted = die
                    begin(parts, health, loops)

                worker._start_loops = start  # type: ignore[method-assign]
                nursery.start_soon(worker.run)

    live(run_until_accepted)
    assert world.service.statuses(1) == ["dequeued"]
    live(world.run_until_idle)
    assert world.service.statuses(1) == ["dequeued", "sent"]
    assert file_reader(world.folder / "journal.db").audit().is_balanced
