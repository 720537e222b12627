"""Files that others than root and the worker's user could change aren't used by a worker."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme

from deliveryd.config import examine_to_run
from deliveryd.directory.file import FileDirectory
from deliveryd.errors import ConfigError
from support.check_command import check
from support.directories import ONE, PACKAGE, importable, install_package
from support.places import ROOT
from support.terminal import command
from support.world import World, open_world

NOBODY = 65534
PRESET = ROOT / "src" / "deliveryd" / "channels" / "presets" / "webhook.toml"


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
        assert f"{world.config}: all users may change it; run: chmod o-w {world.config}" in answered.err
    assert command("config", "show", "--config", world.config).status == 0


def test_a_file_that_is_exchanged_while_it_is_read_counts_as_it_was_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A harmless one in its place a moment later doesn't cover what everybody could change."""
    harmless = world.folder / "harmless.toml"
    harmless.write_bytes(world.config.read_bytes())
    harmless.chmod(0o600)
    world.config.chmod(0o666)
    opened = Path.open

    def open_and_exchange(path: Path, *arguments: Any, **named: Any) -> Any:
        file = opened(path, *arguments, **named)
        if path == world.config and harmless.exists():
            harmless.replace(path)
        return file

    monkeypatch.setattr(Path, "open", open_and_exchange)
    (problem,) = examine_to_run(world.config, {}).problems
    assert problem == f"{world.config}: all users may change it; run: chmod o-w {world.config}"
    assert examine_to_run(world.config, {}).problems == []


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
        f"{world.folder / shared}: all users may change it; run: chmod o-w {world.folder / shared}"
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
        f"{file}: all users may change it; run: chmod o-w {file}" for file in (database, authorities)
    }


@pytest.fixture
def secret(world: World) -> Path:
    """The secret of a provider's reports, in a folder of its own."""
    folder = world.folder / "secrets"
    folder.mkdir()
    file = folder / "key"
    file.touch(mode=0o600)
    file.write_text("a-secret-that-is-long-enough", encoding="utf-8")
    text = world.config.read_text(encoding="utf-8")
    world.write_config(text.replace('[receipts]\nlisten = ""', '[receipts]\nlisten = "127.0.0.1:0"'))
    world.add(
        f'''
        [channels.messenger]
        adapter = "http"
        url = "https://127.0.0.1:2/chat"
        provider_id = "/id"
        json = {{ to = "{{customer.phone}}", text = "{{content.text}}" }}
        [channels.messenger.receipt]
        provider_id = "/id"
        status = "/status"
        delivered = ["delivered"]
        signature = {{ header = "X-S", secret_file = "{file}" }}
        '''
    )
    return file


def test_a_secret_in_a_folder_that_everybody_may_change_starts_nothing(world: World, secret: Path) -> None:
    """Everybody could put another secret there, and sign reports with it."""
    assert examine_to_run(world.config, {}).problems == []
    secret.parent.chmod(0o777)
    problem = f"{secret.parent}: all users may change it; run: chmod o-w {secret.parent}"
    assert examine_to_run(world.config, {}).problems == [problem]
    for answered in (check(world, "--offline"), command("run", "--config", world.config)):
        assert answered.status == 78
        assert problem in answered.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_secret_of_somebody_else_starts_nothing(world: World, secret: Path) -> None:
    """Its owner may write another one into it. The owner of the journal is the worker's user."""
    os.chown(secret, NOBODY, NOBODY)
    (problem,) = examine_to_run(world.config, {}).problems
    assert problem.startswith(f"{secret}: belongs to nobody, who may change it; run: chown root")
    os.chown(world.folder, NOBODY, NOBODY)
    assert examine_to_run(world.config, {}).problems == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_owner_of_the_socket_is_the_user_of_workers_on_a_database(world: World, secret: Path) -> None:
    """As root, with secrets of that user; the journal's database has no owner on this machine."""
    run = world.folder / "run"
    run.mkdir()
    environ = {
        "DELIVERYD_JOURNAL__URL": "postgresql://deliveryd@127.0.0.1/deliveryd",
        "DELIVERYD_CONTROL__SOCKET": str(run / "control.sock"),
    }
    os.chown(secret, NOBODY, NOBODY)
    assert any("belongs to nobody" in each for each in examine_to_run(world.config, environ).problems)
    os.chown(run, NOBODY, NOBODY)
    assert not any("belongs to nobody" in each for each in examine_to_run(world.config, environ).problems)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_without_the_folder_of_the_socket_a_secret_may_be_of_any_user(world: World, secret: Path) -> None:
    """A service manager makes it at the start and removes it: root isn't the worker's user for that."""
    environ = {
        "DELIVERYD_JOURNAL__URL": "postgresql://deliveryd@127.0.0.1/deliveryd",
        "DELIVERYD_CONTROL__SOCKET": str(world.folder / "run" / "control.sock"),
    }
    os.chown(secret, NOBODY, NOBODY)
    assert not any("belongs to nobody" in each for each in examine_to_run(world.config, environ).problems)
    secret.chmod(0o666)
    assert f"{secret}: all users may change it" in "".join(examine_to_run(world.config, environ).problems)


