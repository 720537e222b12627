"""Which messages a command is about, and what is found of them."""

from __future__ import annotations

from typing import NamedTuple

from deliveryd.states import State


class Selection(NamedTuple):
    """Messages for which everything that is given is true.

    `first` and `last` are a range of ids. `channel` and `provider` are one that sent the message, has it now,
    or failed with it. `reason` is a part of the reason of a failure, in any case of letters. `since` and
    `until` bound the instant at which it ended, or was taken if it hasn't ended.
    """

    ids: tuple[int, ...] = ()
    states: tuple[State, ...] = ()
    customer: int | None = None
    channel: str | None = None
    provider: str | None = None
    settings: int | None = None
    reason: str | None = None
    since: int | None = None
    until: int | None = None
    first: int | None = None
    last: int | None = None


class Found(NamedTuple):
    """A message as far as a list shows it.

    `providers` are those that failed with it, in their order, and the one that it is bound to. `reason` is
    why it failed, as the service was told. `may_have_arrived`: it failed with an attempt whose outcome is
    unknown, or which was accepted and never confirmed.
    """

    id: int
    state: State
    settings_id: int | None
    customer_id: int | None
    providers: tuple[str, ...]
    taken_at: int
    ended_at: int | None
    beginning: int
    reason: str | None
    may_have_arrived: bool


class Page(NamedTuple):
    """One portion of what is found. `after` continues behind it; None: that was all."""

    found: tuple[Found, ...]
    after: tuple[int, ...] | None
    examined: int
