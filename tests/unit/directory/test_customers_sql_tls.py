"""Who a database's password is told: nobody but the server that the configuration means."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import trustme
from pydantic import ValidationError

from deliveryd.directory import sql_connection
from deliveryd.directory.base import Terms
from deliveryd.directory.remote import RemoteDirectory
from deliveryd.directory.sql import open_sql
from deliveryd.directory.sql_connection import AuthenticationGuard, tls_for
from deliveryd.directory.sql_options import SqlOptions
from deliveryd.errors import ConfigError
from deliveryd.network.address import Address
from deliveryd.network.resolver import Resolver
from support.directories import ONE
from support.fake_databases import (
    PASSWORD,
    SSL_REQUEST,
    Talk,
    mysql,
    mysql_full_authentication,
    mysql_sha256,
    mysql_switch,
    mysql_without_end,
    open_database,
    postgresql,
    postgresql_after,
    postgresql_after_ok,
    postgresql_after_ok_apart,
    postgresql_md5,
    postgresql_scram,
    postgresql_trusting,
    postgresql_without_ok,
    thief,
)

pytestmark = pytest.mark.anyio

TERMS = Terms(cache_ttl=300.0, timeout=5.0, concurrency=1)
NAME = "db.example"
DATABASES: Mapping[str, Talk] = {"postgresql": postgresql, "mysql": mysql}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The drivers know asyncio only."""
    return "asyncio"


