"""What somebody is told who made a mistake: which key, which file, what to do."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from deliveryd.channels.smtp.adapter import SmtpChannel, open_smtp
from deliveryd.channels.smtp.options import SmtpOptions
from deliveryd.directory.base import Terms
from deliveryd.directory.http import open_http_source as open_customers
from deliveryd.directory.http_options import HttpDirectoryOptions as CustomerHttpOptions
from deliveryd.errors import NotSent
from deliveryd.http.client import build_client
from deliveryd.http.reachability import connect_problem
from deliveryd.http.tls import TlsFiles
from deliveryd.network.connection import connect_reason
from support.mail_server import open_mail_server
from support.ports import free_port
from support.somebody import as_nobody
from support.terminal import command
from support.world import World, open_world

ABSENT = "x" * 64
"""No name server is asked for it: a part of a name has 63 characters at most."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from open_world(tmp_path)


# TLS files


class Certificates:
    """An authority, a certificate with its key, and another's key, as files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        own, other = self.authority.issue_cert("127.0.0.1"), self.authority.issue_cert("other.example")
        self.authority.cert_pem.write_to_path(folder / "ca.pem")
        own.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        own.private_key_pem.write_to_path(folder / "key.pem")
        other.private_key_pem.write_to_path(folder / "other.pem")
        folder.joinpath("junk").write_text("no certificate")
        folder.joinpath("locked.pem").write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")

    def files(self, *names: str | None) -> TlsFiles:
        paths = [self.folder / name if name is not None else None for name in (*names, None, None)]
        return TlsFiles(paths[0], paths[1], paths[2])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


NO_CERTIFICATE = "contains no certificate in PEM form (-----BEGIN CERTIFICATE-----)"
NO_KEY = "contains no private key in PEM form (-----BEGIN PRIVATE KEY-----)"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("absent",), "ca_file: FOLDER/absent can't be read: No such file or directory"),
        (("junk",), "ca_file: FOLDER/junk contains no certificate in PEM form (-----BEGIN CERTIFICATE-----)"),
        (("key.pem",), f"ca_file: FOLDER/key.pem {NO_CERTIFICATE}"),
        ((None, "junk", "key.pem"), f"cert_file: FOLDER/junk {NO_CERTIFICATE}"),
        ((None, "cert.pem", "junk"), f"key_file: FOLDER/junk {NO_KEY}"),
        ((None, "cert.pem"), f"cert_file: FOLDER/cert.pem {NO_KEY}"),
        (
            (None, "cert.pem", "other.pem"),
            "key_file: FOLDER/other.pem contains the key of a certificate other than the one in cert_file",
        ),
        (
            (None, "cert.pem", "locked.pem"),
            "key_file: FOLDER/locked.pem is encrypted: store the key without a password",
        ),
    ],
)  # fmt: skip
def test_a_tls_file_that_cannot_be_used_is_named_with_its_key(
    certificates: Certificates, names: tuple[str | None, ...], told: str
) -> None:
    assert certificates.files(*names).problems() == [told.replace("FOLDER", str(certificates.folder))]


def test_tls_files_that_can_be_used_are_told_nothing_of(certificates: Certificates) -> None:
    assert certificates.files("ca.pem", "cert.pem", "key.pem").problems() == []


@pytest.mark.slow
def test_all_tables_name_key_and_path_of_a_tls_file(world: World) -> None:
    world.change("[queue]", '[service.tls]\nca_file = "a.pem"\n[entities]\nca_file = "b.pem"\n[queue]')
    world.add('tls = { ca_file = "c.pem" }\n[channels.email]\nadapter = "smtp"\nhost = "h"\n'
              'sender = "a@example.com"\nca_file = "d.pem"\n')  # fmt: skip
    told = command("check", "--offline", "--config", world.config).err.splitlines()
    where = {"service.tls.ca_file": "a", "entities.ca_file": "b", "channels.sms.tls.ca_file": "c",
             "channels.email.ca_file": "d"}  # fmt: skip
    assert {f"{world.config}:{key}: {world.folder}/{name}.pem can't be read: No such file or directory"
            for key, name in where.items()} <= set(told)  # fmt: skip


# connections


@asynccontextmanager
async def tls_server(certificates: Certificates) -> AsyncIterator[int]:
    """A server that nobody was told to trust."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.authority.issue_cert("127.0.0.1").configure_cert(context)
    async with open_mail_server(implicit_tls=context) as server:
        yield server.port


