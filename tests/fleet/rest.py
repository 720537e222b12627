"""The end of a run: the fleet comes to rest, and service, providers and database have to agree."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.reading import database_reader
from fleet.oracle import NOTHING, Lost, all_is_told, came_elsewhere, judge
from fleet.stage import LOOK, Fleet

PATIENCE = 180.0


class Rest(NamedTuple):
    """What a run came to. `repeats`: how often a message was sent once more, under its key.

    `elsewhere`: messages whose receipts came to another worker than the one that sent them.
    """

    messages: int
    repeats: int
    elsewhere: int
    violations: Sequence[str]

    @property
    def summary(self) -> str:
        """The same in a line."""
        return (
            f"{self.messages} messages, {self.repeats} repeated under their keys, receipts of"
            f" {self.elsewhere} at another worker than the sender, {len(self.violations)} violations"
        )


def come_to_rest(fleet: Fleet, lost: Lost = NOTHING) -> Rest:
    """Wait until all is told, end the workers, and judge."""
    seen = threading.Event()
    for _ in range(int(PATIENCE / LOOK)):  # where it isn't so in time, that is judged below
        if all_is_told(fleet.state, fleet.enqueued, lost):
            break
        seen.wait(LOOK)
    verdict = judge(fleet.state, fleet.enqueued, lost)
    with suppress(TimeoutError):  # a process that has hardly begun has no order to end in
        fleet.await_ready()
    statuses = fleet.close()
    violations = [*_explained(fleet, verdict.violations), *_audited(fleet)]
    violations += [f"a worker ended with status {status}" for status in statuses if status]
    elsewhere = came_elsewhere(fleet.state, [worker.backend.receipts for worker in fleet.workers])
    return Rest(fleet.enqueued, verdict.repeats, elsewhere, violations)


def _explained(fleet: Fleet, violations: Mapping[int, Sequence[str]]) -> Iterator[str]:
    """Violations, with all that the journal holds of their messages."""
    for life in database_reader(JournalDatabase(fleet.url)).lives(violations):
        yield f"message {life.id} {'; '.join(violations[life.id])}: {life}"


def _audited(fleet: Fleet) -> Sequence[str]:
    """What the audit of the database says."""
    audit = database_reader(JournalDatabase(fleet.url)).audit()
    violations = [f"audit: {each.check}: {each.messages} ({each.ids})" for each in audit.findings]
    if audit.gap or audit.account.gap:
        violations.append(f"the account has a gap of {audit.gap or audit.account.gap}")
    return violations
