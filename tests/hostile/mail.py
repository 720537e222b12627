"""A mail server that keeps every line as it came, on a real socket."""

from __future__ import annotations

import socketserver
from typing import NamedTuple, cast

from support.listening import Listening, ThreadedServer


class Mail(NamedTuple):
    """A mail as it came: the commands of its envelope, and its lines without those of the transport."""

    commands: tuple[bytes, ...]
    lines: tuple[bytes, ...]

    @property
    def header_names(self) -> list[str]:
        """Names of the headers of the mail itself."""
        head = self.lines[: self.lines.index(b"")]
        return [
            line.partition(b":")[0].decode().lower() for line in head if not line.startswith((b" ", b"\t"))
        ]


class MailHost(Listening):
    """Accepts every mail."""

    def __init__(self) -> None:
        super().__init__(_Server(self))
        self.mails: list[Mail] = []


class _Server(ThreadedServer):
    def __init__(self, host: MailHost) -> None:
        self.host = host
        super().__init__(_Handler)


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        mails = cast("_Server", self.server).host.mails
        commands: list[bytes] = []
        self._say(b"220 here")
        while line := self.rfile.readline():
            command = line.rstrip(b"\r\n")
            verb = command[:4].upper()
            if verb in (b"MAIL", b"RCPT"):
                commands.append(command)
            if verb == b"DATA":
                self._say(b"354 go on")
                mails.append(Mail(tuple(commands), tuple(self._lines())))
                commands = []
            self._say(b"221 bye" if verb == b"QUIT" else b"250 good")

    def _lines(self) -> list[bytes]:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line.rstrip(b"\r\n").removeprefix(b"."))
        return lines

    def _say(self, reply: bytes) -> None:
        self.wfile.write(reply + b"\r\n")
