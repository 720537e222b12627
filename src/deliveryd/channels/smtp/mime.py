"""Composes mails; with the same key and content, the mail is byte for byte the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import NamedTuple
from urllib.parse import quote

from deliveryd.channels.smtp.html_text import html_to_text, looks_like_html
from deliveryd.channels.smtp.mail_headers import mailbox_header, structured_header, text_header
from deliveryd.channels.smtp.mail_text import TextPart, text_part
from deliveryd.channels.smtp.mailbox import Mailbox
from deliveryd.model import SECOND

_TYPE, _ENCODING = "Content-Type", "Content-Transfer-Encoding"

LONGEST_SUBJECT = 10_000

_UNFIT_IN_SUBJECT = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


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
    headers: Mapping[str, str]
    parts: Sequence[TextPart]
    recipient: Mailbox

    @property
    def needs_utf8(self) -> bool:
        """Whether the server needs SMTPUTF8."""
        return not self.recipient.local.isascii()

    def content(self) -> bytes:
        """Return the mail as sent after DATA: CRLF line ends, leading dots doubled, without the final dot."""
        if len(self.parts) == 1:
            lines = [_head({**self._all_headers, _ENCODING: self.parts[0].encoding}), self.parts[0].lines]
        else:
            mark = f"--{self._boundary}".encode()
            lines = [_head(self._all_headers)]
            for part in self.parts:
                head = _head({_TYPE: part.content_type, _ENCODING: part.encoding})
                lines += (mark, b"\r\n", head, part.lines, b"\r\n")
            lines += (mark, b"--\r\n")
        return b"".join(lines).replace(b"\n.", b"\n..")

    def readable(self) -> str:
        """Return the mail as readable text: headers and decoded bodies."""
        message = EmailMessage(policy=SMTP)
        for name, value in self._all_headers.items():
            message.set_raw(name, value)
        shown = [f"{name}: {value}" for name, value in message.items()]
        for part in self.parts:
            shown += ["", f"--- text/{part.kind}", part.text.rstrip("\n")]
        return "\n".join(shown)

    @property
    def _all_headers(self) -> Mapping[str, str]:
        kind = f'multipart/alternative;\r\n boundary="{self._boundary}"'
        return {
            **self.headers,
            "MIME-Version": "1.0",
            _TYPE: kind if len(self.parts) > 1 else self.parts[0].content_type,
        }

    @property
    def _boundary(self) -> str:
        """The boundary of the parts: the same in repeats, which must be identical."""
        return f"=_{hashlib.sha256(self.name.encode()).hexdigest()[:32]}"


def _head(headers: Mapping[str, str]) -> bytes:
    return "".join([*(f"{name}: {value}\r\n" for name, value in headers.items()), "\r\n"]).encode()


def compose(letter: Letter) -> Mail:
    """Compose the mail. Raises ValueError, which quotes no content."""
    subject = letter.fields.get("subject", "")
    if len(subject) > LONGEST_SUBJECT:
        raise ValueError(f"the subject is longer than {LONGEST_SUBJECT} characters")
    if _UNFIT_IN_SUBJECT.search(subject):
        raise ValueError("the subject contains a line break or control characters")
    name = message_name(letter.key, letter.sender.domain)
    try:
        return Mail(name, _headers(letter, subject, name), _parts(letter), letter.recipient)
    except UnicodeError:
        raise ValueError("a value isn't valid Unicode text") from None


def message_name(key: str, domain: str) -> str:
    """Return the Message-ID of all attempts with a key, with angle brackets."""
    return f"<{quote(key, safe='')}@{domain}>"


def _headers(letter: Letter, subject: str, name: str) -> dict[str, str]:
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
    return written


def _parts(letter: Letter) -> Sequence[TextPart]:
    body = letter.fields.get("body", "")
    kind = letter.fields.get("format") or ("html" if looks_like_html(body) else "text")
    if kind != "html":
        return (text_part("plain", body),)
    return text_part("plain", html_to_text(body)), text_part("html", body)
