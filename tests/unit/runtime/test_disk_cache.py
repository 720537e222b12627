"""The disk cache: what it keeps, what it refuses to read, and that nothing of it is ever fatal."""

from __future__ import annotations

import errno
import os
import pickle
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from deliveryd.runtime.disk_cache import Cached, DiskCache
from support.patience import PATIENCE

pytestmark = pytest.mark.anyio

SIZE = 16 << 20


def value_of(found: Cached | None) -> bytes | None:
    return None if found is None else found.value


class Cache:
    """A cache, its folder, and what it had to say. `reopened` is the one after a restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self.disk = DiskCache(folder, SIZE, self.problems.append)

    async def reopened(self) -> DiskCache:
        await self.disk.aclose()
        self.disk = DiskCache(self.folder, SIZE, self.problems.append)
        return self.disk

    def write(self, statement: str, *values: object) -> None:
        """Change the database as somebody who planted something would."""
        with closing(sqlite3.connect(self.folder / "cache.db")) as db, db:
            db.execute(statement, values)

    async def works_again(self) -> bool:
        """Whether it takes and gives back, as if nothing had been."""
        await self.disk.set("again", b"yes")
        return value_of(await self.disk.get("again")) == b"yes"


@pytest.fixture
async def cache(tmp_path: Path, anyio_backend: object) -> AsyncIterator[Cache]:
    cache = Cache(tmp_path / "deep" / "settings")
    yield cache
    await cache.disk.aclose()


async def test_what_is_stored_comes_back(cache: Cache) -> None:
    """Bytes by name, replaced, forgotten, and there after a restart."""
    everything = bytes(range(256)) * 100
    assert await cache.disk.get("a") is None
    await cache.disk.set("a", b"old")
    await cache.disk.set("a", everything)
    await cache.disk.set("b", b"")
    reopened = await cache.reopened()
    assert value_of(await reopened.get("a")) == everything
    assert value_of(await reopened.get("b")) == b""
    await reopened.delete("a")
    await reopened.delete("never there")
    assert await reopened.get("a") is None
    assert cache.problems == []


async def test_large_values_stay_in_the_database(cache: Cache) -> None:
    """No value gets a file of its own, whatever its size: the folder holds the database and nothing else."""
    await cache.disk.set("large", b"x" * (4 << 20))
    assert {path.name for path in cache.folder.iterdir()} <= {"cache.db", "cache.db-wal", "cache.db-shm"}
    assert value_of(await cache.disk.get("large")) == b"x" * (4 << 20)


async def test_a_value_tells_its_age_and_none_is_gone_by_a_clock_that_is_ahead(cache: Cache) -> None:
    """Also after a restart; where the clock was put back behind the moment it was stored, nobody can tell."""
    await cache.disk.set("a", b"1")
    found = await (await cache.reopened()).get("a")
    assert found is not None
    assert found.age == pytest.approx(0, abs=PATIENCE)
    cache.write("UPDATE Cache SET tag = tag - 8 * 86400")
    await cache.disk.set("b", b"1")
    found = await cache.disk.get("a")
    assert found is not None
    assert found.age == pytest.approx(8 * 86400, abs=PATIENCE)
    cache.write("UPDATE Cache SET tag = tag + 16 * 86400 WHERE key LIKE '%a'")
    assert await cache.disk.get("a") == Cached(b"1", None)


async def test_caches_of_two_names_in_one_folder_are_apart(cache: Cache) -> None:
    """Neither sees or lists what the other one keeps."""
    ours, theirs = (DiskCache(cache.folder, 1 << 20, pytest.fail, below=name) for name in ("a", "b"))
    await ours.set("x", b"1")
    await theirs.set("y", b"2")
    assert (await ours.names(), await theirs.names()) == (["x"], ["y"])
    assert await ours.get("y") is None
    await theirs.delete("x")
    assert value_of(await ours.get("x")) == b"1"
    await ours.aclose()
    await theirs.aclose()


async def test_the_size_is_bounded(tmp_path: Path, anyio_backend: object) -> None:
    """Beyond its size the cache lets the oldest values go."""
    small = DiskCache(tmp_path / "small", 1 << 20, pytest.fail)
    for number in range(300):
        await small.set(str(number), bytes(10_000))
    assert await small.get("0") is None
    assert await small.get("299") is not None
    assert (tmp_path / "small" / "cache.db").stat().st_size < 2 << 20
    await small.aclose()


async def test_only_we_may_read_the_folder(cache: Cache) -> None:
    """The folder is made with mode 0700, and brought back to it."""
    await cache.disk.set("a", b"1")
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    cache.folder.chmod(0o755)
    assert value_of(await (await cache.reopened()).get("a")) == b"1"
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert cache.problems == []


async def test_what_others_could_write_is_not_trusted(cache: Cache) -> None:
    """Where the folder was open to others, what lies there may be theirs: it is thrown away."""
    await cache.disk.set("a", b"planted?")
    for mode in (0o770, 0o777, 0o702):
        cache.folder.chmod(mode)
        assert await (await cache.reopened()).get("a") is None
        assert cache.folder.stat().st_mode & 0o777 == 0o700
        await cache.disk.set("a", b"planted?")
    assert len(cache.problems) == 3
    assert "other users could write" in cache.problems[0]


async def test_a_folder_of_somebody_else_is_bypassed(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder's owner could change the mode back at any time, so that nothing is kept there."""
    cache.folder.mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: cache.folder.stat().st_uid + 1)
    await cache.disk.set("a", b"1")
    assert await cache.disk.get("a") is None
    assert list(cache.folder.iterdir()) == []
    [problem] = set(cache.problems)
    assert problem.startswith(f"the cache is bypassed: {cache.folder} belongs to the user ")


