"""The keys that mails are composed by, in a separate module, so that they load no e-mail library."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator

from deliveryd.channels.header_fields import header_problems
from deliveryd.options.tables import Table, raise_all

OWN_MAIL_HEADERS = frozenset(
    {"from", "to", "cc", "bcc", "sender", "subject", "date", "message-id", "mime-version", "reply-to"}
    | {"auto-submitted", "x-deliveryd-message"}
)


class MailOptions(Table):
    """The keys of a mail's headers."""

    sender: str = Field(description="From")
    reply_to: str | None = Field(None, description="Reply-To")
    to: Annotated[str, Field(pattern=r"^\{customer\.[^{}]+\}$")] = Field(
        "{customer.email}", description="customer field with the address"
    )
    headers: dict[str, str] = Field({}, description="further headers, the same for all messages")

    @field_validator("sender", "reply_to")
    @classmethod
    def _mailbox(cls, text: str | None) -> str | None:
        from deliveryd.channels.mail.mail_headers import parse_mailbox  # noqa: PLC0415  # loads a library

        if text is not None and not parse_mailbox(text).local.isascii():
            raise ValueError("the part before the @ must be ASCII")
        return text

    @field_validator("headers")
    @classmethod
    def _sendable(cls, headers: dict[str, str]) -> dict[str, str]:
        from deliveryd.channels.mail.mail_headers import LONGEST_WORD, longest_word  # noqa: PLC0415  # a library

        content = {name for name in map(str.lower, headers) if name.startswith("content-")}
        problems = [*header_problems(headers, OWN_MAIL_HEADERS | content)]
        problems += [
            f"{name}: placeholders aren't supported here" for name, value in headers.items() if "{" in value
        ]
        problems += [
            f"{name}: a part without white space is longer than {LONGEST_WORD} characters"
            for name, value in headers.items()
            if longest_word(value) > LONGEST_WORD
        ]
        raise_all(problems)
        return headers

    @property
    def address_field(self) -> str:
        """Return the customer field that `to` names."""
        match = re.fullmatch(r"\{customer\.(.+)\}", self.to)
        return match[1] if match else ""
