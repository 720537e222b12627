"""Real lives of a worker whose disk fails: strace answers a call with an error, as a kernel would."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from power.recording import Recording, Studio
from power.tracing import Sent, Step, Synced, Wrote
from support.messages import message
from support.patience import PATIENCE

MESSAGES = range(1, 13)


class Failure(NamedTuple):
    """What became of a worker whose disk failed: its exit status (None: it went on), its steps, its log."""

    status: int | None
    steps: Sequence[Step]
    said: str

    @property
    def failed(self) -> str | None:
        """The file whose sync failed; None where nothing came of it."""
        return next((step.path for step in self.steps if isinstance(step, Synced) and not step.ok), None)

    @property
    def failures(self) -> int:
        """How many syncs failed: strace lets one fail in each thread that makes so many calls."""
        return sum(isinstance(step, Synced) and not step.ok for step in self.steps)

    @property
    def repeated(self) -> int:
        """How often a sync that had failed was asked for again."""
        later = False
        count = 0
        for step in self.steps:
            if isinstance(step, Synced) and step.path == self.failed:
                count += later
                later = later or not step.ok
        return count


class Calls(NamedTuple):
    """How many calls of each kind the journal's thread has made."""

    syncs: int
    writes: int


def until_first_told(recording: Recording) -> Calls:
    """The calls of a life from an empty folder, up to the sync before it tells of its first batch."""
    told = next(
        number
        for number, step in enumerate(recording.steps)
        if isinstance(step, Sent) and step.data.startswith(b"POST /events ")
    )
    before = [step for step in recording.steps[:told] if recording.is_of_disk(step)]
    syncs = sum(isinstance(step, Synced) and step.call == "fdatasync" for step in before)
    writes = sum(
        isinstance(step, Wrote) and not step.path.endswith((".lock", ".worker", "-shm")) for step in before
    )
    return Calls(syncs, writes)


def fail(studio: Studio, inject: str) -> Failure:
    """One life, in which one of the calls of the worker fails."""
    state = studio.world.state
    before = len(studio.steps)
    studio.world.change('cache_dir = "cache"', 'cache_dir = "config.toml"')  # only the journal has a disk
    state.enqueue(*(message(id_) for id_ in MESSAGES))
    with studio.worker("-e", f"inject={inject}") as worker:
        deadline = time.monotonic() + PATIENCE
        while worker.poll() is None and not studio.have_ended(*MESSAGES) and time.monotonic() < deadline:
            with state.changed:
                state.changed.wait(0.05)
        status = worker.poll()
    return Failure(status, studio.steps[before:], studio.log())


def go_on(studio: Studio) -> Recording:
    """The life after that: everything that is open comes to its end."""
    with studio.worker():
        studio.world.state.enqueue(*(message(id_) for id_ in MESSAGES), message(99))
        studio.wait_for_ends(*MESSAGES, 99)
    return studio.recording()
