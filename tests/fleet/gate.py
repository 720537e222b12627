"""Says to the workers of a fleet at which boundary they end, stop or wait, and hears when they do."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fleet.stage import Fleet, FleetWorker, open_fleet

TESTS = Path(__file__).resolve().parent.parent


class Gate:
    """One worker's, whichever process it is. An order holds for the present process, or else for the next."""

    def __init__(self, path: Path, changed: threading.Condition) -> None:
        self._orders: dict[str, str] = {}
        self.process: int | None = None
        """The process that came to where it was ordered to."""
        self._line: socket.socket | None = None
        self.changed = changed
        """Notified when a process came there."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def order(self, at: Mapping[str, str]) -> None:
        """Have one thing happen at the first of these boundaries: see `watch`."""
        with self.changed:
            self.process = None
            self._order(at)

    def disarm(self) -> None:
        """Have nothing more happen."""
        with self.changed:
            self._order({})

    def _order(self, at: Mapping[str, str]) -> None:
        self._orders = dict(at)
        self._say({"at": self._orders})

    def go(self) -> None:
        """End the wait."""
        with self.changed:
            self._say({"go": True})

    def close(self) -> None:
        """Listen no longer."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _say(self, order: Mapping[str, object]) -> None:
        if self._line is not None:
            with suppress(OSError):  # the process may be gone
                self._line.sendall(json.dumps(order).encode() + b"\n")

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                with self.changed:
                    self._line = line
                    self._say({"at": self._orders})
                threading.Thread(target=self._hear, args=(line,), daemon=True).start()

    def _hear(self, line: socket.socket) -> None:
        with line, line.makefile("rb") as said, suppress(OSError):
            for each in said:
                passed = json.loads(each)
                with self.changed:
                    self.process = passed["pid"]
                    self._orders = {}
                    self.changed.notify_all()
        with self.changed:
            if self._line is line:
                self._line = None


def first_passed(gates: Sequence[Gate], patience: float) -> int | None:
    """Wait until a process comes to one of these, and have nothing happen at the others; None: none did.

    One that stopped at the same time goes on.
    """
    with gates[0].changed:
        gates[0].changed.wait_for(lambda: any(gate.process for gate in gates), patience)
        for gate in gates:
            gate.disarm()
    came = [gate.process for gate in gates if gate.process is not None]
    for process in came[1:]:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
    return came[0] if came else None


@contextmanager
def open_gated_fleet(folder: Path, count: int = 2) -> Iterator[tuple[Fleet, Mapping[FleetWorker, Gate]]]:
    """A fleet whose workers are watched, none of them started yet. Raises NoPostgres."""
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    with open_fleet(folder, count) as fleet:
        gates: dict[FleetWorker, Gate] = {}
        changed = threading.Condition()
        for number, worker in enumerate(fleet.workers, 1):
            socket_path = fleet.server.folder / f"gate{number}"
            gates[worker] = Gate(socket_path, changed)
            worker.program = ("fleet.launcher", str(socket_path), "--")
            worker.environ = {"PYTHONPATH": path}
        try:
            yield fleet, gates
        finally:
            fleet.kill()
            for gate in gates.values():
                gate.close()
