"""What a message in the journal may wait for besides its time, as the column `waits_for` names it.

A message that waits for an answer is woken by the answer; its due time only bounds the wait.
"""

from __future__ import annotations

PROMPT = 0.1
"""Seconds that an answer is waited for in memory, before its messages wait in the journal."""

KEPT_FOR_WAITING = 60.0
"""Seconds that an answer is kept, at least, for which messages waited in the journal: they must find it.

Those of a shorter age would be asked for again and again, and never be there.
"""

LONGEST_ANSWER_WAIT = 3600.0
"""Seconds that a message waits for an answer, or that a server is left alone at its own request, at most."""

DIRECTORY = "directory"
"""A turn to ask the customer directory: it is down, or has too many questions before it."""


def settings(settings_id: int) -> str:
    """The settings of an id."""
    return f"settings {settings_id}"


def customer(customer_id: int) -> str:
    """The directory's answer about a customer."""
    return f"customer {customer_id}"


def recovery(channel: str) -> str:
    """A provider that asked to be left alone, or keeps failing: it works again."""
    return f"channel {channel}"


def room(channel: str) -> str:
    """Room in a channel's lane."""
    return f"room {channel}"


def repeat(channel: str) -> str:
    """Room in a channel's lane, for a message that was tried before: these go first."""
    return f"repeat {channel}"


def awaited(waits_for: str) -> str:
    """What a message waits for, in an operator's words."""
    kind, _, name = waits_for.partition(" ")
    match kind:
        case "settings":
            return f"the service's answer about settings {name}"
        case "customer" | "directory":
            return "the customer directory"
        case "channel":
            return f"{name} to work again"
        case _:
            return f"room in the lane of {name}"


def cause(waits_for: str | None, lane: str) -> str:
    """What holds such messages up, in an operator's words."""
    kind, _, name = (waits_for or "").partition(" ")
    match kind:
        case "settings":
            return f"settings {name}"
        case "customer" | "directory":
            return "the customer directory"
        case "channel" | "room" | "repeat":
            return f"channel {name}"
        case _:
            return f"channel {lane}" if lane else "settings or customers"
