"""The smtp adapter: sends e-mail to the issuer's server over a few pooled connections, on asyncio only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic

import anyio
import sniffio
from aiosmtplib import (
    SMTPAuthenticationError,
    SMTPException,
    SMTPResponseException,
    SMTPServerDisconnected,
)
from anyio.lowlevel import checkpoint

from deliveryd.channels.base import (
    NO_ADDRESS,
    Accepted,
    Dispatch,
    Expired,
    Found,
    Refused,
    Unknown,
    Unsent,
    Verdict,
)
from deliveryd.channels.mail.mail_headers import parse_mailbox
from deliveryd.channels.mail.mime import Mail
from deliveryd.channels.mail.writer import MailWriter
from deliveryd.channels.smtp.options import SmtpOptions
from deliveryd.channels.smtp.session import (
    MailAccount,
    NeedsUtf8,
    Session,
    Stage,
    verdict_on_failure,
    verdict_on_timeout,
    with_dots_doubled,
)
from deliveryd.errors import ConfigError, OutOfFiles, TooLate
from deliveryd.model import Customer
from deliveryd.network.connection import connect_reason
from deliveryd.network.deadline import within
from deliveryd.network.resolver import Resolver
from deliveryd.runtime.process import is_out_of_files
from deliveryd.runtime.secret_file import RenewedValue
from deliveryd.runtime.threads import Aside

PROBE_SECONDS = 5.0


class Credentials:
    """The login and the certificate of sessions, as currently in their files.

    Raises ValueError or OSError if they can't be used at the start.
    """

    def __init__(self, options: SmtpOptions) -> None:
        files = options.tls_files()
        secret = options.password_file
        self._password = RenewedValue(
            [secret.path] if secret else [], lambda: secret.read() if secret else None
        )
        has_tls = options.tls != "none"
        self._tls = RenewedValue(files.paths if has_tls else [], lambda: files.context() if has_tls else None)
        self._account = MailAccount(
            options=options,
            sender=parse_mailbox(options.sender).address,
            password=self._password.current(),
            tls=self._tls.current(),
            resolver=Resolver(),
        )

    def account(self) -> MailAccount:
        """Return the account; the same object as long as no file was replaced."""
        password, tls = self._password.current(), self._tls.current()
        if password != self._account.password or tls is not self._account.tls:
            self._account = self._account._replace(password=password, tls=tls)
        return self._account

    def account_after(self, refused: MailAccount) -> MailAccount:
        """Reread a rejected account, unless another mail has done so already."""
        if self.account() is refused:
            self._password.renew()
        return self.account()


class IdleSessions:
    """Idle connections, reused latest first, so that surplus ones expire."""

    def __init__(self, keep: int, idle_timeout: float) -> None:
        self._keep = keep
        self._idle_timeout = idle_timeout
        self._idle: list[Session] = []

    def take(self, account: MailAccount) -> Session | None:
        """Return a connection of this account that seems alive, or None."""
        oldest = monotonic() - self._idle_timeout
        while self._idle:
            session = self._idle.pop()
            if session.alive and session.idle_since > oldest and session.account is account:
                return session
            session.leave()
        return None

    def put_back(self, session: Session) -> None:
        """Keep a connection for later, or close it if there are enough."""
        if len(self._idle) >= self._keep:
            session.leave()
            return
        session.idle_since = monotonic()
        self._idle.append(session)

    async def aclose(self) -> None:
        """Close the idle connections, and keep no more."""
        self._keep = 0
        idle, self._idle = self._idle, []
        async with anyio.create_task_group() as group:
            for session in idle:
                group.start_soon(session.quit)
        await checkpoint()  # the transports close in the loop's next turn


class SmtpChannel:
    """One configured mail server."""

    def __init__(
        self, options: SmtpOptions, credentials: Credentials, *, timeout: float, ca_key: str = "ca_file"
    ) -> None:
        self._options = options
        self._ca_key = ca_key
        self._credentials = credentials
        self._timeout = timeout
        self._address_field = options.address_field
        self.customer_fields = frozenset({options.address_field})
        self._writer = MailWriter(options)
        self._idle = IdleSessions(options.connections, options.idle_timeout)
        self._aside = Aside()

    def reaches(self, customer: Customer | None) -> bool:
        """Whether the customer has a value in the field that `to` names."""
        return customer is not None and bool(customer.fields.get(self._address_field))

    def unreached(self, _customer: Customer | None) -> str:
        """Return that the address is missing."""
        return NO_ADDRESS

    devices_field = None
    lookup_after = None  # a mail server can't be asked

    async def look_up(self, dispatch: Dispatch) -> Found:
        """A mail server can't be asked."""
        return Unknown(f"{self._options.host} can't be asked for message {dispatch.entry.id}")

    def recipients(self, customer: Customer) -> tuple[str, ...]:
        """Return the bare mail address."""
        try:
            return (parse_mailbox(customer.fields.get(self._address_field) or "").address,)
        except ValueError:
            return ()

    async def send(self, dispatch: Dispatch) -> Verdict:
        """Send one mail; the provider's ID is its Message-ID, which is derived from the key."""
        try:
            mail, content = await self._aside(partial(self._written, dispatch))  # even a small one is slow
        except ValueError as error:
            return Refused(str(error), unsent=True)
        attempt = _Attempt(self._credentials, self._idle, mail, content, dispatch.check_time)
        try:
            await within(self._timeout, attempt.make)
        except TimeoutError:
            return verdict_on_timeout(attempt.stage, self._timeout, self._options)
        except TooLate:
            return Expired()
        except NeedsUtf8:
            return Refused("the mail address isn't ASCII, and the server offers no SMTPUTF8")
        except (SMTPException, OSError) as error:
            if attempt.stage is Stage.CONNECT and is_out_of_files(error):
                return Unsent(self._connect_reason(error))
            return verdict_on_failure(attempt.stage, error, self._options, self._ca_key)
        return Accepted(mail.name)

    def _connect_reason(self, error: BaseException) -> str:
        return connect_reason(self._options.host, self._options.actual_port, error, self._ca_key)

    def _written(self, dispatch: Dispatch) -> tuple[Mail, bytes]:
        mail = self._writer.compose(dispatch)
        return mail, with_dots_doubled(mail.content())

    def preview(self, dispatch: Dispatch) -> str:
        """Return the mail as text, with decoded bodies."""
        try:
            mail = self._writer.compose(dispatch)
        except ValueError as error:
            return f"nothing would be sent: {error}"
        envelope = f"MAIL FROM:<{self._writer.sender.address}>\nRCPT TO:<{mail.recipient.address}>"
        return f"{envelope}\n\n{mail.readable()}"

    async def probe(self) -> str | None:
        """Connect, with TLS and login as configured, and quit without sending a mail."""
        session = Session(self._credentials.account())
        try:
            with anyio.fail_after(PROBE_SECONDS):
                await session.open()
        except TimeoutError:
            return verdict_on_timeout(session.stage, PROBE_SECONDS, self._options).reason
        except (SMTPException, OSError) as error:
            if session.stage is Stage.CONNECT and is_out_of_files(error):
                raise OutOfFiles(self._connect_reason(error)) from None
            return verdict_on_failure(session.stage, error, self._options, self._ca_key).reason
        await session.quit()
        return None

    async def aclose(self) -> None:
        """Close all idle connections."""
        await self._idle.aclose()


