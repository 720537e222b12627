"""What the service, the providers and an operator saw: lines that are only ever added to a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Began(NamedTuple):
    """A worker is about to be started: what follows was seen in this life, the first one is 1."""

    life: int


class Ended(NamedTuple):
    """The worker ended, or was ended by a signal when `status` is negative."""

    life: int
    status: int


class Stood(NamedTuple):
    """The worker stood still, by SIGSTOP, for longer than its patience, and goes on now."""

    life: int


class Handed(NamedTuple):
    """The queue put this element into an answer."""

    id: int | None


class Told(NamedTuple):
    """The service accepted this event, and answered; `lost`: the answer was lost on purpose."""

    event: Mapping[str, Any]
    lost: bool

    @property
    def id(self) -> int:
        """The message it is about."""
        return int(self.event["messageId"])

    @property
    def status(self) -> str:
        """What it says."""
        return str(self.event["status"])

    @property
    def body(self) -> str:
        """All of it, to tell a repeat from another event."""
        return json.dumps(self.event, sort_keys=True)


class Refused(NamedTuple):
    """The service refused a batch of events."""

    reason: str


class Asked(NamedTuple):
    """A provider was asked to take a message, and what it answered.

    `intents`: how many tries under this key had been committed to the journal's file at that moment; 0: none,
    or the outcome of the latest is known. `lost`: the answer was lost on purpose. `unreadable`: though a part
    of it came.
    """

    id: int
    channel: str
    key: str
    status: int
    intents: int
    lost: bool
    unreadable: bool = False


class Taken(NamedTuple):
    """A provider took a message; `again`: it had it already, by its idempotency key."""

    id: int
    channel: str
    key: str
    provider_id: str
    again: bool


class Reported(NamedTuple):
    """A provider reported that a message was delivered, and what it was answered."""

    id: int
    answered: int | None


class Ordered(NamedTuple):
    """An operator asked for a message in doubt to be sent again."""

    id: int


class Torn(NamedTuple):
    """An answer of the queue was broken off."""

    how: str


Record = Began | Ended | Stood | Handed | Told | Refused | Asked | Taken | Reported | Ordered | Torn

KINDS: Mapping[str, type[Record]] = {
    kind.__name__: kind
    for kind in (Began, Ended, Stood, Handed, Told, Refused, Asked, Taken, Reported, Ordered, Torn)
}


class LedgerWriter:
    """Adds lines to a ledger; several processes may, since each line is one write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def add(self, record: Record) -> None:
        """Add a record."""
        os.write(self._file, json.dumps([type(record).__name__, *record]).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_ledger(path: Path) -> Iterator[Record]:
    """All records, the oldest first."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            kind, *fields = json.loads(line)
            yield KINDS[kind](*fields)
