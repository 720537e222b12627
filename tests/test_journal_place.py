"""Where the journal lies while somebody works on it: its locks, links to it, and the loss of its names."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from deliveryd.errors import JournalError
from deliveryd.journal.locking import lock_of
from deliveryd.journal.sqlite import open_journal
from world import PATIENCE, World, message, open_world, sms_settings


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        yield world


def wait_until_logged(worker: Popen[bytes], world: World, event: str) -> dict[str, object]:
    """Follow a worker's log until a line of this event."""
    with subprocess.Popen(
        ["tail", "--follow", "--lines=+1", f"--pid={worker.pid}", world.folder / "worker.log"],
        stdout=subprocess.PIPE,
        text=True,
    ) as tail:
        assert tail.stdout is not None
        for line in tail.stdout:
            if f'"event": "{event}"' in line:
                tail.kill()
                found: dict[str, object] = json.loads(line)
                return found
    raise AssertionError(world.log())


def run(config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deliveryd", "run", "--config", str(config)],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


# locks


def test_a_start_waits_for_a_command_that_works_on_the_journal(world: World) -> None:
    """It says so in one line, goes on when the lock is free, and sends."""
    world.run_until_idle()
    world.state.enqueue(message(1))
    command = lock_of(world.folder / "journal.db")
    command.take()
    worker = world.start("--until-idle", log="info")
    wait_until_logged(worker, world, "journal.awaited")
    command.release()
    assert worker.wait(PATIENCE) == 0
    assert world.state.statuses(1) == ["dequeued", "sent"]
    assert world.log().count("journal.awaited") == 1


# links


@pytest.fixture
def linked(world: World) -> tuple[World, Path]:
    """A world whose journal is a link into another folder, and a configuration that names the file itself."""
    truth = world.folder / "disk"
    truth.mkdir(mode=0o700)
    world.folder.joinpath("link.db").symlink_to(truth / "journal.db")
    world.folder.joinpath("direct.toml").write_text(
        world.config.read_text().replace("journal.db", "disk/journal.db")
    )
    world.change("journal.db", "link.db")
    return world, world.folder / "direct.toml"


def test_of_two_workers_on_one_journal_the_second_is_refused_though_one_comes_through_a_link(
    linked: tuple[World, Path],
) -> None:
    """Lock, log and socket lie beside the file itself, and nothing lies beside the link."""
    world, direct = linked
    first = world.start()
    world.sandbox.wait_for(lambda state: state.requests["queue"] >= 1, PATIENCE)
    second = run(direct)
    assert second.returncode == 1
    assert f"in use by another deliveryd (process {first.pid})" in second.stderr
    assert [file.name for file in world.folder.glob("link.db*")] == ["link.db"]
    beside = {file.name.removeprefix("journal.db") for file in world.folder.glob("disk/*")}
    assert beside == {"", "-wal", "-shm", ".lock", ".worker", ".sock"}
    first.terminate()
    assert first.wait(PATIENCE) == 0


def test_commands_that_name_the_file_itself_reach_a_worker_that_came_through_a_link(
    linked: tuple[World, Path],
) -> None:
    """Orders are carried out by the worker, and what is read is what the worker has."""
    world, direct = linked
    world.state.enqueue(message(1))
    worker = world.start(log="info")
    world.sandbox.wait_for(lambda state: state.statuses(1) == ["dequeued", "sent"], PATIENCE)
    told = world.command("in-doubt", "resend", "1", "--config", str(direct))
    assert "it isn't held in doubt" in told.stdout
    assert "desk.decided" in world.log()
    explained = world.command("explain", "1", "--json", "--config", str(direct))
    assert json.loads(explained.stdout)["state"] == "sent"
    worker.terminate()
    assert worker.wait(PATIENCE) == 0


@pytest.mark.anyio
async def test_a_journal_with_two_names_is_refused(tmp_path: Path) -> None:
    """A hard link has a lock and a log of its own: two workers would have one journal."""
    async with open_journal(tmp_path / "journal.db"):
        pass
    tmp_path.joinpath("other").mkdir()
    tmp_path.joinpath("other", "journal.db").hardlink_to(tmp_path / "journal.db")
    with pytest.raises(JournalError, match="2 names"):
        async with open_journal(tmp_path / "other" / "journal.db"):
            pass
