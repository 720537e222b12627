"""Turns a SELECT into a function of Python that returns its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memory_postgres.queries import Loops, expanded, output_name, with_sets
from memory_postgres.scopes import Scope, Unit, Writer
from memory_postgres.syntax import (
    Call,
    Case,
    Cast,
    Column,
    Const,
    Expr,
    Item,
    Locking,
    Op,
    Order,
    Param,
    Query,
    Row,
    Select,
)
from memory_postgres.values import AGGREGATES


def call_of(unit: Unit, outer: Scope | None, query: Query, wanted: str) -> str:
    """The Python that asks a query for its rows, whether there is one, or its only value."""
    wanted_of = wanted if wanted == "rows" or _is_plain(query) else f"{wanted} of rows"
    name, args, _ = unit.calls.get(key := (id(query), id(outer), wanted_of), ("", [], None))
    if not name:
        name, args = _function(unit, outer, query, wanted if wanted == wanted_of else "rows")
        unit.calls[key] = name, args, (query, outer)  # which keeps them from being forgotten
    for arg in args:
        assert outer is not None
        outer.ask(arg)
    call = f"{name}({', '.join(args)})"
    if wanted == wanted_of:
        return call
    return f"bool({call})" if wanted == "exists" else f"scalar({call})"


def _function(unit: Unit, outer: Scope | None, query: Query, wanted: str) -> tuple[str, list[str]]:
    """Write the function of a query; without arguments it runs once at most."""
    scope, writer = Scope(outer), Writer()
    writer.depth = 2
    _Body(unit, scope, query, wanted).write(writer)
    args = sorted((scope.used - scope.own) & _visible(outer))
    name = unit.new("q")
    unit.functions += [f"    def {name}({', '.join(args)}):", *writer.lines]
    if not args:
        unit.functions.append(f"    {name} = once({name})")
    return name, args


def _visible(scope: Scope | None) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    while scope is not None:
        found |= scope.own
        scope = scope.parent
    return found


def _is_plain(query: Query) -> bool:
    """Whether the first row found decides, whatever else there is."""
    if len(query.parts) > 1 or query.order or query.limit or query.offset or query.locking:
        return False
    select = query.parts[0]
    return not (select.distinct or select.on or _is_grouped(query, select))


def _is_grouped(query: Query, select: Select) -> bool:
    exprs = [item.value for item in select.items] + [each.by for each in query.order]
    return bool(select.group) or select.having is not None or any(map(_has_aggregate, exprs))


def _has_aggregate(expr: object) -> bool:
    """Whether there is an aggregate in it that isn't one of an inner query."""
    match expr:
        case Call(name, args):
            return (name in AGGREGATES and not expr.over) or any(map(_has_aggregate, args))
        case Op(_, args) | Row(args):
            return any(map(_has_aggregate, args))
        case Cast(arg, _):
            return _has_aggregate(arg)
        case Case(_, whens, default):
            return any(map(_has_aggregate, (default, *(each for pair in whens for each in pair))))
    return any(map(_has_aggregate, getattr(expr, "args", ()) or ()))


