"""A channel's rules for the text of an SMS: transliteration, and the most parts it may have."""

from __future__ import annotations

from typing import NamedTuple

from deliveryd.channels.sms_text import parts_beyond, transliterate
from deliveryd.model import Rendered


class SmsRules(NamedTuple):
    """The keys `max_parts` and `transliterate` of a channel."""

    max_parts: int | None
    transliterate: bool

    def apply(self, rendered: Rendered) -> Rendered:
        """Return the block as it is sent."""
        if not self.transliterate:
            return rendered
        text = rendered.fields["text"]
        changed = transliterate(text)
        return rendered if changed is text else rendered._replace(fields={**rendered.fields, "text": changed})

    def flaw(self, rendered: Rendered) -> str | None:
        """Return why a block, as it would be sent, isn't: the message takes the next channel. None: it is."""
        if self.max_parts is None:
            return None
        parts = parts_beyond(rendered.fields["text"], self.max_parts)
        return None if parts is None else f"{parts} SMS parts, more than max_parts = {self.max_parts}"
