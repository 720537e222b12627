"""The table `[safety]`: whom an installation sends to, and how an entry of its list is read."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, field_validator

from deliveryd.network.address import ascii_domain
from deliveryd.options.tables import Table
from deliveryd.options.units import Percentage, format_percentage

_FORMS = (
    'expected a phone number such as "+4915112345678", or its beginning as "+4915*"; an e-mail address, or'
    ' "*@example.com" for a whole domain; or a customer as "customer:17"'
)
_PHONE = re.compile(r"\+[1-9][0-9]{6,14}")
_BEGINNING = re.compile(r"\+[1-9][0-9]{0,14}")
_FORMATTED = re.compile(r"\+[0-9 ()./-]+")
_CUSTOMER = re.compile(r"-?[0-9]{1,19}")
_LOCAL = re.compile(r"[^\s@<>\"',;*]+")
_DOMAIN = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")

EntryKind = Literal["customer", "phone", "phones", "mail", "domain"]
"""What an entry allows: `phones` are all numbers that begin so, `domain` all mail addresses there."""


class AllowedEntry(NamedTuple):
    """An entry of the list, in the one spelling by which addresses are compared."""

    kind: EntryKind
    value: str


def comparable_mail(local: str, domain: str) -> str:
    """Return a mail address in the spelling by which it is compared: the case of letters doesn't count."""
    return f"{unicodedata.normalize('NFC', local).lower()}@{ascii_domain(domain)}"


def read_entry(text: str) -> AllowedEntry:
    """Read an entry. Raises ValueError, which says what to write."""
    if text.startswith("customer:"):
        return _customer(text.removeprefix("customer:"))
    if "@" in text:
        return _mail(text)
    if text.startswith("+"):
        return _phone(text)
    raise ValueError(_FORMS)


def _customer(id_: str) -> AllowedEntry:
    if not _CUSTOMER.fullmatch(id_):
        raise ValueError('expected the customer\'s ID, an integer, as in "customer:17"')
    return AllowedEntry("customer", str(int(id_)))


def _mail(text: str) -> AllowedEntry:
    local, _, domain = text.rpartition("@")
    if not _DOMAIN.fullmatch(ascii_domain(domain)):
        raise ValueError(f'{domain!r} isn\'t a domain; write "name@example.com", or "*@example.com"')
    if local == "*":
        return AllowedEntry("domain", ascii_domain(domain))
    if not _LOCAL.fullmatch(local):
        raise ValueError('expected one whole e-mail address, or "*@example.com" for a whole domain')
    return AllowedEntry("mail", comparable_mail(local, domain))


def _phone(text: str) -> AllowedEntry:
    beginning = text.removesuffix("*")
    if beginning != text and _BEGINNING.fullmatch(beginning):
        return AllowedEntry("phones", beginning)
    if _PHONE.fullmatch(text):
        return AllowedEntry("phone", text)
    if _BEGINNING.fullmatch(text):
        raise ValueError(f'{text} is too short for a phone number; write "{text}*" for all that begin so')
    if _FORMATTED.fullmatch(text):
        raise ValueError(f'write the number with digits alone, "+{re.sub("[^0-9]", "", text)}"')
    raise ValueError(_FORMS)


def _entry(text: str) -> str:
    read_entry(text)
    return text


class SafetyOptions(Table):
    """Whom this installation sends to; all customers, if both keys are left out."""

    only_to: tuple[Annotated[str, AfterValidator(_entry)], ...] | None = Field(
        None, description="phone numbers, e-mail addresses and customers; left out: all"
    )
    share: Percentage | None = Field(
        None, description="share of the customers, who stay the same as it grows; left out: all"
    )

    @field_validator("only_to")
    @classmethod
    def _names_somebody(cls, entries: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if entries == ():
            raise ValueError(
                'is an empty list; leave it out to send to all customers, or set share = "0%" to send to none'
            )
        return entries

    @property
    def limits(self) -> bool:
        """Whether messages to some customers aren't sent."""
        return self.only_to is not None or self.share is not None

    @property
    def figures(self) -> tuple[int | None, float | None]:
        """Return the number of entries and the share; None: not named."""
        return None if self.only_to is None else len(self.only_to), self.share


def limits_text(entries: int | None, share: float | None) -> str:
    """Return whom an installation sends to: the number of entries on its list, and the share."""
    parts = []
    if share is not None:
        parts.append(f"{format_percentage(share)} of the customers")
    if entries is not None:
        parts.append(f"the {entries:,} {'entry' if entries == 1 else 'entries'} of safety.only_to")
    return f"sends only to {' and to '.join(parts)}; messages to all others end with an error"
