"""A forward proxy, in the form that clients take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from deliveryd.runtime.secret_file import SecretFile


class Login(NamedTuple):
    """A login at a proxy."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.username!r}, ***)"


class Proxy(NamedTuple):
    """A proxy's address, the user name there, and the file of the password."""

    url: str
    username: str | None = None
    password_file: SecretFile | None = None

    @property
    def paths(self) -> Sequence[Path]:
        """Return the file of the password, if there is one."""
        return [self.password_file.path] if self.password_file is not None else []

    def login(self) -> Login | None:
        """Return the login, with the password read from its file now. Raises ValueError."""
        if self.username is None or self.password_file is None:
            return None
        return Login(self.username, self.password_file.read())
