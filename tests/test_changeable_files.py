"""Files that others than root and the worker's user could change aren't used by a worker."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest
import trustme

from deliveryd.config import examine_to_run
from deliveryd.directory.file import FileDirectory
from deliveryd.errors import ConfigError
from deliveryd.runtime.rights import tampering
from support.check_command import check
from support.directories import ONE
from support.terminal import command
from support.world import World, open_world

NOBODY = 65534
PRESET = Path(__file__).parent.parent / "src" / "deliveryd" / "channels" / "presets" / "webhook.toml"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "phone": "+447700900101"}])
        yield world


def test_a_configuration_that_everybody_may_change_starts_nothing(world: World) -> None:
    """`run` and `check` end with 78, and say what to do; a command that only reads goes on."""
    world.config.chmod(0o666)
    for answered in (check(world, "--offline"), command("run", "--config", world.config)):
        assert answered.status == 78
        assert f"{world.config}: everybody may change it; run: chmod o-w {world.config}" in answered.err
    assert command("config", "show", "--config", world.config).status == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_configuration_of_somebody_else_starts_nothing(world: World) -> None:
    """Its owner could change its rights. The owner of the journal is the worker's user."""
    os.chown(world.config, NOBODY, NOBODY)
    answered = command("run", "--config", world.config)
    assert answered.status == 78
    assert "belongs to nobody, who may change it; run: chown root" in answered.err
    os.chown(world.folder, NOBODY, NOBODY)
    assert examine_to_run(world.config, {}).problems == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_group_that_is_not_the_workers_may_not_change_it(world: World) -> None:
    """Its group may, as with the rights that a service manager gives to the worker's group."""
    world.config.chmod(0o664)
    assert examine_to_run(world.config, {}).problems == []
    os.chown(world.config, 0, NOBODY)
    (problem,) = examine_to_run(world.config, {}).problems
    assert "may change it; run: chmod g-w" in problem


@pytest.mark.parametrize("shared", ["presets", "presets/own.toml"])
def test_presets_that_everybody_may_change_start_nothing(world: World, shared: str) -> None:
    """Neither a file, nor the folder, where everybody could add one."""
    folder = world.folder / "presets"
    folder.mkdir()
    (folder / "own.toml").write_bytes(PRESET.read_bytes())
    text = world.config.read_text(encoding="utf-8")
    world.write_config(text + f'\n[channels]\npresets_dir = "{folder}"\n')
    used = '[channels.messenger]\nadapter = "own"\nurl = "https://x.example"\nsecrets = { secret = "s" }\n'
    world.add(used)
    before = examine_to_run(world.config, {}).problems
    (world.folder / shared).chmod(0o777)
    problems = set(examine_to_run(world.config, {}).problems) - set(before)
    assert problems == {
        f"{world.folder / shared}: everybody may change it; run: chmod o-w {world.folder / shared}"
    }


def test_a_database_and_certificates_that_everybody_may_change_start_nothing(tmp_path: Path) -> None:
    """They say which addresses customers have, and which servers are told secrets."""
    database, authorities = tmp_path / "customers.db", tmp_path / "ca.pem"
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE customers (id integer, phone text)")
    trustme.CA().cert_pem.write_to_path(authorities)
    path = tmp_path / "deliveryd.toml"
    path.write_text(
        f'''
        [service]
        base_url = "https://127.0.0.1:1"
        tls = {{ ca_file = "{authorities}" }}
        [journal]
        url = "sqlite:///{tmp_path}/journal.db"
        [customers]
        source = "sql"
        url = "sqlite:///{database}"
        query = "{ONE}"
        [channels.sms]
        adapter = "http"
        url = "https://127.0.0.1:2/sms"
        tls = {{ ca_file = "{authorities}" }}
        json = {{ to = "{{customer.phone}}", text = "{{content.text}}" }}
        ''',
        encoding="utf-8",
    )
    before = examine_to_run(path, {}).problems
    for file in (database, authorities):
        file.chmod(0o666)
    problems = examine_to_run(path, {}).problems
    assert set(problems) - set(before) == {
        f"{file}: everybody may change it; run: chmod o-w {file}" for file in (database, authorities)
    }


@pytest.mark.anyio
async def test_a_customer_file_that_everybody_may_change_is_not_read(tmp_path: Path) -> None:
    """Not at the start, and not while the worker runs, which keeps what it read before."""
    path = tmp_path / "customers.jsonl"
    path.write_text('{"id": 1, "phone": "+447700900101"}\n', encoding="utf-8")
    problems: list[str] = []
    directory = FileDirectory.load(path, problems.append, check_interval=0)
    path.write_text('{"id": 1, "phone": "+447700900666"}\n', encoding="utf-8")
    path.chmod(0o666)
    found: dict[int, object] = {}

    async def answered(customers: object) -> None:
        found.update(customers)  # type: ignore[call-overload]

    with anyio.fail_after(60):
        await directory.look_up([1], answered)
    assert "+447700900101" in str(found)
    assert problems == [f"{path}: everybody may change it; run: chmod o-w {path}"]
    with pytest.raises(ConfigError, match="everybody may change it"):
        FileDirectory.load(path, problems.append)


def test_a_plug_in_that_everybody_may_change_is_named(tmp_path: Path) -> None:
    """By the status that it had when it was opened."""
    path = tmp_path / "adapter.py"
    path.touch(0o646)
    path.chmod(0o646)
    assert tampering(path, path.stat(), os.geteuid()) == f"everybody may change it; run: chmod o-w {path}"