def test_a_certificate_in_the_journals_address_that_everybody_may_change_starts_nothing(world: World) -> None:
    """Whoever changes it could be the journal's database, and ask for its password."""
    authorities = world.folder / "root.crt"
    authorities.touch(mode=0o600)
    url = f"postgresql://deliveryd@db.example/deliveryd?sslmode=verify-full&sslrootcert={authorities}"
    environ = {"DELIVERYD_JOURNAL__URL": url}
    assert not any("may change it" in each for each in examine_to_run(world.config, environ).problems)
    authorities.chmod(0o666)
    problem = f"{authorities}: all users may change it; run: chmod o-w {authorities}"
    assert problem in examine_to_run(world.config, environ).problems


def test_a_secret_as_kubernetes_mounts_it_is_used(world: World, secret: Path) -> None:
    """Behind links, in a folder whose sticky bit is set; a group may read it."""
    mounted = secret.parent
    version = mounted / "..2026_11_22"
    version.mkdir()
    secret.rename(version / "key").chmod(0o440)
    (mounted / "..data").symlink_to(version.name)
    secret.symlink_to("..data/key")
    mounted.chmod(0o1777)
    assert examine_to_run(world.config, {}).problems == []


def test_a_secret_as_a_service_manager_gives_it_is_used(world: World, secret: Path) -> None:
    """In a folder and a file that can only be read, also by a group, as with access control lists."""
    secret.chmod(0o440)
    secret.parent.chmod(0o550)
    assert examine_to_run(world.config, {}).problems == []


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
    assert problems == [f"{path}: all users may change it; run: chmod o-w {path}"]
    with pytest.raises(ConfigError, match="all users may change it"):
        FileDirectory.load(path, problems.append)


@pytest.fixture
def plug_in(world: World, tmp_path: Path) -> Iterator[Path]:
    """A package with a source that the configuration names; it leaves the file `ran` when it is imported."""
    packages = tmp_path / "packages"
    install_package(packages, "own = changed.sources:KIND")
    package = packages / "changed"
    package.mkdir()
    (package / "sources.py").write_text(PACKAGE, encoding="utf-8")
    (package / "__init__.py").write_text(
        f"from pathlib import Path; Path({str(tmp_path / 'ran')!r}).touch()", encoding="utf-8"
    )
    people = tmp_path / "people.json"
    people.write_text("{}", encoding="utf-8")
    world.change('source = "file"', 'source = "own"')
    world.change('path = "customers.jsonl"', f'people = "{people}"')
    with importable(packages):
        yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "changed"]:
        del sys.modules[name]


