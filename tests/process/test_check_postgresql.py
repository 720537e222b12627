"""`deliveryd check` on a journal in a database: what a worker would find there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import psycopg
import pytest

from deliveryd.commands.check import check_journal
from deliveryd.errors import JournalUnusable
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.opening import open_shared_journal
from journal.samples import NOW, ONE_SECOND, bring_to_wait
from support.check_command import check, line
from support.messages import message, sms_settings
from support.postgres import new_database
from support.world import World, open_world

pytestmark = pytest.mark.slow


@pytest.fixture
def database() -> str:
    """An empty database."""
    url = new_database()
    if url is None:
        pytest.skip("no PostgreSQL here")
    return url


@pytest.fixture
def world(tmp_path: Path, database: str) -> Iterator[World]:
    """A world whose journal is that database."""
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        world.use_postgresql(database)
        yield world


def execute(url: str, *statements: str) -> None:
    """Change something in a database."""
    with psycopg.connect(url, autocommit=True) as db:
        for statement in statements:
            db.execute(statement)


async def opened(url: str) -> None:
    """Open the journal as a worker does."""
    async with open_shared_journal(JournalDatabase(url)):
        pass


def of_journal(world: World, *options: str) -> list[str]:
    """The lines about the journal."""
    answered = check(world, *options)
    assert answered.err == ""
    return [line for line in answered.out.splitlines() if " journal.url " in line]


def test_an_empty_database_and_a_journal_are_good(world: World) -> None:
    """The server of the tests has fsync off, which is warned of; nothing is created by looking."""
    good, warning = of_journal(world)
    assert good.startswith("ok ")
    assert good.endswith("is empty: the journal will be created")
    assert "fsync = off" in warning
    assert world.rows("SELECT to_regclass('main.meta')") == [(None,)]
    assert f"{world.folder} can be used" in line(check(world), "control.socket")
    world.state.enqueue(message(1))
    world.run_until_idle()
    assert of_journal(world)[0].endswith("is a journal")


def test_offline_nobody_is_asked(world: World, database: str) -> None:
    world.change(database, "postgresql://nobody@127.0.0.1:1/nothing")
    assert check(world, "--offline").status == 0
    assert of_journal(world, "--offline") == []


def test_a_database_that_cannot_be_reached_may_be_later(world: World, database: str) -> None:
    world.change(database, "postgresql://nobody@127.0.0.1:1/nothing")
    (told,) = of_journal(world)
    assert told.startswith("failed ")
    assert "the journal's database can't be reached" in told
    assert check(world).status == 1


def test_what_the_server_refuses_says_what_to_change(world: World, database: str) -> None:
    """A database that isn't there is a matter of the address, not of the network."""
    world.change(database, database.replace("/journal", "/nothing"))
    (told,) = of_journal(world)
    assert told.startswith("failed ")
    assert told.endswith(" does not exist; check journal.url")


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ("ALTER ROLE crowd CONNECTION LIMIT 0", "raise max_connections, or the role's CONNECTION LIMIT"),
        (
            "ALTER ROLE crowd SET default_transaction_read_only = on",
            "it is a standby, or default_transaction_read_only is on",
        ),
    ],
)
def test_a_database_that_takes_nothing_says_why(
    world: World, database: str, change: str, advice: str
) -> None:
    """The server names the symptom; the cause is told with it."""
    execute(database, "DROP ROLE IF EXISTS crowd", "CREATE ROLE crowd LOGIN", change)
    world.change("postgresql://postgres@", "postgresql://crowd@")
    (told,) = of_journal(world)
    assert told.startswith("failed ")
    assert told.endswith(f"; {advice}")


def test_a_mistake_in_the_address_is_told_once(world: World, database: str) -> None:
    world.change(database, "postgresql://me:hunter2@127.0.0.1/journal")
    answered = check(world)
    assert answered.status == 78
    (told,) = [line for line in answered.err.splitlines() if "journal." in line]
    assert told.endswith(
        "config.toml:journal.url: holds a password: put it into a file, journal.password_file"
    )


