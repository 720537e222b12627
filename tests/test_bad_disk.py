"""A full disk under a real worker: nothing is lost, taking stops and goes on, and the log says so once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deliveryd.sandbox.faults import Delay
from world import PATIENCE, World, message, open_world, sms_settings

SIZE = 6 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small disk takes root and mount")
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("this machine mounts no tmpfs")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def world(tmp_path: Path, small_disk: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.change(
            'url = "sqlite:///journal.db"', f'url = "sqlite:///{small_disk}/journal.db"\nreserve = "1MiB"'
        )
        world.change('[admin]\nlisten = ""', '[admin]\nlisten = "127.0.0.1:0"')
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        yield world


def fill(disk: Path, leave: int) -> Path:
    """Take all room but so many bytes."""
    ballast = disk / "ballast"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with contextlib.suppress(OSError):  # the worker may be faster and take some of it first
        ballast.write_bytes(b"x" * max(free - leave, 0))
    return ballast


def events(world: World) -> list[str]:
    return [json.loads(line)["event"] for line in world.log().splitlines() if line.startswith("{")]


def ready(world: World) -> tuple[int, str]:
    """What /readyz says."""
    listen = next(
        entry["listen"] for line in world.log().splitlines() if "listen" in (entry := json.loads(line))
    )
    answer = httpx.get(f"{listen}/readyz", trust_env=False)
    return answer.status_code, answer.text


def test_a_disk_that_fills_up_under_500_messages_loses_none_and_the_line_goes_on_by_itself(
    world: World, small_disk: Path
) -> None:
    world.state.fail_until_healed("provider.sms", Delay(0.3))
    world.state.enqueue(*(message(id_, word="w" * 200) for id_ in range(1, 1001)))
    worker = world.start(log="info")
    world.sandbox.wait_for(lambda state: len(state.received) >= 100, PATIENCE)
    ballast = fill(small_disk, leave=0)
    world.state.heal("provider.sms")
    while "journal.full" not in events(world):
        assert worker.poll() is None, world.log()[-2000:]
    taken = len(world.state.taken)
    assert taken >= 500
    assert ready(world)[0] == 503
    assert "disk" in ready(world)[1]
    ballast.unlink()
    world.sandbox.wait_for(
        lambda state: sum(event["status"] == "sent" for event in state.events) >= 1000, PATIENCE
    )
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert all(world.state.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 1001))
    assert Counter(received.message_id for received in world.state.received) == dict.fromkeys(
        range(1, 1001), 1
    )
    assert events(world).count("journal.full") == events(world).count("journal.room") == 1
    audit = world.command("audit", "--config", str(world.config))
    assert audit.returncode == 0, audit.stdout


def test_taking_stops_while_less_than_the_reserve_is_left(world: World, small_disk: Path) -> None:
    worker = world.start(log="info")
    world.sandbox.wait_for(lambda state: state.requests["queue"] >= 1, PATIENCE)
    ballast = fill(small_disk, leave=512 << 10)
    while "queue.paused" not in events(world):
        assert worker.poll() is None
    world.state.enqueue(*(message(id_) for id_ in range(1, 11)))
    assert ready(world) == (503, "not ready\nthe journal's disk is nearly full (journal.reserve)\n")
    assert not world.state.taken
    ballast.unlink()
    world.sandbox.wait_for(lambda state: sum(e["status"] == "sent" for e in state.events) == 10, PATIENCE)
    assert "journal.full" not in events(world)
