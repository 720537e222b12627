"""What may need an operator: messages in doubt, dead letters, unconfirmed messages, what an audit finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from deliveryd.journal.base import Account
from deliveryd.journal.orders import ItemKind
from deliveryd.states import State

SHOWN = 20
"""Ids that are listed for each violated check."""


class LostBatches(NamedTuple):
    """Batches of the queue that may be lost: their number, and when the last one was requested."""

    batches: int
    last_at: int | None


class AuditFinding(NamedTuple):
    """A violated check: the number of messages, and the first of their ids."""

    check: str
    messages: int
    ids: tuple[int, ...]


class Audit(NamedTuple):
    """Counts of everything in a journal, and the violated checks of `checks`; `ids_kept` counts tombstones.

    `lost` counts batches of the queue that were received incompletely: the rest of them was never recorded.
    """

    account: Account
    states: Mapping[State, int]
    ids_kept: int
    events_waiting: int
    events_refused: int
    lost: LostBatches
    findings: tuple[AuditFinding, ...]
    checks: int

    @property
    def gap(self) -> int:
        """The number of missing messages."""
        return self.account.taken - sum(self.states.values()) - self.ids_kept - self.account.forgotten

    @property
    def is_balanced(self) -> bool:
        """Whether no message is missing and no check is violated."""
        return not self.gap and not self.account.gap and not self.findings


DEAD_KINDS = (ItemKind.EVENT, ItemKind.MESSAGE, ItemKind.MALFORMED, ItemKind.RECEIPT, ItemKind.REPORT)
"""The kinds of dead letters.

A refused event, a message whose `dequeued` was refused, a malformed element of the queue, an unmatched
receipt, and a report that can't be read.
"""


class InDoubtMessage(NamedTuple):
    """A message that is held because the outcome of a try is unknown; `since` is when that was found.

    `tries` counts those under its key. `provider_id` is the provider's id of it, if it gave one.
    """

    message_id: int
    key: str
    provider: str
    tries: int
    since: int
    reason: str | None
    provider_id: str | None = None


class DeadLetter(NamedTuple):
    """Something that needs a decision to continue; `at` is when it was set aside or last seen.

    `message_id` is the id as the service has it.
    """

    kind: ItemKind
    key: str
    message_id: int | None
    at: int
    what: str
    reason: str


class OverdueMessage(NamedTuple):
    """A message that a provider accepted and never confirmed. `provider_id` is its id there, if known."""

    message_id: int
    provider: str
    provider_id: str | None
    sent_at: int


class LeftBehind(NamedTuple):
    """The messages of a provider that isn't configured: how many wait for it, are in doubt, or unconfirmed.

    At the next start those that wait go to another provider, those in doubt are held, and those whose
    receipt deadline hasn't passed stay sent without one.
    """

    provider: str
    waiting: int = 0
    in_doubt: int = 0
    unconfirmed: int = 0
