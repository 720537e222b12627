"""Customers in a database: what a query may be, that nothing is written, and what each failure means."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from deliveryd.directory.base import Terms
from deliveryd.directory.registry import open_source
from deliveryd.directory.remote import RemoteDirectory
from deliveryd.directory.sql import READ_ONLY, SqlSource, open_sql
from deliveryd.directory.sql_options import DRIVERS, SqlOptions, database_address, missing_package
from deliveryd.errors import ConfigError, DirectoryUnavailable
from deliveryd.model import Customer
from support.directories import MANY, ONE, NoPostgres, Postgres, open_postgres, write_postgres, write_sqlite
from support.patience import PATIENCE

pytestmark = pytest.mark.anyio

TERMS = Terms(cache_ttl=300.0, timeout=5.0, concurrency=3)
PEOPLE = {7: {"name": "Ann", "phone": "+447700900101"}, 8: {"name": "Bo", "phone": "0"}}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The drivers know asyncio only."""
    return "asyncio"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A real one, with customers."""
    try:
        with open_postgres() as server:
            anyio.run(write_postgres, server.url, PEOPLE)
            yield server
    except NoPostgres as error:
        pytest.skip(str(error))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database with customers, in each of two kinds."""
    if request.param == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        return server.url
    write_sqlite(tmp_path / "it's our own.db", PEOPLE)
    return f"sqlite:///{tmp_path}/it's our own.db"


@asynccontextmanager
async def opened(url: str, query: str, **options: Any) -> AsyncIterator[SqlSource]:
    source = open_sql(SqlOptions.model_validate({"url": url, "query": query, **options}), TERMS)
    try:
        yield source
    finally:
        await source.aclose()


async def failure(url: str, query: str) -> str:
    """Why two customers can't be looked up; the probe finds it too."""
    async with opened(url, query) as source:
        with pytest.raises(DirectoryUnavailable) as caught:
            await source.look_up([7, 8])
    return str(caught.value)


