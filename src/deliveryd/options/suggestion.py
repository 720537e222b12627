"""Words about mistakes in the configuration and on the command line: what is wrong, and what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_OWN = "Value error, "
"""Before the message of a ValueError that a validator raised."""

_HOW = ", unable to parse"
_EXPECTATION = "Input should be "


def plain_message(message: str) -> str:
    """Return a message about a value without pydantic's words; any other message as it is."""
    text, _, _ = message.removeprefix(_OWN).partition(_HOW)
    return f"must be {text.removeprefix(_EXPECTATION)}" if text.startswith(_EXPECTATION) else text


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `word`, ignoring case, or None."""
    spelled = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), spelled, n=1)
    return spelled[near[0]] if near else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean NAME?` for the closest known name, or an empty string."""
    name = closest(word, known)
    return f"; did you mean {name}?" if name is not None else ""
