"""Writes the headers of a mail: words are encoded where text may be, nothing else is (RFC 5322, RFC 2047).

Python's own folding isn't used: it cuts quoted strings and URLs, and decodes what looks encoded.
"""

from __future__ import annotations

import re
from email.header import Header
from typing import NamedTuple

from email_validator import EmailNotValidError, validate_email

LONGEST_ADDRESS = 1000
"""Most characters of a mail address with its name."""


class Mailbox(NamedTuple):
    """A sender or recipient: display name, local part, and domain in ASCII."""

    display: str
    local: str
    domain: str

    @property
    def address(self) -> str:
        """The bare address, for the envelope."""
        return f"{self.local}@{self.domain}"


def parse_mailbox(text: str) -> Mailbox:
    """Parse `name@example.com` or `Name <name@example.com>`. Raises ValueError, which doesn't quote it.

    Local domains (`shop.local`) are valid: the server decides what it can deliver to.
    """
    # A line break in an address is cut silently by aiosmtplib, and would start a header in a message.
    if not text.isprintable():
        raise ValueError("the mail address contains control characters")
    if len(text) > LONGEST_ADDRESS:
        raise ValueError("the mail address is too long")
    # Many readers decode what looks encoded, quoted or not, line breaks too.
    if "=?" in text:
        raise ValueError("the mail address contains an encoded word")
    try:
        checked = validate_email(
            text.strip(), check_deliverability=False, allow_display_name=True, globally_deliverable=False
        )
    except EmailNotValidError:
        raise ValueError("the mail address isn't valid") from None
    return Mailbox(checked.display_name or "", checked.local_part, checked.ascii_domain)


LINE = 76
"""Characters that a line of a header has where its white space allows it; with encoded words, no more may be
on it (RFC 2047, 2).
"""

LONGEST_WORD = 900
"""Characters without white space that still fit on a line of 998 with the header's name (RFC 5322 2.1.1)."""

_FOLD = "\r\n"
_PLAIN_TEXT = re.compile(rf"[!-~]{{1,{LONGEST_WORD}}}(?: [!-~]{{1,{LONGEST_WORD}}})*")
_ATOMS = re.compile(r"[\w!#$%&'*+/=?^`{|}~-]+(?: [\w!#$%&'*+/=?^`{|}~-]+)*", re.ASCII)
_QUOTABLE = re.compile(r"[ -~]+")
_UNBROKEN = re.compile(r'\s*(?:"(?:\\.|[^"\\])*"|<[^>]*>|\S)+')


def text_header(name: str, text: str) -> str:
    """Write a header that is nothing but text, such as the subject."""
    if "=?" in text or not _PLAIN_TEXT.fullmatch(text):
        return _encoded(name, text)
    return _folded(name, re.findall(" ?[^ ]+", text))


def mailbox_header(name: str, mailbox: Mailbox) -> str:
    """Write the header of one address: atoms, a quoted string or encoded words, then the address."""
    display = mailbox.display
    if not display:
        return mailbox.address
    quoted = '"' + re.sub(r'(["\\])', r"\\\1", display) + '"'
    if _ATOMS.fullmatch(display) and len(display) <= LINE:
        phrase = display
    elif _QUOTABLE.fullmatch(display) and len(quoted) <= LONGEST_WORD:
        phrase = quoted
    else:
        phrase = _encoded(name, display)
    return _folded(name, [phrase, f" <{mailbox.address}>"])


def structured_header(name: str, value: str) -> str:
    """Write an ASCII value as it is, folded outside of quoted strings and angle brackets."""
    return _folded(name, _UNBROKEN.findall(value.strip()))


def longest_word(value: str) -> int:
    """Return the length of the longest part that `structured_header` keeps on one line."""
    return max(map(len, _UNBROKEN.findall(value)), default=0)


def _encoded(name: str, text: str) -> str:
    return Header(text, "utf-8", LINE, header_name=name).encode(linesep=_FOLD)


def _folded(name: str, words: list[str]) -> str:
    """Join words, each but the first with the white space before it, at which a line may end."""
    lines = [words[0] if words else ""]
    width = len(name) + 2
    for word in words[1:]:
        before, _, line = lines[-1].rpartition(_FOLD)
        if (0 if before else width) + len(line) + len(word) > LINE:
            lines.append(word)
            width = 0
        else:
            lines[-1] += word
    return _FOLD.join(lines)
