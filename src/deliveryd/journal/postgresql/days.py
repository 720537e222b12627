"""Statements that name the partition of a day.

A plan for a table that is partitioned opens and locks every partition whenever it is executed, also if it
reads one alone then. So what is done for each message names the partition of its day, and what isn't found
there is done by the statement for the whole table. Where a partition is gone meanwhile, the transaction is
repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.schema import PARTITIONED, days_there, partition_of
from deliveryd.journal.postgresql.values import arrays

_NAMES = re.compile(rf"\b({'|'.join(PARTITIONED)})_of_day\b")
_RETIRED = "SELECT day FROM retired"

DayRow = tuple[Any, ...]


@cache
def of_day(statement: str, day: int) -> str:
    """The statement with the partitions of a day: `message_of_day` stands for that of `message`."""
    return _NAMES.sub(lambda found: partition_of(found[1], day), statement)


class ByDay(NamedTuple):
    """A statement of messages' rows: for the partition of one day, and for whichever `seen` names."""

    of_day: str
    of_any: str


def by_day(template: str, id_: str = "s.id") -> ByDay:
    """Make both of a template: it has `{message}`, `{located}` behind what has the ids, and `{is_there}`.

    `id_` is the SQL of the ids.
    """
    return ByDay(
        template.format(message="message_of_day", located="", is_there=f"m.id = {id_}"),
        template.format(
            message="message",
            located=f"JOIN seen ON seen.id = {id_}",
            is_there=f"m.day = seen.day AND m.id = {id_}",
        ),
    )


class Locked(NamedTuple):
    """Messages that a statement locked: the column `log` of each, and the days as far as they are known."""

    logs: dict[int, int | None]
    days: dict[int, int]


class Days:
    """The days whose partitions may be named, as far as this worker knows.

    `today` is the day of what is new. A day of which something is retired isn't among them.
    """

    def __init__(self, db: Db) -> None:
        self.today = 0
        self._there: frozenset[int] = frozenset()
        self.look(db)
        self.today = max(self._there, default=0)

    def look(self, db: Db) -> Sequence[int]:
        """Look which ones are there; return those, with the ones that are retired."""
        there = days_there(db)
        (retired,) = db.execute(_RETIRED).fetchone() or (0,)
        self._there = frozenset(day for day in there if day > retired)
        return there

    def __contains__(self, day: int) -> bool:
        return day in self._there

    def grouped(
        self, rows: Iterable[DayRow], day_of: Callable[[DayRow], int]
    ) -> Iterator[tuple[int, list[DayRow]]]:
        """Rows by their day, in its order; 0: those of days whose partitions can't be named."""

        def known(row: DayRow) -> int:
            day = day_of(row)
            return day if day in self._there else 0

        for day, group in groupby(sorted(rows, key=known), key=known):
            yield day, list(group)

    def lock(
        self, db: Db, statement: ByDay, rows: Sequence[DayRow], days: Mapping[int, int], *values: Any
    ) -> Locked:
        """Run a statement that locks or changes messages, and returns of each its id and the column `log`.

        `rows` begin with the ids. `days` are those of messages of which it is known; one that was moved to
        another day isn't found.
        """
        found = Locked({}, {})
        for day, group in self.grouped(rows, lambda row: days.get(row[0], 0)):
            text = of_day(statement.of_day, day) if day else statement.of_any
            there: dict[int, int | None] = dict(db.execute(text, (*arrays(group), *values)).fetchall())
            found.logs.update(there)
            if day:
                found.days.update(dict.fromkeys(there, day))
        return found

    def lock_anywhere(
        self, db: Db, statement: ByDay, rows: Sequence[DayRow], days: Mapping[int, int], *values: Any
    ) -> Locked:
        """Like `lock`, but what was moved to another day is found there."""
        found = self.lock(db, statement, rows, days, *values)
        left = [row for row in rows if row[0] not in found.logs and days.get(row[0], 0) in self]
        if left:
            found.logs.update(db.execute(statement.of_any, (*arrays(left), *values)).fetchall())
        return found
