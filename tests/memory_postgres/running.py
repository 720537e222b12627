"""Runs statements: what they see, the rows that they lock, add and change, and for whom they wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from psycopg import errors

from memory_postgres.versions import NEVER, NO_KEY_UPDATE, UPDATE, Snapshot, Transaction, Version

if TYPE_CHECKING:
    from memory_postgres.sessions import Session
    from memory_postgres.tables import Table

Conflict = None | str | Callable[[tuple[Any, ...], Sequence[Any]], Sequence[Any] | None]


class Run:
    """One statement of a transaction."""

    def __init__(self, session: Session, transaction: Transaction, snapshot: Snapshot) -> None:
        self._session = session
        self._database = session.database
        self.tables = session.database.tables
        self.transaction = transaction
        self.snapshot = snapshot
        self._began_at = session.database.clock()

    # rows

    def lock(self, version: Version, strength: int, skips: bool) -> Version | None:
        """Lock a row, once nobody else has it; return its latest version, None if it is gone or left out."""
        me = self.transaction
        while True:
            ended = version.ended
            if ended is me:
                return None  # this statement changed it already
            if ended is not None and ended.number != NEVER:
                latest = self._after(version)
                if latest is None:
                    return None
                version = latest
                continue
            holders = self._in_the_way(version, strength)
            if not holders:
                break
            if skips:
                return None
            self._session.wait_for(holders)
        self._note(version, strength)
        return version

    def _after(self, version: Version) -> Version | None:
        """What another one made of a row meanwhile."""
        if self._session.is_repeatable:
            raise errors.SerializationFailure("could not serialize access due to concurrent update")
        if version.moved:
            raise errors.SerializationFailure(
                "tuple to be locked was already moved to another partition due to concurrent update"
            )
        return version.next

    def _in_the_way(self, version: Version, strength: int) -> list[Transaction]:
        """Who holds a row more strongly than goes together with this."""
        found = []
        if version.ended is not None and version.strength + strength >= UPDATE:
            found.append(version.ended)
        if version.lockers:
            found += [
                each
                for each, theirs in version.lockers.items()
                if each is not self.transaction and theirs + strength >= UPDATE
            ]
        return found

    def _note(self, version: Version, strength: int) -> None:
        self._database.begin_writing(self.transaction)
        if version.lockers is None:
            version.lockers = {}
        theirs = version.lockers.get(self.transaction)
        if theirs is None:
            self.transaction.locked.append(version)
        version.lockers[self.transaction] = strength if theirs is None else max(theirs, strength)

    @staticmethod
    def strength(table: Table, old: Sequence[Any], new: Sequence[Any]) -> int:
        """How strongly a row has to be locked for a change."""
        key = table.definition.key
        return NO_KEY_UPDATE if all(old[place] == new[place] for place in key) else UPDATE

    def update(self, table: Table, version: Version, row: list[Any], places: Iterable[int]) -> Version:
        """Make a new version of a row that is locked."""
        definition = table.definition
        definition.check(row, places)
        self._check_partition(table, row)
        day = definition.partitioned_by
        moved = day is not None and row[day] != version.row[day]
        strength = self.strength(table, version.row, row)
        self._end(table, version, strength)
        if strength == UPDATE and self._conflicting(table, row) is not None:
            raise self._not_unique(table, row)
        made = self._add(table, row)
        version.moved = moved
        if not moved:
            version.next = made
            made.lockers = version.lockers
        return made

    def delete(self, table: Table, version: Version) -> None:
        """End a row that is locked."""
        self._end(table, version, UPDATE)

    def _end(self, table: Table, version: Version, strength: int) -> None:
        version.ended = self.transaction
        version.ended_in = self.snapshot.command
        version.strength = strength
        self.transaction.undo.append(("end", table, version))

    def _add(self, table: Table, row: Sequence[Any]) -> Version:
        self._database.begin_writing(self.transaction)
        made = Version(tuple(row), self.transaction, self.snapshot.command)
        table.add(made)
        self.transaction.undo.append(("add", table, made))
        return made

    def insert(self, table: Table, row: list[Any], conflict: Conflict) -> Version | None:
        """Add a row, or do what is to be done where it is there already."""
        definition = table.definition
        definition.check(row, range(len(row)))
        while True:
            self._check_partition(table, row)
            there = self._conflicting(table, row)
            if there is None:
                return self._add(table, row)
            if conflict is None:
                raise self._not_unique(table, row)
            if not callable(conflict):
                return None
            if there.begun is self.transaction and there.begun_in == self.snapshot.command:
                raise errors.CardinalityViolation(
                    "ON CONFLICT DO UPDATE command cannot affect row a second time"
                )
            locked = self.lock(there, NO_KEY_UPDATE, skips=False)
            if locked is not there:
                continue
            new = conflict(locked.row, row)
            if new is None:
                return None
            changed = [place for place, value in enumerate(new) if value is not locked.row[place]]
            return self.update(table, locked, list(new), changed)

    def _conflicting(self, table: Table, row: Sequence[Any]) -> Version | None:
        """The row that has the key of this one already, once that is certain."""
        while True:
            for version in table.same_key(row):
                begun, ended = version.begun, version.ended
                if begun is not self.transaction and begun.number == NEVER:
                    self._session.wait_for([begun])
                    break
                if ended is None:
                    return version
                if ended is not self.transaction and ended.number == NEVER:
                    self._session.wait_for([ended])
                    break
            else:
                return None

    def _check_partition(self, table: Table, row: Sequence[Any]) -> None:
        definition = table.definition
        if definition.partitioned_by is None:
            return
        day = row[definition.partitioned_by]
        if day not in self._session.days(definition.name):
            raise errors.CheckViolation(f'no partition of relation "{definition.name}" found for row')

    @staticmethod
    def _not_unique(table: Table, row: Sequence[Any]) -> errors.UniqueViolation:
        key = ", ".join(str(row[place]) for place in table.definition.key)
        return errors.UniqueViolation(
            f'duplicate key value violates unique constraint "{table.definition.name}_pkey": {key}'
        )

    def day_of(self, name: str) -> int:
        """The day of a partition that is there. Raises UndefinedTable."""
        table, day = self._database.days.get(name, ("", 0))
        if not table or day not in self._session.days(table):
            raise errors.UndefinedTable(f'relation "{name}" does not exist')
        return day

    # functions that know of the transaction

    def nextval(self, sequence: str) -> int:
        """The next number of a sequence."""
        return self._database.nextval(sequence)

    def clock_timestamp(self) -> int:
        """Now."""
        return self._database.clock()

    def statement_timestamp(self) -> int:
        """When the statement began."""
        return self._began_at

    def pg_current_snapshot(self) -> int:
        """Stands for its lower bound."""
        return self.snapshot.xmin

    def pg_snapshot_xmin(self, snapshot: int) -> int:
        """The transactions with lower numbers are over."""
        return snapshot

    def pg_current_xact_id(self) -> int:
        """The number of this transaction."""
        return self._database.begin_writing(self.transaction)

    def pg_advisory_xact_lock(self, key: int) -> str:
        """Lock until the transaction ends."""
        self._session.hold(self.transaction, key, UPDATE)
        return ""

    def pg_advisory_xact_lock_shared(self, key: int) -> str:
        """The same, beside others that share it."""
        self._session.hold(self.transaction, key, 0)
        return ""

    def pg_try_advisory_xact_lock(self, key: int) -> bool:
        """The same, unless it is held."""
        return self._session.hold(self.transaction, key, UPDATE, waits=False)

    def pg_advisory_lock(self, key: int) -> str:
        """Lock until the connection is closed."""
        self._session.hold(self._session.lasting, key, UPDATE)
        return ""

    def pg_blocking_pids(self, pid: int) -> list[int]:
        """For which sessions one waits."""
        return self._session.blocking(pid)

    def pg_terminate_backend(self, pid: int) -> bool:
        """End a session."""
        return self._session.terminate(pid)

    def to_regclass(self, name: str) -> str | None:
        """The name of a table that is there."""
        made_by = self._database.made_by
        is_there = made_by is self.transaction or made_by.number != NEVER
        return name if is_there and name in self._database.definitions else None
