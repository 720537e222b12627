"""The database's clock, by which all workers go where their own clocks might differ.

SQL takes its instant as a parameter: NULL is the server's own clock, anything else stands for it.
"""

from __future__ import annotations

from deliveryd.journal.postgresql.connection import Db
from deliveryd.model import Clock

INSTANT = "coalesce({}::int8, (extract(epoch FROM clock_timestamp()) * 1000000)::int8)"
"""SQL for the present instant; `{}` is the parameter."""


class DatabaseClock:
    """`stand_in` None: the server's clock."""

    def __init__(self, stand_in: Clock | None = None) -> None:
        self._stand_in = stand_in

    @property
    def given(self) -> int | None:
        """The parameter."""
        return None if self._stand_in is None else self._stand_in.now()

    def now(self, db: Db) -> int:
        """The present instant."""
        if (given := self.given) is not None:
            return given
        (instant,) = db.execute(f"SELECT {INSTANT.format('NULL')}").fetchone() or (0,)
        return int(instant)
