"""A file that contains a secret: refused if others can read it, read again when it is replaced.

Certificates are read again in the same way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Generic, TypeVar

from deliveryd.runtime.rights import READ, WRITE, foreign_group, may_others, tampering
from deliveryd.telemetry.log_events import Event, log

_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\n[A-Za-z0-9+/=\n]+-----END \1-----")

_LONG_WORD = 20
"""Letters and digits from which a name may be a key rather than a file's name."""


def may_be_a_secret(given: str) -> bool:
    """Whether a path may be the secret itself, written where its file is expected."""
    if "/" not in given:
        return True
    return any(
        len(name) >= _LONG_WORD
        and any(map(str.isdecimal, name))
        and any(map(str.isupper, name))
        and any(map(str.islower, name))
        for name in given.split("/")
    )


class SecretFile:
    """A file that contains a secret. Only the path is ever shown, unless it may be the secret itself.

    `given` is the path as the configuration has it.
    """

    def __init__(self, path: Path, given: str | None = None) -> None:
        self.path = path
        self._given = str(path) if given is None else given

    @property
    def shown(self) -> str | None:
        """Return the path; None if there is no such file and the text may be the secret itself."""
        return None if may_be_a_secret(self._given) and not os.path.lexists(self.path) else str(self.path)

    def __repr__(self) -> str:
        return f"SecretFile({self.shown!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretFile) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def problem(self) -> str | None:
        """Return why the secret can't be used, or None."""
        try:
            self.read()
        except ValueError as error:
            return str(error)
        return None

    def read(self) -> str:
        """Return the secret without surrounding white space; the lines of a key in PEM become one.

        Raises ValueError if the file can't be read, is empty, isn't one line of UTF-8, or others may read or
        change it. The checks apply to the opened file.
        """
        text = self._text()
        if _PEM.fullmatch(text):
            text = text.replace("\n", "")
        if not text.isprintable():
            raise ValueError(f"{self.path} contains more than one line, or control characters")
        return text

    def _text(self) -> str:
        try:
            with self.path.open(encoding="utf-8") as file:
                status = os.fstat(file.fileno())
                text = file.read().strip()
        except UnicodeDecodeError:
            raise ValueError(f"{self.path} is not UTF-8 text") from None
        except OSError as error:
            if self.shown is None:
                raise ValueError(
                    "expected the path of a file that contains the secret: there is no such file"
                ) from None
            raise ValueError(f"{self.path} can't be read: {error.strerror}") from None
        if problem := _open_to_others(self.path, status):
            raise ValueError(problem)
        if not text:
            raise ValueError(f"{self.path} is empty")
        return text


class SecretDocument(SecretFile):
    """A file that contains a secret of several lines, such as a key in JSON."""

    def read(self) -> str:
        """Return the text of the file without surrounding white space. Raises ValueError, as for others."""
        return self._text()


def _open_to_others(path: Path, status: os.stat_result) -> str | None:
    """Return who else can read or change a secret's file, and the remedy; None: no one."""
    if may_others(status, READ | WRITE):
        return f"{path} may be read by all users; run: chmod o-rwx {path}"
    if (group := foreign_group(status, READ | WRITE)) is not None:
        return f"{path} may be read by the group {group}, which isn't yours; run: chmod g-rwx {path}"
    return None


LOOK_EVERY = 1.0
"""Least seconds between two checks of the files."""

Made = TypeVar("Made")
_State = tuple[int, int, int, int, tuple[str, ...]] | None


class RenewedValue(Generic[Made]):
    """The result of `make` on the files at `paths`, recomputed when one of them changes.

    `make` raises ValueError or OSError if they can't be used, for example while one is being written. Then
    the last good value stays, the problem is logged once, and the next change of a file, or of who may change
    it, is a new try. So it is with a later value if others than root and this process's user may.
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
            made = self._make()
            self._check_owners()
        except (ValueError, OSError) as error:
            self._failed = True
            if not is_known_failure:
                log(Event.SECRET_UNUSABLE, file=self._names(), reason=_reason(error))
            return False
        self._failed, self._made = False, made
        is_another = made != before
        if is_another:
            log(Event.SECRET_RENEWED, file=self._names())
        return is_another

    def _check_owners(self) -> None:
        """Raise ValueError if another user can change a file, or put another one in its place; OSError."""
        found = [each for path in self._paths for each in _changeable(path)]
        if found:
            raise ValueError("; ".join(dict.fromkeys(found)))

    def _look(self) -> list[_State]:
        return [_state(path) for path in self._paths]

    def _names(self) -> str:
        return ", ".join(map(str, self._paths))


def _state(path: Path) -> _State:
    try:
        found, changeable = path.stat(), _changeable(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, changeable


def _changeable(path: Path) -> tuple[str, ...]:
    """Return who else can change a file, or put another one in its place. Raises OSError."""
    return tuple(tampering(path, path.stat(), os.geteuid()))


def _reason(error: ValueError | OSError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