@pytest.mark.slow
async def test_a_name_is_looked_up_in_no_pool_of_threads(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent name server of another host, which fills that pool, keeps nobody from the database."""

    async def full(*_args: object, **_options: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", full)
    async with opened(postgres.url.replace("127.0.0.1", "localhost"), ONE) as source:
        with anyio.fail_after(PATIENCE):
            assert await source.look_up([7]) == {7: Customer(7, PEOPLE[7])}


# What is asked


async def test_columns_are_fields_by_their_names(url: str) -> None:
    """Whatever a query calls them; no value, or a blank one, is none."""
    columns = "name as title, phone as \"work phone\", null as email, ' ' as fax"
    query = f"select {columns} from customers where id = :customer_id"  # noqa: S608 - of our own
    async with opened(url, query) as source:
        found = await source.look_up([7])
    assert found == {7: Customer(7, {"title": "Ann", "work phone": "+447700900101"})}


async def test_values_of_other_types_are_written_out(url: str) -> None:
    """Numbers, decimals, truth values, dates."""
    if url.startswith("sqlite"):
        columns, expected = "10.5 as n, 1 as b, id as d", {"n": "10.5", "b": "1", "d": "7"}
    else:
        columns = "10.50::numeric as n, true as b, date '2026-01-02' as d"
        expected = {"n": "10.50", "b": "true", "d": "2026-01-02"}
    async with opened(url, f"select {columns} from customers where id = :customer_id") as source:  # noqa: S608 - of our own
        assert await source.look_up([7]) == {7: Customer(7, expected)}


async def test_ids_of_any_size_are_asked_for_or_unknown(url: str) -> None:
    """64 bits are what a database knows."""
    for query in (ONE, MANY):
        async with opened(url, query) as source:
            assert await source.look_up([2**63 - 1, -(2**63), 2**63, 7]) == {7: Customer(7, PEOPLE[7])}
            assert await source.look_up([2**70]) == {}


async def test_only_a_query_for_many_is_asked_for_many(url: str) -> None:
    async with opened(url, ONE) as one, opened(url, MANY, batch_size=30) as many:
        assert (one.batch_size, many.batch_size) == (1, 30)


# That nothing is written


@pytest.mark.parametrize(
    "query",
    [
        "delete from customers where id = :customer_id returning id",
        "update customers set name = 'Eve' where id = :customer_id",
        "insert into customers (id) values (:customer_id + 100)",
    ],
)
async def test_a_query_that_writes_is_refused_by_the_database(url: str, query: str) -> None:
    """And changes nothing."""
    assert await failure(url, query) in (
        "the database answered with OperationalError (SQLITE_READONLY)",
        "the database answered with ReadOnlySQLTransactionError (25006)",
    )
    async with opened(
        url, "select count(*) as n, min(name) as name from customers where id <> :customer_id"
    ) as all_:
        assert await all_.look_up([0]) == {0: Customer(0, {"n": "2", "name": "Ann"})}


def test_every_database_that_has_a_driver_is_told_that_it_is_only_read() -> None:
    assert READ_ONLY.keys() >= {driver.partition("+")[0] for driver in DRIVERS.values()}


async def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    reason = await failure(f"sqlite:///{tmp_path}/absent.db", ONE)
    assert reason == "the database answered with FileNotFoundError (No such file or directory)"
    assert not (tmp_path / "absent.db").exists()


# What failures mean


async def test_rows_that_leave_it_open_who_a_customer_is_are_no_answer(url: str) -> None:
    """Two rows for one, or rows without the id that they are for."""
    twice = "the query gives more than one row for a customer"
    assert await failure(url, "select name from customers where id > 0 or id = :customer_id") == twice
    both = (
        "select id, name from customers where id in :customer_ids union all select id, phone from customers"
    )
    assert await failure(url, both) == twice
    nameless = "select name from customers where id in :customer_ids"
    assert await failure(url, nameless) == "a query for many customers must select their id"
    wordy = "select name as id from customers where id in :customer_ids"
    assert await failure(url, wordy) == "the column id doesn't contain an integer"


async def test_a_query_that_the_database_cannot_run_is_told_by_probe_too(url: str) -> None:
    """Without what stands in a row, which the words of a database may quote."""
    query = "select nickname from customers where id = :customer_id"
    assert await failure(url, query) in (
        "the database answered with OperationalError (no such column: nickname)",
        "the database answered with UndefinedColumnError (42703)",
    )
    async with opened(url, query) as source:
        problem = await source.probe()
    assert problem is not None
    assert problem.startswith(f"{url.partition('?')[0]}: the database answered with ")


@pytest.mark.slow
async def test_the_words_of_a_database_are_not_handed_on(postgres: Postgres) -> None:
    """It says which value it stumbled over; nobody hears of that."""
    query = "select name::int as name from customers where id = :customer_id"
    reason = await failure(postgres.url, query)
    assert reason == "the database answered with InvalidTextRepresentationError (22P02)"


async def test_bytes_are_no_text(url: str) -> None:
    blob = "x'4142'" if url.startswith("sqlite") else "'\\x4142'::bytea"
    reason = await failure(url, f"select {blob} as name from customers where id = :customer_id")  # noqa: S608 - of our own
    assert reason == "the column name contains a value that is neither a string nor a number"


@pytest.mark.slow
async def test_a_database_that_was_restarted_is_asked_over_a_new_connection(postgres: Postgres) -> None:
    """The look-up after it finds its kept connection broken, and succeeds all the same."""
    async with opened(postgres.url, ONE) as source:
        assert await source.look_up([7])
        postgres.stop()
        with pytest.raises(DirectoryUnavailable):
            await source.look_up([7])
        postgres.start()
        assert await source.look_up([7])
        postgres.stop()
        postgres.start()
        assert await source.look_up([7])


@pytest.mark.slow
async def test_a_query_that_takes_too_long_is_cut_off_and_others_go_on(postgres: Postgres) -> None:
    """Its connection isn't used again; nothing of it is left."""
    slow = "pg_sleep(case when id = 7 then 60 else 0 end)::text"
    query = f"select name, {slow} from customers where id = :customer_id"  # noqa: S608 - of our own
    terms = Terms(300.0, 0.5, 2)
    source = open_sql(SqlOptions(url=postgres.url, query=query), terms)
    remote = RemoteDirectory(source, terms)
    found: dict[int, object] = {}

    async def keep(answers: Mapping[int, object]) -> None:
        found.update(answers)

    await remote.look_up([7, 8], keep)
    assert isinstance(found[7], DirectoryUnavailable)
    assert found[8] == Customer(8, {"name": "Bo"})
    await remote.aclose()


# Configuration


MISTAKES = {
    "no address": ({"url": "customers.db"}, 'must look like "postgresql://user@host/database"'),
    "a database that isn't known": ({"url": "foo://h/d"}, "unknown database or driver 'foo'"),
    "a driver that blocks": ({"url": "postgresql+psycopg2://h/d"}, "unknown driver psycopg2"),
    "a port beyond all": (
        {"url": "postgresql://h:65536/d"},
        "the port must be between 1 and 65535",
    ),
    "a password": (
        {"url": "postgresql://u:secret-word@h/d"},
        "must not contain a password: put it into a file",
    ),
    "a password as a parameter": (
        {"url": "postgresql://h/d?password=secret-word"},
        "must not contain a password",
    ),
    "no file": ({"url": "sqlite:///:memory:"}, "must name a file"),
    "no parameter": ({"query": "select 1"}, "must contain :customer_id or :customer_ids"),
    "both": ({"query": "select :customer_id, :customer_ids"}, "must contain :customer_id or :customer_ids"),
    "another": ({"query": "select :id, :customer_id"}, "unknown parameter :id"),
}


@pytest.mark.parametrize(("change", "told"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_told(change: Mapping[str, Any], told: str) -> None:
    """In words that hold no secret."""
    with pytest.raises(ValidationError) as caught:
        SqlOptions.model_validate({"url": "sqlite:////a.db", "query": ONE, **change})
    (message,) = [error["msg"] for error in caught.value.errors(include_input=False)]
    assert told in message
    assert "secret-word" not in message


def test_a_driver_that_is_not_installed_is_told_with_what_brings_it() -> None:
    """The package, and the extra of ours."""
    assert missing_package("sqlalchemy", "sql") is None
    assert missing_package("absent_package", "x") == (
        "needs the package absent_package, which isn't installed; from a checkout:"
        " pip install --no-deps --require-hashes -r locks/x.txt"
    )


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:////a.db", "sqlite+aiosqlite"),
        ("postgresql://h/d", "postgresql+asyncpg"),
        ("postgres://h/d", "postgresql+asyncpg"),
        ("postgresql+asyncpg://h/d", "postgresql+asyncpg"),
    ],
)
def test_an_address_without_a_driver_has_one_that_can_be_waited_for(url: str, driver: str) -> None:
    assert database_address(SqlOptions(url=url, query=ONE)).drivername == driver


def test_the_password_comes_from_its_file(tmp_path: Path) -> None:
    """It is part of the address that is connected to, and shows in nothing that is printed."""
    secret = tmp_path / "password"
    secret.touch(mode=0o600)
    secret.write_text("s3cret@/:")
    options = SqlOptions.model_validate({"url": "postgresql://u@h/d", "query": ONE, "password_file": secret})
    assert database_address(options).password == "s3cret@/:"
    assert "s3cret" not in f"{options!r} {database_address(options)!s} {database_address(options)!r}"
    secret.chmod(0o644)
    assert options.problems()[0].startswith("password_file: ")


async def test_a_relative_file_is_relative_to_the_configuration(tmp_path: Path) -> None:
    options = SqlOptions.model_validate(
        {"url": "sqlite:///who.db", "query": ONE}, context={"base_dir": tmp_path}
    )
    write_sqlite(tmp_path / "who.db", PEOPLE)
    source = open_sql(options, TERMS)
    assert (await source.look_up([7]))[7].name == "Ann"
    await source.aclose()


def test_on_another_event_loop_it_says_that_it_cannot_run() -> None:
    """As a mistake of the configuration, not as an outage."""

    async def run() -> None:
        open_source("sql", SqlOptions(url="sqlite:////a.db", query=ONE), TERMS)

    with pytest.raises(ConfigError, match="asyncio only"):
        anyio.run(run, backend="trio")


@pytest.mark.slow
def test_what_a_worker_without_a_database_needs_not_is_not_loaded() -> None:
    """SQLAlchemy costs memory and time; only `source = "sql"` loads it."""
    modules = "deliveryd.worker.supervisor, deliveryd.commands.check.checks"
    program = f"import sys, {modules}; sys.exit('sqlalchemy' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
