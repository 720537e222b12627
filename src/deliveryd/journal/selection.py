"""Which messages a command is about, and what is found of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from deliveryd.journal.rows import spent_of
from deliveryd.states import State

_USUAL_FIELDS = frozenset({"timestamp", "messageId", "status"})


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


class FoundMessage(NamedTuple):
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

    found: tuple[FoundMessage, ...]
    after: tuple[int, ...] | None
    examined: int


def found_of_row(row: Sequence[Any]) -> FoundMessage:
    """Build what is found from the columns of its row, the body of its latest `error` event last."""
    id_, state, settings_id, customer_id, provider, spent, taken_at, ended_at, beginning, doubt, body = row
    failed = [each.provider for each in spent_of(spent)]
    providers = tuple(dict.fromkeys(name for name in (*failed, provider) if name))
    reason = None if body is None else _details(body)
    return FoundMessage(
        id_,
        State(state),
        settings_id,
        customer_id,
        providers,
        taken_at,
        ended_at,
        beginning,
        reason,
        bool(doubt),
    )


def _details(body: str) -> str | None:
    """Return the details of an `error` event, whatever their field is named (`events.details_field`)."""
    fields = json.loads(body)
    return next((str(value) for name, value in fields.items() if name not in _USUAL_FIELDS), None)


def of_reason(selection: Selection, found: Sequence[FoundMessage]) -> tuple[FoundMessage, ...]:
    """Return those whose reason is as selected."""
    if selection.reason is None:
        return tuple(found)
    text = selection.reason.casefold()
    return tuple(each for each in found if text in (each.reason or "").casefold())
