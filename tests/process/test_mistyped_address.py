"""A mistyped path in the configuration, on real processes: what it costs, and what an operator sees of it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.model import format_instant
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.world import World, open_world

pytestmark = pytest.mark.slow

VALID_FOR = 8_000_000
"""Microseconds for which the messages may be sent: the run ends when the last of them has expired."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        yield world


def test_a_mistyped_path_refuses_20_of_300_messages_and_is_named_in_one_line(world: World) -> None:
    """The others wait until they expire; the log, the last line and the status say what happened."""
    expires_at = format_instant(time.time_ns() // 1000 + VALID_FOR)
    world.state.settings[1] = {**sms_settings(), "delivery": {"expiresAt": expires_at}}
    world.change(f'url = "{world.sandbox.base_url}/sms"', f'url = "{world.sandbox.base_url}/smss"')
    world.state.enqueue(*(message(id_) for id_ in range(1, 301)))
    world.run_until_idle()

    details = Counter(str(event.get("details")) for event in world.state.events if event["status"] == "error")
    assert details == {"sms: provider answered 404": 20, f"expired at {expires_at}": 280}
    *lines, last = world.log().splitlines()
    assert last.startswith(
        "deliveryd: of 300 messages ever taken: 0 sent, 0 delivered, 300 failed, 0 in doubt"
    )
    (line,) = [line for line in map(json.loads, lines) if line["event"] == "channel.misconfigured"]
    host = world.sandbox.base_url.removeprefix("http://")
    assert (line["reason"], line["host"]) == ("provider answered 404", host)
    failed = [line for line in map(json.loads, lines) if line["event"] == "message.failed"]
    sums = Counter[str]()
    for line in failed:
        sums[line["reason"]] += line["count"]
    assert sums == {"provider answered 404": 20, "expired": 280}


def test_once_the_path_is_mended_and_the_worker_restarted_what_waited_is_sent(world: World) -> None:
    world.state.settings[1] = sms_settings()
    good, bad = f'url = "{world.sandbox.base_url}/sms"', f'url = "{world.sandbox.base_url}/smss"'
    world.change(good, bad)
    world.state.enqueue(*(message(id_) for id_ in range(1, 101)))
    worker = world.start()
    world.state.wait_for(lambda state: len(state.events) >= 120, PATIENCE)  # all taken, and 20 refused
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    world.change(bad, good)
    world.run_until_idle()
    ends = Counter(world.state.statuses(id_)[-1] for id_ in range(1, 101))
    assert ends == {"error": 20, "sent": 80}
