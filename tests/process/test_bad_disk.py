"""Bad disks under a real worker: full, limited, damaged, open to others. Nothing is lost; it says so once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import shutil
import sqlite3
import stat
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from deliveryd.sandbox.faults import Delay
from deliveryd.sandbox.state import SandboxState
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.terminal import Answered, command
from support.world import PROGRAM, World, open_world

pytestmark = pytest.mark.slow

SIZE = 6 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small disk takes root and mount")
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "tmpfs", str(disk)]
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


def ask(world: World, page: str) -> httpx.Response:
    """A page of the worker's."""
    listen = next(
        entry["listen"] for line in world.log().splitlines() if "listen" in (entry := json.loads(line))
    )
    return httpx.get(f"{listen}/{page}", trust_env=False)


def ready(world: World) -> tuple[int, str]:
    """What /readyz says."""
    answer = ask(world, "readyz")
    return answer.status_code, answer.text


def in_flight(world: World) -> int:
    """How many messages the worker has taken and not brought to an end."""
    number: int = ask(world, "status").json()["in_flight"]
    return number


def ended(state: SandboxState) -> int:
    """How many messages were reported as sent."""
    return sum(event["status"] == "sent" for event in state.events)


def audit(world: World) -> subprocess.CompletedProcess[str]:
    """Reconcile the journal."""
    return world.command("audit", "--config", str(world.config))


# the journal's disk


def test_a_disk_that_fills_up_under_500_messages_loses_none_and_the_line_goes_on_by_itself(
    world: World, small_disk: Path
) -> None:
    world.state.fail_until_healed("provider.sms", Delay(0.3))
    world.state.enqueue(*(message(id_, word="w" * 200) for id_ in range(1, 1001)))
    worker = world.start(log="info")
    world.state.wait_for(lambda state: len(state.received) >= 100, PATIENCE)
    world.state.wait_for(lambda state: len(state.taken) - ended(state) >= 500, PATIENCE)
    ballast = fill(small_disk, leave=0)
    world.state.heal("provider.sms")
    while "journal.full" not in events(world):
        assert worker.poll() is None, world.log()[-2000:]
    assert in_flight(world) >= 500
    assert ready(world)[0] == 503
    assert "disk" in ready(world)[1]
    ballast.unlink()
    world.state.wait_for(lambda state: ended(state) >= 1000, PATIENCE)
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert all(world.state.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 1001))
    assert Counter(received.message_id for received in world.state.received) == dict.fromkeys(
        range(1, 1001), 1
    )
    assert events(world).count("journal.full") == events(world).count("journal.room") == 1
    assert audit(world).returncode == 0


def test_taking_stops_while_less_than_the_reserve_is_left(world: World, small_disk: Path) -> None:
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.requests["queue"] >= 1, PATIENCE)
    ballast = fill(small_disk, leave=512 << 10)
    while "queue.paused" not in events(world):
        assert worker.poll() is None
    world.state.enqueue(*(message(id_) for id_ in range(1, 11)))
    assert ready(world) == (503, "not ready\nthe journal's disk is nearly full (journal.reserve)\n")
    assert not world.state.taken
    ballast.unlink()
    world.state.wait_for(lambda state: sum(e["status"] == "sent" for e in state.events) == 10, PATIENCE)
    assert "journal.full" not in events(world)


