"""What an audit of a whole journal finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from deliveryd.journal.base import Account
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
