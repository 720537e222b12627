"""A server's databases: tables, who holds which locks, and how transactions end."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition, RLock
from typing import Any

from psycopg import errors

from memory_postgres.schema import definitions
from memory_postgres.tables import ColumnOf, Definition, Table
from memory_postgres.versions import Transaction, Version

PARTITIONS = Definition(
    "partitions",
    (ColumnOf("parent", "text", True, None), ColumnOf("day", "integer", True, None)),
    (0, 1),
    frozenset({0}),
    None,
)
_FROZEN = Transaction(None, 0)


def wall_clock() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


class Server:
    """Databases by their names, and the sessions of all. One thread at a time is at work in it."""

    def __init__(self) -> None:
        self.condition = Condition(RLock())
        self.databases: dict[str, Database] = {"postgres": Database(self)}
        self.sessions: dict[int, Any] = {}
        self._pids = 0

    def new_pid(self, session: Any) -> int:
        """Enter a session."""
        self._pids += 1
        self.sessions[self._pids] = session
        return self._pids

    def create(self, name: str, template: str | None = None) -> None:
        """Make a database, an empty one or a copy. Raises DuplicateDatabase."""
        if name in self.databases:
            raise errors.DuplicateDatabase(f'database "{name}" already exists')
        made = self.databases[name] = Database(self)
        if template is not None:
            made.copy(self.databases[template])


class Database:
    """Tables, and what is going on with them."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.clock: Callable[[], int] = wall_clock
        self.schema = ""
        self.definitions: dict[str, Definition] = {}
        self.tables: dict[str, Table] = {}
        self.made_by: Transaction = _FROZEN
        self.partitions = Table(PARTITIONS)
        self.days: dict[str, tuple[str, int]] = {}
        """The tables and days of partitions, by the names that they ever had."""
        self.sequences: dict[str, int] = {}
        self.commits = 0
        self.next_xid = 1000
        self.active: dict[int, Transaction] = {}
        """Transactions that write, by their numbers."""
        self.snapshots: dict[object, float] = {}
        """What statements see that are under way, and transactions of one snapshot."""
        self.locks: dict[Any, dict[Transaction, int]] = {}
        """Who holds which tables and advisory locks, and how strongly."""
        self._garbage: list[tuple[Table, Version]] = []

    # its schema

    def define(self, text: str, by: Transaction) -> list[str]:
        """Make all tables; return the statements that fill them."""
        tables, others = definitions(text)
        self.schema = text
        self.definitions = {each.name: each for each in tables}
        self.tables = {each.name: Table(each) for each in tables}
        self.made_by = by
        return others

    def undefine(self) -> None:
        """Have no tables, as before `define`."""
        self.schema, self.definitions, self.tables, self.made_by = "", {}, {}, _FROZEN

    def copy(self, other: Database) -> None:
        """Have all that another one has, at rest."""
        self.schema, self.definitions = other.schema, other.definitions
        self.sequences = dict(other.sequences)
        self.days = dict(other.days)
        for name, table in other.tables.items():
            self.tables[name] = Table(table.definition)
            for version in table.versions:
                if version.ended is None:
                    self.tables[name].add(Version(version.row, _FROZEN, 0))
        for version in other.partitions.versions:
            self.partitions.add(Version(version.row, _FROZEN, 0))

    def nextval(self, sequence: str) -> int:
        """The next number of a sequence; no transaction takes it back."""
        number = self.sequences[sequence] = self.sequences.get(sequence, 0) + 1
        return number

    # transactions

    def begin_writing(self, transaction: Transaction) -> int:
        """Give a transaction its number, when it first writes."""
        if transaction.xid is None:
            transaction.xid = self.next_xid
            self.next_xid += 1
            self.active[transaction.xid] = transaction
        return transaction.xid

    def commit(self, transaction: Transaction) -> None:
        """Let others see what it did, and have its locks."""
        self.commits += 1
        transaction.number = self.commits
        self._garbage += [(table, version) for kind, table, version in transaction.undo if kind == "end"]
        self._end(transaction)

    def roll_back(self, transaction: Transaction, to: int = 0) -> None:
        """Undo what it did, back to some point of it; at its beginning it is over."""
        while len(transaction.undo) > to:
            kind, table, version = transaction.undo.pop()
            if kind == "schema":
                self.undefine()
            elif kind == "add":
                if version in table.versions:
                    table.remove(version)
            else:
                version.ended = version.next = None
                version.moved = False
        if not to:
            self._end(transaction)

    def _end(self, transaction: Transaction) -> None:
        transaction.is_over = True
        for version in transaction.locked:
            assert version.lockers is not None
            version.lockers.pop(transaction, None)
        for holders in transaction.held:
            holders.pop(transaction, None)
        if transaction.xid is not None:
            del self.active[transaction.xid]
        transaction.undo, transaction.locked, transaction.held = [], [], []
        self.vacuum()
        self.server.condition.notify_all()

    def vacuum(self) -> None:
        """Forget versions that nobody can see any more."""
        if not self._garbage:
            return
        oldest = min(self.snapshots.values(), default=self.commits)
        kept = []
        for table, version in self._garbage:
            if version.ended is not None and version.ended.number <= oldest:
                table.remove(version)
            else:
                kept.append((table, version))
        self._garbage = kept
