"""The native protocol of systemd's journal: one datagram of fields for each line."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from array import array
from collections.abc import Mapping
from pathlib import Path

JOURNAL_SOCKET = Path("/run/systemd/journal/socket")

_SEND_BUFFER = 8 << 20
_TOO_LARGE = frozenset({errno.EMSGSIZE, errno.ENOBUFS})
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


_NAMES = {"message_id": "MESSAGE", "settings_id": "SETTINGS"}


class JournalSocket:
    """Sends lines to the journal's socket. It is found by its path each time, since journald may restart."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    def __del__(self) -> None:
        """Close the socket of a log that was replaced."""
        self._socket.close()

    def send(self, fields: Mapping[str, str]) -> bool:
        """Send one line; return whether the journal took it. Never waits and never raises."""
        datagram = b"".join(_encoded(name, value) for name, value in fields.items())
        try:
            self._socket.sendto(datagram, self._path)
        except OSError as error:
            return error.errno in _TOO_LARGE and self._send_file(datagram)
        return True

    def _send_file(self, datagram: bytes) -> bool:
        """Send what is too large for a datagram as a sealed file in memory."""
        try:
            file = os.memfd_create("deliveryd-log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                with open(file, "wb", closefd=False) as out:
                    out.write(datagram)
                fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [file]))
                self._socket.sendmsg([], [rights], 0, self._path)
            finally:
                os.close(file)
        except OSError:
            return False
        return True


def _encoded(name: str, value: str) -> bytes:
    text = value.encode(errors="replace")
    if b"\n" not in text:
        return b"%s=%s\n" % (name.encode(), text)
    return b"%s\n%s%s\n" % (name.encode(), len(text).to_bytes(8, "little"), text)


def journal_fields(text: str, priority: int, line: Mapping[str, object]) -> Mapping[str, str]:
    """Return the fields of a line: `DELIVERYD_EVENT`, `DELIVERYD_MESSAGE` and so on, beside the text."""
    own = {f"DELIVERYD_{_NAMES.get(name) or name.upper()}": str(value) for name, value in line.items()}
    return {
        "MESSAGE": text,
        "PRIORITY": str(priority),
        "SYSLOG_IDENTIFIER": "deliveryd",
        **{name: value for name, value in own.items() if name != "DELIVERYD_LEVEL"},
    }
