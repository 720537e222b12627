"""Wakes messages that wait for something, and at the next look those whose rows were locked meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.waiting import MINE

_FOUND = f"""
SELECT id FROM waiting WHERE waits_for = ANY(%(names)s::text[]) AND {MINE} LIMIT %(limit)s
"""
_WAKE = """
UPDATE waiting SET due_at = %(at)s, waits_for = NULL WHERE id = ANY(ARRAY(
    SELECT id FROM waiting WHERE id = ANY(%(ids)s::int8[]) AND waits_for = ANY(%(names)s::text[])
    ORDER BY id FOR UPDATE SKIP LOCKED))
"""


class Woken(NamedTuple):
    """How many messages were found, and how many of them not made due: their rows were locked or changed."""

    found: int
    missed: int


def wake(db: Db, waits_for: Collection[str], at: int, limit: int, foreign: Collection[str]) -> Woken:
    """Let messages be due that wait for one of these; wait for nobody who holds one."""
    values = {"names": list(waits_for), "limit": limit, "foreign": list(foreign)}
    ids = [id_ for (id_,) in db.execute(_FOUND, values)]
    if not ids:
        return Woken(0, 0)
    woken = db.execute(_WAKE, {"at": at, "ids": ids, "names": list(waits_for)}).rowcount
    return Woken(len(ids), len(ids) - woken)


class _Wanted(NamedTuple):
    at: int
    most: int


class Missed:
    """What has to be woken once more, since rows of other workers' transactions were skipped.

    Such a transaction may change the due time only, and then nobody else would wake the message.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, _Wanted] = {}

    def note(self, waits_for: Collection[str], at: int, missed: int) -> None:
        """So many that wait for these should be due at this instant."""
        self._wanted |= dict.fromkeys(waits_for, _Wanted(at, missed))

    def wake(self, db: Db, foreign: Collection[str]) -> Mapping[str, object]:
        """Wake them; return what is done with, for `forget`."""
        return {
            name: wanted
            for name, wanted in list(self._wanted.items())
            if not wake(db, [name], wanted.at, wanted.most, foreign).missed
        }

    def forget(self, done: Mapping[str, object]) -> None:
        """The commit took place; what was noted meanwhile stays."""
        for name, wanted in done.items():
            if self._wanted.get(name) is wanted:
                del self._wanted[name]
