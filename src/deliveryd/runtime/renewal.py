"""Values read from files that may be replaced while the worker runs: secrets and certificates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Generic, TypeVar

from deliveryd.telemetry.log_events import Event, log

LOOK_EVERY = 1.0
"""Least seconds between two checks of the files."""

Made = TypeVar("Made")
_State = tuple[int, int, int, int] | None


class RenewedValue(Generic[Made]):
    """The result of `make` on the files at `paths`, recomputed when one of them changes.

    `make` raises ValueError or OSError if they can't be used, for example while one is being written. Then
    the last good value stays, the problem is logged once, and the next change of a file is a new try.
    """

    def __init__(self, paths: Sequence[Path], make: Callable[[], Made]) -> None:
        self._paths = paths
        self._make = make
        self._seen = self._look()
        self._next_look = monotonic() + LOOK_EVERY
        self._failed = False
        self._made = make()

    def current(self) -> Made:
        """Return the value, after a look at the files at most once in `LOOK_EVERY` seconds."""
        if self._paths and monotonic() >= self._next_look:
            return self.latest()
        return self._made

    def latest(self) -> Made:
        """Return the value after a look at the files."""
        self._next_look = monotonic() + LOOK_EVERY
        if self._paths and self._look() != self._seen:
            self.renew()
        return self._made

    def renew(self) -> bool:
        """Reread the files at once, since the value was rejected. Return whether the value changed."""
        seen, before = self._look(), self._made
        is_known_failure = self._failed and seen == self._seen
        self._seen = seen
        try:
            self._made = self._make()
        except (ValueError, OSError) as error:
            self._failed = True
            if not is_known_failure:
                log(Event.SECRET_UNUSABLE, file=self._names(), reason=_reason(error))
            return False
        self._failed = False
        is_another = self._made != before
        if is_another:
            log(Event.SECRET_RENEWED, file=self._names())
        return is_another

    def _look(self) -> list[_State]:
        return [_state(path) for path in self._paths]

    def _names(self) -> str:
        return ", ".join(map(str, self._paths))


def _state(path: Path) -> _State:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _reason(error: ValueError | OSError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