# what somebody planted


class Planted:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


RAW, BINARY, TEXT, PICKLE = 1, 2, 3, 4


@pytest.mark.parametrize("mode", [PICKLE, BINARY, TEXT, 0, 5, None, "x", 1.5])
async def test_a_planted_pickle_is_never_loaded(cache: Cache, tmp_path: Path, mode: object) -> None:
    """A value of any mode but ours is refused, whatever it holds, and the cache begins anew."""
    proof = tmp_path / "loaded"
    await cache.disk.set("a", b"1")
    cache.write("UPDATE Cache SET mode = ?, value = ?", mode, pickle.dumps(Planted(proof)))
    assert await cache.disk.get("a") is None
    assert not proof.exists()
    assert "discarded" in cache.problems[0]
    assert await cache.works_again()


async def test_a_pickle_in_our_own_mode_is_bytes(cache: Cache, tmp_path: Path) -> None:
    """In the mode of ours it comes back as the bytes that it is."""
    evil = pickle.dumps(Planted(tmp_path / "loaded"))
    await cache.disk.set("a", b"1")
    cache.write("UPDATE Cache SET value = ?", evil)
    assert value_of(await cache.disk.get("a")) == evil
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize("raw", [0, 1])
async def test_a_planted_key_is_never_loaded(cache: Cache, tmp_path: Path, raw: int) -> None:
    """A key that is a pickle is no key of ours, and does nothing, not even when the cache is culled."""
    proof = tmp_path / "loaded"
    await cache.disk.set("a", b"1")
    cache.write(
        "UPDATE Cache SET key = ?, raw = ?, expire_time = 1, store_time = 0",
        pickle.dumps(Planted(proof)),
        raw,
    )
    assert await cache.disk.get("a") is None
    assert await cache.works_again()
    assert not proof.exists()


@pytest.mark.parametrize("mode", [RAW, BINARY, TEXT, PICKLE])
async def test_a_planted_file_name_is_never_read(cache: Cache, tmp_path: Path, mode: int) -> None:
    """A row can't make us read a file, inside the folder or anywhere else."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"s3cret")
    await cache.disk.set("a", b"1")
    cache.write("UPDATE Cache SET mode = ?, filename = ?", mode, "../../secret")
    assert await cache.disk.get("a") is None
    assert await cache.works_again()
    assert secret.read_bytes() == b"s3cret"


async def test_a_planted_file_name_is_never_removed(cache: Cache, tmp_path: Path) -> None:
    """A row can't make us remove a file: not by being replaced, deleted, culled, or too old."""
    victim = tmp_path / "deep" / "victim"
    uses: list[Callable[[], Any]] = [
        lambda: cache.disk.set("a", b"2"),
        lambda: cache.disk.delete("a"),
        lambda: cache.disk.set("b", b"2"),
    ]
    for use in uses:
        await cache.disk.set("a", b"1")
        victim.write_bytes(b"precious")
        cache.write("UPDATE Cache SET filename = ?, expire_time = 1, store_time = 0", "../victim")
        await use()
        assert victim.read_bytes() == b"precious"
    assert await cache.works_again()


async def test_a_planted_time_is_refused(cache: Cache) -> None:
    """An age that is no number is none of ours."""
    await cache.disk.set("a", b"1")
    cache.write("UPDATE Cache SET tag = 'tomorrow'")
    assert await cache.disk.get("a") is None
    assert await cache.works_again()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("disk_directory", "/"),
        ("disk_evil", 1),
        ("cull_limit", "many"),
        ("eviction_policy", "none"),
        ("x", "y"),
    ],
)
async def test_planted_settings_of_the_library_are_not_fatal(cache: Cache, key: str, value: object) -> None:
    """diskcache keeps settings of its own in the file; strange ones cost the cache at most."""
    await cache.disk.set("a", b"1")
    cache.write("INSERT OR REPLACE INTO Settings VALUES (?, ?)", key, value)
    await (await cache.reopened()).get("a")
    await cache.disk.set("b", b"1")
    assert await cache.works_again()


# what goes wrong


def _damage(db: Path) -> None:
    with db.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(20_000))


