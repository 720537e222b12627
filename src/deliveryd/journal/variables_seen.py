"""Which variables messages had, by their settings: names only, no values."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from deliveryd.journal.read_transaction import read

_LATEST = 20_000
"""Messages that are looked through, the highest ids first."""


class NamesSeen(NamedTuple):
    """The names that all of `messages` messages had, and those that any had."""

    messages: int
    always: frozenset[str]
    ever: frozenset[str]


def names_seen(path: Path, settings_ids: Collection[int]) -> Mapping[int, NamesSeen]:
    """Return the names by settings ID, if there are any messages whose variables are still kept.

    Raises JournalError, or JournalAbsent if there is no file.
    """
    return read(path, partial(_names_seen, frozenset(settings_ids)))


def _names_seen(settings_ids: frozenset[int], db: sqlite3.Connection) -> Mapping[int, NamesSeen]:
    rows = db.execute(
        "SELECT settings_id, variables FROM"
        " (SELECT settings_id, variables FROM message ORDER BY id DESC LIMIT ?)"
        " WHERE variables IS NOT NULL AND settings_id IS NOT NULL",
        (_LATEST,),
    )
    seen: dict[int, NamesSeen] = {}
    for settings_id, variables in rows:
        if settings_id in settings_ids:
            names = frozenset(json.loads(variables))
            count, always, ever = seen.get(settings_id, (0, names, names))
            seen[settings_id] = NamesSeen(count + 1, always & names, ever | names)
    return seen
