"""What a statement of SQL says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, Union


@dataclass(frozen=True, slots=True)
class Const:
    """A value that the text has."""

    value: object


@dataclass(frozen=True, slots=True)
class Param:
    """A value that comes with the statement, by its place or its name."""

    key: int | str


@dataclass(frozen=True, slots=True)
class Column:
    """A column, of a table that is named or the only one that has it; or a whole row."""

    table: str | None
    name: str


@dataclass(frozen=True, slots=True)
class Star:
    """All columns, of one table or of all."""

    table: str | None


@dataclass(frozen=True, slots=True)
class Op:
    """An operator between one or two values."""

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Is:
    """IS NULL, IS TRUE, IS FALSE, and their opposites."""

    what: str
    arg: Expr
    negated: bool


@dataclass(frozen=True, slots=True)
class Distinct:
    """IS DISTINCT FROM, and its opposite."""

    left: Expr
    right: Expr
    negated: bool


@dataclass(frozen=True, slots=True)
class Cast:
    """A value as one of another type."""

    arg: Expr
    type: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function, or an aggregate with its terms."""

    name: str
    args: tuple[Expr, ...]
    distinct: bool = False
    order: tuple[Order, ...] = ()
    filter: Expr | None = None
    over: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """CASE; `arg` is what all of its conditions are compared with, if there is one."""

    arg: Expr | None
    whens: tuple[tuple[Expr, Expr], ...]
    default: Expr


@dataclass(frozen=True, slots=True)
class In:
    """IN a list or a query."""

    arg: Expr
    items: tuple[Expr, ...] | Query
    negated: bool


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A comparison with any, or with all, of an array."""

    arg: Expr
    op: str
    array: Expr
    all: bool


@dataclass(frozen=True, slots=True)
class Row:
    """Several values in one."""

    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """An array of values, or of what a query returns."""

    items: tuple[Expr, ...] | Query


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether a query returns anything."""

    query: Query


@dataclass(frozen=True, slots=True)
class Scalar:
    """The one value that a query returns."""

    query: Query


Expr: TypeAlias = Union[
    "Const", "Param", "Column", "Star", "Op", "Is", "Distinct", "Cast", "Call", "Case", "In", "AnyOf", "Row",
    "Array", "Exists", "Scalar",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Order:
    """By what something is put in order."""

    by: Expr
    descends: bool


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from: a table by its name, a query, or a function. `join`: comma, inner or left."""

    alias: str
    columns: tuple[str, ...]
    table: str | None = None
    query: Query | None = None
    call: Call | None = None
    ordinality: bool = False
    join: str = "inner"
    on: Expr | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """What a query returns of each row."""

    value: Expr
    alias: str | None


@dataclass(frozen=True, slots=True)
class Select:
    """One SELECT; `on` are the values of DISTINCT ON."""

    items: tuple[Item, ...]
    sources: tuple[Source, ...] = ()
    where: Expr | None = None
    group: tuple[Expr, ...] = ()
    having: Expr | None = None
    distinct: bool = False
    on: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Locking:
    """FOR UPDATE and the like: how strong, of which tables, and whether locked rows are left out."""

    strength: int
    of: tuple[str, ...]
    skips: bool


@dataclass(frozen=True, slots=True)
class Query:
    """One SELECT, or several united. `alls`: for each but the first, whether it is UNION ALL."""

    parts: tuple[Select, ...]
    alls: tuple[bool, ...] = ()
    order: tuple[Order, ...] = ()
    limit: Expr | None = None
    offset: Expr | None = None
    locking: Locking | None = None
    ctes: tuple[Cte, ...] = ()


@dataclass(frozen=True, slots=True)
class Conflict:
    """ON CONFLICT; no `sets`: DO NOTHING."""

    sets: tuple[tuple[str, Expr], ...]
    where: Expr | None


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT; `rows` are those of VALUES."""

    table: str
    alias: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Expr, ...], ...]
    query: Query | None
    conflict: Conflict | None
    returning: tuple[Item, ...]
    ctes: tuple[Cte, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """UPDATE, or DELETE without `sets`."""

    table: str
    alias: str
    sets: tuple[tuple[str, Expr], ...] | None
    sources: tuple[Source, ...]
    where: Expr | None
    returning: tuple[Item, ...]
    ctes: tuple[Cte, ...] = ()


Statement: TypeAlias = Union["Query", "Insert", "Change"]


@dataclass(frozen=True, slots=True)
class Cte:
    """A statement in front of another one that reads what it returns; perhaps one that reads its own rows."""

    name: str
    statement: Statement
    columns: tuple[str, ...] = ()
    recursive: bool = False