def test_orders_are_refused_at_once_while_a_pause_cant_end_for_want_of_room(
    world: World, small_disk: Path
) -> None:
    """None waits behind it, to be carried out long after its command failed; all of it works with room."""
    world.state.enqueue(message(1, 2))  # settings 2 don't exist
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.statuses(1)[-1:] == ["error"], PATIENCE)
    assert order(world, "pause", "settings", *range(9, 400), "--for", "1s").status == 0
    ballast = fill(small_disk, leave=0)
    while events(world)[-1] != "journal.full":
        add(ballast)  # what the journal gave back when it made its log shorter
        assert worker.poll() is None, world.log()[-2000:]
    orders = (("pause", "channel", "sms"), ("resume", "settings", 9), ("failed", "retry", 1), ("forget", 1))
    for words in orders:
        add(ballast)
        refused = order(world, *words)
        assert (refused.status, "no room left on the journal's disk" in refused.err) == (1, True), refused
    ballast.unlink()
    while "pause.ended" not in events(world):
        assert worker.poll() is None, world.log()[-2000:]
    assert order(world, "paused", "--json").data == []
    assert order(world, "pause", "channel", "sms").status == 0
    assert order(world, "forget", 1).status == 0
    worker.terminate()
    assert worker.wait(PATIENCE) == 0


def add(ballast: Path) -> None:
    """Take all room that is left."""
    with contextlib.suppress(OSError), ballast.open("ab") as file:
        file.write(b"x" * os.statvfs(ballast).f_bavail * os.statvfs(ballast).f_frsize)


def order(world: World, *words: object) -> Answered:
    return command(*words, "--config", world.config)


# the cache's disk


def bypasses(world: World) -> int:
    """How often the log says that the cache is of no use."""
    return events(world).count("cache.broken")


def test_a_cache_without_room_is_bypassed_and_the_log_says_so_once(tmp_path: Path, small_disk: Path) -> None:
    """Forty settings are fetched as if there were no cache; the worker ends well."""
    for world in open_world(tmp_path):
        world.change('cache_dir = "cache"', f'cache_dir = "{small_disk}/cache"')
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings.update({id_: sms_settings() for id_ in range(40)})
        world.state.enqueue(*(message(id_, settings_id=id_ % 40) for id_ in range(1, 201)))
        fill(small_disk, leave=0)
        world.run_until_idle(log="info")
        assert len(world.state.accepted()) == 200
        assert bypasses(world) == 1
        assert world.state.requests["settings"] == 40


def test_journal_and_cache_on_one_full_disk_lose_nothing(world: World, small_disk: Path) -> None:
    """Both wait for the same room: the cache is bypassed, the journal's line stands still and goes on."""
    world.change('cache_dir = "cache"', f'cache_dir = "{small_disk}/cache"')
    world.state.settings.update({id_: sms_settings() for id_ in range(1, 21)})
    world.state.fail_until_healed("provider.sms", Delay(0.1))
    numbers = range(1, 401)
    world.state.enqueue(*(message(id_, settings_id=id_ % 20 + 1, word="w" * 200) for id_ in numbers))
    worker = world.start(log="info")
    world.state.wait_for(lambda state: len(state.received) >= 50, PATIENCE)
    ballast = fill(small_disk, leave=0)
    while "journal.full" not in events(world):
        assert worker.poll() is None, world.log()[-2000:]
    ballast.unlink()
    world.state.wait_for(
        lambda state: all(state.statuses(id_) == ["dequeued", "sent"] for id_ in numbers), PATIENCE
    )
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert Counter(received.message_id for received in world.state.accepted()) == dict.fromkeys(numbers, 1)
    assert events(world).count("journal.full") == 1
    assert bypasses(world) <= 1
    assert audit(world).returncode == 0


# limits, and a start without room


def test_a_journal_that_cannot_even_be_opened_for_want_of_room_says_so_and_is_fine_later(
    world: World, small_disk: Path
) -> None:
    ballast = fill(small_disk, leave=0)
    assert world.start().wait(PATIENCE) == 1
    assert re.search(r"can't be used as a journal: .*(full|No space left)", world.log())
    assert "move it away" not in world.log()
    ballast.unlink()
    world.state.enqueue(message(1))
    world.run_until_idle()
    assert world.state.statuses(1) == ["dequeued", "sent"]


