"""One SMTP connection: opened, secured and logged in, then used for one mail after the other.

A failure is judged by the stage reached and the server's reply.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, cast

import anyio
from aiosmtplib import (
    SMTP,
    SMTPDataError,
    SMTPException,
    SMTPHeloError,
    SMTPResponseException,
    SMTPServerDisconnected,
)

from deliveryd.channels.base import InDoubt, Misconfigured, Refused, TryAgain
from deliveryd.channels.mail.mime import Mail
from deliveryd.channels.smtp.options import SmtpOptions
from deliveryd.network.connection import caused_by, connect, connect_reason
from deliveryd.network.resolver import Resolver

SmtpFailure = Refused | TryAgain | InDoubt | Misconfigured


class Stage(StrEnum):
    """The stage of a session, named by the command whose answer is awaited."""

    CONNECT = "connect"
    EHLO = "EHLO"
    STARTTLS = "STARTTLS"
    AUTH = "AUTH"
    RSET = "RSET"
    MAIL = "MAIL FROM"
    RCPT = "RCPT TO"
    DATA = "DATA"
    CONTENT = "content"  # the mail is being written, but not its final dot
    DOT = "end of data"  # the final dot was written: from here on the server may have the mail


_CLOSING = 421
_TOO_LARGE = 552
_LOG_IN_FIRST = frozenset({530, 535, 538})
_OF_THE_MAIL = frozenset({Stage.RCPT, Stage.DATA, Stage.CONTENT, Stage.DOT})
_OUR_FAULT = frozenset({Stage.STARTTLS, Stage.AUTH, Stage.MAIL})


_FORBIDDEN = re.compile(r"5\.7\.\d{1,3}(?!\d)")
"""The enhanced status of what a server's rules forbid (RFC 3463), such as relaying for this client."""


def _verdict_on_code(stage: Stage, code: int) -> SmtpFailure:
    """Return the verdict on an unexpected reply. Its text may echo the address, so no reason contains it."""
    reason = f"{code} at {stage}"
    if 400 <= code < 500:
        return TryAgain(reason, only_this=stage in _OF_THE_MAIL and code != _CLOSING)
    if not 500 <= code < 600:
        unexpected = f"unexpected reply at {stage}"
        return InDoubt(unexpected) if stage is Stage.DOT else TryAgain(unexpected)
    if code in _LOG_IN_FIRST:
        return Misconfigured(reason)
    if stage in _OUR_FAULT and code != _TOO_LARGE:
        return Misconfigured(reason)
    if stage in (Stage.CONNECT, Stage.EHLO, Stage.RSET):
        return TryAgain(reason)
    return Refused(reason)


def verdict_on_failure(stage: Stage, error: BaseException, options: SmtpOptions, ca_key: str) -> SmtpFailure:
    """Return the verdict on an error: a reply, a broken connection, or a failed TLS handshake.

    It has the server's name, unless the server refused only this recipient; what its rules forbid, it may
    refuse to all. `ca_key` is the configuration key that names the trusted authorities.
    """
    failure = _verdict_on(stage, error, options, ca_key)
    is_of_recipient = stage is Stage.RCPT and not _is_forbidden(error)
    if isinstance(failure, Misconfigured) or (isinstance(failure, Refused) and not is_of_recipient):
        return failure._replace(by=options.host)
    return failure


def _is_forbidden(error: BaseException) -> bool:
    return isinstance(error, SMTPResponseException) and _FORBIDDEN.match(error.message) is not None


def _verdict_on(stage: Stage, error: BaseException, options: SmtpOptions, ca_key: str) -> SmtpFailure:
    if isinstance(error, SMTPResponseException):
        return _verdict_on_code(stage, error.code)
    if stage is Stage.DOT:
        return InDoubt(f"the connection broke at {stage}")
    reason = connect_reason(options.host, options.actual_port, error, ca_key)
    if caused_by(error, ssl.SSLCertVerificationError) is not None:
        return Misconfigured(reason)
    if caused_by(error, ssl.SSLError) is not None:
        begins_late = _BEGINS_WITHOUT_TLS if stage is Stage.CONNECT else ""
        return TryAgain(f"{reason}{options.tls_hint or begins_late}")
    if isinstance(error, SMTPException) and not isinstance(error, OSError):
        return Misconfigured(_UNSUPPORTED.get(stage, f"{stage} isn't supported by the server"))
    return TryAgain(reason if stage is Stage.CONNECT else f"the connection failed at {stage}")


_BEGINS_WITHOUT_TLS = '; servers that start without TLS need tls = "starttls"'
_UNSUPPORTED = {
    Stage.STARTTLS: "the server offers no STARTTLS",
    Stage.AUTH: "the server offers no supported login method",
}


def verdict_on_timeout(stage: Stage, seconds: float, options: SmtpOptions) -> SmtpFailure:
    """Return the verdict on an attempt that timed out."""
    reason = f"no answer at {stage} within {seconds:g} s"
    if stage is Stage.CONNECT:
        reason += options.tls_hint
    return InDoubt(reason) if stage is Stage.DOT else TryAgain(reason)


GOODBYE_SECONDS = 2.0
DRAIN_STEP = 0.005
WRITTEN_AT_ONCE = 256 << 10
"""Bytes of a mail that are encrypted and written at a time."""


class MailAccount(NamedTuple):
    """The server and the login of a channel's sessions."""

    options: SmtpOptions
    sender: str
    password: str | None
    tls: ssl.SSLContext | None
    resolver: Resolver


class NeedsUtf8(Exception):
    """The recipient's address isn't ASCII, and this server offers no SMTPUTF8."""


