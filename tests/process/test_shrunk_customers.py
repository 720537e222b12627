"""A customer file that has lost more than half of its customers, in the life of a worker."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.patience import PATIENCE
from support.world import World, open_world

pytestmark = pytest.mark.slow

SETTINGS = {"content": {"en": {"sms": {"text": "Hello"}}}}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.state.settings[1] = SETTINGS
        world.customers(crowd(10))
        yield world


def crowd(count: int) -> list[dict[str, Any]]:
    return [{"id": id_, "phone": f"+4477009001{id_:02}"} for id_ in range(1, count + 1)]


def send(world: World, id_: int, status: str) -> None:
    """Have a message to the last customer sent, or fail."""
    world.state.enqueue({"id": id_, "settingsId": 1, "customerId": 10, "variables": {}})
    world.state.wait_for(lambda state: status in state.statuses(id_), PATIENCE)


def test_an_operator_accepts_it(world: World) -> None:
    """Until then, the customers known before are used; the log says what to do."""
    worker = world.start()
    send(world, 1, "sent")
    world.customers(crowd(3))
    for id_ in range(2, 1000):  # the file is looked at once a second
        send(world, id_, "sent")
        if (
            "3 customers instead of 10: the former ones stay in use; run deliveryd reload --accept"
            in world.log()
        ):
            break
    accepted = world.command("reload", "--accept", "--config", str(world.config))
    assert (accepted.returncode, "customers.path (accepted with 3 customers)" in accepted.stdout) == (0, True)
    send(world, 1000, "error")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
