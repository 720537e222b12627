"""The database's clock, by which all workers go where their own clocks might differ.

SQL takes its instant as a parameter: NULL is the server's own clock, anything else stands for it.
"""

from __future__ import annotations

from collections.abc import Callable

from deliveryd.journal.postgresql.connection import Connected
from deliveryd.model import SECOND, Clock

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

    def now(self, db: Connected) -> int:
        """The present instant."""
        if (given := self.given) is not None:
            return given
        (instant,) = db.execute(f"SELECT {INSTANT.format('NULL')}").fetchone() or (0,)
        return int(instant)


class FollowedClock:
    """The database's clock as a worker knows it without asking: no step of its machine's clock moves it.

    `clock`: seconds of a clock that nobody can set.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ahead: int | None = None

    def note(self, instant: int, asked_at: float) -> None:
        """The database answered with its present instant, sometime between `asked_at` and now.

        Anything between is possible, so only what isn't is corrected.
        """
        least, most = instant - int(self._clock() * SECOND), instant - int(asked_at * SECOND)
        self._ahead = least if self._ahead is None else min(max(self._ahead, least), most)

    def now(self) -> int:
        """The present instant; 0 before the first answer."""
        return 0 if self._ahead is None else int(self._clock() * SECOND) + self._ahead