Asked = Callable[[str, int, bool], Awaitable[str | None]]


async def by_our_wire(host: str, port: int, secure: bool) -> str | None:
    client = build_client(timeout=5.0, tls=TlsFiles(ca_key="KEY"))
    try:
        await client.send("GET", f"{'https' if secure else 'http'}://{host}:{port}/")
    except NotSent as error:
        return str(error)
    finally:
        await client.aclose()
    return None


async def by_a_probe(host: str, port: int, secure: bool) -> str | None:
    return await connect_problem(host, port, TlsFiles(ca_key="KEY") if secure else None)


async def by_mail(host: str, port: int, secure: bool) -> str | None:
    options = SmtpOptions(host=host, port=port, tls="tls" if secure else "none", sender="a@example.com")
    channel = open_smtp("channels.email", "email", options, 5.0)
    assert isinstance(channel, SmtpChannel)
    try:
        problem = await channel.probe()
    finally:
        await channel.aclose()
    return problem.replace("channels.email.ca_file", "KEY") if problem is not None else None


async def by_the_directory(host: str, port: int, secure: bool) -> str | None:
    url = f"{'https' if secure else 'http'}://{host}:{port}/{{customerId}}"
    options = CustomerHttpOptions.model_validate({"url": url, "fields": {"name": "/name"}})
    source = open_customers(options, Terms(1.0, 5.0, 1))
    try:
        problem = await source.probe()
    finally:
        await source.aclose()
    return problem.replace("customers.tls.ca_file", "KEY") if problem is not None else None


