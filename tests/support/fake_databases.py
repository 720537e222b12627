"""Servers that speak as much of a database's protocol as it takes to be told a password, and ask for it."""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import struct
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Thread

import anyio.to_thread
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from support.patience import PATIENCE

SSL_REQUEST = struct.pack("!II", 8, 80877103)
PASSWORD = "s3cret-password"

Talk = Callable[["Told"], None]


class Told:
    """What a server was told over one connection after the other, with TLS or without."""

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        self.port: int = listener.getsockname()[1] if listener.family == socket.AF_INET else 0
        self.tls = tls
        self.connections = 0
        self.heard = b""
        self.answer: bytes | None = None
        """What came when the server had asked for the password in the end; None: it wasn't answered."""
        self._socket = listener

    @property
    def has_the_password(self) -> bool:
        return PASSWORD.encode() in self.heard

    def connect(self, accepted: socket.socket) -> None:
        self.connections += 1
        self._socket = accepted
        accepted.settimeout(PATIENCE)

    def hang_up(self) -> None:
        """Hear the rest."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while rest := self._socket.recv(4096):
                self.heard += rest
        self._socket.close()

    def start_tls(self, tls: ssl.SSLContext) -> None:
        self._socket = tls.wrap_socket(self._socket, server_side=True)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            self.heard += more
            data += more
            if not more:
                raise ConnectionError("hung up")
        return data

    def packet(self) -> bytes:
        """A packet of MySQL's protocol."""
        return self.receive(int.from_bytes(self.receive(4)[:3], "little"))


@asynccontextmanager
async def open_database(
    talk: Talk, tls: ssl.SSLContext | None = None, at: Path | None = None
) -> AsyncIterator[Told]:
    """A server that listens until the block ends, on loopback or a socket file `at` a path.

    `tls` None: it says that it has none.
    """
    if at is None:
        listener = socket.create_server(("127.0.0.1", 0))
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(at))
        listener.listen()
    told = Told(listener, tls)
    thread = Thread(target=_serve, args=(listener, told, talk), daemon=True)
    thread.start()
    try:
        yield told
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        await anyio.to_thread.run_sync(thread.join, PATIENCE)  # the loop has to close the client's side
        listener.close()


def _serve(listener: socket.socket, told: Told, talk: Talk) -> None:
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        told.connect(accepted)
        with suppress(OSError):
            talk(told)
        told.hang_up()


def postgresql(told: Told) -> None:
    """Ask for the password in plain text, which every client of PostgreSQL knows."""
    _greet_postgresql(told)
    told.send(b"R" + struct.pack("!II", 8, 3))
    told.answer = told.receive(5 + len(PASSWORD) + 1)


def postgresql_after_ok(told: Told) -> None:
    """Let the client in, and ask for the password in plain text then."""
    _greet_postgresql(told)
    told.send(b"R" + struct.pack("!II", 8, 0) + b"R" + struct.pack("!II", 8, 3))
    told.answer = told.receive(5 + len(PASSWORD) + 1)


def postgresql_after_ok_apart(told: Told) -> None:
    """The same in two pieces, and with what a server tells of itself between them."""
    _greet_postgresql(told)
    told.send(b"R" + struct.pack("!II", 8, 0))
    told.send(b"S" + struct.pack("!I", 8) + b"a\x00b\x00" + b"R")
    told.send(struct.pack("!II", 8, 3))
    told.answer = told.receive(5 + len(PASSWORD) + 1)


def postgresql_after(begin: bytes, told: Told) -> None:
    """Ask for it in plain text behind the beginning of another message."""
    _greet_postgresql(told)
    told.send(begin + b"R" + struct.pack("!II", 8, 3))
    told.answer = told.receive(5 + len(PASSWORD) + 1)


_VERSION = b"server_version\x0016.1\x00"
_TAKES_QUERIES = b"S" + struct.pack("!I", 4 + len(_VERSION)) + _VERSION + b"Z" + struct.pack("!I", 5) + b"I"
_READY = b"R" + struct.pack("!II", 8, 0) + _TAKES_QUERIES


def postgresql_trusting(told: Told) -> None:
    """Let anybody in."""
    _greet_postgresql(told)
    told.send(_READY)
    told.answer = told.receive(5)


def postgresql_without_ok(told: Told) -> None:
    """Take queries at once, without a word about who asks."""
    _greet_postgresql(told)
    told.send(_TAKES_QUERIES)
    told.answer = told.receive(5)


