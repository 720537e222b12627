"""The journal's files: locks, symbolic and hard links, and files that are deleted or moved while in use."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from subprocess import Popen

import pytest

from deliveryd.errors import JournalError, JournalLocked
from deliveryd.journal.reader import file_reader
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.journal.sqlite.lock import lock_of
from deliveryd.sandbox.faults import ApplyThenDelay
from support.logs import log_lines
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.terminal import command
from support.world import World, get, open_world

pytestmark = pytest.mark.slow


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


def test_a_worker_waits_for_a_command_that_holds_the_lock(world: World) -> None:
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


def test_a_second_worker_is_refused_even_through_a_symbolic_link(
    linked: tuple[World, Path],
) -> None:
    """Lock, log and socket lie beside the file itself, and nothing lies beside the link."""
    world, direct = linked
    first = world.start()
    world.state.wait_for(lambda state: state.requests["queue"] >= 1, PATIENCE)
    second = run(direct)
    assert second.returncode == 1
    assert f"in use by another deliveryd (process {first.pid})" in second.stderr
    assert [file.name for file in world.folder.glob("link.db*")] == ["link.db"]
    beside = {file.name.removeprefix("journal.db") for file in world.folder.glob("disk/*")}
    assert beside == {"", "-wal", "-shm", ".lock", ".worker", ".sock"}
    first.terminate()
    assert first.wait(PATIENCE) == 0


def test_commands_reach_a_worker_that_opened_the_journal_through_a_symbolic_link(
    linked: tuple[World, Path],
) -> None:
    """Orders are carried out by the worker, and what is read is what the worker has."""
    world, direct = linked
    world.state.enqueue(message(1))
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.statuses(1) == ["dequeued", "sent"], PATIENCE)
    told = world.command("in-doubt", "resend", "1", "--config", str(direct))
    assert "it isn't held in doubt" in told.stdout
    assert "desk.decided" in world.log()
    explained = world.command("explain", "1", "--json", "--config", str(direct))
    assert json.loads(explained.stdout)["state"] == "sent"
    worker.terminate()
    assert worker.wait(PATIENCE) == 0


@pytest.mark.anyio
async def test_a_journal_with_two_hard_links_is_refused(tmp_path: Path) -> None:
    """Each name has its own lock and log: two workers could open one journal."""
    async with open_journal_file(tmp_path / "journal.db"):
        pass
    tmp_path.joinpath("other").mkdir()
    tmp_path.joinpath("other", "journal.db").hardlink_to(tmp_path / "journal.db")
    with pytest.raises(JournalError, match="2 names"):
        async with open_journal_file(tmp_path / "other" / "journal.db"):
            pass


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.anyio
async def test_a_journal_that_is_made_is_logged(tmp_path: Path, empty: bool) -> None:
    """Also in place of an emptied file: with a mistyped address, or a lost journal, messages seem new."""
    path = tmp_path / "state" / "journal.db"
    if empty:
        path.parent.mkdir()
        path.touch(0o600)
    with log_lines("info") as lines:
        for _ in range(2):
            async with open_journal_file(path):
                pass
        created = [line for line in lines() if line["event"] == "journal.created"]
    assert [(line["level"], line["file"], line["reason"]) for line in created] == [
        ("info", str(path), "the file was empty" if empty else "there was no file")
    ]


# files that vanish


def delete(world: World) -> None:
    for file in world.folder.glob("journal.db*"):
        file.unlink()


def delete_the_log(world: World) -> None:
    world.folder.joinpath("journal.db-wal").unlink()


def move_the_folder_away(world: World) -> None:
    world.folder.joinpath("state").rename(world.folder / "elsewhere")


def replace_by_a_copy(world: World) -> None:
    shutil.copy(world.folder / "journal.db", world.folder / "copy")
    world.folder.joinpath("copy").rename(world.folder / "journal.db")


def pages(world: World) -> str:
    """Where the administrative pages are."""
    found = re.search(r'"server": "admin", "listen": "(http://[^"]+)"', world.log())
    assert found is not None
    return found[1]


@pytest.mark.parametrize("harm", [delete, delete_the_log, replace_by_a_copy, move_the_folder_away])
def test_a_journal_that_is_deleted_or_replaced_stops_intake_and_the_worker_finishes_the_rest(
    world: World, harm: Callable[[World], None]
) -> None:
    """It says so at error level and in /readyz, stays alive, and ends well when it is told to."""
    world.change('[admin]\nlisten = ""', '[admin]\nlisten = "127.0.0.1:0"')
    if harm is move_the_folder_away:
        world.change("journal.db", "state/journal.db")
    world.state.fail("provider.sms", ApplyThenDelay(2.0))
    world.state.enqueue(message(1))
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.requests["provider.sms"], PATIENCE)
    harm(world)
    ready = get(f"{pages(world)}/readyz")
    assert ready.status_code == 503
    assert "the journal was removed or replaced: don't restart" in ready.text
    line = wait_until_logged(worker, world, "journal.misplaced")
    assert line["level"] == "error"
    world.state.enqueue(message(2))
    world.state.wait_for(lambda state: state.statuses(1) == ["dequeued", "sent"], PATIENCE)
    assert get(f"{pages(world)}/livez").status_code == 200
    assert get(f"{pages(world)}/status").json()["ready"] is False
    assert worker.poll() is None
    there = {file: file.read_bytes() for file in world.folder.glob("journal.db")}
    worker.terminate()
    assert worker.wait(PATIENCE) == 0, world.log()
    if harm is replace_by_a_copy:
        assert {file: file.read_bytes() for file in there} == there
    assert world.state.statuses(2) == []


@pytest.mark.parametrize("moved", [("",), ("", "-wal", "-shm")])
def test_commands_name_the_worker_that_has_the_only_copy(world: World, moved: tuple[str, ...]) -> None:
    """Instead of advising to move the rest away, or to expect a new journal."""
    world.state.enqueue(message(1))
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.statuses(1) == ["dequeued", "sent"], PATIENCE)
    for suffix in moved:
        world.folder.joinpath(f"journal.db{suffix}").rename(world.folder / f"elsewhere{suffix}")
    wait_until_logged(worker, world, "journal.misplaced")
    text = (
        f"{world.folder / 'journal.db'} is empty or gone while process {worker.pid} uses it: don't restart"
        " that worker, and move nothing away."
    )
    for arguments in (("check", "--offline"), ("explain", "1"), ("journal", "adopt-service")):
        answered = command(*arguments, "--config", world.config)
        assert (answered.status, text in answered.out + answered.err) == (1, True), answered
        assert "move both away" not in answered.out + answered.err
    worker.terminate()
    assert worker.wait(PATIENCE) == 0


def test_a_journal_that_is_moved_back_is_used_again(world: World) -> None:
    """Intake continues in the same process."""
    world.state.enqueue(message(1))
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.statuses(1) == ["dequeued", "sent"], PATIENCE)
    world.folder.joinpath("journal.db").rename(world.folder / "elsewhere")
    wait_until_logged(worker, world, "journal.misplaced")
    world.state.enqueue(message(2))
    world.folder.joinpath("elsewhere").rename(world.folder / "journal.db")
    world.state.wait_for(lambda state: state.statuses(2) == ["dequeued", "sent"], PATIENCE)
    wait_until_logged(worker, world, "journal.in_place")
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert file_reader(world.folder / "journal.db").audit().is_balanced


def test_a_deleted_journal_can_be_restored_from_the_paths_in_the_log(world: World) -> None:
    """The next worker has all records of the first one, and sends nothing again."""
    world.state.enqueue(*(message(id_) for id_ in range(1, 51)))
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.statuses(50) == ["dequeued", "sent"], PATIENCE)
    delete(world)
    line = wait_until_logged(worker, world, "journal.misplaced")
    copies = re.findall(r"/proc/[0-9]+/fd/[0-9]+", str(line["reason"]))
    rescued = [world.folder / f"rescued{suffix}" for suffix in ("", "-wal")]
    for copy, rescue in zip(copies, rescued, strict=True):
        shutil.copyfile(copy, rescue)
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    for rescue in rescued:
        rescue.rename(world.folder / rescue.name.replace("rescued", "journal.db"))
    world.state.enqueue(*(message(id_) for id_ in range(1, 52)))
    world.run_until_idle()
    assert file_reader(world.folder / "journal.db").audit().is_balanced
    assert Counter(received.message_id for received in world.state.received) == dict.fromkeys(range(1, 52), 1)


@pytest.mark.parametrize("name", ["namespace", "stop_key"])
@pytest.mark.anyio
async def test_a_journal_that_lost_a_value_of_its_own_is_refused(tmp_path: Path, name: str) -> None:
    """With another namespace a repeat would have another key, and with another stop key nobody be stopped."""
    path = tmp_path / "journal.db"
    async with open_journal_file(path):
        pass
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM meta WHERE key = ?", (name,))
        db.commit()
    with pytest.raises(JournalError, match=f"damaged: it has no {name}"):
        async with open_journal_file(path):
            pass


@pytest.mark.anyio
async def test_a_lock_whose_file_is_deleted_still_excludes_others(tmp_path: Path) -> None:
    """The process that holds it takes the lock again at the same path."""
    async with open_journal_file(tmp_path / "journal.db") as journal:
        tmp_path.joinpath("journal.db.lock").unlink()
        assert journal.misplaced() is None
        with pytest.raises(JournalLocked):
            async with open_journal_file(tmp_path / "journal.db"):
                pass


@pytest.mark.anyio
async def test_a_lock_that_another_process_took_is_reported(tmp_path: Path) -> None:
    async with open_journal_file(tmp_path / "journal.db") as journal:
        tmp_path.joinpath("journal.db.lock").unlink()
        other = lock_of(tmp_path / "journal.db")
        other.take()
        assert (
            journal.misplaced()
            == "the journal's lock file was removed, and another process holds the lock now"
        )
        other.release()
        assert journal.misplaced() is None


def test_orders_are_accepted_again_after_the_socket_was_deleted(world: World) -> None:
    """The worker creates it again before a command times out."""
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.requests["queue"] >= 1, PATIENCE)
    world.folder.joinpath("journal.db.sock").unlink()
    told = world.command("in-doubt", "resend", "1", "--config", str(world.config))
    assert "it isn't held in doubt" in told.stdout
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
