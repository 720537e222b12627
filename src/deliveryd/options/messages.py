"""pydantic's messages about a wrong value, in the words of this program's own messages."""

from __future__ import annotations

_OWN = "Value error, "
"""Before the message of a ValueError that a validator raised."""

_HOW = ", unable to parse"
_EXPECTATION = "Input should be "


def plain_message(message: str) -> str:
    """Return a message about a value without pydantic's words; any other message as it is."""
    text, _, _ = message.removeprefix(_OWN).partition(_HOW)
    return f"must be {text.removeprefix(_EXPECTATION)}" if text.startswith(_EXPECTATION) else text
