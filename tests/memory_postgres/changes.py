"""Turns a statement into Python: what it asks or changes, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memory_postgres import values
from memory_postgres.queries import Loops, columns_of, expanded, output_name
from memory_postgres.scopes import Binding, Scope, Unit, Writer
from memory_postgres.selects import call_of
from memory_postgres.syntax import Change, Const, Cte, Insert, Item, Query, Source, Statement
from memory_postgres.tables import Definition

_NAMES = (
    "OVER all_of among any_of both compare_rows concat divide either first_of_each like negation once ordered"
    " scalar united unnest"
)
_GLOBALS = {name: getattr(values, name) for name in _NAMES.split()}


class Plan:
    """A statement as Python.

    `run` takes what runs it and its values, and returns its rows and how many it changed. `columns` None: it
    returns nothing. `touched` are its tables.
    """

    def __init__(self, statement: Statement, tables: Mapping[str, Definition]) -> None:
        unit = Unit(tables)
        unit.writes = not isinstance(statement, Query)
        body = _statement(unit, statement, statement.ctes)
        self.touched: tuple[str, ...] = tuple(unit.touched)
        self.columns = _returned(unit, statement)
        self.writes = unit.writes
        names = [f"    {python} = X.tables[{name!r}]" for name, python in unit.touched.items()]
        names += [f"    {python} = X.day_of({name!r})" for name, python in unit.partitions.items()]
        lines = ["def run(X, P):", "    S = X.snapshot", *names, *body, ""]
        self.source = "\n".join(lines)
        space: dict[str, Any] = {**_GLOBALS, **unit.names}
        exec(compile(self.source, "<statement>", "exec"), space)  # noqa: S102  # made above
        self.run: Callable[[Any, Any], tuple[list[tuple[Any, ...]], int]] = space["run"]


def _statement(unit: Unit, statement: Statement, ctes: Sequence[Cte]) -> list[str]:
    """The lines that run a statement, the statements in front of it first."""
    lines: list[str] = []
    for cte in ctes:
        if cte.recursive:
            lines += _recursive(unit, cte)
            continue
        lines += _part(unit, cte.statement, f"c_{cte.name}, _")
        unit.ctes[cte.name] = cte.columns or _returned(unit, cte.statement) or ()
        unit.writes |= not isinstance(cte.statement, Query)
    return [*lines, *_part(unit, statement, "rows, count"), "    return rows, count"]


def _recursive(unit: Unit, cte: Cte) -> list[str]:
    """A query whose second part is asked for as long as it finds anything of what it found last."""
    assert isinstance(cte.statement, Query)
    first, step = (Query((part,)) for part in cte.statement.parts)
    found, function = f"c_{cte.name}", unit.new("d")
    begin = _part(unit, first, f"{found}, _")
    unit.ctes[cte.name] = cte.columns
    inner = [f"    {line}" for line in _part(unit, step, "rows, _")]
    return [
        *begin,
        f"    def {function}({found}):",
        *inner,
        "        return rows",
        f"    every = list({found})",
        f"    while {found}:",
        f"        {found} = {function}({found})",
        f"        every += {found}",
        f"    {found} = every",
    ]


def _returned(unit: Unit, statement: Statement) -> list[str] | None:
    if isinstance(statement, Query):
        return columns_of(unit, None, statement)
    if not statement.returning:
        return None
    scope = Scope(None)
    probe = Unit(unit._tables)
    probe.ctes = unit.ctes
    loops = Loops(probe, scope, lambda *_: "()")
    for source in (*getattr(statement, "sources", ()), _target(statement)):
        loops.add(source)
    return [output_name(item) for item in expanded(scope, statement.returning)]


def _target(statement: Insert | Change) -> Source:
    return Source(statement.alias, (), statement.table)


def _part(unit: Unit, statement: Statement, into: str) -> list[str]:
    """The lines that run one of the statements."""
    before = len(unit.functions)
    if isinstance(statement, Query):
        call = call_of(unit, None, statement, "rows")
        last = [f"    found = {call}", f"    {into} = found, len(found)"]
    else:
        writer = Writer()
        writer.depth = 2
        if isinstance(statement, Insert):
            _insert(unit, statement, writer)
        else:
            _change(unit, statement, writer)
        name = unit.new("d")
        unit.functions += [f"    def {name}():", *writer.lines]
        last = [f"    {into} = {name}()"]
    lines = [*unit.functions[before:], *last]
    del unit.functions[before:]
    return lines


def _return(writer: Writer, loops: Loops, scope: Scope, returning: Sequence[Item]) -> None:
    """Note what the statement returns of a row."""
    writer.add("count += 1")
    if returning:
        items = [item.value for item in expanded(scope, returning)]
        writer.add(f"out.append(({loops.expressions.values(items)}))")


def _change(unit: Unit, change: Change, writer: Writer) -> None:
    """UPDATE or DELETE: which rows are meant is found first, then each is locked and changed."""
    scope = Scope(None)
    loops = Loops(unit, scope, call_of)
    for source in change.sources:
        loops.add(source)
    target = loops.add(_target(change))
    where = [] if change.where is None else [change.where]
    names = "".join(f"{name}, " for each in scope.bindings for name in (each.var, each.version) if name)
    table, definition, _ = unit.table(change.table)
    writer.add("out, count, found = [], 0, []")
    loops.write(writer, where, lambda inner: inner.add(f"found.append(({names}))"))
    with writer.block("for entry in found:"):
        writer.add(f"{names} = entry")
        if change.sets is None:
            writer.add(f"w = X.lock({target.version}, 3, False)")
        else:
            _new_row(writer, loops, definition, change.sets, target.var)
            writer.add(f"w = X.lock({target.version}, X.strength({table}, {target.var}, new), False)")
        writer.add("if w is None: continue")
        with writer.block(f"if w is not {target.version}:"):
            writer.add(f"{target.version}, {target.var} = w, w.row")
            writer.add(f"if not ({loops.condition(where)}): continue")
            if change.sets is not None:
                _new_row(writer, loops, definition, change.sets, target.var)
        if change.sets is None:
            writer.add(f"X.delete({table}, w)")
        else:
            places = tuple(definition.place(name) for name, _ in change.sets)
            writer.add(f"{target.version} = X.update({table}, w, new, {places})")
            writer.add(f"{target.var} = {target.version}.row")
        _return(writer, loops, scope, change.returning)
    writer.add("return out, count")


def _new_row(
    writer: Writer, loops: Loops, definition: Definition, sets: Sequence[tuple[str, Any]], old: str
) -> None:
    """Make a row of another one and of what is to be set in it."""
    writer.add(f"new = list({old})")
    places = ", ".join(f"new[{definition.place(name)}]" for name, _ in sets)
    writer.add(f"{places}, = {loops.expressions.values([expr for _, expr in sets])}")


def _insert(unit: Unit, insert: Insert, writer: Writer) -> None:
    """INSERT."""
    scope = Scope(None)
    alone = Loops(unit, scope, call_of)
    table, definition, _ = unit.table(insert.table)
    count = len(insert.columns) or len(definition.columns)
    places = [definition.place(name) for name in insert.columns] or list(range(count))
    if insert.query is not None:
        rows = call_of(unit, None, insert.query, "rows")
    else:
        rows = f"({''.join(f'({alone.expressions.values(row)}), ' for row in insert.rows)})"
        places = places[: len(insert.rows[0])]
    parts = []
    for place, column in enumerate(definition.columns):
        if place in places:
            parts.append(f"s[{places.index(place)}]" if insert.query is None or place in places else "None")
        elif column.default is not None:
            parts.append(f"{unit.constant(column.default)}(X)")
        else:
            parts.append("None")
    if insert.query is not None and not insert.columns:
        width = len(columns_of(unit, None, insert.query))
        parts = [
            part if place < width else _default(unit, definition, place) for place, part in enumerate(parts)
        ]
    conflict = _conflict(unit, insert, definition, scope, writer)
    target = next(each for each in scope.bindings if each.alias == insert.alias)
    writer.add("out, count = [], 0")
    with writer.block(f"for s in {rows}:"):
        writer.add(f"w = X.insert({table}, [{', '.join(parts)}], {conflict})")
        writer.add("if w is None: continue")
        writer.add(f"{target.version}, {target.var} = w, w.row")
        _return(writer, alone, Scope(None, [target]) if not scope.bindings else scope, insert.returning)
    writer.add("return out, count")


def _default(unit: Unit, definition: Definition, place: int) -> str:
    default = definition.columns[place].default
    return "None" if default is None else f"{unit.constant(default)}(X)"


def _conflict(unit: Unit, insert: Insert, definition: Definition, scope: Scope, writer: Writer) -> str:
    """The Python of what is done about a row that is there already."""
    loops = Loops(unit, scope, call_of)
    target = loops.add(_target(insert))
    if insert.conflict is None:
        return "None"
    if not insert.conflict.sets:
        return "'nothing'"
    excluded = Binding(
        "excluded", "given", [each.name for each in definition.columns], [False] * len(definition.columns)
    )
    scope.bindings.append(excluded)
    with writer.block(f"def conflict({target.var}, given):"):
        if insert.conflict.where is not None:
            writer.add(f"if not ({loops.expressions.true(insert.conflict.where)}): return None")
        _new_row(writer, loops, definition, insert.conflict.sets, target.var)
        writer.add("return new")
    scope.bindings.remove(excluded)
    return "conflict"


__all__ = ["Const", "Plan"]
