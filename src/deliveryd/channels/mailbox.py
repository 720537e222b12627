"""Mail addresses: parsed and checked by syntax alone, with domain names in the form that is sent."""

from __future__ import annotations

from email.headerregistry import Address
from typing import NamedTuple

from email_validator import EmailNotValidError, validate_email

LONGEST_ADDRESS = 1000
"""Characters of a mail address with its name."""


class Mailbox(NamedTuple):
    """Whom a mail is from or for: a name to show, and the address's two sides, the domain always ASCII."""

    display: str
    local: str
    domain: str

    @property
    def address(self) -> str:
        """The address alone, as it stands in the envelope."""
        return f"{self.local}@{self.domain}"

    @property
    def header(self) -> Address:
        """The mailbox as a message's header takes it."""
        return Address(self.display, self.local, self.domain)


def parse_mailbox(text: str) -> Mailbox:
    """Read `name@example.com` or `Name <name@example.com>`; raises ValueError that doesn't quote it.

    Domains inside a network (`shop.local`) are good: the server knows what it can deliver to.
    """
    # A line break in an address is cut silently by aiosmtplib, and would start a header in a message.
    if not text.isprintable():
        raise ValueError("the mail address holds control characters")
    if len(text) > LONGEST_ADDRESS:
        raise ValueError("the mail address is too long")
    # Python's headers decode what looks encoded, line breaks too, and write it as they decoded it.
    if "=?" in text:
        raise ValueError("the mail address holds an encoded word")
    try:
        checked = validate_email(
            text.strip(), check_deliverability=False, allow_display_name=True, globally_deliverable=False
        )
    except EmailNotValidError:
        raise ValueError("the mail address isn't valid") from None
    return Mailbox(checked.display_name or "", checked.local_part, checked.ascii_domain)
