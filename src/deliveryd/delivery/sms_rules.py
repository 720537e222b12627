"""A channel's rules for the text of an SMS: transliteration, and the most parts it may have."""

from __future__ import annotations

from typing import NamedTuple

from deliveryd.channels.sms_text import parts_beyond, transliterate
from deliveryd.model import Rendered


class TooManyParts(NamedTuple):
    """The text has more parts than the channel sends: the message takes the next channel."""

    parts: int
    most: int

    @property
    def reason(self) -> str:
        """Return the details of the `error` event."""
        return f"{self.parts} SMS parts, more than max_parts = {self.most}"


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

    def excess(self, rendered: Rendered) -> TooManyParts | None:
        """Return why a block, as it is sent, has too many parts, or None."""
        if self.max_parts is None:
            return None
        parts = parts_beyond(rendered.fields["text"], self.max_parts)
        return None if parts is None else TooManyParts(parts, self.max_parts)
