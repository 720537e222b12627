"""A forward proxy, as a client is told of it."""

from __future__ import annotations

from typing import NamedTuple


class Login(NamedTuple):
    """Who asks a proxy."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.username!r}, ***)"


class Proxy(NamedTuple):
    """Where a proxy is, and who asks it."""

    url: str
    login: Login | None = None
