"""The smtp adapter's TLS and log-in: certificates, passwords, and passwords that are replaced."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from aiosmtpd.smtp import AuthResult

from deliveryd.channels.base import Accepted, Misconfigured
from deliveryd.runtime import secret_file
from deliveryd.testing.samples import opened
from support.mail_server import MailServer, accept_only, open_mail_server
from support.smtp_letters import NAME, mail_to, options_for, send
from support.verdicts import nameless

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The adapter runs on asyncio only: on its own loop, and on the one of production."""
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@pytest.fixture
async def server() -> AsyncIterator[MailServer]:
    async with open_mail_server() as mail_server:
        yield mail_server


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


def server_tls(authority: trustme.CA, name: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


@pytest.fixture
def password(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("w0rd\n")
    path.chmod(0o600)
    return path


async def test_starttls_with_log_in(authority: trustme.CA, ca_file: Path, password: Path) -> None:
    """The connection is secured before the password travels, and kept for the next mail."""
    async with open_mail_server(
        tls_context=server_tls(authority),
        require_starttls=True,
        authenticator=accept_only("shop", "w0rd"),
        auth_required=True,
    ) as server:
        access: dict[str, Any] = {
            "tls": "starttls",
            "ca_file": ca_file,
            "username": "shop",
            "password_file": password,
        }
        async with opened("smtp", options_for(server, **access), block="email") as channel:
            assert await channel.probe() is None
            assert await channel.send(mail_to("ada@example.com")) == Accepted(NAME)
            assert await channel.send(mail_to("ada@example.com")) == Accepted(NAME)
        assert len(server.connections) == 2
        await anyio.Path(password).write_text("wrong")
        assert nameless(await send(server, **access)) == Misconfigured("535 at AUTH")
        async with opened("smtp", options_for(server, **access), block="email") as channel:
            assert await channel.probe() == "535 at AUTH"


async def test_tls_from_the_start(authority: trustme.CA, ca_file: Path) -> None:
    """With `tls` the connection is secure from its first byte."""
    async with open_mail_server(implicit_tls=server_tls(authority)) as server:
        assert await send(server, tls="tls", ca_file=ca_file) == Accepted(NAME)


@pytest.mark.parametrize("tls", ["tls", "starttls"])
@pytest.mark.parametrize("name", ["127.0.0.1", "other.example"])
async def test_a_certificate_that_is_not_trusted(
    authority: trustme.CA, ca_file: Path, tls: str, name: str
) -> None:
    """Neither a stranger's certificate nor one for another name is accepted; nothing is sent."""
    issuer = trustme.CA() if name == "127.0.0.1" else authority
    context = server_tls(issuer, name)
    options: dict[str, Any] = {"implicit_tls": context} if tls == "tls" else {"tls_context": context}
    async with open_mail_server(**options) as server:
        verdict = await send(server, tls=tls, ca_file=ca_file)
        assert isinstance(verdict, Misconfigured)
        assert verdict.reason.startswith(f"the certificate of 127.0.0.1:{server.port} isn't trusted: ")
        is_unknown = name == "127.0.0.1"  # else it is valid, for another name: no authority mends that
        assert verdict.reason.endswith("in channels.test.ca_file") is is_unknown
        assert server.data_seen == []


async def test_no_starttls_no_mail(server: MailServer) -> None:
    """STARTTLS is required where it is configured, never left out because the server doesn't offer it."""
    assert await send(server, tls="starttls") == Misconfigured("the server offers no STARTTLS", "127.0.0.1")


class Accounts:
    """An authenticator of a mail server whose password a test changes."""

    def __init__(self) -> None:
        self.password = "w0rd"

    def __call__(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        return AuthResult(success=data.password == self.password.encode(), handled=False)


async def test_a_replaced_password_is_used_at_once_after_a_refusal(password: Path) -> None:
    """A 535 is no failure of the mail: the same attempt goes on with the new password."""
    accounts = Accounts()
    async with open_mail_server(authenticator=accounts, auth_require_tls=False) as server:
        access = options_for(server, username="shop", password_file=password)
        async with opened("smtp", access, block="email") as channel:
            accounts.password = "n3w"
            await anyio.Path(password).write_text("n3w")
            assert await channel.send(mail_to("ada@example.com")) == Accepted(NAME)
            assert (len(server.mails), len(server.connections)) == (1, 2)


async def test_without_a_new_password_a_refusal_is_not_repeated(password: Path) -> None:
    """The mail waits for somebody to mend it."""
    accounts = Accounts()
    async with open_mail_server(authenticator=accounts, auth_require_tls=False) as server:
        access = options_for(server, username="shop", password_file=password)
        async with opened("smtp", access, block="email") as channel:
            accounts.password = "n3w"
            verdict = await channel.send(mail_to("ada@example.com"))
            assert nameless(verdict) == Misconfigured("535 at AUTH")
            assert (len(server.mails), len(server.connections)) == (0, 1)


async def test_no_mail_goes_over_a_connection_of_the_password_before(
    password: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept connection is parted from when the file is replaced."""
    monkeypatch.setattr(secret_file, "LOOK_EVERY", 0)
    accounts = Accounts()
    async with open_mail_server(authenticator=accounts, auth_require_tls=False) as server:
        access = options_for(server, username="shop", password_file=password)
        async with opened("smtp", access, block="email") as channel:
            for _ in range(2):
                assert await channel.send(mail_to("ada@example.com")) == Accepted(NAME)
            assert len(server.connections) == 1
            accounts.password = "n3w"
            await anyio.Path(password).write_text("n3w")
            assert await channel.send(mail_to("ada@example.com")) == Accepted(NAME)
            assert len(server.connections) == 2
