"""What waits for a worker of a shared journal that is gone goes on here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from deliveryd import transitions
from deliveryd.journal.base import FromOthers, Recovery
from deliveryd.model import SECOND, Entry, QueuedMessage, Transition
from deliveryd.runtime import waits
from support.messages import message
from support.shared_journal import SharedJournal, shared
from support.virtual import VirtualSupervisor, VirtualWorld, live

pytestmark = pytest.mark.slow

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})
LEFT = 77
"""The message that another worker left."""


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = SMS
    return world


@pytest.fixture
def journals() -> Iterator[list[SharedJournal]]:
    with shared() as opened:
        yield opened


class Left:
    """What the message waits for, and whether that is the end of a pause."""

    def __init__(self, waits_for: str, *, is_paused: bool = False) -> None:
        self.waits_for = waits_for
        self.is_paused = is_paused

    def step(self, entry: Entry, now: int) -> Transition:
        """The step by which it began to wait."""
        if self.is_paused:
            return transitions.parked(entry, now, None, self.waits_for)
        return transitions.deferred(entry, now, now + 3600 * SECOND, self.waits_for)


def lived_through(world: VirtualWorld, journals: list[SharedJournal], left: Left, news: FromOthers) -> int:
    """Another worker leaves a message an hour from being due; return how often it was sent after a minute."""

    async def run() -> None:
        async with world.at_work() as worker:
            await worker.opened.wait()
            world.service.enqueue(message(1))
            await anyio.sleep(5)
            await _leave(worker, journals[0], left)
            journals[0].news.append(news)
            await anyio.sleep(65)
            world.service.enqueue(message(2))  # the provider answers
            await anyio.sleep(30)

    live(run)
    return [dispatch.entry.id for _, dispatch in world.channels["sms"].attempts].count(LEFT)


async def _leave(worker: VirtualSupervisor, journal: SharedJournal, left: Left) -> None:
    now = worker.parts.common.clock.now()
    taken = QueuedMessage(LEFT, 1, 1, {})
    await journal.take([taken], [], now)
    await journal.accept(await journal.outbox(0, 9), now)
    entry = Entry(*taken, taken_at=now, generation=1)
    await journal.change([left.step(entry if left.is_paused else entry._replace(provider="sms"), now)])


@pytest.mark.parametrize(
    "waits_for", [waits.room("sms"), waits.repeat("sms"), waits.recovery("sms"), waits.alone("sms")]
)
def test_what_waits_for_a_provider_here_goes_on(
    world: VirtualWorld, journals: list[SharedJournal], waits_for: str
) -> None:
    """It would be due in an hour: the worker that was to wake it is gone, and this one took over its log."""
    news = FromOthers(adopted=Recovery([], [], 1, []))
    assert lived_through(world, journals, Left(waits_for), news) == 1


def test_what_was_paused_after_the_pause_had_ended_goes_on(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """The other worker had not read yet that it was resumed, and ended; the message would wait for ever."""
    waits_for = waits.end_of_pause("channel", "sms")
    news = FromOthers(waiting=0, paused={waits_for: 1})
    assert lived_through(world, journals, Left(waits_for, is_paused=True), news) == 1
