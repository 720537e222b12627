"""Composes mails; with the same key and content, the mail is byte for byte the same.

Python's email package works on a whole text in single calls, which hold the interpreter, also in a thread. So
texts are encoded here (RFC 2045).
"""

from __future__ import annotations

import hashlib
import re
from binascii import b2a_base64, b2a_qp
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import NamedTuple
from urllib.parse import quote

from deliveryd.channels.mail.html_text import html_to_text, looks_like_html
from deliveryd.channels.mail.mail_headers import Mailbox, mailbox_header, structured_header, text_header
from deliveryd.model import SECOND

_SLICE = 16 << 10
"""Bytes that one call works on: well below a millisecond."""

_LONGEST_LINE = 78
"""Characters of a line that is sent as it is (RFC 5322, section 2.1.1)."""

_LOOKED_AT = 1000
"""Bytes by which the shorter encoding is chosen."""

_CONTROLS = bytes({*range(0x20), 0x7F} - set(b"\t\n"))
"""What servers refuse or drop, whatever encodes it but base64."""

_BASE64_LINE = 57
"""Bytes that become a line of 76 characters."""


class TextPart(NamedTuple):
    """A text of a mail: its kind after `text/`, and the lines by which it is sent, each with CRLF."""

    kind: str
    text: str
    encoding: str
    lines: bytes

    @property
    def content_type(self) -> str:
        """The header Content-Type."""
        return f'text/{self.kind}; charset="utf-8"'


def text_part(kind: str, text: str) -> TextPart:
    """Encode a text. Raises UnicodeEncodeError."""
    data = text.encode().replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if not data.endswith(b"\n"):
        data += b"\n"
    has_controls = len(data.translate(None, _CONTROLS)) < len(data)
    if not has_controls and data.isascii() and _has_short_lines(data):
        return TextPart(kind, text, "7bit", data.replace(b"\n", b"\r\n"))
    start = data[:_LOOKED_AT]
    if has_controls or len(b2a_qp(start)) > len(b2a_base64(start.replace(b"\n", b"\r\n"))):
        data = data.replace(b"\n", b"\r\n")
        encoding, lines = "base64", b"".join(_base64(data))
    else:
        encoding, lines = "quoted-printable", b"".join(_quoted_printable(data))
    return TextPart(kind, text, encoding, lines.replace(b"\n", b"\r\n"))


def _has_short_lines(data: bytes) -> bool:
    begin = 0
    while begin < len(data):
        end = data.rfind(b"\n", begin, begin + _LONGEST_LINE + 1)
        if end < 0:
            return False
        begin = end + 1
    return True


def _base64(data: bytes) -> Iterator[bytes]:
    for begin in range(0, len(data), _BASE64_LINE):
        yield b2a_base64(data[begin : begin + _BASE64_LINE])


def _quoted_printable(data: bytes) -> Iterator[bytes]:
    begin = 0
    while begin < len(data):
        end = data.rfind(b"\n", begin, begin + _SLICE) + 1
        if end:
            yield b2a_qp(data[begin:end])
        else:  # within a long line: of "=3D", for which there is room, "=" stays as the soft line break
            end = begin + _SLICE
            yield b2a_qp(data[begin:end] + b"=")[: -len("3D")] + b"\n"
        begin = end


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
        """Return the mail as it is sent, with CRLF line ends; ASCII unless `needs_utf8`."""
        if len(self.parts) == 1:
            lines = [_head({**self._all_headers, _ENCODING: self.parts[0].encoding}), self.parts[0].lines]
        else:
            mark = f"--{self._boundary}".encode()
            lines = [_head(self._all_headers)]
            for part in self.parts:
                head = _head({_TYPE: part.content_type, _ENCODING: part.encoding})
                lines += (mark, b"\r\n", head, part.lines, b"\r\n")
            lines += (mark, b"--\r\n")
        return b"".join(lines)

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
