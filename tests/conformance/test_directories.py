"""The conformance table, run for each directory that can be configured, and for one of another package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from deliveryd.directory.base import Directory, find_customer
from deliveryd.model import Customer
from deliveryd.testing.directories import PEOPLE, CustomerRecords, DirectoryConformance
from support.directories import (
    MANY,
    ONE,
    NoPostgres,
    Postgres,
    importable,
    install_package,
    open_crm,
    open_postgres,
    write_lines,
    write_postgres,
    write_sqlite,
)


class TestFile(DirectoryConformance):
    """A file is read once: its customers stay known when it is gone."""

    @pytest.fixture
    def records(self, tmp_path: Path) -> CustomerRecords:
        path = tmp_path / "customers.jsonl"
        write_lines(path, PEOPLE)
        return CustomerRecords({"source": "file", "path": path.name}, path.unlink)

    async def test_failure(self, directory: Directory, records: CustomerRecords) -> None:
        records.fail()
        for id_ in (7, 8):
            assert await find_customer(directory, id_) == Customer(id_, PEOPLE[id_])


class TestHttp(DirectoryConformance):
    """A register behind HTTP, asked for one customer with each request."""

    @pytest.fixture
    def records(self) -> Iterator[CustomerRecords]:
        with open_crm(PEOPLE) as crm:
            yield CustomerRecords({"source": "http", **crm.options}, lambda: setattr(crm, "status", 503))


class TestHttpBatched(DirectoryConformance):
    """The same register, asked for many at once."""

    @pytest.fixture
    def records(self) -> Iterator[CustomerRecords]:
        with open_crm(PEOPLE) as crm:
            yield CustomerRecords({"source": "http", **crm.batched}, lambda: setattr(crm, "status", 503))


@pytest.mark.parametrize("query", [ONE, MANY], ids=["one", "many"])
class TestSqlite(DirectoryConformance):
    """A SQLite file, asked for one customer and for many at once."""

    @pytest.fixture
    def records(self, tmp_path: Path, query: str) -> CustomerRecords:
        path = tmp_path / "customers.db"
        write_sqlite(path, PEOPLE)
        table = {"source": "sql", "url": f"sqlite:///{path.name}", "query": query}
        return CustomerRecords(table, path.unlink)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres | str]:
    """A PostgreSQL server, or why there is none."""
    try:
        with open_postgres() as server:
            yield server
    except NoPostgres as error:
        yield str(error)


@pytest.mark.slow
@pytest.mark.parametrize("query", [ONE, MANY], ids=["one", "many"])
class TestPostgresql(DirectoryConformance):
    """A PostgreSQL table, asked for one customer and for many at once."""

    @pytest.fixture
    def records(self, postgres: Postgres | str, query: str) -> Iterator[CustomerRecords]:
        if isinstance(postgres, str):
            pytest.skip(postgres)
        anyio.run(write_postgres, postgres.url, PEOPLE)
        yield CustomerRecords({"source": "sql", "url": postgres.url, "query": query}, postgres.stop)
        if not postgres.is_up:
            postgres.start()


class TestPackage(DirectoryConformance):
    """A source that another package brings."""

    @pytest.fixture
    def records(self, tmp_path: Path) -> Iterator[CustomerRecords]:
        install_package(tmp_path / "packages")
        register = tmp_path / "register.json"
        register.write_text(json.dumps(PEOPLE), encoding="utf-8")
        with importable(tmp_path / "packages"):
            yield CustomerRecords({"source": "register", "people": str(register)}, register.unlink)
