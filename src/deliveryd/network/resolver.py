"""Looks up the addresses of hosts, so that a name server that is silent about one holds up no other.

Each name is looked up by a daemon thread of its own, with `getaddrinfo`: it alone heeds nsswitch.conf,
`/etc/hosts` and search domains (docs/decisions/0010-name-look-ups.md). Nothing waits for such a thread: no
pool, no other name, not the process's exit.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import anyio
import sniffio

FRESH_SECONDS = 30.0
"""How long an answer is used without asking again."""

KEPT_SECONDS = 12 * 3600.0
"""How long an answer is used while a new look-up hangs or fails."""

LOOKUP_TIMEOUT = 0.5
"""Seconds that a caller waits for a new look-up when there is an older answer to go on with."""

PAUSE_SECONDS = 5.0
"""Seconds after a failed look-up until the next one, when there is an older answer to go on with."""

LOST_SECONDS = 60.0
"""Seconds after which a look-up counts as lost, so that another one of the same name may begin."""

MOST_THREADS = 4
"""Look-ups of one name at a time: one, and more only after earlier ones were lost."""

_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


class Address(NamedTuple):
    """Where a host can be connected to: a numeric host, and what else an IPv6 socket address has."""

    family: int
    host: str
    flow: int = 0
    scope: int = 0

    def at(self, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        """The address as a socket of its family takes it."""
        if self.family == socket.AF_INET6:
            return self.host, port, self.flow, self.scope
        return self.host, port


Ask = Callable[[str], Sequence[Address]]
"""Looks up a name and blocks meanwhile. Raises OSError."""


def ask_system(host: str) -> Sequence[Address]:
    """What the system knows of a name, by whatever it is configured to ask. Raises OSError."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except ValueError:  # no encoding for it, or a NUL inside
        raise socket.gaierror(socket.EAI_NONAME, "not a name that can be looked up") from None
    addresses = [_address(family, at) for family, _, _, _, at in found]
    if not addresses:
        raise socket.gaierror(socket.EAI_NONAME, "the name has no address")
    return list(dict.fromkeys(addresses))


def _address(family: int, at: Sequence[str | int | bytes]) -> Address:
    flow, scope = at[2:4] if family == socket.AF_INET6 else (0, 0)
    return Address(family, str(at[0]), int(flow), int(scope))


def numeric(host: str) -> Address | None:
    """The address that `host` is, when it is one and no name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return Address(family, host)
    return None


class _LookUp:
    """One look-up under way; `result` is there when `over` is set."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.over = anyio.Event()
        self.result: Sequence[Address] | OSError = OSError(errno.EINPROGRESS, "the look-up isn't over")


class _Name:
    """What is known of one name."""

    def __init__(self) -> None:
        self.addresses: Sequence[Address] = ()
        self.known_at = 0.0
        self.next_at = 0.0  # not asked again before, while `addresses` can be used
        self.threads = 0
        self.look_up: _LookUp | None = None


class Resolver:
    """Looks up names for one client, each once for however many ask at a time. Used within one event loop.

    Names come from the configuration, so there are few of them, and few threads.
    """

    def __init__(self, ask: Ask = ask_system, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._names: dict[str, _Name] = {}

    async def look_up(self, host: str) -> Sequence[Address]:
        """The addresses of a host, at least one, the preferred ones first.

        It takes as long as the system does, so the caller has a deadline. Raises OSError.
        """
        literal = numeric(host)
        if literal is not None:
            return [literal]
        name = self._names.setdefault(host, _Name())
        now = self._clock()
        usable = bool(name.addresses) and now < name.known_at + KEPT_SECONDS
        if usable and now < name.next_at:
            return name.addresses
        look_up = self._under_way(host, name, now)
        if not usable:
            await look_up.over.wait()
        elif not look_up.over.is_set():
            with anyio.move_on_after(max(look_up.began + LOOKUP_TIMEOUT - now, 0.0)):
                await look_up.over.wait()
        return _outcome(look_up, name if usable else None)

    def _under_way(self, host: str, name: _Name, now: float) -> _LookUp:
        """The look-up of this name, begun if there is none that may still end."""
        look_up = name.look_up
        if look_up is None or (now - look_up.began > LOST_SECONDS and name.threads < MOST_THREADS):
            look_up = name.look_up = _LookUp(now)
            self._begin(host, name, look_up)
        return look_up

    def _begin(self, host: str, name: _Name, look_up: _LookUp) -> None:
        call = _from_thread()

        def work() -> None:
            result: Sequence[Address] | OSError
            try:
                result = self._ask(host)
            except OSError as error:
                result = error
            with suppress(RuntimeError):  # the event loop has ended meanwhile
                call(lambda: self._end(name, look_up, result))

        name.threads += 1
        try:
            threading.Thread(target=work, name=f"look up {host}", daemon=True).start()
        except RuntimeError:
            self._end(name, look_up, OSError(errno.EAGAIN, "no thread left to look a name up"))

    def _end(self, name: _Name, look_up: _LookUp, result: Sequence[Address] | OSError) -> None:
        """Keep what a look-up came to, and wake who waits for it."""
        now = self._clock()
        name.threads -= 1
        if name.look_up is look_up:
            name.look_up = None
        if not isinstance(result, OSError):
            name.addresses, name.known_at, name.next_at = result, now, now + FRESH_SECONDS
        elif result.errno in _NO_SUCH_NAME:
            name.addresses = ()
        else:
            name.next_at = now + PAUSE_SECONDS
        look_up.result = result
        look_up.over.set()


def _outcome(look_up: _LookUp, name: _Name | None) -> Sequence[Address]:
    """The addresses found; while a look-up hangs, or after a temporary failure, the earlier ones."""
    result = look_up.result
    if not isinstance(result, OSError):
        return result
    if name is not None and name.addresses:
        return name.addresses
    raise type(result)(result.errno, result.strerror)  # one error for each caller


def _from_thread() -> Callable[[Callable[[], None]], object]:
    """What calls a function in this event loop, from any thread. It may raise RuntimeError."""
    if sniffio.current_async_library() == "trio":
        import trio.lowlevel  # noqa: PLC0415  # only where the caller has loaded it

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe
