"""Notifications to systemd: ready, stopping, watchdog, and a status sentence."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True, slots=True)
class Notifier:
    """The sender's side of sd_notify(3). Without an address every call does nothing. No call raises.

    Its socket is opened once: a watchdog must be notified also when no more files can be opened.
    `watchdog_interval`: the seconds between calls of `watchdog`; None without a watchdog.
    """

    address: str | None = None
    watchdog_interval: float | None = None
    speaker: socket.socket | None = field(default=None, repr=False, compare=False)

    def __del__(self) -> None:
        """Close the socket."""
        if self.speaker is not None:
            self.speaker.close()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read systemd's environment variables; an address of an unknown type counts as none."""
        environ = os.environ if environ is None else environ
        address = environ.get("NOTIFY_SOCKET", "")
        return cls(
            address=address if address.startswith(("/", "@")) else None,
            watchdog_interval=_watchdog_interval(environ),
            speaker=_speaker() if address.startswith(("/", "@")) else None,
        )

    def ready(self) -> None:
        """Report that the start is complete."""
        self._send("READY=1")

    def stopping(self, seconds: float) -> None:
        """Report that the shutdown has begun; it may take these seconds, beyond TimeoutStopSec."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={seconds * 1_000_000:.0f}")

    def status(self, sentence: str) -> None:
        """Set the sentence shown by `systemctl status`."""
        self._send(f"STATUS={' '.join(sentence.split())}")

    def watchdog(self) -> None:
        """Report that the worker is alive."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if self.address is None or self.speaker is None:
            return
        # A leading @ stands for the zero byte of Linux's abstract namespace.
        target = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            self.speaker.sendto(message.encode(errors="replace"), target)
        except OSError:  # no receiver, or its queue is full: not a reason to stop
            return


def _speaker() -> socket.socket:
    speaker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    speaker.setblocking(False)
    return speaker


def _watchdog_interval(environ: Mapping[str, str]) -> float | None:
    """Return half of this process's watchdog time-out, as sd_watchdog_enabled(3) recommends."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        patience = int(environ.get("WATCHDOG_USEC", "0"))
    except ValueError:
        return None
    return patience / 2_000_000 if patience > 0 else None
