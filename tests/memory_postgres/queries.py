"""Turns queries into Python: loops over the rows of their sources, by an index where there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from memory_postgres.expressions import Expressions
from memory_postgres.scopes import Binding, Scope, Unit, Writer
from memory_postgres.syntax import (
    AnyOf,
    Call,
    Cast,
    Column,
    Expr,
    Item,
    Op,
    Param,
    Query,
    Select,
    Source,
    Star,
)
from memory_postgres.tables import Definition

_MIRRORED = {"=": "=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


def conjuncts(expr: Expr | None) -> list[Expr]:
    """The conditions that AND is between."""
    if isinstance(expr, Op) and expr.name == "and":
        return [*conjuncts(expr.args[0]), *conjuncts(expr.args[1])]
    return [] if expr is None else [expr]


def output_name(item: Item) -> str:
    """The name of a column that a query returns."""
    value = item.value
    if item.alias is not None:
        return item.alias
    while isinstance(value, Cast):
        value = value.arg
    return value.name if isinstance(value, Column | Call) else "?column?"


class Loops:
    """The loops over the sources of one query."""

    def __init__(self, unit: Unit, scope: Scope, query: Callable[[Unit, Scope, Query, str], str]) -> None:
        self._unit = unit
        self._scope = scope
        self._query = query
        self._texts: list[tuple[Source, str, Definition | None, str | None]] = []
        self.expressions = Expressions(unit, scope, query)

    def add(self, source: Source) -> Binding:
        """One more source."""
        unit, var = self._unit, self._unit.new("r")
        definition = day = None
        if source.call is not None:
            binding, text = self._unnested(source, var)
        elif source.query is not None:
            text = self._query(unit, self._scope, source.query, "rows")
            names = source.columns or columns_of(unit, self._scope, source.query)
            binding = Binding(source.alias, var, names, [False] * len(names))
        elif source.table in unit.ctes:
            columns = unit.ctes[source.table]
            binding, text = Binding(source.alias, var, columns, [False] * len(columns)), f"c_{source.table}"
        else:
            assert source.table is not None
            text, definition, day = unit.table(source.table)
            binding = Binding(
                source.alias,
                var,
                [each.name for each in definition.columns],
                [each.is_required and source.join == "inner" for each in definition.columns],
                unit.new("v"),
                source.table,
            )
        self._scope.bindings.append(binding)
        self._texts.append((source, text, definition, day))
        return binding

    def _unnested(self, source: Source, var: str) -> tuple[Binding, str]:
        assert source.call is not None
        assert source.call.name == "unnest", source.call
        count = len(source.call.args) + source.ordinality
        unnamed = [f"unnest {place}" for place in range(len(source.columns), count)]
        columns = (*source.columns, *unnamed)
        text = f"unnest(({self.expressions.values(source.call.args)}), {source.ordinality})"
        return Binding(source.alias, var, columns, [False] * count), text

    def write(self, writer: Writer, where: Sequence[Expr], leaf: Callable[[Writer], None]) -> None:
        """Write them; `leaf` writes what is done with each row."""
        conditions = [each for expr in where for each in conjuncts(expr)]
        for source, *_ in self._texts:
            if source.join == "inner":
                conditions += conjuncts(source.on)
        needed = [(each, self._asked(each)) for each in conditions]
        self._write(writer, 0, needed, frozenset(), leaf)

    def _asked(self, expr: Expr) -> frozenset[str]:
        with self._scope.noting() as used:
            self.expressions.true(expr)
            return frozenset(used) & self._scope.own

    def condition(self, where: Sequence[Expr]) -> str:
        """All conditions at once, for rows that stand in the variables."""
        found = [each for expr in where for each in conjuncts(expr)]
        found += [each for source, *_ in self._texts for each in conjuncts(source.on)]
        return " and ".join(map(self.expressions.true, found)) or "True"

    def _write(
        self,
        writer: Writer,
        number: int,
        conditions: list[tuple[Expr, frozenset[str]]],
        bound: frozenset[str],
        leaf: Callable[[Writer], None],
    ) -> None:
        here = [expr for expr, asked in conditions if asked <= bound]
        later = [(expr, asked) for expr, asked in conditions if not asked <= bound]
        if here:
            tests = " and ".join(map(self.expressions.true, here))
            if number == 0:
                with writer.block(f"if {tests}:"):
                    self._write(writer, 0, later, bound, leaf)
                return
            writer.add(f"if not ({tests}): continue")
        if number == len(self._texts):
            leaf(writer)
            return
        binding = self._scope.bindings[number]
        names = frozenset(name for name in (binding.var, binding.version) if name is not None)
        if self._texts[number][0].join == "left":
            self._left(writer, number, bound)
        else:
            used, path = self._path(number, later, bound)
            self._head(writer, number, path)
            later = [pair for pair in later if pair[0] not in used]
        self._write(writer, number + 1, later, bound | names, leaf)
        writer.depth -= 1

    def _head(self, writer: Writer, number: int, path: str) -> None:
        """Begin a loop."""
        binding = self._scope.bindings[number]
        writer.add(f"for {binding.version or binding.var} in {path}:")
        writer.depth += 1
        if binding.version is not None:
            writer.add(f"{binding.var} = {binding.version}.row")
        _, _, definition, day = self._texts[number]
        if day is not None and definition is not None:
            writer.add(f"if {binding.var}[{definition.partitioned_by}] != {day}: continue")

    def _left(self, writer: Writer, number: int, bound: frozenset[str]) -> None:
        """Begin the loop of a source that gives one row of NULL where it has none."""
        source, binding = self._texts[number][0], self._scope.bindings[number]
        conditions = [(each, self._asked(each)) for each in conjuncts(source.on)]
        used, path = self._path(number, conditions, bound)
        found = self._unit.new("f")
        writer.add(f"{found} = []")
        self._head(writer, number, path)
        if tests := " and ".join(self.expressions.true(each) for each, _ in conditions if each not in used):
            writer.add(f"if not ({tests}): continue")
        writer.add(f"{found}.append({binding.var})")
        writer.depth -= 1
        writer.add(f"for {binding.var} in {found} or ({(None,) * len(binding.columns)},):")
        writer.depth += 1

    # the way to a source's rows

    def _path(
        self, number: int, conditions: list[tuple[Expr, frozenset[str]]], bound: frozenset[str]
    ) -> tuple[list[Expr], str]:
        """The conditions that the way to the rows makes sure of, and that way."""
        _, text, definition, _ = self._texts[number]
        if definition is None:
            return [], text
        var = self._scope.bindings[number].var
        found: dict[str, list[tuple[Expr, int, str, Expr]]] = {"=": [], "any": [], "range": []}
        for expr, _ in conditions:
            for place, op, other in self._bounds(expr, var, definition, bound):
                kind = op if op in found else "range"
                found[kind].append((expr, place, op, other))
        value = self.expressions.value
        if found["="]:
            expr, place, _, other = found["="][0]
            return [expr], f"{text}.equal(S, {place}, {value(other)})"
        if found["any"]:
            expr, place, _, other = found["any"][0]
            return [expr], f"{text}.among(S, {place}, {value(other)})"
        if found["range"]:
            place = found["range"][0][1]
            same = [each for each in found["range"] if each[1] == place]
            lows = "".join(f"({value(o)}, {op == '>'}), " for _, _, op, o in same if op in (">", ">="))
            highs = "".join(f"({value(o)}, {op == '<'}), " for _, _, op, o in same if op in ("<", "<="))
            return [each[0] for each in same], f"{text}.between(S, {place}, ({lows}), ({highs}))"
        return [], f"{text}.all(S)"

    def _bounds(
        self, expr: Expr, var: str, definition: Definition, bound: frozenset[str]
    ) -> list[tuple[int, str, Expr]]:
        """What a condition says about an indexed column of a source, by what is known before it."""
        pairs: list[tuple[Expr, str, Expr]] = []
        if isinstance(expr, Op) and expr.name in _MIRRORED:
            left, right = expr.args
            pairs = [(left, expr.name, right), (right, _MIRRORED[expr.name], left)]
        elif isinstance(expr, AnyOf) and expr.op == "=" and not expr.all:
            pairs = [(expr.arg, "any", expr.array)]
        found = []
        for column, op, other in pairs:
            if not isinstance(column, Column) or column.name == "ctid":
                continue
            binding, place = self._scope.find(column)
            if binding.var == var and place in definition.indexed and self._asked(other) <= bound:
                found.append((place, op, other))
        return found


def expanded(scope: Scope, items: Sequence[Item]) -> list[Item]:
    """The items with each star as what it stands for."""
    found = []
    for item in items:
        if isinstance(item.value, Star):
            for binding in scope.bindings:
                if item.value.table in (None, binding.alias):
                    found += [Item(Column(binding.alias, name), name) for name in binding.columns]
        else:
            found.append(item)
    return found


def columns_of(unit: Unit, scope: Scope | None, query: Query) -> list[str]:
    """The names of what a query returns."""
    select = query.parts[0]
    if not any(isinstance(item.value, Star) for item in select.items):
        return [output_name(item) for item in select.items]
    inner = Scope(scope)
    probe = Unit(unit._tables)
    probe.ctes = unit.ctes
    loops = Loops(probe, inner, lambda *_: "()")
    for source in select.sources:
        loops.add(source)
    return [output_name(item) for item in expanded(inner, select.items)]


def with_sets(select: Select) -> Select:
    """The query with each unnest() among its items as one of its sources."""
    sources, items = list(select.sources), []
    for item in select.items:
        if isinstance(item.value, Call) and item.value.name == "unnest":
            sources.append(Source("_set", ("unnest",), call=item.value))
            items.append(Item(Column("_set", "unnest"), item.alias))
        else:
            items.append(item)
    return replace(select, sources=tuple(sources), items=tuple(items))


__all__ = ["Loops", "Param", "columns_of", "conjuncts", "expanded", "output_name", "with_sets"]
