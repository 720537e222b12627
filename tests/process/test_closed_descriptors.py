"""Standard input, output and error that are closed when the program starts, as some supervisors do it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.patience import PATIENCE
from support.world import World, open_world

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.state.settings[1] = {"content": {"en": {"sms": {"text": "Hello"}}}}
        world.customers([{"id": 1, "phone": "+447700900101"}])
        yield world


def run_closed(world: World, closed: str, *arguments: str) -> int:
    """Run a command with these descriptors closed; return its exit status."""
    script = f'exec "$0" "$@" {closed}'
    program = [
        "sh",
        "-c",
        script,
        sys.executable,
        "-m",
        "deliveryd",
        *arguments,
        "--config",
        str(world.config),
    ]
    return subprocess.run(program, cwd=world.folder, timeout=PATIENCE, check=False).returncode


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "<&- >&- 2>&-", "2>&-"])
def test_a_worker_delivers(world: World, closed: str) -> None:
    """Its journal and sockets don't take the numbers of what is closed, where others write to."""
    world.state.enqueue({"id": 1, "settingsId": 1, "customerId": 1, "variables": {}})
    assert run_closed(world, closed, "run", "--until-idle") == 0
    assert world.state.statuses(1) == ["dequeued", "sent"]
    assert world.rows("PRAGMA integrity_check") == [("ok",)]


def test_descriptors_of_a_worker(world: World) -> None:
    """The three are open and lead nowhere."""
    program = ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', sys.executable, "-m", "deliveryd", "run"]
    worker = subprocess.Popen([*program, "--config", str(world.config)], cwd=world.folder)
    try:
        world.state.enqueue({"id": 1, "settingsId": 1, "customerId": 1, "variables": {}})
        world.state.wait_for(lambda state: "sent" in state.statuses(1), PATIENCE)
        assert [Path(f"/proc/{worker.pid}/fd/{number}").readlink() for number in range(3)] == [
            Path("/dev/null")
        ] * 3
    finally:
        worker.terminate()
        assert worker.wait(PATIENCE) == 0


def test_a_command_whose_output_is_closed_ends_as_usual(world: World) -> None:
    assert run_closed(world, ">&- 2>&-", "check", "--offline") == 0
