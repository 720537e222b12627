"""One table of cases for every customer directory: a customer is the same, wherever they are kept."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from deliveryd.config import load
from deliveryd.directory.base import Directory, DirectoryAnswer, find
from deliveryd.errors import DirectoryUnavailable
from deliveryd.model import Customer
from deliveryd.worker.wiring import open_directory
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

pytestmark = pytest.mark.anyio

PEOPLE = {
    7: {"name": "Ann Whitfield", "language": "en", "phone": "+447700900101", "email": "ann@example.com"},
    8: {"name": "Zoë 😀 {greeting}", "language": "pt-BR"},
    -3: {"phone": "0"},
    2**62: {"email": "far@example.com"},
    **{id_: {"name": f"Name-{id_}"} for id_ in range(100, 400)},
}


@dataclass
class Kept:
    """Where customers are kept: the table of the configuration, and what takes it away."""

    table: Mapping[str, Any]
    fail: Callable[[], object]


def in_file(folder: Path, _server: Postgres | None) -> Iterator[Kept]:
    write_lines(folder / "customers.jsonl", PEOPLE)
    yield Kept({"source": "file", "path": "customers.jsonl"}, (folder / "customers.jsonl").unlink)


def over_http(folder: Path, _server: Postgres | None) -> Iterator[Kept]:
    with open_crm(PEOPLE) as crm:
        yield Kept({"source": "http", **crm.options}, lambda: setattr(crm, "status", 503))


def over_http_batched(folder: Path, _server: Postgres | None) -> Iterator[Kept]:
    with open_crm(PEOPLE) as crm:
        yield Kept({"source": "http", **crm.batched}, lambda: setattr(crm, "status", 503))


def in_sqlite(query: str) -> Callable[[Path, Postgres | None], Iterator[Kept]]:
    def keep(folder: Path, _server: Postgres | None) -> Iterator[Kept]:
        write_sqlite(folder / "customers.db", PEOPLE)
        table = {"source": "sql", "url": "sqlite:///customers.db", "query": query}
        yield Kept(table, (folder / "customers.db").unlink)

    return keep


def in_postgres(query: str) -> Callable[[Path, Postgres | None], Iterator[Kept]]:
    def keep(folder: Path, server: Postgres | None) -> Iterator[Kept]:
        assert server is not None
        anyio.run(write_postgres, server.url, PEOPLE)
        yield Kept({"source": "sql", "url": server.url, "query": query}, server.stop)
        if not server.is_up:
            server.start()

    return keep


def in_package(folder: Path, _server: Postgres | None) -> Iterator[Kept]:
    install_package(folder / "packages")
    register = folder / "register.json"
    register.write_text(json.dumps(PEOPLE), encoding="utf-8")
    with importable(folder / "packages"):
        yield Kept({"source": "register", "people": str(register)}, register.unlink)


KEEPERS: Mapping[str, Callable[[Path, Postgres | None], Iterator[Kept]]] = {
    "file": in_file,
    "http": over_http,
    "http, batched": over_http_batched,
    "sqlite": in_sqlite(ONE),
    "sqlite, batched": in_sqlite(MANY),
    "postgresql": in_postgres(ONE),
    "postgresql, batched": in_postgres(MANY),
    "package": in_package,
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The drivers of databases know asyncio only; what holds on both loops is in the front's own tests."""
    return "asyncio"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres | str]:
    """A PostgreSQL, or why there is none."""
    try:
        with open_postgres() as server:
            yield server
    except NoPostgres as error:
        yield str(error)


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if name.startswith("postgresql") else [])
        for name in KEEPERS
    ]
)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    """Each of them in turn."""
    name = str(request.param)
    server = request.getfixturevalue("postgres") if name.startswith("postgresql") else None
    if isinstance(server, str):
        pytest.skip(server)
    with contextmanager(KEEPERS[name])(tmp_path, server) as found:
        yield found


@pytest.fixture
async def directory(kept: Kept, tmp_path: Path) -> AsyncIterator[Directory]:
    """The directory as the worker opens it, from its configuration."""
    tables = {
        "service": {"base_url": "http://127.0.0.1:1"},
        "channels": {
            "sms": {"adapter": "http", "url": "http://127.0.0.1:1/", "json": {"a": "{content.text}"}}
        },
        "customers": kept.table,
    }
    path = tmp_path / "config.toml"
    lines = [f"{key} = {_toml(value)}" for key, value in tables.items()]
    path.write_text("\n".join(lines), encoding="utf-8")
    opened = await open_directory(load(path, {}))
    yield opened
    await opened.aclose()


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(member)}" for key, member in value.items()) + " }"
    return json.dumps(value)


async def answers(directory: Directory, *ids: int) -> dict[int, DirectoryAnswer]:
    """What is said of each, which is said once."""
    found: dict[int, DirectoryAnswer] = {}

    async def keep(some: Mapping[int, DirectoryAnswer]) -> None:
        assert not some.keys() & found.keys()
        found.update(some)

    await directory.look_up(set(ids), keep)
    return found


async def test_a_customer_has_the_fields_that_are_kept_of_them(directory: Directory) -> None:
    """Exactly as they are written; a field without a value isn't there."""
    assert await answers(directory, 7, 8, -3, 2**62) == {
        id_: Customer(id_, PEOPLE[id_]) for id_ in (7, 8, -3, 2**62)
    }


async def test_customers_that_nobody_knows_are_told_as_unknown(directory: Directory) -> None:
    """Beside known ones and alone, and whatever number it is."""
    assert await answers(directory, 7, 9, 0, 2**70) == {
        7: Customer(7, PEOPLE[7]),
        9: None,
        0: None,
        2**70: None,
    }
    assert await find(directory, 10) is None


@pytest.mark.slow
async def test_many_at_once_are_each_answered_for_once(directory: Directory) -> None:
    """More than go into one question, some of them unknown."""
    found = await answers(directory, *range(90, 410))
    assert found == {id_: Customer(id_, PEOPLE[id_]) if id_ in PEOPLE else None for id_ in range(90, 410)}


async def test_who_was_answered_for_is_at_hand(directory: Directory) -> None:
    """Known or not, the next message needs no look-up."""
    await answers(directory, 7, 9)
    assert directory.at_hand([7, 9]) == {7: Customer(7, PEOPLE[7]), 9: None}


async def test_a_directory_that_is_there_says_so(directory: Directory) -> None:
    assert await directory.probe() is None


@pytest.mark.slow
async def test_a_directory_that_is_gone_takes_nobody_for_unknown(directory: Directory, kept: Kept) -> None:
    """A file's customers stay known; of others it can't be said who they are, for a reason without names."""
    kept.fail()
    found = await answers(directory, 7, 8)
    if kept.table["source"] == "file":
        assert found == {id_: Customer(id_, PEOPLE[id_]) for id_ in (7, 8)}
        return
    assert found.keys() == {7, 8}
    assert all(isinstance(answer, DirectoryUnavailable) for answer in found.values())
    assert not any("Ann" in str(answer) for answer in found.values())
    with pytest.raises(DirectoryUnavailable):
        await find(directory, 7)
