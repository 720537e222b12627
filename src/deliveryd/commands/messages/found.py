"""Found messages: their channels, and all that is known of one as JSON."""

from __future__ import annotations

from collections.abc import Mapping

from deliveryd.journal.selection import FoundMessage
from deliveryd.model import channel_of, format_instant

NO_CHANNEL = "-"


def channels_of(found: FoundMessage) -> tuple[str, ...]:
    """Return the channels of a message, each once, in the order in which it came to them."""
    return tuple(dict.fromkeys(map(channel_of, found.providers)))


def found_data(found: FoundMessage) -> Mapping[str, object]:
    """Return a found message as JSON."""
    return {
        "id": found.id,
        "state": found.state.name.lower(),
        "channels": list(channels_of(found)),
        "providers": list(found.providers),
        "settings": found.settings_id,
        "customer": found.customer_id,
        "taken_at": format_instant(found.taken_at),
        "ended_at": None if found.ended_at is None else format_instant(found.ended_at),
        "beginning": found.beginning,
        "reason": found.reason,
        "may_have_arrived": found.may_have_arrived,
    }