def test_a_limit_on_the_size_of_files_ends_the_worker_with_a_message_and_loses_nothing(
    tmp_path: Path,
) -> None:
    """The journal outgrows RLIMIT_FSIZE: no death by a signal; with a larger limit all goes on."""
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        world.state.enqueue(*(message(id_, word="w" * 2000) for id_ in range(1, 301)))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, limits[1]))
        try:
            worker = world.start("--until-idle", program=PROGRAM)  # a child: it inherits the limit
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert worker.wait(PATIENCE) == 1
        assert "disk I/O error. No committed data is lost" in world.log()
        assert "its free space and limits" in world.log()
        assert audit(world).returncode == 0
        world.state.redeliver_after = 0.0  # what was taken and never recorded is the queue's to give again
        world.run_until_idle()
        assert all(world.state.statuses(id_)[-1] == "sent" for id_ in range(1, 301))
        assert Counter(received.message_id for received in world.state.accepted()) == dict.fromkeys(
            range(1, 301), 1
        )


# a journal that is damaged


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world that has a journal of some size; what a test does to its files is undone by `restored`."""
    for world in open_world(tmp_path_factory.mktemp("finished")):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        world.state.enqueue(*(message(id_) for id_ in range(1, 301)))
        world.run_until_idle()
        shutil.copy(world.folder / "journal.db", world.folder / "sound.db")
        yield world


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def with_broken_trees(sound: bytes) -> bytes:
    """Every page but the first begins with nonsense."""
    pages = [sound[at : at + 4096] for at in range(0, len(sound), 4096)]
    return pages[0] + b"".join(noise(64) + page[64:] for page in pages[1:])


def of_another_program(_sound: bytes) -> bytes:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE theirs (x)")
        db.execute("PRAGMA application_id = 252006673")
        return db.serialize()


DAMAGES: Mapping[str, Callable[[bytes], tuple[bytes | None, bytes | None]]] = {
    "noise in its header": lambda sound: (noise(100) + sound[100:], None),
    "nonsense for a page size": lambda sound: (sound[:16] + b"\x00\x07" + sound[18:], None),
    "noise in its trees": lambda sound: (with_broken_trees(sound), None),
    "cut in the middle": lambda sound: (sound[: len(sound) // 2], None),
    "cut within a page": lambda sound: (sound[: len(sound) // 2 + 1000], None),
    "cut within its header": lambda sound: (sound[:50], None),
    "zeros": lambda sound: (bytes(len(sound)), None),
    "empty, with a log": lambda _: (b"", noise(5000)),
    "gone, with a log": lambda _: (None, noise(5000)),
    "sound, with noise for a log": lambda sound: (sound, noise(50_000)),
    "of another program": lambda sound: (of_another_program(sound), None),
}
"""By what is wrong: what the journal's file and its log hold then."""

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("run", "--until-idle"), ("audit",), ("explain", "7"), ("dead", "list"), ("in-doubt", "list"),
)  # fmt: skip


def answer_of(world: World, words: Sequence[str]) -> tuple[int, str]:
    """A command's status, and what it says on standard error."""
    if words[0] == "run":
        ended = world.command(*words, "--config", str(world.config))
        return ended.returncode, ended.stderr
    answered = command(*words, "--config", world.config)
    return answered.status, answered.err


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_journal_is_refused_by_every_command_and_left_as_it_is(
    finished: World, damage: str
) -> None:
    """Each says in one line what to do, ends with 78, since waiting mends nothing, and changes no byte."""
    files = [finished.folder / name for name in ("journal.db", "journal.db-wal")]
    for leftover in ("journal.db-wal", "journal.db-shm"):
        finished.folder.joinpath(leftover).unlink(missing_ok=True)
    before = DAMAGES[damage](finished.folder.joinpath("sound.db").read_bytes())
    for file, content in zip(files, before, strict=True):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
    for words in COMMANDS:
        status, said = answer_of(finished, words)
        assert status == 78, (words, said)
        [line] = [line for line in said.splitlines() if line.startswith("deliveryd: ")]
        assert "journal.db" in line
        assert re.search(r"restore|name another", line), line
        assert tuple(file.read_bytes() if file.exists() else None for file in files) == before


