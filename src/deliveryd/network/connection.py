"""Connects to a host by trying its addresses in turn (RFC 8305), and words why a connection failed."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain, zip_longest
from typing import Generic, TypeVar

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from deliveryd.errors import NotSent, OutOfFiles
from deliveryd.network.address import Address
from deliveryd.network.resolver import Resolver
from deliveryd.runtime.process import NoThread, is_out_of_files

STAGGER = 0.25
"""Seconds before the next address is tried in parallel."""

T = TypeVar("T")


async def connect(resolver: Resolver, host: str, port: int) -> socket.socket:
    """Return a socket connected to the first of the host's addresses that answers. Raises OSError.

    It has no time-out of its own, so the caller must set a deadline.
    """
    addresses = await resolver.look_up(host)
    return await first_connected(addresses, partial(_connect, port=port), _close)


async def open_stream(resolver: Resolver, host: str, port: int, ca_key: str) -> ByteStream:
    """Return a stream to the first of the host's addresses that answers. Raises NotSent.

    It has no time-out of its own. For `ca_key` see `connect_reason`.
    """

    async def to(address: Address) -> ByteStream:
        return await anyio.connect_tcp(address.host, port)

    try:
        return await first_connected(await resolver.look_up(host), to, anyio.aclose_forcefully)
    except OSError as error:
        raise not_connected(host, port, error, ca_key) from None


async def over_tls(
    stream: ByteStream, context: ssl.SSLContext, host: str, port: int, ca_key: str
) -> ByteStream:
    """Begin TLS on a stream, which is closed if that fails. Raises NotSent."""
    try:
        return await TLSStream.wrap(stream, hostname=host, ssl_context=context, standard_compatible=False)
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)
        if isinstance(error, anyio.BrokenResourceError | anyio.EndOfStream):
            raise NotSent(f"TLS with {host}:{port} failed: the connection was closed") from None
        if isinstance(error, OSError):
            raise not_connected(host, port, error, ca_key) from None
        raise


def verified_by(make: Callable[[], ssl.SSLContext], host: str, port: int, ca_key: str) -> ssl.SSLContext:
    """Return the context that `make` makes for TLS with a host. Raises NotSent if it can't read its files."""
    try:
        return make()
    except OSError as error:
        raise not_connected(host, port, error, ca_key) from None


async def first_connected(
    addresses: Sequence[Address],
    connect: Callable[[Address], Awaitable[T]],
    discard: Callable[[T], Awaitable[None]],
) -> T:
    """Return the result of `connect` for the first address that answers.

    Address families alternate, and each further address is tried after `STAGGER`. `connect` raises OSError
    for an unreachable address; `discard` closes a connection that was made too late. Raises the last OSError
    if no address answers.
    """
    if len(addresses) == 1:
        return await connect(addresses[0])
    race = _Race(connect, discard)
    try:
        async with anyio.create_task_group() as tries:
            for address in by_turns(addresses):
                failed = anyio.Event()
                tries.start_soon(race.run, address, failed, tries.cancel_scope)
                with anyio.move_on_after(STAGGER):
                    await failed.wait()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await race.discard_winner()
        raise
    return race.result()


def by_turns(addresses: Sequence[Address]) -> Sequence[Address]:
    """Return the addresses with alternating families, beginning with the first one's."""
    family = addresses[0].family
    same = [address for address in addresses if address.family == family]
    other = [address for address in addresses if address.family != family]
    return [address for address in chain.from_iterable(zip_longest(same, other)) if address is not None]


class _Race(Generic[T]):
    """The attempts for one host, of which the first connection wins."""

    def __init__(
        self, connect: Callable[[Address], Awaitable[T]], discard: Callable[[T], Awaitable[None]]
    ) -> None:
        self._connect = connect
        self._discard = discard
        self._won: list[T] = []
        self._error = OSError(errno.EADDRNOTAVAIL, "the host has no address")

    async def run(self, address: Address, failed: anyio.Event, all_tries: anyio.CancelScope) -> None:
        """Try one address; the first connection cancels all other attempts."""
        try:
            connection = await self._connect(address)
        except OSError as error:
            self._error = error
            failed.set()
            return
        if self._won:
            await self._discard(connection)
            return
        self._won.append(connection)
        all_tries.cancel()

    async def discard_winner(self) -> None:
        """Close a connection that is no longer needed."""
        while self._won:
            await self._discard(self._won.pop())

    def result(self) -> T:
        """Return the connection. Raises OSError if there is none."""
        if self._won:
            return self._won[0]
        raise self._error


async def _connect(address: Address, port: int) -> socket.socket:
    made = socket.socket(address.family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setblocking(False)
        code = made.connect_ex(address.at(port))
        if code == errno.EINPROGRESS:
            await anyio.wait_writable(made)
            code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    except BaseException:
        made.close()
        raise
    if code:
        made.close()
        raise OSError(code, os.strerror(code))
    return made


async def _close(made: socket.socket) -> None:
    made.close()


_NO_SUCH_HOST = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's codes for a certificate from an authority that isn't trusted (X509_V_ERR_...)."""

_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST"})

E = TypeVar("E", bound=BaseException)


def connect_reason(host: str, port: int, error: BaseException, ca_key: str) -> str:
    """Return why connecting to `host` failed, from the error or its causes.

    `ca_key` is the configuration key that names the authorities to trust there.
    """
    if (distrust := caused_by(error, ssl.SSLCertVerificationError)) is not None:
        return _distrusted(host, port, distrust, ca_key)
    if (broken := caused_by(error, ssl.SSLError)) is not None:
        return f"TLS with {host}:{port} failed: {_tls_reason(broken)}"
    if (unknown := caused_by(error, socket.gaierror)) is not None:
        return f"no connection to {host}:{port}: {_name_reason(unknown)}"
    return f"no connection to {host}:{port}: {_system_reason(error)}"


def not_connected(host: str, port: int, error: BaseException, ca_key: str) -> NotSent:
    """Return the error for a request that wasn't sent, since no connection was made; see `connect_reason`."""
    kind = OutOfFiles if is_out_of_files(error) else NotSent
    return kind(connect_reason(host, port, error, ca_key))


def caused_by(error: BaseException | None, kind: type[E]) -> E | None:
    """Return the error itself or the first of its causes of this type."""
    while error is not None:
        if isinstance(error, kind):
            return error
        error = error.__cause__ or error.__context__
    return None


def _distrusted(host: str, port: int, error: ssl.SSLCertVerificationError, ca_key: str) -> str:
    text = f"the certificate of {host}:{port} isn't trusted: {error.verify_message}"
    if error.verify_code not in _UNKNOWN_AUTHORITY:
        return text
    return f"{text}; name the authority that issued it in {ca_key}"


def _tls_reason(error: ssl.SSLError) -> str:
    if error.reason in _NO_TLS:
        return f"the peer doesn't speak TLS ({error.reason})"
    return error.reason or "the connection was closed"


def _name_reason(error: socket.gaierror) -> str:
    if error.errno in _NO_SUCH_HOST:
        return "no such host"
    return f"its name can't be resolved now ({error.strerror})"


def _system_reason(error: BaseException) -> str:
    """Return the message of the first cause with an errno; errors that wrap it have other texts."""
    system: BaseException | None = error
    while system is not None:
        if isinstance(system, NoThread):
            return str(system.strerror)
        if isinstance(system, OSError) and system.errno:
            return "connection refused" if system.errno == errno.ECONNREFUSED else os.strerror(system.errno)
        system = system.__cause__ or system.__context__
    return str(error) or type(error).__name__
