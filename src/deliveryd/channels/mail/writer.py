"""Composes the mail of one attempt by a provider's keys."""

from __future__ import annotations

from deliveryd.channels.base import Dispatch
from deliveryd.channels.mail.mail_headers import parse_mailbox
from deliveryd.channels.mail.mime import Letter, Mail, compose
from deliveryd.channels.mail.options import MailOptions


class MailWriter:
    """Composes the mails of one provider."""

    def __init__(self, options: MailOptions) -> None:
        self.sender = parse_mailbox(options.sender)
        self._reply_to = parse_mailbox(options.reply_to) if options.reply_to else None
        self._headers = options.headers
        self._address_field = options.address_field

    def compose(self, dispatch: Dispatch) -> Mail:
        """Compose the mail. Raises ValueError, which quotes no content."""
        customer = dispatch.customer
        address = customer.fields.get(self._address_field) if customer is not None else None
        if not address:
            raise ValueError("the customer has no mail address")
        letter = Letter(
            key=dispatch.key,
            at=dispatch.entry.begun_at,
            message_id=dispatch.entry.id,
            sender=self.sender,
            recipient=parse_mailbox(address),
            reply_to=self._reply_to,
            headers=self._headers,
            fields=dispatch.rendered.fields,
        )
        return compose(letter)