def test_a_folder_in_the_journals_place_is_refused_by_every_command(finished: World) -> None:
    with a_journal_in(finished, "folder"):
        finished.folder.joinpath("folder").mkdir()
        for words in COMMANDS:
            status, said = answer_of(finished, words)
            assert status == 78, (words, said)
            assert f"{finished.folder}/folder" in said


@contextlib.contextmanager
def a_journal_in(world: World, name: str) -> Iterator[None]:
    """The configuration names another journal for a while."""
    world.change("sqlite:///journal.db", f"sqlite:///{name}")
    yield
    world.change(f"sqlite:///{name}", "sqlite:///journal.db")


def test_damage_that_shows_only_under_way_ends_the_worker_with_a_message(tmp_path: Path) -> None:
    """The pages of an index turn to noise below a worker; it takes nothing for granted and stops."""
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        world.state.enqueue(*(message(id_) for id_ in range(1, 301)))
        world.run_until_idle()
        journal = world.folder / "journal.db"
        with closing(sqlite3.connect(journal)) as db:
            [(root,)] = db.execute(
                "SELECT rootpage FROM sqlite_master WHERE name = 'message_provider'"
            ).fetchall()
        with journal.open("r+b") as file:
            file.seek((root - 1) * 4096)
            file.write(noise(4096))
        world.state.enqueue(*(message(id_) for id_ in range(301, 401)))
        assert world.start("--until-idle").wait(PATIENCE) == 78
        assert "malformed. It is left as it is: move it away" in world.log()
        assert audit(world).returncode == 78


# who may read


def test_what_a_worker_makes_is_for_its_user_alone(tmp_path: Path) -> None:
    """Journal, log, lock, socket and cache, whatever the umask leaves."""
    modes: dict[str, int] = {}
    for world in open_world(tmp_path):
        world.change("sqlite:///journal.db", "sqlite:///state/deep/journal.db")
        world.state.settings[1] = sms_settings()
        world.state.enqueue(message(1))
        before = os.umask(0)
        try:
            worker = world.start(log="info", program=PROGRAM)  # a child: it inherits the umask
        finally:
            os.umask(before)
        world.state.wait_for(lambda state: state.statuses(1)[-1:] == ["error"], PATIENCE)
        made = [tmp_path / "state", *tmp_path.glob("state/**/*"), tmp_path / "cache"]
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made}
        worker.terminate()
        worker.wait(PATIENCE)
    folders = {"state", "deep", "cache"}
    files = {f"journal.db{suffix}" for suffix in ("", "-wal", "-shm", ".lock", ".worker", ".sock")}
    assert modes == {**dict.fromkeys(folders, 0o700), **dict.fromkeys(files, 0o600)}


def test_a_journal_that_others_could_read_is_taken_from_them_and_named(tmp_path: Path) -> None:
    """Also its log, and a folder in which others could put another journal is named."""
    for world in open_world(tmp_path):
        world.run_until_idle()
        world.folder.joinpath("journal.db").chmod(0o644)
        world.folder.joinpath("journal.db.lock").chmod(0o666)
        world.folder.chmod(0o770)
        world.run_until_idle()
        lines = [json.loads(line) for line in world.log().splitlines() if "journal.exposed" in line]
        assert sorted(Path(line["file"]).name for line in lines) == sorted(
            ["journal.db", "journal.db.lock", tmp_path.name]
        )
        for name in ("journal.db", "journal.db.lock"):
            assert stat.S_IMODE(world.folder.joinpath(name).stat().st_mode) == 0o600
        world.folder.chmod(0o700)
        world.run_until_idle()
        assert sum("journal.exposed" in line for line in world.log().splitlines()) == 3