class _Attempt:
    """One attempt to send a mail, with the stage reached, by which a failure is judged."""

    def __init__(
        self,
        credentials: Credentials,
        idle: IdleSessions,
        mail: Mail,
        content: bytes,
        check: Callable[[], None],
    ) -> None:
        self._credentials = credentials
        self._check = check
        self._idle = idle
        self._mail = mail
        self._content = content
        self._session: Session | None = None

    @property
    def stage(self) -> Stage:
        return self._session.stage if self._session else Stage.CONNECT

    async def make(self) -> None:
        """Send the mail; keep the connection if the server is in a known state afterwards."""
        try:
            session = await self._begin_on_kept() or await self._begin_on_new()
            await session.transmit(self._mail, self._content, self._check)
        except BaseException as error:
            self._release_after(error)
            raise
        self._idle.put_back(session)

    def _release_after(self, error: BaseException) -> None:
        session = self._session
        understood = isinstance(error, SMTPResponseException) and 400 <= error.code < 600
        if session is not None and session.alive and (understood or isinstance(error, NeedsUtf8)):
            self._idle.put_back(session)
        elif session is not None:
            session.abort()

    async def _begin_on_kept(self) -> Session | None:
        """Begin on a pooled connection; return None if there is none, or the server takes no more mail on it.

        Some servers refuse the sender then, instead of closing it. Only a refusal on a new one counts.
        """
        self._session = session = self._idle.take(self._credentials.account())
        if session is None:
            return None
        try:
            await session.reset()
            await session.begin(self._mail, len(self._content))
        except (SMTPServerDisconnected, SMTPResponseException):
            session.abort()
            return None
        return session

    async def _begin_on_new(self) -> Session:
        account = self._credentials.account()
        self._session = session = Session(account)
        try:
            await session.open()
        except SMTPAuthenticationError:
            renewed = self._credentials.account_after(account)
            if renewed is account:
                raise
            self._session = session = Session(renewed)
            await session.open()
        await session.begin(self._mail, len(self._content))
        return session


def open_smtp(place: str, block: str, options: SmtpOptions, timeout: float) -> SmtpChannel:
    """Open the provider whose table is at `place`; `timeout` seconds bound each attempt as a whole.

    Raises ConfigError.
    """
    if sniffio.current_async_library() != "asyncio":
        raise ConfigError([f"{place}.adapter: smtp runs on asyncio only"])
    problems = options.problems(block)
    if problems:
        raise ConfigError([f"{place}.{problem}" for problem in problems])
    return SmtpChannel(options, Credentials(options), timeout=timeout, ca_key=f"{place}.ca_file")