@pytest.fixture(params=DATABASES)
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path / "ca.pem"


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that leads to this computer, as that of another computer would lead there."""

    def ask(_host: str) -> list[Address]:
        return [Address(socket.AF_INET, "127.0.0.1")]

    monkeypatch.setattr(sql_connection, "Resolver", partial(Resolver, ask))
    for name in ("PGSSLMODE", "PGHOST"):
        monkeypatch.delenv(name, raising=False)


def certificate(authority: trustme.CA, name: str = NAME) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


async def asked(kind: str, port: int, folder: Path, host: str = NAME, **more: Any) -> str:
    """Ask a database for a customer, with a password; why there is no answer."""
    secret = folder / "password"
    secret.touch(mode=0o600)
    secret.write_text(PASSWORD)
    options = SqlOptions.model_validate(
        {"url": f"{kind}://u@{host}:{port}/crm", "password_file": secret, "query": ONE, **more}
    )
    directory = RemoteDirectory(open_sql(options, TERMS), TERMS)
    problem = await directory.probe()
    await directory.aclose()
    assert problem is not None
    return problem


async def test_a_server_without_tls_is_told_nothing(kind: str, tmp_path: Path) -> None:
    """Neither the password nor who asks: the conversation ends where it says that it has no TLS."""
    async with open_database(DATABASES[kind]) as fake:
        problem = await asked(kind, fake.port, tmp_path)
    assert fake.connections == 1
    assert fake.heard == (SSL_REQUEST if kind == "postgresql" else b"")
    assert problem.endswith("(the server offers no TLS, and customers.allow_plain_text isn't set)")


async def test_the_environment_does_not_turn_tls_off(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSSLMODE", "disable")
    async with open_database(DATABASES[kind]) as fake:
        await asked(kind, fake.port, tmp_path)
    assert not fake.has_the_password


@pytest.mark.parametrize("wrong", ["an authority that isn't trusted", "another name"])
async def test_a_server_with_the_wrong_certificate_is_told_nothing(
    kind: str, wrong: str, tmp_path: Path, authority: trustme.CA, ca_file: Path
) -> None:
    """The certificate must come from a trusted authority, and be for the name in the url."""
    stranger = (
        certificate(authority, "other.example") if wrong == "another name" else certificate(trustme.CA())
    )
    async with open_database(DATABASES[kind], stranger) as fake:
        problem = await asked(kind, fake.port, tmp_path, tls={"ca_file": ca_file})
    assert fake.connections == 1
    assert not fake.has_the_password
    assert "TLS with the database failed: " in problem
    assert problem.endswith("; customers.tls.ca_file names the trusted authorities")


async def test_the_server_that_is_meant_is_told_over_tls(
    kind: str, tmp_path: Path, authority: trustme.CA, ca_file: Path
) -> None:
    """Connected to by an address that was looked up before, verified by its name."""
    async with open_database(DATABASES[kind], certificate(authority)) as fake:
        await asked(kind, fake.port, tmp_path, tls={"ca_file": ca_file})
    assert fake.has_the_password


async def test_with_certificates_this_computer_is_asked_over_tls(
    kind: str, tmp_path: Path, ca_file: Path
) -> None:
    for host in ("127.0.0.1", "localhost"):
        async with open_database(DATABASES[kind]) as fake:
            await asked(kind, fake.port, tmp_path, host, tls={"ca_file": ca_file})
        assert fake.connections > 0
        assert fake.answer is None


THIEVES: Mapping[str, tuple[str, Talk]] = {
    "PostgreSQL, plain text": ("postgresql", postgresql),
    "PostgreSQL, plain text after OK": ("postgresql", postgresql_after_ok),
    "PostgreSQL, plain text after OK, in pieces": ("postgresql", postgresql_after_ok_apart),
    "PostgreSQL, MD5": ("postgresql", postgresql_md5),
    "MySQL, plain text": ("mysql", mysql),
    "MySQL, plain text at second": ("mysql", partial(mysql_switch, b"mysql_clear_password")),
    "MySQL, sha256": ("mysql", mysql_sha256),
    "MySQL, sha256 at second": ("mysql", partial(mysql_switch, b"sha256_password")),
    "MySQL, caching_sha2 in full": ("mysql", mysql_full_authentication),
    "MariaDB, plain text": ("mariadb", mysql),
}


@pytest.mark.parametrize(
    ("host", "more"), [("127.0.0.1", {}), (NAME, {"allow_plain_text": True})], ids=["here", "allowed"]
)
@pytest.mark.parametrize(("kind", "talk"), THIEVES.values(), ids=THIEVES.keys())
async def test_without_tls_nobody_is_given_the_password_away(
    kind: str, talk: Talk, host: str, more: Mapping[str, Any], tmp_path: Path
) -> None:
    """Whoever listens there first asks for it by a method that needs trust, and gets no answer."""
    async with open_database(talk) as fake:
        problem = await asked(kind, fake.port, tmp_path, host, **more)
    assert fake.connections > 0
    assert not fake.has_the_password
    assert fake.answer is None
    assert "in a form that gives it away without TLS" in problem or "doesn't prove that it has" in problem


@pytest.mark.parametrize("more", [{}, {"ca_file"}], ids=["no files", "ca_file"])
@pytest.mark.parametrize(("kind", "talk"), THIEVES.values(), ids=THIEVES.keys())
async def test_who_listens_on_a_socket_file_is_not_given_the_password_away(
    kind: str, talk: Talk, more: set[str], tmp_path: Path, ca_file: Path
) -> None:
    """A socket has no TLS, and may be in a folder of everybody, where anyone can be first."""
    at = tmp_path / ".s.PGSQL.5432"
    where = f"host={tmp_path}&port=5432" if kind == "postgresql" else f"unix_socket={at}"
    secret = tmp_path / "password"
    secret.touch(mode=0o600)
    secret.write_text(PASSWORD)
    options = SqlOptions.model_validate(
        {
            "url": f"{kind}://u@/crm?{where}",
            "password_file": secret,
            "query": ONE,
            "tls": dict.fromkeys(more, ca_file),
        }
    )
    async with open_database(talk, at=at) as fake:
        directory = RemoteDirectory(open_sql(options, TERMS), TERMS)
        await directory.probe()
        await directory.aclose()
    assert fake.connections > 0
    assert not fake.has_the_password
    assert fake.answer is None


IMPOSTORS: Mapping[str, Talk] = {
    "asks for nothing": postgresql_trusting,
    "takes queries at once": postgresql_without_ok,
    "leaves the proof out": partial(postgresql_scram, proves=False),
}


@pytest.mark.parametrize(
    ("host", "more"), [("127.0.0.1", {}), (NAME, {"allow_plain_text": True})], ids=["here", "allowed"]
)
@pytest.mark.parametrize("talk", IMPOSTORS.values(), ids=IMPOSTORS.keys())
async def test_a_server_that_does_not_know_the_password_is_asked_nothing(
    talk: Talk, host: str, more: Mapping[str, Any], tmp_path: Path
) -> None:
    """Whoever listens there first could tell other customers' addresses: no query comes."""
    async with open_database(talk) as fake:
        problem = await asked("postgresql", fake.port, tmp_path, host, **more)
    assert fake.connections > 0
    assert fake.answer is None
    assert "the server doesn't prove that it has the password" in problem


