"""How long messages of many settings ids wait beside the backlog of one, of several installations.

`turns.py OLD/.venv/bin/python NEW/.venv/bin/python` prints the second by the first. The line runs in virtual
time, so a busy machine changes nothing: the seconds are those of the clock that jumps. The backlog is written
to the journal as a worker leaves it there: its messages wait for room at one provider, beside which there is
another one. Then a message of each other settings id comes, spread over a minute.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINE = "{:<50} {:>10} {:>10} {:>10} {:>10} {:>10}"
OVER = 60.0
"""Seconds over which the others come."""

CONFIG = """
rate = "RATE/s"
concurrency = 200
[channels.email]
adapter = "http"
url = "http://provider/email"
json = { text = "{content.body}" }
[queue]
poll_interval = "250ms"
max_poll_interval = "250ms"
"""
INSERT = """
INSERT INTO message (id, settings_id, customer_id, variables, state, taken_at, due_at, waits_for, provider)
VALUES (?, 1, 1, '{}', 3, ?, ?, 'room sms', 'sms')
"""
BEHIND = 1_000_000_000
"""The lowest id of what comes later."""


def main() -> None:
    """Measure each installation, and print how long the others waited."""
    chosen = _arguments()
    if chosen.measure:
        print(json.dumps(measured(chosen.backlog, chosen.others, chosen.rate)))
        return
    print(LINE.format("python", "backlog", "others", "median, s", "p99, s", "by first"))
    first = None
    for python in chosen.python:
        numbers = ("--backlog", chosen.backlog, "--others", chosen.others, "--rate", chosen.rate)
        options = ("--measure", *map(str, numbers))
        command = [str(python), str(Path(__file__).resolve()), *options]
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        waits = sorted(json.loads(text.splitlines()[-1]))
        median, p99 = statistics.median(waits), waits[int(0.99 * len(waits))]
        first = first or median
        print(
            LINE.format(
                str(python)[-50:], chosen.backlog, len(waits),
                f"{median:.2f}", f"{p99:.2f}", f"{median / first:.4f}",
            ),
            flush=True,
        )  # fmt: skip


def measured(backlog: int, others: int, rate: int) -> list[float]:
    """The seconds from the service's queue to the first attempt, for a message of each other id."""
    sys.path.insert(0, str(ROOT / "tests"))
    import trio  # noqa: PLC0415  # only here, as are the parts of the tests

    from deliveryd.journal.sqlite.journal import open_journal_file  # noqa: PLC0415
    from support.messages import message  # noqa: PLC0415
    from support.virtual import START, VirtualWorld, live  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        world = VirtualWorld(Path(folder))
        world.add(CONFIG.replace("RATE", str(rate)))
        settings = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})
        world.service.settings.update(dict.fromkeys(range(1, others + 2), settings))

        async def create() -> None:
            async with open_journal_file(Path(folder) / "journal.db"):
                pass

        trio.run(create)
        with closing(sqlite3.connect(Path(folder) / "journal.db")) as db, db:
            until = START + 3_600_000_000
            db.executemany(INSERT, ((id_, START, until) for id_ in range(1, backlog + 1)))
        came: dict[int, float] = {}
        sent: dict[int, float] = {}

        async def run() -> None:
            channel = world.channels["sms"]
            async with world.at_work():
                await trio.sleep(5)
                for number in range(others):
                    id_ = BEHIND + number
                    came[id_] = trio.current_time()
                    world.service.enqueue(message(id_, number + 2))
                    await trio.sleep(OVER / others)
                while len(sent) < others:
                    await trio.sleep(1)
                    sent.update((each.entry.id, at) for at, each in channel.attempts if each.entry.id in came)
                    channel.attempts.clear()

        live(run)
    return [sent[id_] - at for id_, at in came.items()]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python", nargs="*", type=Path, default=[Path(sys.executable)], help="of each venv")
    parser.add_argument("--backlog", type=int, default=500_000)
    parser.add_argument("--others", type=int, default=999)
    parser.add_argument("--rate", type=int, default=1000, help="of the provider, for each second")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
