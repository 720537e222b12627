"""`deliveryd cache`: what is kept of settings and configurations, and forgetting it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from deliveryd.journal.sqlite.lock import Lock
from deliveryd.runtime.disk_cache import DiskCache
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.terminal import command
from support.world import World, open_world

pytestmark = pytest.mark.slow

CUSTOMER = 7


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from open_world(tmp_path)


@pytest.fixture
def filled(world: World) -> World:
    """A world in which both caches hold something: settings 1 and 2, and three configurations."""
    world.customers([{"id": 1, "name": "Ann", "phone": "+447000000001"}])
    world.state.settings = {1: sms_settings(), 2: sms_settings()}
    world.state.enqueue(message(1001), message(1002, 2))
    world.run_until_idle()
    world.state.customers[CUSTOMER] = {"merchants": [{"id": number} for number in range(3)]}
    for number in range(3):
        world.state.add_entity("merchants", number, {"en": {"id": number}})
    read_configurations(world)
    return world


def read_configurations(world: World) -> None:
    options = ["--include", "merchants", "--language", "en", "--with-config"]
    assert command("customers", "all", CUSTOMER, "--config", world.config, *options).status == 0


def cache(world: World, *words: object) -> tuple[int, str, str]:
    answered = command("cache", *words, "--config", world.config)
    return answered.status, answered.out.replace(str(world.folder), "DIR"), answered.err


def test_what_is_kept(filled: World) -> None:
    """How many, how large at most, and where; asking changes nothing."""
    status, out, err = cache(filled, "info")
    settings, entities = out.splitlines()
    assert (status, err) == (0, "")
    assert settings.startswith("settings  2 entries, ")
    assert settings.endswith(" bytes of at most 256MiB, in DIR/cache")
    assert entities.startswith("entities  3 entries, ")
    assert entities.endswith(" bytes of at most 64MiB, in DIR/cache/entities")
    assert cache(filled, "info")[1] == out
    assert cache(filled, "info", "--entities")[1] == f"{entities}\n"


def test_nothing_is_kept_yet(world: World) -> None:
    """Nothing is made by looking or clearing."""
    assert cache(world, "info")[1].splitlines() == [
        "settings  0 entries, 0 bytes of at most 256MiB, in DIR/cache",
        "entities  0 entries, 0 bytes of at most 64MiB, in DIR/cache/entities",
    ]
    assert cache(world, "clear")[0] == 0
    assert not world.folder.joinpath("cache").exists()


def test_one_of_the_settings(filled: World) -> None:
    """Those with an id, and no others; an id that isn't there is an error."""
    status, out, _ = cache(filled, "info", "--settings", 1)
    assert status == 0
    assert out.startswith("settings 1  ")
    assert re.search(r" bytes, fetched \d+ s ago\n$", out)
    assert cache(filled, "clear", "--settings", 1) == (0, "settings 1  removed\n", "")
    for verb in ("info", "clear"):
        told = f"deliveryd: settings 1 aren't in the cache {filled.folder}/cache\n"
        assert cache(filled, verb, "--settings", 1) == (1, "", told)
    assert cache(filled, "info")[1].startswith("settings  1 entry, ")
    requested = filled.state.settings_requests.copy()
    filled.state.enqueue(message(1003), message(1004, 2))
    filled.run_until_idle()
    assert filled.state.settings_requests - requested == {1: 1}


def test_configurations_are_forgotten(filled: World) -> None:
    """Only they; the next reading asks their hosts again."""
    assert cache(filled, "clear", "--entities") == (
        0,
        "entities  3 entries removed from DIR/cache/entities\n",
        "",
    )
    assert cache(filled, "info")[1].startswith("settings  2 entries, ")
    read_configurations(filled)
    assert filled.state.requests["entities"] == 6


def test_everything_is_forgotten(filled: World) -> None:
    """Without options both caches are cleared, and work on afterwards."""
    out = "settings  2 entries removed from DIR/cache\nentities  3 entries removed from DIR/cache/entities\n"
    assert cache(filled, "clear") == (0, out, "")
    read_configurations(filled)
    assert "entities  3 entries" in cache(filled, "info")[1]


def test_a_worker_at_work_forgets_them_too(filled: World) -> None:
    """What was corrected under the same id is sent from then on, without a restart."""
    filled.start()
    filled.state.enqueue(message(1003), message(1004, 2))
    filled.state.wait_for(lambda state: len(state.received) == 4, 30.0)
    filled.state.settings[1] = sms_settings("corrected")
    requested = filled.state.settings_requests.copy()
    assert cache(filled, "clear", "--entities")[1].count("\n") == 1
    assert cache(filled, "clear", "--settings", 1) == (
        0,
        "settings 1  removed\nsettings 1  removed from the running worker\n",
        "",
    )
    filled.state.enqueue(message(1005), message(1006, 2))
    filled.state.wait_for(lambda state: len(state.received) == 6, 30.0)
    assert filled.state.settings_requests - requested == {1: 1}
    texts = {each.reference: each.payload["text"] for each in filled.state.received}
    assert [texts[str(id_)] == "corrected" for id_ in (1003, 1005, 1006)] == [False, True, False]
    (disk, entities, memory) = command("cache", "clear", "--json", "--config", filled.config).data
    assert (disk["forgotten"], entities["cache"]) == (2, "entities")
    assert memory == {"cache": "memory", "forgotten": 2}


