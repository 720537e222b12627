"""Reads expressions of SQL."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NoReturn

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
    Order,
    Param,
    Query,
    Row,
    Scalar,
    Star,
)
from memory_postgres.tokens import Token, tokens

if TYPE_CHECKING:
    from collections.abc import Callable

_COMPARISONS = frozenset({"=", "<>", "!=", "<", "<=", ">", ">="})
_KEYWORDS = frozenset(
    [
        "and",
        "or",
        "not",
        "is",
        "in",
        "between",
        "like",
        "from",
        "where",
        "group",
        "having",
        "order",
        "limit",
        "offset",
        "union",
        "for",
        "on",
        "join",
        "left",
        "cross",
        "inner",
        "as",
        "when",
        "then",
        "else",
        "end",
        "returning",
        "do",
        "set",
        "using",
        "with",
        "values",
        "select",
        "asc",
        "desc",
        "filter",
        "over",
        "lateral",
        "intersect",
        "except",
        "conflict",
    ]
)
_INTERVALS = {"microsecond": 1, "second": 1_000_000, "s": 1_000_000, "1s": 1_000_000}


class Expressions:
    """Goes through the tokens of a statement. `doubled`: it comes with values, and so %% means %."""

    def __init__(self, text: str, *, doubled: bool) -> None:
        self._text = text
        self._tokens = tokens(text)
        self._at = 0
        self._doubled = doubled
        self._params = count()

    # tokens

    @property
    def token(self) -> Token:
        """The next one."""
        return self._tokens[self._at]

    def ahead(self, *words: str) -> bool:
        """Whether these come next."""
        there = self._tokens[self._at : self._at + len(words)]
        return [each.text for each in there if each.kind in ("word", "symbol")] == list(words)

    def take(self, *words: str) -> bool:
        """Go past these if they come next."""
        if not self.ahead(*words):
            return False
        self._at += len(words)
        return True

    def need(self, *words: str) -> None:
        """Go past these. Raises SyntaxError."""
        if not self.take(*words):
            self.fail(" ".join(words))

    def fail(self, wanted: str) -> NoReturn:
        """Say what the model can't read."""
        raise SyntaxError(
            f"the model can't read this: {wanted} instead of {self.token.text!r} in {self._text}"
        )

    def name(self) -> str:
        """Go past a name."""
        kind, text = self.token
        if kind not in ("word", "quoted"):
            self.fail("a name")
        self._at += 1
        return text.strip('"')

    def names(self) -> tuple[str, ...]:
        """Go past names in parentheses."""
        self.need("(")
        found = [self.name()]
        while self.take(","):
            found.append(self.name())
        self.need(")")
        return tuple(found)

    def query(self) -> Query:
        """Go past a query."""
        raise NotImplementedError

    # expressions, from what binds least to what binds most

    def expression(self) -> Expr:
        """Go past an expression."""
        return self._chain(self._conjunction, "or")

    def _conjunction(self) -> Expr:
        return self._chain(self._negation, "and")

    def _chain(self, operand: Callable[[], Expr], *ops: str) -> Expr:
        left = operand()
        while self.token.kind in ("word", "symbol") and self.token.text in ops:
            op = self.token.text
            self._at += 1
            left = Op(op, (left, operand()))
        return left

    def _negation(self) -> Expr:
        if self.ahead("not"):
            self.need("not")
            return Op("not", (self._negation(),))
        return self._test()

    def _test(self) -> Expr:
        left = self._comparison()
        while self.take("is"):
            negated = self.take("not")
            if self.take("distinct", "from"):
                left = Distinct(left, self._comparison(), negated)
            else:
                left = Is(self.name(), left, negated)
        return left

    def _comparison(self) -> Expr:
        left = self._membership()
        while self.token.kind == "symbol" and self.token.text in _COMPARISONS:
            op = self.token.text.replace("!=", "<>")
            self._at += 1
            if self.ahead("any", "(") or self.ahead("all", "("):
                is_all = self.name() == "all"
                self.need("(")
                left = AnyOf(left, op, self.expression(), is_all)
                self.need(")")
            else:
                left = Op(op, (left, self._membership()))
        return left

    def _membership(self) -> Expr:
        left = self._other()
        while True:
            negated = self.ahead("not", "between") or self.ahead("not", "in") or self.ahead("not", "like")
            if negated:
                self.need("not")
            if self.take("between"):
                low = self._other()
                self.need("and")
                both = Op("and", (Op(">=", (left, low)), Op("<=", (left, self._other()))))
                left = Op("not", (both,)) if negated else both
            elif self.take("in"):
                self.need("(")
                items = self.query() if self._is_query() else self._list()
                self.need(")")
                left = In(left, items, negated)
            elif self.take("like"):
                left = Op("like", (left, self._other()))
            else:
                return left

    def _other(self) -> Expr:
        return self._chain(self._sum, "||", "<<", ">>")

    def _sum(self) -> Expr:
        return self._chain(self._product, "+", "-")

    def _product(self) -> Expr:
        return self._chain(self._unary, "*", "/")

    def _unary(self) -> Expr:
        if self.take("-"):
            arg = self._unary()
            return (
                Const(-arg.value)
                if isinstance(arg, Const) and isinstance(arg.value, int)
                else Op("neg", (arg,))
            )
        found = self._primary()
        while self.take("::"):
            found = Cast(found, self.type())
        return found

    def type(self) -> str:
        """Go past a type's name."""
        name = self.name()
        if self.take("["):
            self.need("]")
            name += "[]"
        return name

    def _is_query(self) -> bool:
        return self.ahead("select") or self.ahead("with")

    def _list(self) -> tuple[Expr, ...]:
        found = [self.expression()]
        while self.take(","):
            found.append(self.expression())
        return tuple(found)

    def _primary(self) -> Expr:
        kind, text = self.token
        if kind == "string":
            self._at += 1
            value = text[1:-1].replace("''", "'")
            return Const(value.replace("%%", "%") if self._doubled else value)
        if kind == "number":
            self._at += 1
            return Const(int(text) if text.isdigit() else float(text))
        if kind == "param":
            self._at += 1
            return Param(next(self._params) if text == "%s" else text[2:-2])
        if self.take("("):
            return self._parenthesis()
        if self.take("*"):
            return Star(None)
        if kind == "quoted":
            return self._named(self.name())
        if kind == "word" and (text not in _KEYWORDS or self.ahead(text, "(")):
            return self._word(self.name())
        return self.fail("an expression")

    def _parenthesis(self) -> Expr:
        if self._is_query():
            query = self.query()
            self.need(")")
            return Scalar(query)
        items = self._list()
        self.need(")")
        return items[0] if len(items) == 1 else Row(items)

    def _word(self, word: str) -> Expr:
        match word:
            case "true" | "false":
                return Const(word == "true")
            case "null":
                return Const(None)
            case "case":
                return self._case()
            case "exists":
                self.need("(")
                query = self.query()
                self.need(")")
                return Exists(query)
            case "array":
                return self._array()
            case "timestamptz" if self.token == Token("string", "'epoch'"):
                self._at += 1
                return Const(0)
            case "interval":
                _, text = self.token
                self._at += 1
                number, _, unit = text[1:-1].partition(" ")
                return Const(_INTERVALS[number] if not unit else int(number) * _INTERVALS[unit.rstrip("s")])
        return self._call(word) if self.ahead("(") else self._named(word)

    def _named(self, word: str) -> Expr:
        if not self.take("."):
            return Column(None, word)
        return Star(word) if self.take("*") else Column(word, self.name())

    def _case(self) -> Expr:
        arg = None if self.ahead("when") else self.expression()
        whens = []
        while self.take("when"):
            when = self.expression()
            self.need("then")
            whens.append((when, self.expression()))
        default: Expr = self.expression() if self.take("else") else Const(None)
        self.need("end")
        return Case(arg, tuple(whens), default)

    def _array(self) -> Expr:
        if self.take("("):
            found = Array(self.query())
            self.need(")")
            return found
        self.need("[")
        found = Array(() if self.ahead("]") else self._list())
        self.need("]")
        return found

    def _call(self, name: str) -> Expr:
        self.need("(")
        if name == "row":
            items = self._list()
            self.need(")")
            return Row(items)
        if name == "extract":
            self.need("epoch", "from")
            arg = self.expression()
            self.need(")")
            return Call(name, (arg,))
        distinct = self.take("distinct")
        args = () if self.ahead(")") else self._list()
        order = self.order()
        self.need(")")
        condition = None
        if self.take("filter", "(", "where"):
            condition = self.expression()
            self.need(")")
        return Call(name, args, distinct, order, condition, self.take("over", "(", ")"))

    def order(self) -> tuple[Order, ...]:
        """Go past ORDER BY, if it comes next."""
        if not self.take("order", "by"):
            return ()
        found = []
        while True:
            by = self.expression()
            descends = self.take("desc")
            if not descends:
                self.take("asc")
            found.append(Order(by, descends))
            if not self.take(","):
                return tuple(found)