def _directory(db: Path) -> None:
    db.unlink()
    (db / "below").mkdir(parents=True)


def _link(db: Path) -> None:
    db.unlink()
    db.symlink_to("/nonexistent/x")


def _another(db: Path) -> None:
    db.unlink()
    with closing(sqlite3.connect(db)) as other, other:
        other.execute("CREATE TABLE Cache (x)")
        other.execute("CREATE TABLE Settings (y)")


def _redefined(db: Path) -> None:
    with closing(sqlite3.connect(db)) as other, other:
        other.execute("DROP TABLE Cache")
        other.execute("CREATE TABLE Cache (key, raw)")


SPOILED: dict[str, Callable[[Path], object]] = {
    "garbage": lambda db: db.write_bytes(b"no database" * 1000),
    "an empty file": lambda db: db.write_bytes(b""),
    "half a file": lambda db: os.truncate(db, 5000),
    "a damaged page": _damage,
    "a directory": _directory,
    "a dangling link": _link,
    "another database": _another,
    "a table without columns": _redefined,
    "a missing file": lambda db: db.unlink(),
    "foreign files beside it": lambda db: (db.parent / "00" / "ab").mkdir(parents=True),
}


@pytest.mark.parametrize("case", SPOILED)
async def test_a_spoiled_file_is_replaced(cache: Cache, case: str) -> None:
    """Whatever became of the file between two runs, the cache works again after one failure at most."""
    await cache.disk.set("a", b"1" * 50_000)
    await cache.disk.aclose()
    SPOILED[case](cache.folder / "cache.db")
    reopened = await cache.reopened()
    await reopened.get("a")
    await reopened.get("a")
    assert await cache.works_again()
    assert value_of(await (await cache.reopened()).get("again")) == b"yes"


async def test_a_file_that_breaks_under_way_is_replaced(cache: Cache) -> None:
    """Damage in the middle of a run is met without ending it."""
    for number in range(50):
        await cache.disk.set(str(number), os.urandom(2000))
    await (await cache.reopened()).get("0")
    (cache.folder / "cache.db-wal").unlink(missing_ok=True)
    _damage(cache.folder / "cache.db")
    for number in range(50):
        await cache.disk.get(str(number))
        await cache.disk.set(str(number), b"new")
    assert await cache.works_again()


@pytest.mark.parametrize("where", ["folder", "parent"])
async def test_a_file_in_the_folders_place_is_bypassed(tmp_path: Path, where: str) -> None:
    """A folder that can't be made costs the cache, and the file stays."""
    (tmp_path / "file").write_text("mine")
    problems: list[str] = []
    folder = tmp_path / "file" if where == "folder" else tmp_path / "file" / "cache"
    bypassed = DiskCache(folder, SIZE, problems.append)
    await bypassed.set("a", b"1")
    assert await bypassed.get("a") is None
    await bypassed.aclose()
    assert (tmp_path / "file").read_text() == "mine"
    assert all(problem.startswith("the cache is bypassed: ") for problem in problems)
    assert len(problems) == 1


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EIO])
async def test_a_folder_that_can_not_be_used_is_bypassed(
    cache: Cache, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only, forbidden, full or failing disk: told once, nothing raises; then it works again."""

    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fchmod", fail)
        await cache.disk.set("a", b"1")
        assert await cache.disk.get("a") is None
        await cache.disk.delete("a")
    assert cache.problems == [f"the cache is bypassed: {os.strerror(number)}"]
    assert await cache.works_again()


async def test_a_database_that_somebody_locked_is_bypassed_and_kept(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process at work on the file is no reason to throw it away."""
    await cache.disk.set("a", b"1")

    def busy(*_args: object, **_kwargs: object) -> None:
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(type(cache.disk._cache), "get", busy)
        assert await cache.disk.get("a") is None
    assert cache.problems == ["the cache is bypassed: database is locked"]
    assert value_of(await cache.disk.get("a")) == b"1"


async def test_many_at_once_while_it_breaks(cache: Cache) -> None:
    """Concurrent users of a cache that is being rebuilt get nothing, or the truth, and no exception."""
    for number in range(40):
        await cache.disk.set(str(number), b"%d" % number)
    cache.write("UPDATE Cache SET mode = 4 WHERE key = '20'")
    found: dict[int, Cached | None] = {}

    async def use(number: int) -> None:
        found[number] = await cache.disk.get(str(number))
        await cache.disk.set(str(number), b"%d" % number)

    async with anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(use, number)
    assert all(value_of(each) in (None, b"%d" % number) for number, each in found.items())
    assert found[20] is None
    assert await cache.works_again()


async def test_closing_twice_and_using_it_afterwards(cache: Cache) -> None:
    """The order in which the worker ends can't break the cache."""
    await cache.disk.aclose()
    await cache.disk.set("a", b"1")
    await cache.disk.aclose()
    await cache.disk.aclose()
    assert value_of(await cache.disk.get("a")) == b"1"