@pytest.mark.parametrize("shared", ["__init__.py", "sources.py", "other.py", ".", ".."])
@pytest.mark.parametrize("arguments", [("run",), ("check", "--offline"), ("config", "show"), ("overdue",)])
def test_a_plug_in_that_everybody_may_change_is_not_run(
    world: World, plug_in: Path, tmp_path: Path, shared: str, arguments: Sequence[str]
) -> None:
    """Its rights, and those of the files beside it, are looked at before it is imported by any command."""
    (plug_in / "other.py").touch()
    (plug_in / shared).resolve().chmod(0o777)
    answered = command(*arguments, "--config", world.config)
    assert not (tmp_path / "ran").exists()
    place = (plug_in / shared).resolve()
    told = f"the source 'own' isn't loaded: {place}: all users may change it; run: chmod o-w {place}"
    assert f"{world.config}:customers.source: {told}" in answered.err


def test_a_plug_in_that_nobody_else_may_change_is_run(world: World, plug_in: Path, tmp_path: Path) -> None:
    """As in the other tests, but for the rights."""
    assert examine_to_run(world.config, {}).problems == []
    assert (tmp_path / "ran").exists()


def test_a_folder_on_the_way_that_everybody_may_change_starts_nothing(world: World, tmp_path: Path) -> None:
    """Everybody could put another file there, unless the folder's sticky bit is set, as that of /tmp is."""
    above = tmp_path / "above"
    inner = above / "inner"
    inner.mkdir(parents=True)
    (inner / "deliveryd.toml").write_bytes(world.config.read_bytes())
    (inner / "customers.jsonl").write_bytes((world.folder / "customers.jsonl").read_bytes())
    above.chmod(0o777)
    for answered in (
        command("check", "--offline", "--config", inner / "deliveryd.toml"),
        command("run", "--config", inner / "deliveryd.toml"),
    ):
        assert answered.status == 78
        assert f"{above}: all users may change it; run: chmod o-w {above}" in answered.err
    above.chmod(0o1777)
    assert examine_to_run(inner / "deliveryd.toml", {}).problems == []


def test_a_folder_behind_a_link_is_on_the_way(world: World, tmp_path: Path) -> None:
    """Both the folder that the link is in and the one that it leads to."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "here").symlink_to(world.config.parent)
    shared.chmod(0o777)
    there = shared / "here" / world.config.name
    assert f"{shared}: all users may change it; run: chmod o-w {shared}" in examine_to_run(there, {}).problems
    shared.chmod(0o755)
    world.config.parent.chmod(0o777)
    own = world.config.parent.resolve()
    assert f"{own}: all users may change it; run: chmod o-w {own}" in examine_to_run(there, {}).problems


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_link_of_somebody_else_starts_nothing(world: World, tmp_path: Path) -> None:
    """Its owner could make it anew, and lead elsewhere."""
    link = tmp_path / "link.toml"
    link.symlink_to(world.config)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    (problem,) = examine_to_run(link, {}).problems
    assert problem == f"{link}: belongs to nobody, who may change it; run: chown -h root {link}"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize(("option", "status"), [("ro", 0), ("rw", 78)])
def test_everybody_may_change_a_read_only_mount_by_its_mode(
    world: World, tmp_path: Path, option: str, status: int
) -> None:
    """A ConfigMap of Kubernetes is such a mount; nobody can write to it."""
    folder = tmp_path / "etc"
    folder.mkdir()
    steps = [
        f"mount -t tmpfs none {folder}",
        f"cp {world.config} {world.folder / 'customers.jsonl'} {folder}",
        f"chmod 777 {folder}",
        f"mount -o remount,{option} {folder}",
        f"{sys.executable} -m deliveryd check --offline --config {folder / world.config.name}",
    ]
    elsewhere = {
        "DELIVERYD_JOURNAL__URL": f"sqlite:///{tmp_path}/journal.db",
        "DELIVERYD_SETTINGS__CACHE_DIR": f"{tmp_path}/cache",
    }
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", " && ".join(steps)],
        env={**os.environ, **elsewhere},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
