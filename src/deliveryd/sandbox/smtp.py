"""An SMTP server that keeps every e-mail and refuses some recipients on purpose."""

from __future__ import annotations

import asyncio
import logging
from email import message_from_bytes, policy
from email.message import EmailMessage

from aiosmtpd.smtp import SMTP, Envelope, Session

from deliveryd.sandbox.faults import Temper, temper_of
from deliveryd.sandbox.providers import message_id_of
from deliveryd.sandbox.state import Attempt, ReceivedMessage, SandboxState, now_text

logging.getLogger("mail.log").addHandler(logging.NullHandler())  # aiosmtpd's: it repeats what clients send

REFERENCE_HEADER = "x-deliveryd-message"


_REFUSED_AT_ONCE = {
    Temper.PERMANENT: "550 5.1.1 No such mailbox",
    Temper.DOWN: "451 4.3.2 Out of service",
}


class MailDrop:
    """What the server does with each recipient and each message.

    A recipient whose local part begins with `permerror` is refused at once; `temperror` is refused after the
    text, the first two times for that Message-ID; `timeout` is left without an answer after the text, the
    first time.
    """

    def __init__(self, state: SandboxState, closing: asyncio.Event) -> None:
        self._state = state
        self._closing = closing

    async def handle_RCPT(  # noqa: N802 - the name is aiosmtpd's
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        answer = _REFUSED_AT_ONCE.get(temper_of("email", address))
        if answer is not None:
            self._note(address, None, int(answer[:3]))
            return answer
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return "250 2.1.5 OK"

    async def handle_DATA(  # noqa: N802 - the name is aiosmtpd's
        self, _server: SMTP, _session: Session, envelope: Envelope
    ) -> str:
        raw = envelope.content if isinstance(envelope.content, bytes) else b""
        message = message_from_bytes(raw, policy=policy.default)
        mail_id = str(message["message-id"]).strip() if message["message-id"] else None
        for address in envelope.rcpt_tos:
            answer = await self._misbehave(address, mail_id, _reference(message))
            if answer is not None:
                return answer
        for address in envelope.rcpt_tos:
            self._keep(address, message)
        return f"250 2.0.0 OK: queued as {mail_id}"

    async def _misbehave(self, address: str, mail_id: str | None, reference: str | None) -> str | None:
        temper = temper_of("email", address)
        if temper is Temper.STOPPED or not self._state.refuses(temper, "email", address, mail_id or ""):
            return None  # a mail server knows no opt-outs
        if temper is Temper.TEMPORARY:
            self._note(address, reference, 451)
            return "451 4.7.1 Try again later"
        self._note(address, reference, 0)
        await self._closing.wait()
        return "421 4.3.2 Closing"

    def _keep(self, address: str, message: EmailMessage) -> None:
        headers = {name.lower(): str(value) for name, value in message.items()}
        reference = _reference(message)
        self._state.accept(
            ReceivedMessage(
                seq=0,
                at=now_text(),
                channel="email",
                provider_id=headers.get("message-id", "").strip(),
                message_id=message_id_of(reference),
                reference=reference,
                idempotency_key=None,
                to=address,
                payload={
                    "subject": headers.get("subject", ""),
                    "text": _body(message, "plain"),
                    "html": _body(message, "html"),
                },
                headers=headers,
            )
        )
        self._note(address, reference, 250)

    def _note(self, address: str, reference: str | None, status: int) -> None:
        self._state.record_attempt(Attempt(now_text(), "email", address, reference, None, status))


class MailProtocol(SMTP):
    """aiosmtpd's protocol; its transport is among `connections` while it is connected."""

    def __init__(self, drop: MailDrop, connections: set[asyncio.BaseTransport]) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(drop, loop=loop, hostname="sandbox.invalid", enable_SMTPUTF8=True)
        self._connections = connections
        self._entered: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._entered is None:
            self._entered = transport
            self._connections.add(transport)
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._entered is not None:
            self._connections.discard(self._entered)
        super().connection_lost(error)


def _reference(message: EmailMessage) -> str | None:
    found = message[REFERENCE_HEADER]
    return None if found is None else str(found).strip()


def _body(message: EmailMessage, kind: str) -> str | None:
    part = message.get_body((kind,))
    if part is None:
        return None
    content: str = part.get_content()
    return content.replace("\r\n", "\n")
