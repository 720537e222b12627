"""What the process tells systemd about itself: ready, stopping, alive, and a sentence on what it does."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Notifier:
    """The sender's side of sd_notify(3). Without an address every call does nothing, and no call ever raises.

    `watchdog_interval` is how often, in seconds, `watchdog` has to be called; None when nobody watches.
    """

    address: str | None = None
    watchdog_interval: float | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read what systemd put into the environment; an address of a kind unknown to us counts as none."""
        environ = os.environ if environ is None else environ
        address = environ.get("NOTIFY_SOCKET", "")
        return cls(
            address=address if address.startswith(("/", "@")) else None,
            watchdog_interval=_watchdog_interval(environ),
        )

    def ready(self) -> None:
        """Starting is over."""
        self._send("READY=1")

    def stopping(self) -> None:
        """The end has begun."""
        self._send("STOPPING=1")

    def status(self, sentence: str) -> None:
        """Set the sentence that `systemctl status` shows."""
        self._send(f"STATUS={' '.join(sentence.split())}")

    def watchdog(self) -> None:
        """Still alive."""
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
        except OSError:  # nobody listens or the queue is full: no reason to stop delivering
            return


def _watchdog_interval(environ: Mapping[str, str]) -> float | None:
    """Half of the patience that systemd has with this very process, as sd_watchdog_enabled(3) advises."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        patience = int(environ.get("WATCHDOG_USEC", "0"))
    except ValueError:
        return None
    return patience / 2_000_000 if patience > 0 else None
