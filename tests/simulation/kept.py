"""The journal of a run, as the stage has it: how workers open it, and what is committed in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from deliveryd.journal.journal import Journal
from deliveryd.journal.opening import JournalTerms
from deliveryd.journal.orders import ItemKind
from deliveryd.journal.place import JournalPlace
from deliveryd.journal.reader import Reader
from deliveryd.model import message_key
from deliveryd.runtime.threads import Blocking
from simulation.disk import Disk
from simulation.plan import Plan


class Row(NamedTuple):
    """A message in the journal at the end; `state` is the name that the table of states gives it."""

    id: int
    state: int
    provider: str | None


class Letter(NamedTuple):
    """Something that lies aside; `message_id` None: it belongs to no message."""

    key: str
    message_id: int | None


class Intent(NamedTuple):
    """A message that is being sent: what makes its idempotency key."""

    namespace: str
    generation: int

    def key(self, message_id: int, provider: str) -> str:
        """The idempotency key of the message there."""
        return message_key(self.namespace, message_id, provider, self.generation)


class Audited(NamedTuple):
    """What an audit found: a sentence for each contradiction, and how many batches may be lost."""

    complaints: Sequence[str]
    batches_lost: int


def audited(reader: Reader) -> Audited:
    """What an audit finds in a journal."""
    found = reader.audit()
    complaints = [f"audit: {finding.check}: {list(finding.ids)}" for finding in found.findings]
    if not found.is_balanced and not complaints:
        complaints.append(f"audit: {found.gap} messages are missing")
    return Audited(complaints, found.lost.batches)


class KeptJournal(Protocol):
    """The journal that all lives of a run share; all reads see what is committed, beside the workers."""

    is_shared: bool
    """Whether what a dead worker had stays its own until its lease is over."""

    @property
    def place(self) -> JournalPlace:
        """Where it is."""

    @property
    def disk(self) -> Disk:
        """What it lies on."""

    def worked_with(self) -> AbstractContextManager[None]:
        """While it lasts, workers that are put together open this journal."""

    def joined(self, terms: JournalTerms, blocking: Blocking) -> AbstractAsyncContextManager[Journal]:
        """Open it as a worker does."""

    def at_rest(self) -> AbstractAsyncContextManager[Journal]:
        """Open it as a command does that finds no worker."""

    def end_leases(self, at: int) -> None:
        """End what dead workers have of it."""

    def reader(self) -> Reader:
        """What commands read it with."""

    def rows(self) -> Mapping[int, Row]:
        """All messages that aren't pruned, by their ids."""

    def pruned(self) -> frozenset[int]:
        """Messages of which only a tombstone is left."""

    def forgotten(self) -> frozenset[int]:
        """Those of which only is known how often they began."""

    def malformed(self) -> frozenset[str]:
        """The elements of the queue that are no messages, as they came."""

    def intents(self, message_id: int, provider: str) -> Sequence[Intent]:
        """The intent to send a message to a provider, if it is being sent there."""

    def in_line(self) -> int:
        """How many messages are taken, ready, or being sent."""

    def has_deadlines(self) -> bool:
        """Whether a message that was sent waits for its receipt deadline."""

    def has_mail(self) -> bool:
        """Whether something waits for the worker that has, or takes over, the log that it is about."""

    def has_logs_of_others(self) -> bool:
        """Whether an earlier worker that crashed has a log until its lease is over."""

    def held_in_doubt(self) -> Sequence[int]:
        """The messages that an operator has to decide about."""

    def dead_letters(self, kind: ItemKind) -> Sequence[Letter]:
        """What else of a kind needs an operator's decision."""

    def provider_ids(self, receipts: Collection[str]) -> Sequence[str]:
        """The providers' ids that unmatched receipts name, by the keys of their letters."""

    def audit(self) -> Audited:
        """Look for contradictions."""

    def close(self) -> None:
        """Look no more."""


class KeepsJournals(Protocol):
    """Makes the empty journal of a run."""

    def __call__(self, plan: Plan, folder: Path, /) -> KeptJournal:
        """Make it; the folder is the run's own."""
