"""Which variables messages had, by their settings: names only, no values."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

LOOKED_THROUGH = 20_000
"""Messages that are looked through, the highest ids first."""


class NamesSeen(NamedTuple):
    """The names that all of `messages` messages had, and those that any had."""

    messages: int
    always: frozenset[str]
    ever: frozenset[str]


def names_by_settings(
    rows: Iterable[tuple[int, str]], settings_ids: Collection[int]
) -> Mapping[int, NamesSeen]:
    """Gather the names by settings ID; each row is one, and the JSON of a message's variables."""
    seen: dict[int, NamesSeen] = {}
    for settings_id, variables in rows:
        if settings_id in settings_ids:
            names = frozenset(json.loads(variables))
            count, always, ever = seen.get(settings_id, (0, names, names))
            seen[settings_id] = NamesSeen(count + 1, always & names, ever | names)
    return seen