@pytest.mark.parametrize(
    "begin",
    [
        b"x\xff\xff\xff\xff", b"N\x80\x00\x00\x04", b"S\xff\xff\xff\xfb", b"S\x80\x00\x00\x00",
        b"R\xff\xff\xff\xff", b"N\x00\x00\x00\x03", b"N\x00\x01\x00\x00", b"D\x00\x00\x00\x04",
    ],
    ids=[
        "-1", "0x80000004", "-5", "0x80000000", "a request of -1", "less than itself", "too large",
        "another message",
    ],
)  # fmt: skip
async def test_a_message_that_is_none_of_postgresql_ends_the_connection(begin: bytes, tmp_path: Path) -> None:
    """asyncpg passes over a size below zero, and would answer the request behind it with the password."""
    async with open_database(partial(postgresql_after, begin)) as fake:
        problem = await asked("postgresql", fake.port, tmp_path, "127.0.0.1")
    assert fake.connections > 0
    assert not fake.has_the_password
    assert fake.answer is None
    assert "the server sends what no PostgreSQL sends before it takes queries" in problem


@pytest.mark.parametrize(
    "requests",
    [(12,), (11,), (10, 12), (10, 10), (0, 12), (10, 0), (2,), (7,)],
    ids=lambda requests: " ".join(map(str, requests)),
)
def test_requests_of_authentication_come_in_their_order(requests: Sequence[int]) -> None:
    """asyncpg would be killed by a step of SCRAM without the one before it: one address to look up did it."""
    behind, transport, refusals = Behind(), Mock(), list[str]()
    guard = AuthenticationGuard(behind, refusals.append, must_prove=False)
    guard.connection_made(transport)
    *begin, last = (b"R" + struct.pack("!II", 8, code) for code in requests)
    guard.data_received(b"".join((*begin, last)))
    assert behind.received == begin
    assert refusals == ["the server sends what no PostgreSQL sends before it takes queries"]
    transport.abort.assert_called_once_with()


async def test_a_proof_at_first_ends_the_connection_alone(tmp_path: Path) -> None:
    """The same to the driver: it ended the process."""
    async with open_database(partial(postgresql_after, b"R" + struct.pack("!II", 8, 12))) as fake:
        problem = await asked("postgresql", fake.port, tmp_path, "127.0.0.1")
    assert "the server sends what no PostgreSQL sends before it takes queries" in problem


async def test_a_server_that_asks_for_hours_of_work_is_refused(tmp_path: Path) -> None:
    """The event loop would stand meanwhile: whoever listens there first names the iterations of SCRAM."""
    async with open_database(partial(postgresql_scram, work=1_000_000_000)) as fake:
        problem = await asked("postgresql", fake.port, tmp_path, "127.0.0.1")
    assert fake.answer is None
    assert "asks for more than 100,000 iterations of SCRAM" in problem


def test_messages_before_the_first_query_are_bounded() -> None:
    """They could come without end, each of them small."""
    behind, transport, refusals = Behind(), Mock(), list[str]()
    guard = AuthenticationGuard(behind, refusals.append, must_prove=False)
    guard.connection_made(transport)
    guard.data_received(b"S\0\0\0\x08a\0b\0" * 5000)
    assert len(behind.received) == 1000
    assert refusals == ["the server sends what no PostgreSQL sends before it takes queries"]


async def test_a_packet_of_mysql_without_end_ends_the_connection(tmp_path: Path) -> None:
    """Packets of 16 MiB would be joined as long as they come, before anybody has logged in."""
    async with open_database(mysql_without_end) as fake:
        problem = await asked("mysql", fake.port, tmp_path, "127.0.0.1")
    assert fake.answer is None
    assert "the server sends what no MySQL sends before it takes queries" in problem


class Behind:
    """What stands behind a guard: keeps what it is given."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    def connection_made(self, _transport: object) -> None:
        return

    def data_received(self, data: bytes) -> None:
        self.received.append(data)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_only_whole_messages_are_passed_on_until_the_server_takes_queries(size: int) -> None:
    """However the bytes come, asyncpg has no part of a message that wasn't examined; then it has all."""
    ok, parameter = b"R\0\0\0\x08\0\0\0\0", b"S\0\0\0\x08a\0b\0"
    ready, more = b"Z\0\0\0\x05I", b"D\xff\xff\xff\xff" * 3
    behind, transport, refusals = Behind(), Mock(), list[str]()
    guard = AuthenticationGuard(behind, refusals.append, must_prove=False)
    guard.connection_made(transport)
    sent = ok + parameter + ready + more
    pieces = [sent[begin : begin + size] for begin in range(0, len(sent), size)]
    for piece in pieces:
        (behind if transport.set_protocol.called else guard).data_received(piece)
    assert behind.received[:2] == [ok, parameter]
    assert behind.received[2].startswith(ready)
    assert b"".join(behind.received) == sent
    transport.set_protocol.assert_called_once_with(behind)
    assert not refusals


