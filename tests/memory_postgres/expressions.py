"""Turns expressions of SQL into Python.

NULL is None. A condition is turned into Python that is true where the condition is, so that most of them
need no third value; `false` is the same for where it is false, as after NOT.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from memory_postgres.scopes import Scope, Unit
from memory_postgres.syntax import (
    AnyOf,
    Array,
    Call,
    Case,
    Cast,
    Column,
    Const,
    Distinct,
    Exists,
    Expr,
    In,
    Is,
    Op,
    Param,
    Query,
    Row,
    Scalar,
)
from memory_postgres.values import AGGREGATES, CASTS, FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

_PYTHON = {"=": "==", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_OPPOSITE = {"=": "!=", "<>": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_ARITHMETIC = frozenset({"+", "-", "*", "<<", ">>"})
_SIMPLE = re.compile(r"[a-zA-Z_]\w*(\[[^\[\]]*\])?|-?\d+|'[^']*'")

ByQuery = Callable[[Unit, Scope, Query, str], str]
"""Turns a query into a call, by what is wanted of it: rows, exists, scalar."""


class Expressions:
    """Those of one scope."""

    def __init__(self, unit: Unit, scope: Scope, query: ByQuery) -> None:
        self._unit = unit
        self._scope = scope
        self._query = query

    def _sub(self, query: Query, wanted: str) -> str:
        return self._query(self._unit, self._scope, query, wanted)

    # whether something may be NULL

    def nullable(self, expr: Expr) -> bool:
        """Whether it may be NULL."""
        match expr:
            case Const(value):
                return value is None
            case Column():
                if self._scope.version(expr) is not None:
                    return False
                binding, place = self._scope.find(expr)
                return not binding.required[place]
            case Op(_, args):
                return any(map(self.nullable, args))
            case Is() | Distinct() | Exists() | Row() | Array():
                return False
            case Cast(arg, _):
                return self.nullable(arg)
            case Call("coalesce", args):
                return all(map(self.nullable, args))
            case Call("count" | "clock_timestamp" | "statement_timestamp" | "nextval"):
                return False
        return True

    # values

    def value(self, expr: Expr) -> str:  # noqa: C901, PLR0912
        """Its value."""
        match expr:
            case Const(value):
                return f"({value})" if isinstance(value, int) and value < 0 else repr(value)
            case Param(key):
                return f"P[{key!r}]"
            case Column():
                return self._column(expr)
            case Op(name, args):
                return self._operation(name, args)
            case Is():
                return self._is(expr)
            case Distinct(left, right, negated):
                return f"({self.value(left)} {'==' if negated else '!='} {self.value(right)})"
            case Cast(arg, kind):
                return self._cast(arg, kind)
            case Call():
                return self._call(expr)
            case Case():
                return self._case(expr)
            case In(arg, items, negated):
                found = self._in(arg, items)
                return f"negation({found})" if negated else found
            case AnyOf(arg, op, array, is_all):
                return f"{'all_of' if is_all else 'any_of'}({self.value(arg)}, {op!r}, {self.value(array)})"
            case Row(items):
                return f"({self.values(items)})"
            case Array(Query() as query):
                return f"[row[0] for row in {self._sub(query, 'rows')}]"
            case Array(items):
                assert isinstance(items, tuple)
                return f"[{self.values(items)}]"
            case Exists(query):
                return self._sub(query, "exists")
            case Scalar(query):
                return self._sub(query, "scalar")
        raise SyntaxError(f"the model can't do this: {expr}")

    def values(self, exprs: Sequence[Expr]) -> str:
        """Several values, one behind the other."""
        return "".join(f"{self.value(each)}, " for each in exprs)

    def _column(self, column: Column) -> str:
        if (version := self._scope.version(column)) is not None:
            return version
        binding, place = self._scope.find(column)
        return f"{binding.var}[{place}]"

    def _operation(self, name: str, args: Sequence[Expr]) -> str:
        match name:
            case "and" | "or":
                left, right = map(self.value, args)
                if not any(map(self.nullable, args)):
                    return f"({left} {name} {right})"
                return f"{'both' if name == 'and' else 'either'}({left}, {right})"
            case "not":
                return (
                    f"negation({self.value(args[0])})"
                    if self.nullable(args[0])
                    else f"(not {self.value(args[0])})"
                )
            case "||":
                return f"concat({self.value(args[0])}, {self.value(args[1])})"
            case "/":
                return f"divide({self.value(args[0])}, {self.value(args[1])})"
            case "like":
                return f"like({self.value(args[0])}, {self.value(args[1])})"
            case "neg":
                return self._unless_null(args, "-{0}")
        if name in _ARITHMETIC:
            return self._unless_null(args, f"{{0}} {name} {{1}}")
        if self._are_rows(args):
            return f"compare_rows({name!r}, {self.value(args[0])}, {self.value(args[1])})"
        return self._unless_null(args, f"{{0}} {_PYTHON[name]} {{1}}")

    @staticmethod
    def _are_rows(args: Sequence[Expr]) -> bool:
        return any(
            isinstance(each, Row)
            or (
                isinstance(each, Scalar)
                and (len(items := each.query.parts[0].items) > 1 or isinstance(items[0].value, Row))
            )
            for each in args
        )

    def _unless_null(self, args: Sequence[Expr], form: str) -> str:
        """The form with these values in it, or None if any of them is."""
        tests, names = [], []
        for arg in args:
            text = self.value(arg)
            if not self.nullable(arg):
                names.append(text)
            elif _SIMPLE.fullmatch(text):
                names.append(text)
                tests.append(f"{text} is None")
            else:
                name = self._unit.new("t")
                names.append(name)
                tests.append(f"({name} := {text}) is None")
        done = f"({form.format(*names)})"
        return f"(None if {' or '.join(tests)} else {done})" if tests else done

    def _is(self, expr: Is) -> str:
        if expr.what == "null":
            return f"({self.value(expr.arg)} is {'not ' if expr.negated else ''}None)"
        found = self.true(expr.arg) if expr.what == "true" else self.false(expr.arg)
        return f"(not {found})" if expr.negated else f"bool({found})"

    def _cast(self, arg: Expr, kind: str) -> str:
        text = self.value(arg)
        if (isinstance(arg, Param) and (kind.endswith("[]") or kind == "int8")) or arg == Const(None):
            return text
        return f"{self._unit.constant(CASTS[kind])}({text})"

    def _case(self, expr: Case) -> str:
        text = self.value(expr.default)
        for when, then in reversed(expr.whens):
            condition = when if expr.arg is None else Op("=", (expr.arg, when))
            text = f"({self.value(then)} if {self.true(condition)} else {text})"
        return text

    def _in(self, arg: Expr, items: tuple[Expr, ...] | Query) -> str:
        if isinstance(items, Query):
            return f"among({self.value(arg)}, [row[0] for row in {self._sub(items, 'rows')}])"
        return f"among({self.value(arg)}, ({self.values(items)}))"

    def _call(self, call: Call) -> str:
        if call.over:
            return "OVER"
        if call.name in AGGREGATES:
            return self._aggregate(call)
        if call.name == "coalesce":
            *others, last = call.args
            text = self.value(last)
            for arg in reversed(others):
                name = self._unit.new("t")
                text = f"({name} if ({name} := {self.value(arg)}) is not None else {text})"
            return text
        args = self.values(call.args)
        if (function := FUNCTIONS.get(call.name)) is not None:
            return f"{self._unit.constant(function)}({args})"
        return f"X.{call.name}({args})"

    def _aggregate(self, call: Call) -> str:
        loop = self._scope.group
        if loop is None:
            raise SyntaxError(f"an aggregate where none may stand: {call}")
        condition = f" if {self.true(call.filter)}" if call.filter is not None else ""
        value = (
            "1" if not call.args or call.args[0].__class__.__name__ == "Star" else self.value(call.args[0])
        )
        values = f"[{value} {loop}{condition}]"
        if call.order:
            pairs = f"[(({self.values([each.by for each in call.order])}), {value}) {loop}{condition}]"
            values = f"[pair[1] for pair in ordered({pairs}, {tuple(each.descends for each in call.order)})]"
        if call.distinct:
            values = f"list(set({values}))"
        return f"{self._unit.constant(AGGREGATES[call.name])}({values})"

    # conditions

    def true(self, expr: Expr) -> str:
        """Python that is true where the condition is."""
        match expr:
            case Op("and" | "or" as name, (left, right)):
                return f"({self.true(left)} {name} {self.true(right)})"
            case Op("not", (arg,)):
                return self.false(arg)
            case Op(name, args) if name in _PYTHON and not self._are_rows(args):
                return self._compared(_PYTHON[name], args)
            case AnyOf(arg, "=", array, False):
                text = self.value(arg)
                if not self.nullable(arg) or _SIMPLE.fullmatch(text):
                    test = f"{text} is not None and " if self.nullable(arg) else ""
                    return f"({test}{text} in ({self.value(array)} or ()))"
            case In(arg, tuple() as items, False) if not any(map(self.nullable, items)):
                text = self.value(arg)
                return f"({text} in ({self.values(items)}))"
        return self.value(expr)

    def false(self, expr: Expr) -> str:
        """Python that is true where the condition is false."""
        match expr:
            case Op("and" | "or" as name, (left, right)):
                return f"({self.false(left)} {'or' if name == 'and' else 'and'} {self.false(right)})"
            case Op("not", (arg,)):
                return self.true(arg)
            case Op(name, args) if name in _PYTHON and not self._are_rows(args):
                return self._compared(_OPPOSITE[name], args)
        return f"(not {self.value(expr)})" if not self.nullable(expr) else f"({self.value(expr)} is False)"

    def _compared(self, op: str, args: Sequence[Expr]) -> str:
        left, right = map(self.value, args)
        nullable = [self.nullable(each) for each in args]
        if not any(nullable) or (op == "==" and not all(nullable)):
            return f"({left} {op} {right})"
        return self._unless_null(args, f"{{0}} {op} {{1}}")