class _Body:
    """The lines of a query's function."""

    def __init__(self, unit: Unit, scope: Scope, query: Query, wanted: str) -> None:
        self._unit = unit
        self._scope = scope
        self._query = query
        self._wanted = wanted

    def write(self, writer: Writer) -> None:
        """Write them."""
        if len(self._query.parts) > 1:
            self._united(writer)
        else:
            self._single(writer, with_sets(self._query.parts[0]))

    def _united(self, writer: Writer) -> None:
        query, outer = self._query, self._scope
        found = ""
        for number, part in enumerate(query.parts):
            rows = call_of(self._unit, outer, Query((part,)), "rows")
            found = rows if not found else f"united({found}, {rows}, {query.alls[number - 1]})"
        writer.add(f"out = {found}")
        if query.order:
            names = [output_name(item) for item in query.parts[0].items]
            places = [
                each.by.value - 1 if isinstance(each.by, Const) else names.index(each.by.name)  # type: ignore[operator,union-attr]
                for each in query.order
            ]
            keys = "".join(f"row[{place}], " for place in places)
            descends = tuple(each.descends for each in query.order)
            writer.add(f"out = [entry[1] for entry in ordered([(({keys}), row) for row in out], {descends})]")
        self._cut(writer)
        writer.add("return out")

    def _cut(self, writer: Writer) -> None:
        values = Loops(self._unit, self._scope, call_of).expressions.value
        if self._query.offset is not None:
            writer.add(f"out = out[{values(self._query.offset)}:]")
        if self._query.limit is not None:
            writer.add(f"out = out[:{values(self._query.limit)}]")

    def _single(self, writer: Writer, select: Select) -> None:
        loops = Loops(self._unit, self._scope, call_of)
        for source in select.sources:
            loops.add(source)
        items = expanded(self._scope, select.items)
        select = replace(select, items=tuple(items))
        where = [] if select.where is None else [select.where]
        self._loops, self._where = loops, where
        if self._wanted == "exists":
            loops.write(writer, where, lambda inner: inner.add("return True"))
            writer.add("return False")
        elif self._wanted == "scalar":
            exprs = [item.value for item in items]
            text = (
                loops.expressions.value(exprs[0])
                if len(exprs) == 1
                else f"({loops.expressions.values(exprs)})"
            )
            loops.write(writer, where, lambda inner: inner.add(f"return {text}"))
            writer.add("return None")
        elif self._query.locking is not None:
            self._locked(writer, select, self._query.locking)
        elif _is_grouped(self._query, select):
            self._grouped(writer, select)
        else:
            self._rows(writer, select)

    # rows as they are

    def _order(self, items: Sequence[Item]) -> list[Order]:
        """What the rows go by, with each number and alias as what it stands for."""
        aliases = {item.alias: item.value for item in items if item.alias is not None}
        return [replace(each, by=_meant(each.by, items, aliases)) for each in self._query.order]

    def _entry(self, select: Select, order: Sequence[Order]) -> str:
        """A row with what it goes by in front, and what it has to differ in behind."""
        values = self._loops.expressions.values
        row = f"({values([item.value for item in select.items])})"
        keys = f"({values([each.by for each in order])})"
        return f"({keys}, {row}, ({values(select.on)}))"

    def _rows(self, writer: Writer, select: Select) -> None:
        order = self._order(select.items)
        writer.add("out = []")
        if order or select.on:
            entry = self._entry(select, order)
            self._loops.write(writer, self._where, lambda inner: inner.add(f"out.append({entry})"))
            self._in_order(writer, select, order)
        else:
            values = self._loops.expressions.values([item.value for item in select.items])
            self._loops.write(writer, self._where, lambda inner: inner.add(f"out.append(({values}))"))
        if any(isinstance(item.value, Call) and item.value.over for item in select.items):
            writer.add("out = [tuple(len(out) if each is OVER else each for each in row) for row in out]")
        if select.distinct:
            writer.add("out = list(dict.fromkeys(out))")
        self._cut(writer)
        writer.add("return out")

    def _in_order(self, writer: Writer, select: Select, order: Sequence[Order]) -> None:
        if order:
            writer.add(f"ordered(out, {tuple(each.descends for each in order)})")
        if select.on:
            writer.add("out = first_of_each(out)")
        writer.add("out = [entry[1] for entry in out]")

    # rows that are locked in their order, and looked at again where they changed meanwhile

    def _locked(self, writer: Writer, select: Select, locking: Locking) -> None:
        order = self._order(select.items)
        bindings = self._scope.bindings
        names = "".join(f"{name}, " for each in bindings for name in (each.var, each.version) if name)
        values = self._loops.expressions.values
        writer.add("found = []")
        keys = values([each.by for each in order])
        self._loops.write(
            writer, self._where, lambda inner: inner.add(f"found.append((({keys}), ({names})))")
        )
        if order:
            writer.add(f"ordered(found, {tuple(each.descends for each in order)})")
        limit = None if self._query.limit is None else self._loops.expressions.value(self._query.limit)
        writer.add("out = []")
        with writer.block("for _, entry in found:"):
            if limit is not None:
                writer.add(f"if len(out) >= {limit}: break")
            writer.add(f"{names} = entry")
            for each in bindings:
                if each.version is None or (locking.of and each.alias not in locking.of):
                    continue
                writer.add(f"w = X.lock({each.version}, {locking.strength}, {locking.skips})")
                writer.add("if w is None: continue")
                with writer.block(f"if w is not {each.version}:"):
                    writer.add(f"{each.version}, {each.var} = w, w.row")
                    writer.add(f"if not ({self._loops.condition(self._where)}): continue")
            writer.add(f"out.append(({values([item.value for item in select.items])}))")
        writer.add("return out")

    # groups

    def _grouped(self, writer: Writer, select: Select) -> None:
        scope = self._scope
        aliases = {item.alias: item.value for item in select.items if item.alias is not None}
        group = [self._group_key(each, select.items, aliases) for each in select.group]
        names = "".join(f"{each.var}, " for each in scope.bindings)
        keys = self._loops.expressions.values(group)
        writer.add("groups = {}" if group else "groups = {(): []}")
        add = f"groups.setdefault(({keys}), []).append(({names}))"
        self._loops.write(writer, self._where, lambda inner: inner.add(add))
        writer.add("out = []")
        scope.group = f"for ({names}) in g" if names else "for _ in g"
        order = self._order(select.items)
        with writer.block("for g in groups.values():"):
            if names:
                empty = "".join(f"{(None,) * len(each.columns)}, " for each in scope.bindings)
                writer.add(f"({names}) = g[0] if g else ({empty})")
            if select.having is not None:
                writer.add(f"if not ({self._loops.expressions.true(select.having)}): continue")
            writer.add(f"out.append({self._entry(select, order)})")
        scope.group = None
        self._in_order(writer, select, order)
        if select.distinct:
            writer.add("out = list(dict.fromkeys(out))")
        self._cut(writer)
        writer.add("return out")

    def _group_key(self, expr: Expr, items: Sequence[Item], aliases: dict[str, Expr]) -> Expr:
        if isinstance(expr, Column) and expr.table is None:
            if any(expr.name in binding.columns for binding in self._scope.bindings):
                return expr  # a column of a source comes before one of the result
            return aliases[expr.name]
        return _meant(expr, items, aliases)


def _meant(expr: Expr, items: Sequence[Item], aliases: dict[str, Expr]) -> Expr:
    """What a number or an alias stands for."""
    if isinstance(expr, Const) and isinstance(expr.value, int):
        return items[expr.value - 1].value
    if isinstance(expr, Column) and expr.table is None and expr.name in aliases:
        return aliases[expr.name]
    return expr


__all__ = ["Param", "call_of"]