def test_settings_that_only_a_worker_knows(filled: World) -> None:
    """The disk may have evicted them: they are there all the same."""
    filled.start()
    filled.state.enqueue(message(1003))
    filled.state.wait_for(lambda state: len(state.received) == 3, 30.0)
    shutil.rmtree(filled.folder / "cache")
    out = "settings 1  removed from the running worker\n"
    assert cache(filled, "clear", "--settings", 1) == (0, out, "")
    assert cache(filled, "clear", "--settings", 1)[0] == 1


def test_a_worker_that_takes_no_orders_is_named(filled: World) -> None:
    """While it starts: it may have them, so the command is to be repeated."""
    lock = Lock(filled.folder / "journal.db.lock")
    lock.take()
    status, out, err = cache(filled, "clear", "--settings", 1)
    lock.release()
    assert (status, out) == (1, "settings 1  removed\n")
    assert err == (
        f"deliveryd: process {os.getpid()} takes no orders now, and may have the settings in its memory:"
        " repeat the command\n"
    )


@pytest.mark.parametrize("verb", ["info", "clear"])
def test_a_cache_that_can_not_be_used_is_an_error(world: World, verb: str) -> None:
    """Where it lies, and why."""
    folder = world.folder / "cache"
    folder.mkdir()
    folder.joinpath("cache.db").mkdir()
    folder.joinpath("cache.db", "x").touch()
    answered = command("cache", verb, "--config", world.config)
    assert answered.status == 1
    assert answered.err.startswith(f"deliveryd: {folder}: the cache can't be used")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_works_as_the_user_whose_cache_it_is(filled: World) -> None:
    """So that no file of root's locks the worker out; afterwards everything belongs to its user."""
    nobody = 65534
    for path in (filled.folder, *filled.folder.rglob("*")):
        os.chown(path, nobody, nobody)
    for parent in filled.folder.parents[:3]:
        parent.chmod(0o755)
    done = filled.command("cache", "info", "--config", str(filled.config))
    assert done.stdout.startswith("settings  2 entries"), done.stderr
    done = filled.command("cache", "clear", "--config", str(filled.config))
    assert done.stdout.startswith("settings  2 entries removed"), done.stderr
    owners = {path.stat().st_uid for path in filled.folder.joinpath("cache").rglob("*")}
    assert owners == {nobody}


@pytest.mark.parametrize("words", [["--settings", "five"], ["--settings", 2**63], ["--all"]], ids=str)
def test_what_was_typed_wrongly_is_said(world: World, words: list[object]) -> None:
    """With status 2."""
    assert cache(world, "clear", *words)[0] == 2


def test_a_cache_says_how_much_it_holds(tmp_path: Path) -> None:
    """Entries and bytes; clearing tells how many there were; what can't be used tells nothing."""

    async def play() -> None:
        problems: list[str] = []
        disk = DiskCache(tmp_path / "cache", 1 << 20, problems.append)
        for number in range(150):
            await disk.set(str(number), b"x" * 100)
        extent = await disk.extent()
        assert extent is not None
        assert (extent.entries, extent.size > 15_000) == (150, True)
        assert await disk.clear() == 150
        assert (await disk.extent() or extent).entries == 0
        await disk.aclose()
        blocked = DiskCache(tmp_path / "cache" / "cache.db", 1 << 20, problems.append)
        assert (await blocked.extent(), await blocked.clear()) == (None, None)
        assert set(problems) == {"the cache is bypassed: File exists"}

    anyio.run(play)


def test_what_is_kept_and_forgotten_as_json(filled: World) -> None:
    """One object for each cache, or for the settings that were asked for."""
    told = command("cache", "info", "--json", "--config", filled.config).data
    assert [(each["cache"], each["kept"]) for each in told] == [("settings", 2), ("entities", 3)]
    assert all(each["bytes"] > 0 and Path(each["folder"]).is_dir() for each in told)
    (one,) = command("cache", "info", "--settings", 1, "--json", "--config", filled.config).data
    assert one["settings"] == 1
    assert 0 <= one["age"] < PATIENCE
    forgotten = command("cache", "clear", "--json", "--config", filled.config).data
    assert [(each["cache"], each["forgotten"]) for each in forgotten] == [("settings", 2), ("entities", 3)]