def test_another_encoding_is_told(world: World, database: str) -> None:
    execute(database, "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    world.change(database, re.sub(r"/journal\d+", "/latin", database))
    (told,) = of_journal(world)
    assert told.startswith("error ")
    assert "isn't encoded in UTF8" in told


def test_a_newer_format_and_foreign_tables_are_told(world: World, database: str) -> None:
    world.run_until_idle()
    execute(database, "UPDATE main.meta SET value = '99' WHERE key IN ('format', 'written_since')")
    (told,) = of_journal(world)
    assert told.startswith("error ")
    assert "run a newer one" in told
    execute(database, "DELETE FROM main.meta")
    assert "no journal of deliveryd: name an empty one" in of_journal(world)[0]


def test_a_database_that_lost_commits_is_told_until_that_is_accepted(world: World, database: str) -> None:
    """A worker that starts would end at once."""
    world.run_until_idle()
    execute(
        database,
        "INSERT INTO main.loss (noticed_at, worker, name, acknowledged, found) VALUES (1, 1, 'two/17', 9, 7)",
    )
    (told,) = of_journal(world)
    assert told.startswith("failed ")  # as the worker says: no other configuration helps
    assert "as the worker two/17 noticed" in told
    assert told.endswith("run deliveryd accept-loss")
    execute(database, "UPDATE main.loss SET accepted_at = 2")
    assert of_journal(world)[0].startswith("ok ")


@pytest.mark.parametrize(
    "table",
    [
        "TABLE message (subject text)",
        "TABLE meta (name text)",
        "TABLE mine (name text)",
        "TABLE main.mine (name text)",
        "TABLE mine (name text) PARTITION BY LIST (name)",
        "FOREIGN TABLE mine (name text) SERVER elsewhere",
    ],
)
def test_tables_of_somebody_else_keep_deliveryd_from_the_database(
    world: World, database: str, table: str
) -> None:
    """Check says so before the first start, and the start says the same."""
    execute(
        database,
        "CREATE SCHEMA main",
        "CREATE FOREIGN DATA WRAPPER of_nobody",
        "CREATE SERVER elsewhere FOREIGN DATA WRAPPER of_nobody",
        f"CREATE {table}",
    )
    advice = "holds tables that aren't deliveryd's, as m"
    (told,) = of_journal(world)
    assert told.startswith("error ")
    assert advice in told
    with pytest.raises(JournalUnusable, match=advice):
        anyio.run(opened, database)


def test_a_start_that_may_not_create_tables_says_what_to_grant(database: str) -> None:
    execute(database, "DROP ROLE IF EXISTS novice", "CREATE ROLE novice LOGIN")
    with pytest.raises(JournalUnusable) as raised:
        anyio.run(opened, database.replace("postgresql://postgres@", "postgresql://novice@"))
    (name,) = re.findall(r"journal\d+", database)
    assert str(raised.value) == (
        f"the journal's database can't be used: permission denied for database {name};"
        " let the user that connects own the database, or GRANT CREATE ON DATABASE TO it"
    )


def test_a_start_on_the_journal_of_another_user_says_what_to_grant(database: str) -> None:
    anyio.run(opened, database)
    execute(database, "DROP ROLE IF EXISTS stranger", "CREATE ROLE stranger LOGIN")
    with pytest.raises(JournalUnusable) as raised:
        anyio.run(opened, database.replace("postgresql://postgres@", "postgresql://stranger@"))
    assert str(raised.value) == (
        "the journal's database can't be used: permission denied for schema main;"
        " GRANT the owner of its tables TO the user that connects"
    )
    execute(database, "GRANT postgres TO stranger")
    anyio.run(opened, database.replace("postgresql://postgres@", "postgresql://stranger@"))


def test_what_a_running_worker_has_isnt_left_behind(world: World, database: str) -> None:
    """Though the configuration that is checked lacks its provider."""
    told: list[str] = []

    async def look() -> None:
        told.append((await anyio.to_thread.run_sync(check, world)).out)

    async def work() -> None:
        async with open_shared_journal(JournalDatabase(database)) as journal:
            await bring_to_wait(journal, 1, NOW + ONE_SECOND, "email")
            await look()
            await journal.recover(NOW, ["email"])
            await look()
        await look()

    anyio.run(work)
    assert ["messages of email, which isn't configured: 1 waiting" in each for each in told] == [
        True, False, True,
    ]  # fmt: skip


def test_a_user_who_may_not_write_is_told_what_is_missing(world: World, database: str) -> None:
    """Before the first start, and where another one owns the journal."""
    execute(database, "DROP ROLE IF EXISTS clerk", "CREATE ROLE clerk LOGIN")
    world.change(database, database.replace("postgresql://postgres@", "postgresql://clerk@"))
    assert "clerk may not create schemas" in of_journal(world)[0]
    world.change("postgresql://clerk@", "postgresql://postgres@")
    world.run_until_idle()
    world.change("postgresql://postgres@", "postgresql://clerk@")
    assert "GRANT the owner of its tables TO the user that connects" in of_journal(world)[0]
    execute(
        database,
        "GRANT USAGE ON SCHEMA main, own TO clerk",
        "GRANT ALL ON ALL TABLES IN SCHEMA main, own TO clerk",
    )
    assert "its tables belong to postgres" in of_journal(world)[0]


def test_commits_that_would_not_last_are_warned_of(world: World, database: str) -> None:
    (name,) = re.findall(r"journal\d+", database)
    execute(database, f"ALTER DATABASE {name} SET synchronous_commit = local")
    assert any(
        each.startswith("warning ") and "synchronous_commit = local" in each for each in of_journal(world)
    )


def test_clocks_that_differ_are_warned_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown with a bound that no two clocks keep."""
    monkeypatch.setattr(check_journal, "MOST_APART", -1.0)
    assert any("synchronise all clocks" in each for each in of_journal(world))


def test_a_running_worker_is_named_and_may_have_its_addresses(world: World) -> None:
    """It is known by its socket, as the one with a file is by its lock."""
    world.change('[admin]\nlisten = ""', '[admin]\nlisten = "127.0.0.1:0"')
    worker = world.start()
    while not (world.folder / "control.sock").exists():
        assert worker.poll() is None
    assert f"/{worker.pid}" in of_journal(world)[0]
