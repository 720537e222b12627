"""Mail addresses: parsed and checked by syntax only, with ASCII domain names."""

from __future__ import annotations

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
