"""Files that somebody planted where ours belong: no link is followed, no other user's file is touched."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deliveryd.errors import JournalError
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.journal.sqlite.lock import exclusive_worker
from deliveryd.runtime.disk_cache import DiskCache
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.world import World, open_world

pytestmark = pytest.mark.slow

USER = 10001
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

COMMANDS = {
    "explain": ["explain", "1"],
    "audit": ["audit"],
    "in-doubt": ["in-doubt", "resend", "1"],
    "dead": ["dead", "drop", "event:1"],
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        world.change("journal.db", "state/journal.db")
        yield world


@pytest.fixture
def state(world: World) -> Path:
    """The journal's folder, after a first run."""
    world.state.enqueue(message(1))
    world.run_until_idle()
    return world.folder / "state"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file whose text and mode must stay."""
    file = tmp_path / "victim"
    file.write_text("precious")
    file.chmod(0o644)
    return file


def is_untouched(victim: Path) -> bool:
    return (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("precious", 0o644)


def asked(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    return world.command(*words, "--config", str(world.config))


# planted beside the journal


def a_link(place: Path, victim: Path) -> str:
    place.symlink_to(victim)
    return f"{place} is a symbolic link, which is not followed: remove it"


def a_second_name(place: Path, victim: Path) -> str:
    place.hardlink_to(victim)
    return f"{place} has 2 names (hard links), so changes would affect all of them: remove the other"


def a_pipe(place: Path, victim: Path) -> str:
    os.mkfifo(place)
    return f"{place} isn't a regular file: remove it"


def another_users_file(place: Path, victim: Path) -> str:
    place.write_text("4711\n")
    os.chown(place, USER, USER)
    return f"{place} belongs to the user {USER}, but this process runs as"


Plant = Callable[[Path, Path], str]
PLANTS = [a_link, a_second_name, a_pipe, pytest.param(another_users_file, marks=needs_root)]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("suffix", [".lock", ".worker", "-wal", "-shm", "-journal"])
async def test_nothing_is_touched_that_was_planted_beside_the_journal(
    tmp_path: Path, victim: Path, suffix: str, plant: Plant
) -> None:
    """A worker ends with a sentence that says which file it is, what is wrong with it, and what to do."""
    journal = tmp_path / "state" / "journal.db"
    async with open_journal_file(journal):
        pass
    place = journal.with_name(f"journal.db{suffix}")
    place.unlink(missing_ok=True)
    said = plant(place, victim)
    with pytest.raises(JournalError, match=re.escape(said)), exclusive_worker(journal):
        async with open_journal_file(journal):
            pass
    assert is_untouched(victim)


def test_a_reload_refuses_a_configuration_that_all_users_may_change(tmp_path: Path) -> None:
    """Another user's changes aren't applied; the worker goes on with what it has, and its log says why."""
    for world in open_world(tmp_path):
        worker = world.start(log="info")
        world.state.wait_for(lambda state: state.requests["queue"] >= 1, PATIENCE)
        world.add('[run]\ndrain_timeout = "1s"\n')
        world.config.chmod(0o666)
        answered = asked(world, "reload")
        why = f"{world.config}: all users may change it; run: chmod o-w {world.config}"
        assert (answered.returncode, why in answered.stderr) == (78, True), answered.stderr
        assert '"config.refused"' in world.log()
        assert worker.poll() is None
        world.config.chmod(0o644)
        answered = asked(world, "reload")
        assert (answered.returncode, "run.drain_timeout" in answered.stdout) == (0, True), answered


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_follows_a_link_that_was_planted_as_the_lock(
    world: World, state: Path, victim: Path, command: str
) -> None:
    lock = state / "journal.db.lock"
    lock.unlink()
    said = a_link(lock, victim)
    answered = asked(world, *COMMANDS[command])
    assert (answered.returncode, said in answered.stderr) == (78, True), answered.stderr
    assert is_untouched(victim)


def test_no_order_is_given_through_a_link_that_was_planted_as_the_socket(
    world: World, state: Path, victim: Path
) -> None:
    said = a_link(state / "journal.db.sock", victim)
    answered = asked(world, "in-doubt", "resend", "1")
    assert (answered.returncode, answered.stderr) == (1, f"deliveryd: can't send the order: {said}\n")


def test_a_worker_leaves_alone_what_was_planted_as_its_socket(
    world: World, state: Path, victim: Path
) -> None:
    """It works on without taking orders, and says why."""
    said = a_link(state / "journal.db.sock", victim)
    world.state.enqueue(message(2))
    world.run_until_idle(log="info")
    assert said in world.log()
    assert is_untouched(victim)
    assert state.joinpath("journal.db.sock").is_symlink()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_journal_that_was_replaced_by_a_link_after_its_name_was_resolved_is_refused(
    tmp_path: Path,
) -> None:
    """Links are followed once, when the configuration is read."""
    async with open_journal_file(tmp_path / "theirs.db"):
        pass
    tmp_path.joinpath("journal.db").symlink_to("theirs.db")
    with pytest.raises(JournalError, match=r"journal\.db is a symbolic link"):
        async with open_journal_file(tmp_path / "journal.db"):
            pass


# the cache


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_link_in_place_of_the_caches_folder_is_not_followed(tmp_path: Path) -> None:
    """What it leads to keeps its mode, and nothing is put there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    tmp_path.joinpath("cache").symlink_to(elsewhere)
    problems: list[str] = []
    cache = DiskCache(tmp_path / "cache", 1 << 20, problems.append)
    await cache.set("a", b"1")
    assert await cache.get("a") is None
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755
    assert list(elsewhere.iterdir()) == []
    assert problems == [
        f"the cache is bypassed: {tmp_path / 'cache'} is a symbolic link, which is not followed: remove it"
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_second_name_of_another_file_is_no_cache(tmp_path: Path, victim: Path) -> None:
    """The name is removed, the file stays, and the cache begins anew."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    folder.joinpath("cache.db").hardlink_to(victim)
    problems: list[str] = []
    cache = DiskCache(folder, 1 << 20, problems.append)
    await cache.set("a", b"1")
    await cache.aclose()
    assert is_untouched(victim)
    assert "has 2 names" in problems[0]


# root


@pytest.fixture
def theirs(world: World) -> Path:
    """The journal's folder: another user's, below one that only root can enter, as with DynamicUser=."""
    private = world.folder / "private"
    private.mkdir(mode=0o700)
    world.change("state/journal.db", "private/deliveryd/journal.db")
    world.change('cache_dir = "cache"', 'cache_dir = "private/cache"')
    for name in ("deliveryd", "cache"):
        private.joinpath(name).mkdir(mode=0o700)
        os.chown(private / name, USER, USER)
    return private / "deliveryd"


@needs_root
def test_what_root_does_it_does_as_the_owner_of_the_journals_folder(world: World, theirs: Path) -> None:
    """A worker and commands: all files are the owner's, below a folder that the owner can't enter too."""
    world.state.enqueue(message(1))
    world.run_until_idle()
    for words in (*COMMANDS.values(), ["cache", "info"]):
        answered = asked(world, *words)
        assert "can't" not in answered.stderr, answered.stderr
    assert "1 entry" in asked(world, "cache", "info").stdout
    assert '"sent"' in asked(world, "explain", "1", "--json").stdout
    files = [file for folder in (theirs, world.folder / "private/cache") for file in folder.rglob("*")]
    assert {"journal.db", "journal.db.lock", "cache.db"} <= {file.name for file in files}
    assert {(file.lstat().st_uid, file.lstat().st_gid) for file in files} == {(USER, USER)}


@needs_root
def test_root_empties_no_file_of_its_own_through_a_link_of_the_owners(
    world: World, theirs: Path, victim: Path
) -> None:
    world.run_until_idle()
    theirs.joinpath("journal.db.lock").unlink()
    theirs.joinpath("journal.db.lock").symlink_to(victim)
    os.chown(theirs / "journal.db.lock", USER, USER, follow_symlinks=False)
    for words in COMMANDS.values():
        assert asked(world, *words).returncode == 78
    assert is_untouched(victim)


@needs_root
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_root_leaves_nothing_in_a_folder_that_a_link_of_the_owners_leads_to(
    world: World, theirs: Path, words: list[str]
) -> None:
    """The owner of the journal's folder can't have root begin a journal, or a lock, wherever they like."""
    target = world.folder / "roots"
    target.mkdir(mode=0o755)
    theirs.joinpath("journal.db").symlink_to(target / "journal.db")
    os.chown(theirs / "journal.db", USER, USER, follow_symlinks=False)
    answered = asked(world, *words)
    assert answered.returncode == 1
    assert f"{theirs / 'journal.db'} is a symbolic link to {target}" in answered.stderr
    assert list(target.iterdir()) == []


@needs_root
def test_a_link_of_roots_own_leads_to_the_owners_folder(world: World, theirs: Path) -> None:
    """As systemd makes them: /var/lib/deliveryd leads to /var/lib/private/deliveryd."""
    world.folder.joinpath("link").symlink_to(theirs)
    world.change("private/deliveryd/journal.db", "link/journal.db")
    world.run_until_idle()
    assert theirs.joinpath("journal.db").lstat().st_uid == USER
    assert asked(world, "audit").returncode == 0
