"""Notifications to systemd: ready, stopping, watchdog, and a status sentence."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Notifier:
    """The sender's side of sd_notify(3). Without an address every call does nothing. No call raises.

    `watchdog_interval`: the seconds between calls of `watchdog`; None without a watchdog.
    """

    address: str | None = None
    watchdog_interval: float | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read systemd's environment variables; an address of an unknown type counts as none."""
        environ = os.environ if environ is None else environ
        address = environ.get("NOTIFY_SOCKET", "")
        return cls(
            address=address if address.startswith(("/", "@")) else None,
            watchdog_interval=_watchdog_interval(environ),
        )

    def ready(self) -> None:
        """Report that the start is complete."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Report that the shutdown has begun."""
        self._send("STOPPING=1")

    def status(self, sentence: str) -> None:
        """Set the sentence shown by `systemctl status`."""
        self._send(f"STATUS={' '.join(sentence.split())}")

    def watchdog(self) -> None:
        """Report that the worker is alive."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if self.address is None:
            return
        # A leading @ stands for the zero byte of Linux's abstract namespace.
        target = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
                speaker.setblocking(False)
                speaker.sendto(message.encode(errors="replace"), target)
        except OSError:  # no receiver, or its queue is full: not a reason to stop
            return


def _watchdog_interval(environ: Mapping[str, str]) -> float | None:
    """Return half of this process's watchdog time-out, as sd_watchdog_enabled(3) recommends."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        patience = int(environ.get("WATCHDOG_USEC", "0"))
    except ValueError:
        return None
    return patience / 2_000_000 if patience > 0 else None
