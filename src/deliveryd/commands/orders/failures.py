"""Failed messages as an operator reads them: grouped by what they have in common, one by one, exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from deliveryd.commands.common.moments import moment
from deliveryd.commands.common.tables import table
from deliveryd.commands.messages.explanation import life_data
from deliveryd.commands.messages.found import NO_CHANNEL, channels_of, found_data
from deliveryd.journal.selection import FoundMessage
from deliveryd.journal.sql.history import Life, without_values
from deliveryd.model import format_instant

MOST_GROUPS = 10_000
"""Groups that are kept apart; what comes later counts with "other reasons"."""

_SHOWN_IDS = 5
_OTHER = "other reasons"

_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z")
_LONG_NUMBER = re.compile(r"\d{7,}")


class FailedKind(NamedTuple):
    """What the messages of a group have in common; instants and long numbers in a reason count as equal."""

    channels: tuple[str, ...]
    settings_id: int | None
    reason: str


class FailureGroup(NamedTuple):
    """Failed messages of a kind: how many, when the first and the last failed, and some of their ids."""

    kind: FailedKind
    messages: int
    first_at: int
    last_at: int
    ids: tuple[int, ...]


def grouped(found: Iterable[FoundMessage]) -> list[FailureGroup]:
    """Group failed messages by reason, channels and settings, the largest group first."""
    groups: dict[FailedKind, FailureGroup] = {}
    for each in found:
        kind = FailedKind(channels_of(each), each.settings_id, _common(each.reason or "no reason recorded"))
        if kind not in groups and len(groups) >= MOST_GROUPS:
            kind = FailedKind((), None, _OTHER)
        at = each.ended_at or each.taken_at
        known = groups.get(kind) or FailureGroup(kind, 0, at, at, ())
        groups[kind] = FailureGroup(
            kind,
            known.messages + 1,
            min(known.first_at, at),
            max(known.last_at, at),
            known.ids if len(known.ids) == _SHOWN_IDS else (*known.ids, each.id),
        )
    return sorted(groups.values(), key=lambda group: (-group.messages, group.first_at))


def _common(reason: str) -> str:
    return _LONG_NUMBER.sub("#", _INSTANT.sub("TIME", reason))


def group_lines(groups: Sequence[FailureGroup]) -> Iterator[str]:
    """Return the groups as a table."""
    if groups:
        heading = ("COUNT", "CHANNEL", "SETTINGS", "FIRST", "LAST", "REASON")
        rows = [
            (
                f"{group.messages:,}",
                ", ".join(group.kind.channels) or NO_CHANNEL,
                NO_CHANNEL if group.kind.settings_id is None else str(group.kind.settings_id),
                moment(group.first_at),
                moment(group.last_at),
                group.kind.reason,
            )
            for group in groups
        ]
        yield from table(heading, rows, right=(0, 2))
    count = sum(group.messages for group in groups)
    yield f"{count:,} failed"


def group_data(group: FailureGroup) -> Mapping[str, object]:
    """Return a group as JSON."""
    return {
        "count": group.messages,
        "reason": group.kind.reason,
        "channels": list(group.kind.channels),
        "settings": group.kind.settings_id,
        "first_at": format_instant(group.first_at),
        "last_at": format_instant(group.last_at),
        "ids": list(group.ids),
    }


ID_HEADING = ("ID", "CHANNEL", "SETTINGS", "FAILED", "REASON")


def id_row(found: FoundMessage) -> Sequence[str]:
    """Return the cells of one failed message."""
    return (
        str(found.id),
        ", ".join(channels_of(found)) or NO_CHANNEL,
        NO_CHANNEL if found.settings_id is None else str(found.settings_id),
        moment(found.ended_at or found.taken_at),
        found.reason or "",
    )


def show_lines(found: FoundMessage, obstacle: str | None) -> Iterator[str]:
    """Return one failed message, and whether it can be retried."""
    yield f"message {found.id}: failed {moment(found.ended_at or found.taken_at)}"
    yield f"    {found.reason or 'no reason recorded'}"
    rows = {
        "settings": found.settings_id,
        "customer": found.customer_id,
        "channels": ", ".join(channels_of(found)) or "none was tried",
        "taken": moment(found.taken_at),
        "begun": "once" if found.beginning == 1 else f"{found.beginning} times",
        "retry": "possible" if obstacle is None else f"refused: {obstacle}",
    }
    for name, value in rows.items():
        yield f"  {name:10} {value}"


def export_data(found: FoundMessage, life: Life) -> Mapping[str, object]:
    """Return all that the journal has about a failed message, without what could identify a customer."""
    data = _life(without_values(life))
    for attempt in data["attempts"]:
        attempt["words"] = None
    return {**found_data(found), **data}


def export_with_values(found: FoundMessage, life: Life) -> Mapping[str, object]:
    """Return the same, with the values of variables, raw elements and the providers' own words."""
    return {**found_data(found), **_life(life)}


def _life(life: Life) -> dict[str, list[dict[str, object]]]:
    data = json.loads(json.dumps(life_data(life)))
    variables = (data["message"] or {}).get("variables")
    parts = ("attempts", "events", "receipts", "malformed", "decisions")
    return {"variables": variables, **{name: data[name] for name in parts}}
