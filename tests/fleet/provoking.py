"""What leads a worker to a boundary that steady load alone doesn't lead to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from deliveryd.sandbox.faults import ApplyThenDelay
from deliveryd.states import State
from fleet.boundaries import KEPT, Beside, change_name, commit_name
from fleet.stage import CUSTOMERS, Fleet, FleetWorker

Provocation = Callable[[Fleet, FleetWorker, FleetWorker], None]
"""Called with the worker that shall come to a boundary, and with the other one."""

_EVERY = 0.2
_BATCH = 4
"""Messages that come every `_EVERY` seconds: enough for every step, few enough for the stand-ins."""

_DELAY = 0.5
"""Seconds of delayed answers: as long as between two looks into the database."""

_SPECIAL: Mapping[int, str] = {
    10: "+15550101",  # refused the first two times
    20: "+15550103",  # accepted, and later reported as failed
    30: "+15550107",  # reported twice
    40: "+15550102",  # not answered the first time
    50: "+15550100",  # refused for good
}
"""Customers at whose addresses something goes wrong."""

_HAS = """
SELECT EXISTS (
    SELECT 1 FROM main.message m JOIN main.log l ON l.number = m.log JOIN main.worker w ON w.id = l.holder
    WHERE w.name = %s AND m.state = %s)
"""
"""Whether a worker has messages in a state."""


def mix_recipients(worker: FleetWorker) -> None:
    """Let some of the customers have addresses at which something goes wrong."""
    numbers = {id_: f"+4477009{id_:05}" for id_ in range(1, CUSTOMERS + 1)} | dict(_SPECIAL)
    lines = [json.dumps({"id": id_, "name": "Ann", "phone": phone}) for id_, phone in numbers.items()]
    worker.folder.joinpath("customers.jsonl").write_text("\n".join(lines), encoding="utf-8")


@contextmanager
def steady_load(fleet: Fleet) -> Iterator[None]:
    """Have messages come, a few at a time."""
    ends = threading.Event()

    def feed() -> None:
        while not ends.wait(_EVERY):
            fleet.enqueue(_BATCH)

    feeding = threading.Thread(target=feed, daemon=True)
    feeding.start()
    try:
        yield
    finally:
        ends.set()
        feeding.join()


def start_anew(_fleet: Fleet, worker: FleetWorker, _other: FleetWorker) -> None:
    """Kill the process: the next one passes what belongs to a start."""
    worker.signal(signal.SIGKILL)


def end(_fleet: Fleet, worker: FleetWorker, _other: FleetWorker) -> None:
    """End the process in order."""
    worker.signal(signal.SIGTERM)


def bereave(_fleet: Fleet, _worker: FleetWorker, other: FleetWorker) -> None:
    """Kill the other one: it is fenced, and what it had is adopted."""
    other.signal(signal.SIGKILL)


def pause(_fleet: Fleet, worker: FleetWorker, _other: FleetWorker) -> None:
    """Pause the channel for two seconds, by a command that nobody waits for."""
    command = [sys.executable, "-m", "deliveryd", "pause", "channel", "sms", "--for", "2s",
        "--config", str(worker.folder / "config.toml")]  # fmt: skip
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
    threading.Thread(target=process.wait, daemon=True).start()


def delay_answers(fleet: Fleet, _worker: FleetWorker, _other: FleetWorker) -> None:
    """Have the provider answer after its receipts."""
    fleet.state.fail("provider.sms", *[ApplyThenDelay(_DELAY)] * 40)


def bereave_of_work(fleet: Fleet, worker: FleetWorker, other: FleetWorker) -> None:
    """Kill the other one in the middle of an attempt: something is left to adopt."""
    fleet.state.fail_until_healed("provider.sms", ApplyThenDelay(_DELAY))
    try:
        fleet.wait_until(_HAS, other.name, int(State.SENDING))
    finally:
        fleet.state.heal("provider.sms")
    bereave(fleet, worker, other)


BY_EITHER = frozenset(map(commit_name, (*Beside, "end_pauses")))
"""What either of the workers does: who is the first to, or the oldest."""

PROVOCATIONS: Mapping[str, Provocation] = {
    **dict.fromkeys(
        map(commit_name, ("begin_work", "recover", "stopped", "retime", "overdue", "resume")),
        start_anew,
    ),
    commit_name(KEPT): delay_answers,
    "Recorder.recover": start_anew,
    commit_name("release_lease"): end,
    **dict.fromkeys(map(commit_name, (Beside.FENCE, Beside.GIVE_BACK_LOG)), bereave),
    **dict.fromkeys(map(commit_name, (Beside.MATCH_AGAIN,)), delay_answers),
    commit_name(Beside.TAKE_OVER): bereave_of_work,
    **dict.fromkeys(map(commit_name, ("decide", "end_pauses", "park", "wake")), pause),
    commit_name(change_name(State.READY, State.WAITING)): pause,
}
"""By the boundary, without its side."""
