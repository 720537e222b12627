"""Wakes messages that wait for something, and at the next look those whose rows were locked meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.waiting import MINE

_FOUND = f"""
SELECT id FROM waiting WHERE waits_for = ANY(%(names)s::text[]) AND {MINE} AND id <> ALL(%(missed)s::int8[])
LIMIT %(limit)s
"""
_WAKE = """
UPDATE waiting SET due_at = %(at)s, waits_for = NULL WHERE id = ANY(ARRAY(
    SELECT id FROM waiting WHERE id = ANY(%(ids)s::int8[]) AND waits_for = ANY(%(names)s::text[])
    ORDER BY id FOR UPDATE SKIP LOCKED)) RETURNING id
"""
_STILL_WAIT = "SELECT id FROM waiting WHERE id = ANY(%(ids)s::int8[]) AND waits_for = ANY(%(names)s::text[])"


class Woken(NamedTuple):
    """How many messages were found, and which of them not made due: their rows were locked or changed."""

    found: int
    missed: Collection[int]


class _Wanted(NamedTuple):
    names: frozenset[str]
    at: int


class Missed:
    """What has to be woken once more, since rows of other workers' transactions were skipped.

    Such a transaction may change the due time only, and then nobody else would wake the message.
    """

    def __init__(self) -> None:
        self._wanted: dict[int, _Wanted] = {}

    @property
    def ids(self) -> list[int]:
        """The messages."""
        return list(self._wanted)

    def note(self, waits_for: Collection[str], at: int, ids: Collection[int]) -> None:
        """These should be due at this instant if they wait for one of these."""
        self._wanted |= dict.fromkeys(ids, _Wanted(frozenset(waits_for), at))

    def wake(self, db: Db) -> Mapping[int, object]:
        """Wake them; return which are done with, for `forget`."""
        wanted = self._wanted.copy()
        groups: dict[_Wanted, list[int]] = defaultdict(list)
        for id_, each in wanted.items():
            groups[each].append(id_)
        for each, ids in groups.items():
            values = {"names": list(each.names), "ids": ids, "at": each.at}
            db.execute(_WAKE, values)
            for (id_,) in db.execute(_STILL_WAIT, values):
                del wanted[id_]
        return wanted

    def forget(self, done: Mapping[int, object]) -> None:
        """The commit took place; what was noted meanwhile stays."""
        for id_, wanted in done.items():
            if self._wanted.get(id_) is wanted:
                del self._wanted[id_]


def wake(
    db: Db, waits_for: Collection[str], at: int, limit: int, *, foreign: Collection[str], missed: Missed
) -> Woken:
    """Let messages be due that wait for one of these; wait for nobody who holds one.

    Those that were missed before are left to their next turn, so that they are in nobody's way.
    """
    names = list(waits_for)
    values = {"names": names, "limit": limit, "foreign": list(foreign), "missed": missed.ids}
    ids = {id_ for (id_,) in db.execute(_FOUND, values)}
    if not ids:
        return Woken(0, ())
    woken = {id_ for (id_,) in db.execute(_WAKE, {"at": at, "ids": list(ids), "names": names})}
    return Woken(len(ids), ids - woken)
