"""Starts a worker whose boundaries are watched: `python -m fleet.launcher SOCKET -- run --config FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from deliveryd.commands.app import run_program as deliveryd
from deliveryd.delivery import availability, deadlines
from deliveryd.worker import supervisor
from fleet.watch import Watch, install

OFTEN = 1.0
"""Seconds between two turns of what is done seldom otherwise, so that each boundary is soon passed."""

OFTEN_DONE = (
    (deadlines, "TICK"),
    (availability, "HEARTBEAT_INTERVAL"),
    (supervisor, "COUNT_INTERVAL"),
    (supervisor, "PRUNE_INTERVAL"),
)


def main() -> None:
    """Wait for the first orders, and be a worker."""
    _, path, _, *arguments = sys.argv
    deadlines.LENIENCE = 0.0
    for module, name in OFTEN_DONE:
        setattr(module, name, OFTEN)
    install(Watch(Path(path)))
    sys.argv = ["deliveryd", *arguments]
    deliveryd()


if __name__ == "__main__":
    main()