async def test_a_proof_by_another_password_is_refused(tmp_path: Path) -> None:
    """asyncpg compares it, and sends no query."""
    async with open_database(partial(postgresql_scram, password="another", goes_on=False)) as fake:
        problem = await asked("postgresql", fake.port, tmp_path, "127.0.0.1")
    assert fake.connections > 0
    assert fake.answer is None
    assert "the database failed with InterfaceError" in problem


async def test_a_server_that_knows_the_password_is_asked(tmp_path: Path) -> None:
    """By SCRAM, without TLS; so is one that needs no password, if none is configured."""
    async with open_database(postgresql_scram) as fake:
        await asked("postgresql", fake.port, tmp_path, "127.0.0.1")
    assert fake.answer is not None
    async with open_database(postgresql_trusting) as fake:
        await asked("postgresql", fake.port, tmp_path, "127.0.0.1", password_file=None)
    assert fake.answer is not None


async def test_a_server_that_asks_for_a_file_is_given_none(tmp_path: Path) -> None:
    """LOAD DATA LOCAL lets a server name any file of its client's (CVE-2025-62611)."""
    tmp_path.joinpath("private").write_text("all our secrets")
    async with open_database(partial(thief, tmp_path / "private")) as fake:
        await asked("mysql", fake.port, tmp_path, "127.0.0.1")
    assert fake.connections > 0
    assert b"secrets" not in fake.heard


@pytest.mark.parametrize(
    ("host", "is_plain"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("[::1]", True), ("LOCALHOST", True), ("", False),
        ("db.example", False), ("10.0.0.1", False), ("localhost.example", False),
        ("[::ffff:10.0.0.1]", False),
    ],
)  # fmt: skip
def test_which_hosts_are_this_computer(host: str, is_plain: bool) -> None:
    """A name but `localhost` is another computer, and so is what the environment may name."""
    options = SqlOptions(url=f"postgresql://{host}/crm", query=ONE)
    hosts = [host.strip("[]")] if host else []
    context = tls_for(options, hosts)
    assert (context is None) is is_plain
    if context is not None:
        assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert tls_for(options, [*hosts, "db.example"]) is not None
    assert tls_for(options, ["/run/postgresql"]) is None


MISTAKES = {
    "tls in the url": ({"url": "postgresql://h/d?sslmode=require"}, "has the parameter sslmode: use tls"),
    "tls off in the url": ({"url": "postgresql://h/d?ssl=disable"}, "has the parameter ssl: use tls"),
    "MySQL's": ({"url": "mysql://h/d?ssl_check_hostname=false"}, "has the parameter ssl_check_hostname"),
    "local files": ({"url": "mysql://h/d?local_infile=1"}, "has the parameter local_infile"),
    "a file that says more": ({"url": "mysql://h/d?read_default_file=/a"}, "has the parameter read_default"),
    "another address": ({"url": "postgresql://h/d?dsn=postgresql://g/d"}, "has the parameter dsn"),
    "a driver of another make": ({"url": "mysql+asyncmy://h/d"}, "unknown driver asyncmy; use one of"),
    "both": ({"tls": {"ca_file": "ca.pem"}, "allow_plain_text": True}, "can't be combined"),
    "a file of SQLite": ({"url": "sqlite:////a.db", "allow_plain_text": True}, "on the network"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "told"), MISTAKES.values(), ids=MISTAKES.keys())
def test_what_would_lead_past_verified_tls_is_a_mistake(change: Mapping[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SqlOptions.model_validate({"url": "postgresql://h/d", "query": ONE, **change})
    (message,) = [error["msg"] for error in caught.value.errors(include_input=False)]
    assert told in message


async def test_certificates_that_can_not_be_used_are_told_at_once(tmp_path: Path) -> None:
    options = SqlOptions.model_validate(
        {"url": "postgresql://h/d", "query": ONE, "tls": {"ca_file": tmp_path / "absent.pem"}}
    )
    with pytest.raises(ConfigError, match=r"^customers\.tls\.ca_file: .*absent\.pem can.t be read"):
        open_sql(options, TERMS)
