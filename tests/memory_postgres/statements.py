"""Reads statements of SQL."""

from __future__ import annotations

from memory_postgres.reading import Expressions
from memory_postgres.syntax import (
    Call,
    Change,
    Conflict,
    Cte,
    Expr,
    Insert,
    Item,
    Locking,
    Query,
    Select,
    Source,
    Statement,
)

_NO_ALIAS = frozenset(
    [
        "where",
        "on",
        "join",
        "left",
        "cross",
        "inner",
        "group",
        "having",
        "order",
        "limit",
        "offset",
        "union",
        "for",
        "set",
        "using",
        "returning",
        "values",
        "select",
        "with",
        "as",
        "do",
        "overriding",
    ]
)
_STRENGTHS = {("key", "share"): 0, ("share",): 1, ("no", "key", "update"): 2, ("update",): 3}


def read(text: str, *, doubled: bool) -> Statement:
    """Return what a statement says. Raises SyntaxError with its text."""
    return _Statements(text, doubled=doubled).whole()


class _Statements(Expressions):
    def whole(self) -> Statement:
        found = self.statement()
        self.take(";")
        if self.token.kind != "end":
            self.fail("the end")
        return found

    def statement(self) -> Statement:
        """Go past a statement."""
        ctes = self._ctes()
        if self.take("insert", "into"):
            return self._insert(ctes)
        if self.take("update"):
            return self._update(ctes)
        if self.take("delete", "from"):
            return self._delete(ctes)
        return self._query(ctes)

    def _ctes(self) -> tuple[Cte, ...]:
        if not self.take("with"):
            return ()
        recursive = self.take("recursive")
        found = []
        while True:
            name = self.name()
            columns = self.names() if self.ahead("(") else ()
            self.need("as")
            self.take("materialized")
            self.need("(")
            found.append(Cte(name, self.statement(), columns, recursive))
            self.need(")")
            if not self.take(","):
                return tuple(found)

    def query(self) -> Query:
        return self._query(self._ctes())

    def _query(self, ctes: tuple[Cte, ...]) -> Query:
        parts, alls = [self._select()], []
        while self.take("union"):
            alls.append(self.take("all"))
            parts.append(self._select())
        order = self.order()
        limit = self.expression() if self.take("limit") else None
        offset = self.expression() if self.take("offset") else None
        locking = self._locking()
        if limit is None and self.take("limit"):
            limit = self.expression()
        return Query(tuple(parts), tuple(alls), order, limit, offset, locking, ctes)

    def _locking(self) -> Locking | None:
        if not self.take("for"):
            return None
        strength = next(number for words, number in _STRENGTHS.items() if self.take(*words))
        of = [self.name()] if self.take("of") else []
        return Locking(strength, tuple(of), self.take("skip", "locked"))

    def _select(self) -> Select:
        self.need("select")
        on: tuple[Expr, ...] = ()
        distinct = self.take("distinct")
        if distinct and self.take("on", "("):
            on = self._list()
            self.need(")")
        items = () if self.ahead("from") else self._items()
        sources = self._sources() if self.take("from") else ()
        where = self.expression() if self.take("where") else None
        group = self._list() if self.take("group", "by") else ()
        having = self.expression() if self.take("having") else None
        return Select(items, sources, where, group, having, distinct and not on, on)

    def _items(self) -> tuple[Item, ...]:
        found = []
        while True:
            value = self.expression()
            found.append(Item(value, self.name() if self.take("as") else None))
            if not self.take(","):
                return tuple(found)

    def _sources(self) -> tuple[Source, ...]:
        found = [self._source("inner")]
        while True:
            if self.take(",") or self.take("cross", "join"):
                found.append(self._source("inner"))
            elif self.take("left", "join"):
                found.append(self._source("left"))
            elif self.take("join"):
                found.append(self._source("inner"))
            else:
                return tuple(found)

    def _source(self, join: str) -> Source:
        self.take("lateral")
        table: str | None = None
        query: Query | None = None
        call: Call | None = None
        ordinality = False
        if self.take("("):
            query = self.query()
            self.need(")")
        else:
            table = self.name()
            if self.ahead("("):
                found = self._call(table)
                assert isinstance(found, Call)
                call, table = found, None
                ordinality = self.take("with", "ordinality")
        alias, columns = self._alias(table or "")
        on = self.expression() if not self.ahead("on", "conflict") and self.take("on") else None
        return Source(alias, columns, table, query, call, ordinality, join, on)

    def _alias(self, otherwise: str) -> tuple[str, tuple[str, ...]]:
        is_named = self.take("as") or (self.token.kind == "word" and self.token.text not in _NO_ALIAS)
        alias = self.name() if is_named else otherwise
        return alias, self.names() if is_named and self.ahead("(") else ()

    def _returning(self) -> tuple[Item, ...]:
        return self._items() if self.take("returning") else ()

    def _insert(self, ctes: tuple[Cte, ...]) -> Insert:
        table = self.name()
        alias = self.name() if self.take("as") else table
        columns = self.names() if self.ahead("(") else ()
        self.take("overriding", "system", "value")
        rows: list[tuple[Expr, ...]] = []
        query = None
        if self.take("values"):
            while True:
                self.need("(")
                rows.append(self._list())
                self.need(")")
                if not self.take(","):
                    break
        else:
            query = self.query()
        return Insert(table, alias, columns, tuple(rows), query, self._conflict(), self._returning(), ctes)

    def _conflict(self) -> Conflict | None:
        if not self.take("on", "conflict"):
            return None
        if self.ahead("("):
            self.names()
        self.need("do")
        if self.take("nothing"):
            return Conflict((), None)
        self.need("update", "set")
        return Conflict(self._sets(), self.expression() if self.take("where") else None)

    def _sets(self) -> tuple[tuple[str, Expr], ...]:
        found = []
        while True:
            name = self.name()
            self.need("=")
            found.append((name, self.expression()))
            if not self.take(","):
                return tuple(found)

    def _update(self, ctes: tuple[Cte, ...]) -> Change:
        table = self.name()
        alias, _ = self._alias(table)
        self.need("set")
        sets = self._sets()
        sources = self._sources() if self.take("from") else ()
        where = self.expression() if self.take("where") else None
        return Change(table, alias, sets, sources, where, self._returning(), ctes)

    def _delete(self, ctes: tuple[Cte, ...]) -> Change:
        table = self.name()
        alias, _ = self._alias(table)
        sources = self._sources() if self.take("using") else ()
        where = self.expression() if self.take("where") else None
        return Change(table, alias, None, sources, where, self._returning(), ctes)
