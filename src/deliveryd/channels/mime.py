"""Composes mails; with the same key and content, the mail is byte for byte the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP, SMTPUTF8
from email.utils import format_datetime
from typing import NamedTuple
from urllib.parse import quote

from deliveryd.channels.html_text import html_to_text, looks_like_html
from deliveryd.channels.mail_headers import mailbox_header, structured_header, text_header
from deliveryd.channels.mailbox import Mailbox
from deliveryd.model import SECOND

# An 8-bit body would need a server with 8BITMIME; these policies write quoted-printable or base64 instead.
# Headers go out as they were written, see `mail_headers`.
_ASCII_POLICY = SMTP.clone(cte_type="7bit", refold_source="none")
_UTF8_POLICY = SMTPUTF8.clone(cte_type="7bit", refold_source="none")

LONGEST_SUBJECT = 10_000

_UNFIT_IN_SUBJECT = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Letter(NamedTuple):
    """A mail's parts. `fields` is the rendered e-mail block (interface 2.2), `at` becomes its date."""

    key: str
    at: int
    message_id: int
    sender: Mailbox
    recipient: Mailbox
    reply_to: Mailbox | None
    headers: Mapping[str, str]
    fields: Mapping[str, str]


class Mail(NamedTuple):
    """A composed mail, ready for the envelope."""

    name: str
    message: EmailMessage
    recipient: Mailbox

    @property
    def needs_utf8(self) -> bool:
        """Whether the server needs SMTPUTF8."""
        return not self.recipient.local.isascii()

    def content(self) -> bytes:
        """Return the mail as sent after DATA: CRLF line ends, leading dots doubled, without the final dot."""
        policy = _UTF8_POLICY if self.needs_utf8 else _ASCII_POLICY
        lines = self.message.as_bytes(policy=policy)
        return re.sub(rb"(?m)^\.", b"..", lines if lines.endswith(b"\r\n") else lines + b"\r\n")


def compose(letter: Letter) -> Mail:
    """Compose the mail. Raises ValueError, which quotes no content."""
    subject = letter.fields.get("subject", "")
    if _UNFIT_IN_SUBJECT.search(subject):
        raise ValueError("the subject contains a line break or control characters")
    if len(subject) > LONGEST_SUBJECT:
        raise ValueError(f"the subject is longer than {LONGEST_SUBJECT} characters")
    name = message_name(letter.key, letter.sender.domain)
    message = EmailMessage(policy=_ASCII_POLICY)
    try:
        _put_headers(message, letter, subject, name)
        _put_body(message, letter)
    except UnicodeError:
        raise ValueError("a value isn't valid Unicode text") from None
    return Mail(name, message, letter.recipient)


def message_name(key: str, domain: str) -> str:
    """Return the Message-ID of all attempts with a key, with angle brackets."""
    return f"<{quote(key, safe='')}@{domain}>"


def _put_headers(message: EmailMessage, letter: Letter, subject: str, name: str) -> None:
    subject.encode("utf-8")  # headers would let lone surrogates pass
    written = {
        "From": mailbox_header("From", letter.sender),
        "To": mailbox_header("To", letter.recipient),
        "Subject": text_header("Subject", subject),
        "Date": format_datetime(datetime.fromtimestamp(letter.at // SECOND, UTC)),
        "Message-ID": name,
        "Auto-Submitted": "auto-generated",  # RFC 3834: suppresses automatic replies
        "X-Deliveryd-Message": str(letter.message_id),
    }
    if letter.reply_to is not None:
        written["Reply-To"] = mailbox_header("Reply-To", letter.reply_to)
    for header, value in letter.headers.items():
        written[header] = structured_header(header, value)
    for header, value in written.items():
        message.set_raw(header, value)


def _put_body(message: EmailMessage, letter: Letter) -> None:
    body = letter.fields.get("body", "")
    kind = letter.fields.get("format") or ("html" if looks_like_html(body) else "text")
    if kind != "html":
        message.set_content(body, charset="utf-8", cte=_coding(body))
        return
    text = html_to_text(body)
    message.set_content(text, charset="utf-8", cte=_coding(text))
    message.add_alternative(body, subtype="html", charset="utf-8", cte=_coding(body))
    # Python chooses random boundaries, but repeats must be identical.
    message.set_boundary(f"=_{hashlib.sha256(letter.key.encode()).hexdigest()[:32]}")


def _coding(body: str) -> str | None:
    """Return base64 for a body with controls, which servers refuse or drop; None: Python chooses."""
    return "base64" if _CONTROLS.search(body) else None


def readable(message: EmailMessage) -> str:
    """Return a mail as readable text: headers and decoded bodies."""
    shown = ((name, value) for name, value in message.items() if name.lower() != "content-transfer-encoding")
    lines = [f"{name}: {value}" for name, value in shown]
    for part in message.walk():
        if not part.is_multipart():
            lines += ["", f"--- {part.get_content_type()}", str(part.get_content()).rstrip("\n")]
    return "\n".join(lines)
