"""A template that suddenly needs more SMS parts is held, through a stop and a kill, until it is resumed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.delivery.cost_guard import JUDGED, LEAST_KNOWN
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.terminal import command
from support.world import World, open_world

pytestmark = pytest.mark.slow

BEFORE, AFTERWARDS = LEAST_KNOWN + 2 * JUDGED, 200


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "language": "en", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings("{text}")
        world.change("[channels.sms]", "[channels.sms]\ncost_guard = 2")
        yield world


def offer(world: World, ids: range, text: str) -> None:
    world.state.enqueue(*(message(id_) | {"variables": {"text": text}} for id_ in ids))


def test_what_is_held_stays_held_through_a_kill_and_goes_on_when_resumed(world: World) -> None:
    """The level before outlasts a stop; explain and paused give the reason; each message is sent once."""
    short, long = range(1, BEFORE + 1), range(BEFORE + 1, BEFORE + AFTERWARDS + 1)
    offer(world, short, "short")
    worker = world.start()
    world.state.wait_for(lambda state: all("sent" in state.statuses(id_) for id_ in short), PATIENCE)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0

    offer(world, long, "long " * 100)
    worker = world.start()
    world.state.wait_for(lambda state: all("dequeued" in state.statuses(id_) for id_ in long), PATIENCE)
    world.state.wait_for(lambda _: '"settings.held"' in world.log(), PATIENCE)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    sent = len(world.state.received)
    assert sent <= BEFORE + JUDGED

    worker = world.start()
    offer(world, range(9001, 9002), "long " * 100)
    world.state.wait_for(lambda state: "dequeued" in state.statuses(9001), PATIENCE)
    (paused,) = command("paused", "--config", world.config, "--json").data
    assert (paused["kind"], paused["key"], paused["caller"]) == ("settings", "1", "cost_guard")
    assert "more than channels.sms.cost_guard = 2 allows" in paused["reason"]
    explained = command("explain", "--config", world.config, long[-1]).out
    assert "SMS parts per message" in explained
    assert len(world.state.received) == sent

    command("resume", "settings", "--config", world.config, 1, "--reason", "the new text is right")
    ids = [*short, *long, 9001]
    world.state.wait_for(lambda state: all("sent" in state.statuses(id_) for id_ in ids), PATIENCE)
    received = [each.message_id for each in world.state.received]
    assert len(set(received)) == len(ids)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
