"""A file that contains a secret: read each time it is needed, refused if others can read it."""

from __future__ import annotations

import os
from pathlib import Path

from deliveryd.runtime.rights import READ, WRITE, foreign_group, may_others


class SecretFile:
    """A file that contains a secret. Only the path is ever shown."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"SecretFile({str(self.path)!r})"

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
        """Return the secret without surrounding white space.

        Raises ValueError if the file can't be read, is empty, isn't one line of UTF-8, or others may read or
        change it. The checks apply to the opened file.
        """
        try:
            with self.path.open(encoding="utf-8") as file:
                status = os.fstat(file.fileno())
                text = file.read().strip()
        except UnicodeDecodeError:
            raise ValueError(f"{self.path} is not UTF-8 text") from None
        except OSError as error:
            raise ValueError(f"{self.path} can't be read: {error.strerror}") from None
        if problem := _open_to_others(self.path, status):
            raise ValueError(problem)
        if not text:
            raise ValueError(f"{self.path} is empty")
        if not text.isprintable():
            raise ValueError(f"{self.path} contains more than one line, or control characters")
        return text


def _open_to_others(path: Path, status: os.stat_result) -> str | None:
    """Return who else can read or change a secret's file, and the remedy; None: no one."""
    if may_others(status, READ | WRITE):
        return f"{path} may be read by everybody; run: chmod o-rwx {path}"
    if (group := foreign_group(status, READ | WRITE)) is not None:
        return f"{path} may be read by the group {group}, which isn't yours; run: chmod g-rwx {path}"
    return None