def postgresql_scram(
    told: Told, password: str = PASSWORD, *, work: int = 4096, proves: bool = True, goes_on: bool = True
) -> None:
    """Ask by SCRAM, prove to know a password, and wait for a query. `work`: iterations that are asked for."""
    _greet_postgresql(told)
    told.send(_request(10, b"SCRAM-SHA-256\x00\x00"))
    first = _answered(told).partition(b"n,,")[2]
    begin = b"%s123,s=c2FsdA==,i=%d" % (first[first.index(b"r=") :], work)
    told.send(_request(11, begin))
    final = _answered(told).rpartition(b",p=")[0]
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), b"salt", 4096)
    key = hmac.digest(salted, b"Server Key", "sha256")
    proof = b64encode(hmac.digest(key, b",".join((first, begin, final)), "sha256"))
    told.send((_request(12, b"v=" + proof) if proves else b"") + (_READY if goes_on else b""))
    told.answer = told.receive(5)


def _request(code: int, more: bytes) -> bytes:
    return b"R" + struct.pack("!II", 8 + len(more), code) + more


def _answered(told: Told) -> bytes:
    return told.receive(struct.unpack("!I", told.receive(5)[1:])[0] - 4)


def postgresql_md5(told: Told) -> None:
    """Ask for its MD5, a piece at a time."""
    _greet_postgresql(told)
    for piece in (b"R", struct.pack("!I", 12), struct.pack("!I", 5), b"salt"):
        told.send(piece)
    told.answer = told.receive(5 + 35 + 1)


def _greet_postgresql(told: Told) -> None:
    start = told.receive(8)
    if start == SSL_REQUEST:
        told.send(b"S" if told.tls else b"N")
        if told.tls is not None:
            told.start_tls(told.tls)
        start = told.receive(8)
    told.receive(struct.unpack("!I", start[:4])[0] - 8)


def mysql(told: Told) -> None:
    """Ask for the password in plain text, by the plug-in that clients have for it."""
    told.send(_greeting(b"mysql_clear_password", has_tls=told.tls is not None))
    if len(told.packet()) == 32 and told.tls is not None:
        told.start_tls(told.tls)
        told.packet()


def mysql_switch(plugin: bytes, told: Told) -> None:
    """Begin with the usual plug-in, and ask for another one then."""
    told.send(_greeting(b"mysql_native_password", has_tls=False))
    told.packet()
    told.send(_written(b"\xfe" + plugin + b"\x00" + b"a" * 20 + b"\x00", 2))
    if plugin != b"mysql_clear_password":
        _show_key(told, 4)
    told.answer = told.packet()


def mysql_full_authentication(told: Told) -> None:
    """Know nothing of the client, as after a restart of the server, and show a key for its password."""
    told.send(_greeting(b"caching_sha2_password", has_tls=False))
    told.packet()
    told.send(_written(b"\x01\x04", 2))
    _show_key(told, 4)
    told.answer = told.packet()


def mysql_sha256(told: Told) -> None:
    """The same by an older plug-in."""
    told.send(_greeting(b"sha256_password", has_tls=False))
    told.packet()
    told.send(_written(b"\x01" + _key(), 2))
    told.answer = told.packet()


def _show_key(told: Told, number: int) -> None:
    told.packet()  # the request for it
    told.send(_written(b"\x01" + _key(), number))


@cache
def _key() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def thief(file: Path, told: Told) -> None:
    """A MySQL that answers every query by asking for this file of the client's."""
    told.send(_greeting(b"mysql_native_password", has_tls=False))
    told.packet()
    told.send(_written(b"\x00\x00\x00\x02\x00\x00\x00", 2))
    while told.packet()[:1] == b"\x03":
        told.send(_written(b"\xfb" + bytes(file), 1))


def mysql_without_end(told: Told) -> None:
    """Greet in a packet that the next one continues."""
    told.send(b"\xff\xff\xff\x00" + b"\x0a8.0.0\x00")
    told.answer = told.receive(1)


def _greeting(plugin: bytes, *, has_tls: bool) -> bytes:
    """The first packet of a server (protocol 10)."""
    can = 0x00088209 | (0x800 if has_tls else 0)
    head = struct.pack("<I8sxHBHHB10x", 1, b"a" * 8, can & 0xFFFF, 45, 2, can >> 16, 21)
    return _written(b"\x0a8.0.0\x00" + head + b"b" * 12 + b"\x00" + plugin + b"\x00", 0)


def _written(payload: bytes, number: int) -> bytes:
    return struct.pack("<I", len(payload))[:3] + bytes([number]) + payload
