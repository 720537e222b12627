"""A mail server for the tests: aiosmtpd in the test's own loop, which refuses and hangs up on request."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

HANG_UP = "hang up"
STALL = "stall"


class MailServer:
    """What came in, and what to do at each stage: replies, HANG_UP or STALL, in order."""

    def __init__(self) -> None:
        self.port = 0
        self.script: dict[str, deque[str]] = {stage: deque() for stage in ("EHLO", "MAIL", "RCPT", "DATA")}
        self.mails: list[Envelope] = []
        self.data_seen: list[bytes] = []
        self.connections: list[SMTP] = []
        self.arrived = asyncio.Event()
        self.on_recipient: Callable[[], None] = lambda: None
        self.gate = asyncio.Event()
        """While it isn't set, recipients wait for their answer."""

        self.gate.set()

    def plan(self, stage: str, *acts: str) -> None:
        """What to do the next times a stage is reached."""
        self.script[stage].extend(acts)

    async def _act(self, stage: str, server: SMTP) -> str | None:
        if not self.script[stage]:
            return None
        act = self.script[stage].popleft()
        if act == STALL:
            await asyncio.Event().wait()
        if act == HANG_UP:
            drop(server)
        return act

    async def handle_EHLO(  # noqa: N802  # the name is aiosmtpd's
        self, server: SMTP, session: Session, envelope: Envelope, hostname: str, replies: list[str]
    ) -> list[str]:
        reply = await self._act("EHLO", server)
        session.host_name = None if reply else hostname
        return [reply] if reply else replies

    async def handle_MAIL(  # noqa: N802  # the name is aiosmtpd's
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return await self._act("MAIL", server) or "250 OK"

    async def handle_RCPT(  # noqa: N802  # the name is aiosmtpd's
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self.on_recipient()
        await self.gate.wait()
        reply = await self._act("RCPT", server)
        if reply is None:
            envelope.rcpt_tos.append(address)
        return reply or "250 OK"

    async def handle_DATA(  # noqa: N802  # the name is aiosmtpd's
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        assert isinstance(envelope.content, bytes)
        self.data_seen.append(envelope.content)
        self.arrived.set()
        reply = await self._act("DATA", server)
        if reply is None:
            self.mails.append(envelope)
        return reply or "250 OK"


def drop(connection: SMTP) -> None:
    """Break a connection, if it still stands."""
    if connection.transport is not None:
        with suppress(AttributeError):  # Python 3.11.2: TLS that was closed twice can't be broken any more
            cast("asyncio.WriteTransport", connection.transport).abort()


def accept_only(username: str, password: str) -> Any:
    """An authenticator that knows one account."""

    def check(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        good = (data.login, data.password) == (username.encode(), password.encode())
        return AuthResult(success=good, handled=False)

    return check


@asynccontextmanager
async def open_mail_server(
    *, implicit_tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[MailServer]:
    """A server that listens until the block ends; `options` are aiosmtpd's."""
    mail_server = MailServer()
    loop = asyncio.get_running_loop()
    options = {"hostname": "mail.example.com", "enable_SMTPUTF8": True, **options}

    def connect() -> SMTP:
        mail_server.connections.append(SMTP(mail_server, loop=loop, **options))
        return mail_server.connections[-1]

    server = await loop.create_server(connect, "127.0.0.1", 0, ssl=implicit_tls)
    mail_server.port = server.sockets[0].getsockname()[1]
    try:
        yield mail_server
    finally:
        server.close()
        for connection in mail_server.connections:
            drop(connection)
        await server.wait_closed()
