"""What names mean in a statement that is turned into Python, and the Python that there is of it so far."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from psycopg import errors

from memory_postgres.syntax import Column
from memory_postgres.tables import Definition

_PARTITION = re.compile(r"(\w+?)_(\d+)")


@dataclass
class Binding:
    """A source of rows within a query: a tuple in `var`, the version that it is of in `version`."""

    alias: str
    var: str
    columns: Sequence[str]
    required: Sequence[bool]
    version: str | None = None
    table: str | None = None


@dataclass
class Scope:
    """The sources that expressions of a query see. `used` are the variables that they asked for."""

    parent: Scope | None
    bindings: list[Binding] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    group: str | None = None
    """The Python of a loop over the rows of a group, where aggregates may stand."""

    def find(self, column: Column) -> tuple[Binding, int]:
        """The source of a column and its place. Raises what the server raises for an unknown one."""
        scope: Scope | None = self
        while scope is not None:
            for binding in scope.bindings:
                if column.table in (None, binding.alias) and column.name in binding.columns:
                    self._note(binding.var, scope)
                    return binding, list(binding.columns).index(column.name)
            scope = scope.parent
        raise errors.UndefinedColumn(f"column {column} doesn't exist")

    def version(self, column: Column) -> str | None:
        """The variable of the version that `ctid` means, or that a table's own name does."""
        for binding in self.bindings:
            if (
                binding.version is not None
                and column.name == "ctid"
                and column.table in (None, binding.alias)
            ):
                self.used |= {binding.var, binding.version}
                return binding.version
        return None

    def ask(self, var: str) -> None:
        """Note that a variable is asked for, of this scope or of one around it."""
        owner: Scope | None = self
        while owner is not None and var not in owner.own:
            owner = owner.parent
        if owner is not None:
            self._note(var, owner)

    def _note(self, var: str, owner: Scope) -> None:
        scope: Scope | None = self
        while scope is not None:
            scope.used.add(var)
            if scope is owner:
                break
            scope = scope.parent

    @property
    def own(self) -> frozenset[str]:
        """The variables of its own sources."""
        return frozenset(
            name for each in self.bindings for name in (each.var, each.version) if name is not None
        )

    @contextmanager
    def noting(self) -> Iterator[set[str]]:
        """Tell which variables are asked for while it lasts."""
        before, self.used = self.used, set()
        try:
            yield self.used
        finally:
            self.used |= before


class Writer:
    """Lines of Python, each as far to the right as it belongs."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1

    def add(self, line: str) -> None:
        """One more line."""
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """What belongs under a head."""
        self.add(head)
        self.depth += 1
        yield
        self.depth -= 1


class Unit:
    """A statement: functions for the parts of it, the tables that it touches, and what else it refers to."""

    def __init__(self, tables: Mapping[str, Definition]) -> None:
        self._tables = tables
        self._numbers = count()
        self.functions: list[str] = []
        self.names: dict[str, Any] = {}
        self.touched: dict[str, str] = {}
        self.partitions: dict[str, str] = {}
        """The partitions that are named, with the Python of their days."""
        self.ctes: dict[str, Sequence[str]] = {}
        self.writes = False
        self.calls: dict[tuple[int, int, str], tuple[str, list[str], object]] = {}
        """Queries that are functions already, by where they stand and what is wanted of them."""

    def new(self, prefix: str) -> str:
        """A name that nothing has yet."""
        return f"{prefix}{next(self._numbers)}"

    def constant(self, value: Any) -> str:
        """A name for a value."""
        name = self.new("k")
        self.names[name] = value
        return name

    def table(self, name: str) -> tuple[str, Definition, str | None]:
        """The Python of a table, its definition, and the day of which only the partition is meant."""
        day = None
        if name not in self._tables and (match := _PARTITION.fullmatch(name)) is not None:
            day = self.partitions.setdefault(name, f"D_{name}")
            name = match[1]
        if name not in self._tables:
            raise errors.UndefinedTable(f'relation "{name}" does not exist')
        self.touched.setdefault(name, f"T_{name}")
        return self.touched[name], self._tables[name], day
