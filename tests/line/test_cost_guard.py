"""Settings whose SMS suddenly have more parts, on the whole line in virtual time: what is sent."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from deliveryd.channels.sms_text import sms_parts
from deliveryd.commands.messages.explanation import life_lines
from deliveryd.delivery.cost_guard import JUDGED, KEEP_INTERVAL, LEAST_KNOWN
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.reader import file_reader
from support.logs import log_lines
from support.messages import message
from support.virtual import VirtualSupervisor, VirtualWorld, live

SHORT, OF_TWO, OF_FOUR = "a" * 100, "b" * 200, "c" * 600
ENOUGH = LEAST_KNOWN + JUDGED
"""Messages after which the guard judges."""


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """Settings 1 and 2, whose text is a variable."""
    world = VirtualWorld(tmp_path)
    world.add("cost_guard = 2\n")
    for id_ in (1, 2):
        world.service.settings[id_] = json.dumps({"content": {"en": {"sms": {"text": "{text}"}}}})
    return world


class Campaign:
    """Has messages sent, and counts them."""

    def __init__(self, world: VirtualWorld) -> None:
        self._world = world
        self.count = 0

    async def send(self, text: str, count: int, settings_id: int = 1) -> int:
        """Offer so many; return how many of them were sent, with time enough for all."""
        first = self.count + 1
        self.count += count
        ids = range(first, self.count + 1)
        self._world.service.enqueue(
            *(message(id_) | {"settingsId": settings_id, "variables": {"text": text}} for id_ in ids)
        )
        await trio.sleep(30)
        return sum(each.entry.id in ids for _, each in self._world.channels["sms"].attempts)


def running(world: VirtualWorld, scene: Callable[[VirtualSupervisor, Campaign], Awaitable[None]]) -> None:
    async def run() -> None:
        async with world.at_work() as worker:
            await worker.opened.wait()
            await trio.sleep(1)
            await scene(worker, Campaign(world))

    live(run)


async def resume(worker: VirtualSupervisor, settings_id: int = 1) -> None:
    order = Order(Action.RESUME, ItemKind.SETTINGS, (str(settings_id),), "ops")
    decided = await worker.parts.recorder.decide(order, worker.parts.stations.dispatchers)
    assert decided.done, decided.skipped


def test_settings_with_suddenly_more_parts_are_paused(world: VirtualWorld) -> None:
    """A bounded number is sent; the others wait, and say why; other settings go on."""

    async def scene(worker: VirtualSupervisor, campaign: Campaign) -> None:
        assert await campaign.send(SHORT, 400) == 400
        assert await campaign.send(OF_FOUR, 400) <= JUDGED
        assert await campaign.send(SHORT, 100) == 0
        assert await campaign.send(OF_FOUR, 100, settings_id=2) == 100
        (paused,) = worker.health.overview().paused
        assert (paused.kind, paused.key, paused.caller, paused.until) == ("settings", "1", "cost_guard", None)
        assert "SMS parts per message, 1.00 before: more than channels.sms.cost_guard = 2" in (
            paused.reason or ""
        )
        assert paused.messages >= 400

    with log_lines("info") as lines:
        running(world, scene)
    (held,) = [line for line in lines() if line["event"] == "settings.held"]
    assert (held["settings_id"], held["channel"]) == (1, "sms")
    [life] = file_reader(world.folder / "journal.db").lives([800])
    assert life.message is not None
    assert "cost_guard" in str(life.message.pause)
    assert any("deliveryd resume settings 1" in line for line in life_lines(life, ()))


def test_after_resume_the_new_level_is_the_normal(world: VirtualWorld) -> None:
    """What was held is sent, and more of the same; twice as much again is held again."""

    async def scene(worker: VirtualSupervisor, campaign: Campaign) -> None:
        await campaign.send(SHORT, 300)
        await campaign.send(OF_FOUR, 300)
        await resume(worker)
        await trio.sleep(30)
        attempts = world.channels["sms"].attempts
        assert len({each.entry.id for _, each in attempts}) == len(attempts) == campaign.count
        assert await campaign.send(OF_FOUR, 300) == 300
        assert await campaign.send("d" * 153 * 12, 300) <= JUDGED

    running(world, scene)


def test_a_pause_that_somebody_else_ordered_makes_the_guard_learn_anew(world: VirtualWorld) -> None:
    """An operator, or another worker: what is sent after the resumption is the normal at once."""

    async def scene(worker: VirtualSupervisor, campaign: Campaign) -> None:
        await campaign.send(SHORT, 400)
        order = Order(Action.PAUSE, ItemKind.SETTINGS, ("1",), "ops")
        await worker.parts.recorder.decide(order, worker.parts.stations.dispatchers)
        await trio.sleep(2 * KEEP_INTERVAL)
        assert await worker.parts.journal.kept_parts() == {}
        await resume(worker)
        assert await campaign.send(OF_FOUR, 300) == 300

    running(world, scene)


@pytest.mark.parametrize(
    ("before", "text", "count"), [(ENOUGH - 2, OF_FOUR, 2), (400, OF_TWO, 300), (0, OF_FOUR, 300)]
)
def test_what_stays_below_the_guard_or_is_too_new_is_sent(
    world: VirtualWorld, before: int, text: str, count: int
) -> None:
    """With few messages before nothing is judged, and exactly twice as many parts aren't more."""

    async def scene(_worker: VirtualSupervisor, campaign: Campaign) -> None:
        assert await campaign.send(SHORT, before) == before
        assert await campaign.send(text, count) == count

    running(world, scene)


def test_single_long_messages_are_no_change(world: VirtualWorld) -> None:
    """A template of which a fifth is long holds nothing while it stays so."""

    async def scene(_worker: VirtualSupervisor, campaign: Campaign) -> None:
        for _ in range(100):
            world.service.enqueue()
            await campaign.send(SHORT, 8)
            await campaign.send(OF_FOUR, 2)
        assert len(world.channels["sms"].attempts) == campaign.count == 1000

    running(world, scene)


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_is_known_outlasts_a_restart(world: VirtualWorld, is_kept: bool) -> None:
    """A minute later it is in the journal."""

    async def first(_worker: VirtualSupervisor, campaign: Campaign) -> None:
        await campaign.send(SHORT, 400)
        await trio.sleep(2 * KEEP_INTERVAL)

    async def second(_worker: VirtualSupervisor, campaign: Campaign) -> None:
        campaign.count = 1000
        sent = await campaign.send(OF_FOUR, 400)
        assert sent <= JUDGED if is_kept else sent == 400

    running(world, first)
    if not is_kept:
        world.path.write_text(world.path.read_text().replace("cost_guard = 2\n", ""))
    running(world, second)


def test_a_reload_turns_the_guard_on_and_off(world: VirtualWorld) -> None:
    """It knows what it learnt before, and counts nothing while it is off."""
    text = world.path.read_text()

    async def scene(worker: VirtualSupervisor, campaign: Campaign) -> None:
        await campaign.send(SHORT, 400)
        for content in (text.replace("cost_guard = 2\n", ""), text):
            world.path.write_text(content)
            worker.reload()
            await trio.sleep(2)
            sent = await campaign.send(OF_FOUR, 200)
            assert sent == 200 if content != text else sent <= JUDGED

    running(world, scene)


def test_the_texts_of_the_scenes_have_these_parts() -> None:
    """One, two and four."""
    assert [sms_parts(text).parts for text in (SHORT, OF_TWO, OF_FOUR)] == [1, 2, 4]
