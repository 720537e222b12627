"""What a message in the journal can wait for besides its due time: the values of the column `waits_for`.

A message that waits for an answer is woken by the answer; its due time only limits the wait.
"""

from __future__ import annotations

PROMPT = 0.1
"""Seconds to wait for an answer in memory, before its messages wait in the journal."""

KEPT_FOR_WAITING = 60.0
"""Least seconds to keep an answer for which messages wait in the journal, so that they find it.

If answers were dropped earlier, they would be requested again and again.
"""

LONGEST_ANSWER_WAIT = 3600.0
"""Most seconds that a message waits for an answer, or that a server's Retry-After is honoured."""

DIRECTORY = "directory"
"""A turn to query the customer directory, which is down or has too many queries queued."""

ANY = ""
"""Stands for a provider where messages are bound to none: their room is a place in flight."""

WINDOW = "window"
"""The opening of the window in which the message may be sent; `due_at` is that, or its expiry."""

PAUSED_FROM, PAUSED_BELOW = "paused ", "paused!"
"""All values of messages that are paused, and no others, are between these two."""


def settings(settings_id: int) -> str:
    """Settings of an ID."""
    return f"settings {settings_id}"


def customer(customer_id: int) -> str:
    """A directory's answer about a customer."""
    return f"customer {customer_id}"


def recovery(provider: str) -> str:
    """Recovery of a provider that asked for a pause, or keeps failing."""
    return f"provider {provider}"


def alone(provider: str) -> str:
    """Recovery of a provider that alone reaches the customer."""
    return f"alone {provider}"


def room(provider: str) -> str:
    """Capacity at a provider."""
    return f"room {provider}"


def repeat(provider: str) -> str:
    """Capacity at a provider, for a message that was tried before: these go first."""
    return f"repeat {provider}"


def budget(name: str) -> str:
    """The next period of a budget; `due_at` is its beginning, or the message's expiry."""
    return f"budget {name}"


def cap(name: str) -> str:
    """A customer who may get more by a cap; `due_at` is when, or the message's expiry."""
    return f"cap {name}"


def at(provider: str) -> tuple[str, ...]:
    """Whatever messages wait for that wait for a provider."""
    return room(provider), repeat(provider), recovery(provider), alone(provider)


def provider_of(waits_for: str) -> str:
    """Return the provider that such messages wait for; "": they wait for something else."""
    kind, _, name = waits_for.partition(" ")
    return name if kind in {"provider", "alone", "room", "repeat"} else ""


def end_of_pause(kind: str, key: str) -> str:
    """The end of a pause."""
    return f"{PAUSED_FROM}{kind} {key}"


def is_paused(waits_for: str | None) -> bool:
    """Whether a message that waits for this is paused."""
    return waits_for is not None and waits_for.startswith(PAUSED_FROM)


def is_limited(waits_for: str) -> bool:
    """Whether a message that waits for this waits for a budget or a cap."""
    return waits_for.startswith(("budget ", "cap "))


def awaited(waits_for: str) -> str:
    """Return what a message waits for, as text for operators."""
    kind, _, name = waits_for.partition(" ")
    match kind:
        case "settings":
            return f"settings {name} from the service"
        case "customer" | "directory":
            return "the customer directory"
        case "provider" | "alone":
            return f"{_named(name)} to take messages again"
        case "window":
            return "the window in which it may be sent"
        case "budget":
            return f"the next period of the budget of {name}"
        case "cap":
            return f"its customer to get more by the cap of {name}"
        case "paused":
            return f"the end of the pause of {name}"
        case _ if name == ANY:
            return "one of the places in flight (queue.max_in_flight)"
        case _:
            return f"room at {_named(name)}, which is full or takes no messages now"


RETRIES = "retries"
"""What messages wait for that wait for nothing but their due time."""


def cause_of(waits_for: str) -> str:
    """Return what such messages wait for, as one of a few words for operators."""
    kind, _, name = waits_for.partition(" ")
    match kind:
        case "settings":
            return "settings"
        case "customer" | "directory":
            return "customers"
        case "window":
            return "windows"
        case "budget":
            return "budgets"
        case "cap":
            return "caps"
        case _:
            return "places" if name == ANY else "providers"


def cause(waits_for: str | None, provider: str) -> str:
    """Return what delays such messages, as text for operators."""
    kind, _, name = (waits_for or "").partition(" ")
    match kind:
        case "settings":
            return f"settings {name}"
        case "customer" | "directory":
            return "the customer directory"
        case "window":
            return "windows"
        case "budget" | "cap":
            return f"the {kind} of {name}"
        case "provider" | "alone" | "room" | "repeat":
            return _named(name)
        case _:
            return _named(provider) if provider else "settings or customers"


def _named(provider: str) -> str:
    """A provider with its channel's name goes by that; a message that has none waits for any."""
    if provider == ANY:
        return "places in flight"
    return f"provider {provider}" if "/" in provider else f"channel {provider}"
