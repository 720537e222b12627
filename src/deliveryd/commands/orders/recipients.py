"""Reads the recipients of `deliveryd stopped` as messages to a channel are addressed.

Only the commands that change the list load this module: phone numbers need large tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.mail.mail_headers import parse_mailbox
from deliveryd.channels.phone_numbers import PhoneReader
from deliveryd.channels.smtp.options import SmtpOptions
from deliveryd.cleaning import cleaned
from deliveryd.config import Config
from deliveryd.journal.sql.stopped import DIGEST_PREFIX


class RecipientKind(NamedTuple):
    """What a channel sends to, and what reads it: None for what can't be an address."""

    name: str
    read: Callable[[str], str | None]


_ANY = RecipientKind("a recipient", str)


def recipients_of(config: Config, channel: str) -> RecipientKind:
    """Return what all providers of the channel send to, as far as that is known."""
    known = config.channels.configured.get(channel)
    options = [provider.options for provider in known.providers.values()] if known is not None else []
    if known is not None and known.block == "email":
        is_known = all(isinstance(each, HttpChannelOptions | SmtpOptions) for each in options)
        return RecipientKind("a mail address", _mail_address) if is_known else _ANY
    countries: set[str | None] = set()
    for each in options:
        if not isinstance(each, HttpChannelOptions) or "|e164" not in (each.address() or ""):
            return _ANY
        countries.add(each.country)
    if not countries:
        return _ANY
    reader = PhoneReader(countries.pop() if len(countries) == 1 else None)
    return RecipientKind("a phone number with its country code", partial(_phone_number, reader))


def as_sent(recipient: str, kind: RecipientKind) -> str | None:
    """Return a recipient as messages are addressed; None: no message could be. Quotes of CSV don't count."""
    text = cleaned(recipient)
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = cleaned(text[1:-1].replace('""', '"'))
    return text if text.startswith(DIGEST_PREFIX) else kind.read(text)


def _mail_address(text: str) -> str | None:
    try:
        return parse_mailbox(text).address
    except ValueError:
        return None


def _phone_number(reader: PhoneReader, text: str) -> str | None:
    """Read a number with + or 00, or one of the country of the providers that begins with one 0.

    Any other may be an international one, as providers write them, or one of that country, as its customers'
    are; None if it may well be either.
    """
    if text.startswith("00"):
        text = f"+{text.removeprefix('00')}"
    elif text[:1].isdigit() and not text.startswith("0"):
        return reader.e164_without_prefix(text)
    return reader.e164(text) if reader.is_readable(text) else None
