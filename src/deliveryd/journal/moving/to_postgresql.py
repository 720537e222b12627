"""Copies what a SQLite journal holds into the empty tables of one in PostgreSQL, as its first log.

Nobody has that log: the first worker that starts takes it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from deliveryd.journal.moving.progress import Watch, counted_rows
from deliveryd.journal.moving.tables import (
    FIRST_LOG,
    FIRST_NUMBER,
    NUMBERS,
    OWN_META,
    columns_of,
    named,
    tables_of,
)
from deliveryd.journal.postgresql.connection import Connected
from deliveryd.journal.postgresql.database import plain
from deliveryd.journal.postgresql.schema import OF_LOG

_KEEP = """
INSERT INTO main.meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""
_SET_NUMBERS = """
SELECT
    setval(pg_get_serial_sequence('main.receipt', 'seq'), coalesce((SELECT max(seq) FROM main.receipt), 1)),
    setval(pg_get_serial_sequence('main.decision', 'seq'), coalesce((SELECT max(seq) FROM main.decision), 1))
"""


def fill_database(source: sqlite3.Connection, db: Connected, watch: Watch) -> None:
    """Copy all of it, in the transactions that are open on both sides. Raises errors of both drivers."""
    for table in tables_of(source):
        _copy_table(source, db, table, watch)
    columns = columns_of(source, "log")
    row = dict(zip(columns, source.execute(f"SELECT {named(columns)} FROM log").fetchone(), strict=True))
    row |= {"number": FIRST_LOG, "settled": FIRST_NUMBER + row["settled"]}
    marks = ", ".join(["%s"] * len(columns))
    db.execute(f"INSERT INTO main.log ({named(columns)}) VALUES ({marks})".encode(), list(row.values()))
    for key, value in source.execute("SELECT key, CAST(value AS TEXT) FROM meta"):
        if key not in OWN_META:
            db.execute(_KEEP, (key, value))
    db.execute(_SET_NUMBERS)
    db.execute("ANALYZE")


def _copy_table(source: sqlite3.Connection, db: Connected, table: str, watch: Watch) -> None:
    columns = columns_of(source, table)
    query = f"SELECT {', '.join(_of_file(table, each) for each in columns)} FROM {table}"
    (total,) = source.execute(f"SELECT count(*) FROM {table}").fetchone()
    rows: Iterable[Sequence[Any]] = counted_rows(source.execute(query), table, watch, total)
    into = named([*columns, "log"] if table in OF_LOG else columns)
    log = (FIRST_LOG,) if table in OF_LOG else ()
    copy_in = f"COPY main.{table} ({into}) FROM STDIN".encode()
    db.execute(f"ALTER TABLE main.{table} DISABLE TRIGGER USER".encode())  # nobody watches it yet
    with db.cursor() as cursor, cursor.copy(copy_in) as copy:
        for row in rows:
            copy.write_row([*map(plain, row), *log])
    db.execute(f"ALTER TABLE main.{table} ENABLE TRIGGER USER".encode())


def _of_file(table: str, column: str) -> str:
    return f'"{column}" + {FIRST_NUMBER}' if column in NUMBERS.get(table, ()) else f'"{column}"'