WAYS = [by_our_wire, by_a_probe, by_mail, by_the_directory]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("ask", WAYS)
async def test_why_there_is_no_connection_is_told_in_the_same_words_everywhere(
    certificates: Certificates, ask: Asked
) -> None:
    """A refusal, a name that there isn't, a certificate that isn't trusted with the key that mends it."""
    port = free_port()
    assert await ask("127.0.0.1", port, False) == f"no connection to 127.0.0.1:{port}: connection refused"
    assert await ask(ABSENT, 80, False) == f"no connection to {ABSENT}:80: no such host"
    async with tls_server(certificates) as port:
        problem = await ask("127.0.0.1", port, True)
    assert problem == (
        f"the certificate of 127.0.0.1:{port} isn't trusted: unable to get local issuer certificate;"
        " name the authority that issued it in KEY"
    )


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_httpxs_wire_uses_these_words_too(certificates: Certificates) -> None:
    port = free_port()
    assert (
        await by_our_wire("127.0.0.1", port, False)
        == f"no connection to 127.0.0.1:{port}: connection refused"
    )
    assert await by_our_wire(ABSENT, 80, False) == f"no connection to {ABSENT}:80: no such host"


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_certificate_for_another_name_is_not_blamed_on_the_authority(
    certificates: Certificates,
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.authority.issue_cert("other.example").configure_cert(context)
    async with open_mail_server(implicit_tls=context) as server:
        problem = await connect_problem("127.0.0.1", server.port, certificates.files("ca.pem"))
    assert problem is not None
    assert "IP address mismatch" in problem
    assert "ca_file" not in problem


def test_a_name_server_that_fails_is_no_missing_name() -> None:
    error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure")
    assert connect_reason("h.example", 443, error, "KEY") == (
        "no connection to h.example:443: its name can't be resolved now (Temporary failure)"
    )


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_tls_to_a_server_that_begins_without_it_says_so() -> None:
    async with open_mail_server() as server:
        problem = await by_mail("127.0.0.1", server.port, True)
    assert problem == (
        f"TLS with 127.0.0.1:{server.port} failed:"
        " the peer doesn't speak TLS (WRONG_VERSION_NUMBER);"
        ' servers that start without TLS need tls = "starttls"'
    )


@pytest.mark.parametrize(("port", "tls", "usual"), [(587, "tls", "starttls"), (465, "starttls", "tls")])
def test_a_failure_on_a_port_for_another_kind_of_tls_hints_at_it(port: int, tls: str, usual: str) -> None:
    options = SmtpOptions.model_validate({"host": "h", "port": port, "tls": tls, "sender": "a@example.com"})
    assert options.tls_hint == f'; port {port} is usually for tls = "{usual}", not "{tls}"'


# the configuration file


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[queue]\n\n[events]\nbatch_size = 1\n\n[queue]\n", "line 6: queue is given twice, on line 1 too"),
        ("[queue]\nx = 1\nx = 2\n", "line 3: queue.x is given twice, on line 2 too"),
        ("[queue]\nx = 1\n# end\nx = 2", "line 4: queue.x is given twice, on line 2 too"),
        ("[a]\nx = [\n  1,\n]\nx = [\n  2,\n]\n", "line 5: a.x is given twice, on line 2 too"),
        ("[a]\nb = 1\n[a.b]\nc = 1\n", "line 3: a.b is given twice, on line 2 too"),
    ],
)  # fmt: skip
def test_what_is_given_twice_is_named_with_both_lines(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    answered = command("check", "--offline", "--config", path)
    assert (answered.status, answered.err) == (78, f"{path}: {told}\n")


# the journal


@pytest.mark.parametrize(
    ("mode", "folder_mode", "why"),
    [
        (0o400, 0o700, "this user can't write it: Permission denied"),
        (0o600, 0o500, "this user can't write to its folder: Permission denied"),
    ],
)
def test_a_journal_that_may_not_be_written_is_not_blamed_on_the_disk(
    world: World, mode: int, folder_mode: int, why: str
) -> None:
    """`check` and `run` say the same."""
    state = world.folder / "state"
    world.change("sqlite:///journal.db", "sqlite:///state/journal.db")
    for words in (("run", "--until-idle"), ("check",)):
        command(*words, "--config", world.config)
    journal = state / "journal.db"
    journal.chmod(mode)
    state.chmod(folder_mode)
    with as_nobody(world):
        checked = command("check", "--offline", "--config", world.config)
        run = command("run", "--until-idle", "--config", world.config)
    told = f"{journal} can't be used as a journal: {why}"
    assert run.err.splitlines()[-1] == f"deliveryd: {told}"
    assert told in checked.out
    assert "check the disk" not in run.err


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """A disk at `tmp_path / "disk"`; the call makes it read-only."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m,mode=700", "tmpfs", str(disk)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("this machine, or this user, mounts no tmpfs")

    def close() -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)

    yield close
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.slow
def test_a_journal_on_a_read_only_file_system_is_told_so(
    world: World, read_only_disk: Callable[[], None]
) -> None:
    world.change('url = "sqlite:///journal.db"', 'url = "sqlite:///disk/journal.db"\nreserve = "1MiB"')
    assert command("run", "--until-idle", "--config", world.config).status == 0
    read_only_disk()
    journal = world.folder / "disk" / "journal.db"
    told = f"{journal} can't be used as a journal: this user can't write to its folder: Read-only file system"
    run = command("run", "--until-idle", "--config", world.config)
    checked = command("check", "--offline", "--config", world.config)
    assert (run.status, run.err.splitlines()[-1]) == (78, f"deliveryd: {told}")
    assert checked.status == 78
    assert told in checked.out
