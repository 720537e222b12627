"""What a journal's tables take up in PostgreSQL."""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from support.output import say

_SIZES = """
SELECT c.relname, pg_relation_size(c.oid), pg_indexes_size(c.oid), coalesce(s.n_dead_tup, 0)
FROM pg_class c LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
WHERE c.relkind = 'r' AND c.relnamespace = 'main'::regnamespace
"""
_FOR_EVER = frozenset({"tombstone", "generation"})


class Sizes(NamedTuple):
    """Bytes of rows and of indexes: of what retention deletes, and of what is kept for ever.

    `kept`: messages that are there. `dead`: rows that vacuum has still to remove.
    """

    day: int
    kept: int
    rows: int
    indexes: int
    for_ever: int
    dead: int

    @staticmethod
    def heading() -> None:
        """Print the columns' names."""
        say("| day | messages | rows KiB | indexes KiB | for ever KiB | dead |")
        say("|---:|---:|---:|---:|---:|---:|")

    def line(self) -> None:
        """Print a day."""
        kib = [size // 1024 for size in (self.rows, self.indexes, self.for_ever)]
        say("| " + " | ".join(f"{figure:,}" for figure in (self.day, self.kept, *kib, self.dead)) + " |")


def measure(db: psycopg.Connection, day: int) -> Sizes:
    """Measure after a day; statistics are a second old at most."""
    rows = db.execute(_SIZES).fetchall()
    deleted = [row for row in rows if row[0] not in _FOR_EVER]
    (kept,) = db.execute("SELECT count(*) FROM main.message").fetchone() or (0,)
    return Sizes(
        day,
        kept,
        sum(row[1] for row in deleted),
        sum(row[2] for row in deleted),
        sum(row[1] + row[2] for row in rows if row[0] in _FOR_EVER),
        sum(row[3] for row in deleted),
    )
