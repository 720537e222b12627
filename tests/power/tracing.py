"""Reads what strace saw of a worker: what was done to its files, and what left by the network, in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

CALLS = (
    "openat", "pwrite64", "write", "writev", "sendto", "sendmsg", "ftruncate", "fdatasync", "fsync",
    "unlink", "unlinkat", "rename", "renameat", "renameat2", "mkdir", "mkdirat",
)  # fmt: skip
STRACE = (
    "strace", "-f", "-qq", "-yy", "-xx", "-s", "1000000", "-e", "signal=none",
    "-e", f"trace={','.join(CALLS)}",
)  # fmt: skip
"""The command that writes the traces which are read here; `-o FILE` and the worker's command follow."""


class Opened(NamedTuple):
    """A file was opened, and made if it wasn't there."""

    path: str


class Wrote(NamedTuple):
    """Bytes were written at an offset."""

    path: str
    offset: int
    data: bytes


class Cut(NamedTuple):
    """A file was given this size."""

    path: str
    size: int


class Synced(NamedTuple):
    """The disk was asked by a call to keep what a file or a folder holds; `ok`: it said that it does."""

    path: str
    ok: bool
    call: str = "fdatasync"


class Removed(NamedTuple):
    """A name was taken away."""

    path: str


class Renamed(NamedTuple):
    """A name was changed, and replaced what had the other one."""

    path: str
    to: str


class MadeFolder(NamedTuple):
    """A folder was made."""

    path: str


class Sent(NamedTuple):
    """Bytes left for another process; `connection` names both of its ends."""

    connection: str
    data: bytes


Step: TypeAlias = Opened | Wrote | Cut | Synced | Removed | Renamed | MadeFolder | Sent

_HEX = r"(?:\\x[0-9a-f]{2})*"
_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+|\?)(?:<.*>)?(?: .*)?$")
_UNFINISHED = re.compile(r"(\d+) +(\w+\(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)$")
_TEXT = re.compile(rf'"({_HEX})"')
_FILE = re.compile(rf"\d+<({_HEX})>(\(deleted\))?")
_SOCKET = re.compile(r"\d+<((?:TCP|TCPv6|UNIX|UNIX-STREAM):\[.*?\])>")
_SENDING = frozenset({"write", "writev", "sendto", "sendmsg"})


class _Call(NamedTuple):
    name: str
    arguments: str
    result: int


def read_trace(file: Path) -> list[Step]:
    """All steps of a trace that the model of the disk knows, in the order in which they were over."""
    with file.open(encoding="ascii") as lines:
        return [step for call in _calls(lines) if (step := _step(call)) is not None]


def _calls(lines: Iterable[str]) -> Iterator[_Call]:
    begun: dict[str, str] = {}
    for raw in lines:
        line = raw.rstrip("\n")
        if unfinished := _UNFINISHED.match(line):
            begun[unfinished[1]] = unfinished[2]
            continue
        if resumed := _RESUMED.match(line):
            line = f"{resumed[1]} {begun.pop(resumed[1])}{resumed[2]}"
        if whole := _LINE.match(line):
            died = whole[4] == "?"  # in the midst of it
            yield _Call(whole[2], whole[3], -1 if died else int(whole[4]))


def _step(call: _Call) -> Step | None:
    if call.name in ("fdatasync", "fsync"):
        path = _path_of(call.arguments)
        return None if path is None else Synced(path, call.result == 0, call.name)
    if call.result < 0:
        return None
    if call.name in _SENDING and (socket := _SOCKET.match(call.arguments)):
        data = b"".join(_bytes(text) for text in _TEXT.findall(call.arguments, socket.end()))
        return Sent(socket[1], data[: call.result])
    if call.name == "pwrite64":
        return _written(call)
    if call.name == "ftruncate":
        path = _path_of(call.arguments)
        return None if path is None else Cut(path, int(call.arguments.rpartition(", ")[2]))
    return None if call.name in _SENDING else _named(call)


def _written(call: _Call) -> Wrote | None:
    path = _path_of(call.arguments)
    if path is None:
        return None
    data = _bytes(_TEXT.findall(call.arguments)[0])
    return Wrote(path, int(call.arguments.rpartition(", ")[2]), data[: call.result])


def _named(call: _Call) -> Step | None:
    """A step that names its file; the worker names all of them by absolute paths."""
    names = [_bytes(text).decode() for text in _TEXT.findall(call.arguments)]
    match call.name:
        case "openat":
            return Opened(names[0]) if "O_CREAT" in call.arguments else None
        case "unlink" | "unlinkat":
            return Removed(names[0])
        case "rename" | "renameat" | "renameat2":
            return Renamed(names[0], names[1])
        case "mkdir" | "mkdirat":
            return MadeFolder(names[0])
        case _:
            return None


def _path_of(arguments: str) -> str | None:
    """The path of an open file; None where it has none any more."""
    file = _FILE.match(arguments)
    return None if file is None or file[2] else _bytes(file[1]).decode()


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))
