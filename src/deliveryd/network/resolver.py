"""Resolves host names, so that a silent name server delays only the names that it serves.

Each name is resolved by its own daemon thread with `getaddrinfo`, which alone honours nsswitch.conf,
`/etc/hosts` and search domains (docs/decisions/0010-name-look-ups.md). Nothing waits for such a thread: no
pool, no other name, not the process's exit.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
import sniffio

from deliveryd.network.address import Address, numeric
from deliveryd.runtime.process import NoThread

FRESH_SECONDS = 30.0
"""Seconds for which an answer is used without a new look-up."""

KEPT_SECONDS = 12 * 3600.0
"""Seconds for which an answer is used while a new look-up hangs or fails."""

LOOKUP_TIMEOUT = 0.5
"""Seconds that a caller waits for a new look-up if there is an older answer to use."""

PAUSE_SECONDS = 5.0
"""Seconds between a failed look-up and the next one, if there is an older answer to use."""

LOST_SECONDS = 60.0
"""Seconds after which a look-up counts as lost, so that another for the same name may begin."""

MOST_THREADS = 4
"""Most concurrent look-ups of one name: more than one only after earlier ones were lost."""

_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


Ask = Callable[[str], Sequence[Address]]
"""Resolves a name, blocking. Raises OSError."""


def ask_system(host: str) -> Sequence[Address]:
    """Resolve a name with the system's resolver. Raises OSError."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except ValueError:  # can't be encoded, or contains NUL
        raise socket.gaierror(socket.EAI_NONAME, "not a valid host name") from None
    except socket.gaierror:
        os.close(os.open(os.devnull, os.O_RDONLY))  # without a free file no name is found: that is raised
        raise
    addresses = [_address(family, at) for family, _, _, _, at in found]
    if not addresses:
        raise socket.gaierror(socket.EAI_NONAME, "the name has no address")
    return list(dict.fromkeys(addresses))


def _address(family: int, at: Sequence[str | int | bytes]) -> Address:
    flow, scope = at[2:4] if family == socket.AF_INET6 else (0, 0)
    return Address(family, str(at[0]), int(flow), int(scope))


class _LookUp:
    """One look-up in progress; `result` is available when `over` is set."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.over = anyio.Event()
        self.result: Sequence[Address] | OSError = OSError(errno.EINPROGRESS, "the look-up isn't over")


class _Name:
    """The state of one name."""

    def __init__(self) -> None:
        self.addresses: Sequence[Address] = ()
        self.known_at = 0.0
        self.next_at = 0.0  # no new look-up before, while `addresses` can be used
        self.threads = 0
        self.look_up: _LookUp | None = None


class Resolver:
    """Resolves names for one client, each once for all concurrent callers. Used within one event loop.

    Names come from the configuration, so there are few of them, and few threads.
    """

    def __init__(self, ask: Ask = ask_system, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._names: dict[str, _Name] = {}

    async def look_up(self, host: str) -> Sequence[Address]:
        """Return the addresses of a host, at least one, the preferred ones first.

        It has no time-out of its own, so the caller must set a deadline. Raises OSError.
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
        """Return the look-up of this name; begin one if none is in progress."""
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
            self._end(name, look_up, NoThread())

    def _end(self, name: _Name, look_up: _LookUp, result: Sequence[Address] | OSError) -> None:
        """Record the result of a look-up, and wake its waiters."""
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
    """Return the addresses found; during a look-up or after a temporary failure, the earlier ones."""
    result = look_up.result
    if not isinstance(result, OSError):
        return result
    if name is not None and name.addresses:
        return name.addresses
    raise type(result)(result.errno, result.strerror)  # one error for each caller


def _from_thread() -> Callable[[Callable[[], None]], object]:
    """Return a function that schedules calls in this event loop from any thread. May raise RuntimeError."""
    if sniffio.current_async_library() == "trio":
        import trio.lowlevel  # noqa: PLC0415  # only where the caller has loaded it

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe
