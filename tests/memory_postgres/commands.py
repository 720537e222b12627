"""Statements that aren't queries or changes of rows, and questions about the server itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from memory_postgres.results import NOTHING, Result
from memory_postgres.schema import BEGINNING
from memory_postgres.versions import UPDATE

if TYPE_CHECKING:
    from memory_postgres.running import Run
    from memory_postgres.sessions import Session

Command = Callable[["Session"], "Result | None"]
_SECONDS = {"ms": 0.001, "s": 1.0}


@lru_cache(maxsize=4096)
def command(text: str) -> Command | None:
    """What a statement does that is one of these."""
    for pattern, make in _COMMANDS.items():
        if (match := re.match(pattern, text.strip(), re.DOTALL)) is not None:
            return make(match)
    if BEGINNING.match(text.split("--", maxsplit=1)[0]) or BEGINNING.match(text):
        return lambda session: session.within(lambda run: _define(session, run, text))
    return None


def _done(work: Callable[[Session], object]) -> Callable[[re.Match[str]], Command]:
    def do(session: Session) -> None:
        work(session)

    return lambda _: do


def _rows(columns: list[str], rows: list[tuple[Any, ...]]) -> Result:
    return Result(rows, columns, len(rows))


def _define(session: Session, run: Run, text: str) -> Result:
    others = session.database.define(text, run.transaction)
    run.transaction.undo.append(("schema", None, None))  # type: ignore[arg-type]
    for statement in others:
        session.execute(statement, None)
    return NOTHING


def _set(match: re.Match[str]) -> Command:
    local, name, value = match.groups()

    def run(session: Session) -> None:
        if name == "lock_timeout":
            number, unit = re.fullmatch(r"(\d+)(ms|s)", value).groups()  # type: ignore[union-attr]
            session.set_lock_timeout(int(number) * _SECONDS[unit], local=bool(local))

    return run


def _settings(match: re.Match[str]) -> Command:
    text = match.string

    def run(session: Session) -> Result:
        session.is_read_only = "'default_transaction_read_only', 'on'" in text
        return _rows(["current_setting"], [("on",)])

    return run


def _lock(match: re.Match[str]) -> Command:
    tables = [each.strip() for each in match[1].split(",")]
    strength = UPDATE if match[2] == "ACCESS EXCLUSIVE" else 0

    def run(session: Session) -> Result:
        def hold(run: Run) -> Result:
            for table in tables:
                session.hold(run.transaction, table, strength)
            return NOTHING

        return session.within(hold, sees=False)

    return run


def _attach(match: re.Match[str]) -> Command:
    table, name, day = match[1], match[2], int(match[3])

    def run(session: Session) -> Result:
        def attach(run: Run) -> Result:
            session.database.days[name] = table, day
            run.insert(session.database.partitions, [table, day], None)
            return NOTHING

        return session.within(attach)

    return run


def _drop(match: re.Match[str]) -> Command:
    name = match[1]

    def run(session: Session) -> Result:
        def drop(run: Run) -> Result:
            database = session.database
            table, day = database.days.get(name, ("", 0))
            if not table:
                return NOTHING
            session.hold(run.transaction, table, UPDATE)
            for version in database.partitions.equal(run.snapshot, 0, table):
                if version.row[1] == day:
                    run.delete(database.partitions, version)
            rows = database.tables[table]
            for version in rows.all(run.snapshot):
                if version.row[rows.definition.partitioned_by or 0] == day:
                    run.delete(rows, version)
            return NOTHING

        return session.within(drop)

    return run


def _days(_: re.Match[str]) -> Command:
    return lambda session: _rows(["regexp_match"], [(day,) for day in sorted(session.days("message"))])


def _other_table(session: Session) -> Result:
    others = sorted(set(session.database.tables) - {"unfinished_move"})
    return _rows(["relname"], [(name,) for name in others[:1]])


def _is_read_for_long(session: Session) -> Result:
    began = session.database.clock() - 1_000_000
    others = [each for each in session.server.sessions.values() if each is not session]
    held = any(
        each.transaction is not None
        and each.transaction.began_at < began
        and any(
            each.transaction in holders
            for key, holders in session.database.locks.items()
            if isinstance(key, str)
        )
        for each in others
    )
    return _rows(["exists"], [(held,)])


def _drop_database(match: re.Match[str]) -> Command:
    def run(session: Session) -> None:
        del session.server.databases[match[1]]

    return run


def _is_there(session: Session) -> Result:
    return _rows(["?column?"], [(1,)] if session.values[0] in session.server.sessions else [])


_COMMANDS: dict[str, Callable[[re.Match[str]], Command]] = {
    r"BEGIN$": _done(lambda session: session.begin()),
    r"BEGIN ISOLATION LEVEL REPEATABLE READ$": _done(lambda session: session.begin(repeatable=True)),
    r"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ$": _done(lambda session: session.repeat()),
    r"COMMIT$": _done(lambda session: session.commit()),
    r"ROLLBACK$": _done(lambda session: session.roll_back()),
    r"SAVEPOINT$": _done(lambda session: session.save()),
    r"RELEASE$": _done(lambda session: session.release()),
    r"ROLLBACK TO$": _done(lambda session: session.roll_back_to()),
    r"SET (LOCAL )?(\w+) (?:=|TO) '?(\w+)'?$": _set,
    r"SELECT current_setting\('synchronous_commit'\)": _settings,
    r"LOCK TABLE (?:ONLY )?(.*) IN (ACCESS SHARE|ACCESS EXCLUSIVE) MODE$": _lock,
    r"CREATE TABLE \w+_\d+ \(LIKE \w+ INCLUDING ALL": _done(lambda _: None),
    r"ALTER TABLE (\w+) ATTACH PARTITION (\w+) FOR VALUES IN \((\d+)\)$": _attach,
    r"DROP TABLE IF EXISTS (\w+)$": _drop,
    r"SELECT \(regexp_match\(pg_get_expr\(": _days,
    r"SELECT c.relname FROM pg_class c": lambda _: _other_table,
    r"SELECT EXISTS \(SELECT 1 FROM pg_locks": lambda _: _is_read_for_long,
    r"SELECT 1 FROM pg_stat_activity WHERE pid = %s$": lambda _: _is_there,
    r"CREATE DATABASE (\w+)(?:.* TEMPLATE (\w+))?": lambda match: (
        lambda session: session.server.create(match[1], None if match[2] in (None, "template0") else match[2])
    ),
    r"DROP DATABASE (\w+)": _drop_database,
}