class Session:
    """A connection. `stage` is the stage reached; aiosmtplib's errors pass through.

    aiosmtplib's `sendmail` and `data` don't distinguish a mail that was never sent from one whose answer was
    lost, so commands are sent one by one, and the final dot is written separately from the content.
    """

    def __init__(self, account: MailAccount) -> None:
        options = account.options
        self.account = account
        self._smtp = SMTP(
            hostname=options.host,
            port=None,  # it gets a connected socket
            local_hostname=options.helo or _own_name(),
            use_tls=options.tls == "tls",
            start_tls=False,  # done explicitly: with STARTTLS configured, there is no session without it
            tls_context=account.tls,
            timeout=None,  # the attempt has one deadline
        )
        self.stage = Stage.CONNECT
        self.idle_since = 0.0
        self._in_transaction = False
        self._transport: asyncio.WriteTransport | None = None

    @property
    def alive(self) -> bool:
        """Whether the connection still seems alive."""
        return self._smtp.is_connected

    async def open(self) -> None:
        """Connect, secure the connection and log in. Any failure closes the connection."""
        options = self.account.options
        try:
            made = await connect(self.account.resolver, options.host, options.actual_port)
            await self._smtp.connect(sock=made)
            self._transport = self._current_transport()
            await self._greet()
            if options.tls == "starttls":
                self.stage = Stage.STARTTLS
                await self._smtp.starttls()
                self._transport = self._current_transport()
                await self._greet()
            if options.username is not None and self.account.password is not None:
                self.stage = Stage.AUTH
                await self._smtp.login(options.username, self.account.password)
        except BaseException:
            self.abort()
            raise

    async def _greet(self) -> None:
        """Greet with EHLO, or with HELO if the server doesn't support that (RFC 5321 3.2, 4.1.4)."""
        self.stage = Stage.EHLO
        try:
            await self._smtp.ehlo()
        except SMTPHeloError as error:
            if not 500 <= error.code < 600:
                raise
            await self._smtp.helo()

    def _current_transport(self) -> asyncio.WriteTransport:
        # aiosmtplib drops its transport on close, but a TLS transport must be aborted to be released.
        return cast("asyncio.WriteTransport", self._smtp.transport)

    async def reset(self) -> None:
        """Reset the transaction of a refused mail, before the connection is used again."""
        self.stage = Stage.RSET
        if self._in_transaction:
            await self._smtp.rset()
            self._in_transaction = False

    async def begin(self, mail: Mail, size: int) -> None:
        """Start a transaction. Raises NeedsUtf8. Until it returns, the server has nothing of the mail."""
        self.stage = Stage.MAIL
        if mail.needs_utf8 and not self._smtp.supports_extension("smtputf8"):
            raise NeedsUtf8
        self._in_transaction = True
        await self._smtp.mail(self.account.sender, options=self._mail_options(mail, size))

    def _mail_options(self, mail: Mail, size: int) -> list[str]:
        options = [f"SIZE={size}"] if self._smtp.supports_extension("size") else []
        return [*options, "BODY=8BITMIME", "SMTPUTF8"] if mail.needs_utf8 else options

    async def transmit(self, mail: Mail, content: bytes, check: Callable[[], None]) -> None:
        """Send the recipient and the mail; return when the server has accepted it.

        `content` has its leading dots doubled. `check` may raise before the final dot: until then the server
        has no mail.
        """
        self.stage = Stage.RCPT
        encoding = "utf-8" if mail.needs_utf8 else "ascii"
        await self._smtp.rcpt(mail.recipient.address, encoding=encoding)
        self.stage = Stage.DATA
        reply = await self._smtp.execute_command(b"DATA")
        if reply.code != 354:
            raise SMTPDataError(reply.code, "")
        self.stage = Stage.CONTENT
        await self._write(content)
        check()
        await self._end_data()

    async def _write(self, content: bytes) -> None:
        protocol = self._smtp.protocol
        if protocol is None or self._transport is None:
            raise SMTPServerDisconnected("Connection lost")
        for begin in range(0, len(content), WRITTEN_AT_ONCE):
            protocol.write(content[begin : begin + WRITTEN_AT_ONCE])
            while self._transport.get_write_buffer_size():  # aiosmtplib has no public way to wait for it
                await anyio.sleep(DRAIN_STEP)
                if not self.alive:
                    raise SMTPServerDisconnected("Connection lost")

    async def _end_data(self) -> None:
        protocol = self._smtp.protocol
        if protocol is None:
            raise SMTPServerDisconnected("Connection lost")
        protocol.write(b".\r\n")  # raises if the connection is already lost: nothing was sent then
        self.stage = Stage.DOT
        reply = await protocol.read_response()
        if not 200 <= reply.code < 300:
            raise SMTPDataError(reply.code, "")
        self._in_transaction = False

    def abort(self) -> None:
        """Drop the connection at once."""
        self._smtp.close()
        if self._transport is not None:
            self._transport.abort()

    def leave(self) -> None:
        """Send QUIT and close without waiting for the answer, since an outcome may wait to be recorded."""
        try:
            if self._smtp.protocol is not None:
                self._smtp.protocol.write(b"QUIT\r\n")
        except SMTPServerDisconnected:
            pass
        self._smtp.close()

    async def quit(self) -> None:
        """Send QUIT, wait briefly for the answer, and close."""
        try:
            with anyio.move_on_after(GOODBYE_SECONDS):
                await self._smtp.quit()
        except (SMTPException, OSError):
            pass
        finally:
            self.abort()


def with_dots_doubled(content: bytes) -> bytes:
    """Return a mail as it is sent after DATA, without the final dot (RFC 5321 4.5.2)."""
    return content.replace(b"\n.", b"\n..")


def _own_name() -> str:
    name = socket.gethostname()  # not getfqdn, which queries name servers
    return name if re.fullmatch(r"[A-Za-z0-9.-]+", name) else "localhost"
