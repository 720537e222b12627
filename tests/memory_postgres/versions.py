"""Rows in their versions, and the transactions that make and end them."""

from __future__ import annotations

import math
from typing import Any

NEVER = math.inf
"""The number of a commit that didn't take place."""

KEY_SHARE, SHARE, NO_KEY_UPDATE, UPDATE = range(4)
"""How strong a row's lock is. Two of them exclude each other if they come to 3 together."""


class Transaction:
    """A transaction, from its first statement to its end, and the locks that it holds."""

    __slots__ = (
        "began_at", "ended", "held", "is_over", "locked", "number", "session", "undo", "waits_for", "xid",
    )  # fmt: skip

    def __init__(self, session: Any, number: float = NEVER, began_at: int = 0) -> None:
        self.session = session
        self.number = number  # of its commit, in the order of all
        self.is_over = False
        self.xid: int | None = None
        self.began_at = began_at
        self.waits_for: frozenset[Transaction] = frozenset()
        self.undo: list[tuple[str, Any, Version]] = []
        self.ended: list[tuple[Any, Version]] = []
        self.locked: list[Version] = []
        self.held: list[dict[Transaction, int]] = []


class Version:
    """One version of a row.

    `begun` and `ended` are the transactions, `begun_in` and `ended_in` their commands. `strength` is that of
    the lock which its end is; `next` the version that follows; `moved`: that one is in another partition.
    """

    __slots__ = ("begun", "begun_in", "ended", "ended_in", "lockers", "moved", "next", "row", "strength")

    def __init__(self, row: tuple[Any, ...], begun: Transaction, begun_in: int) -> None:
        self.row = row
        self.begun = begun
        self.begun_in = begun_in
        self.ended: Transaction | None = None
        self.ended_in = 0
        self.strength = 0
        self.next: Version | None = None
        self.moved = False
        self.lockers: dict[Transaction, int] | None = None


class Snapshot:
    """What a statement sees: commits up to a number, and earlier commands of its own transaction."""

    __slots__ = ("command", "number", "transaction", "xmin")

    def __init__(self, number: float, transaction: Transaction, command: int, xmin: int) -> None:
        self.number = number
        self.transaction = transaction
        self.command = command
        self.xmin = xmin

    def sees(self, version: Version) -> bool:
        """Whether a version is there."""
        begun = version.begun
        if begun is self.transaction:
            if version.begun_in >= self.command:
                return False
        elif begun.number > self.number:
            return False
        ended = version.ended
        if ended is None:
            return True
        if ended is self.transaction:
            return version.ended_in >= self.command
        return ended.number > self.number
