"""What a journal's tables take up in PostgreSQL."""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from support.output import say

_SIZES = """
WITH each AS (
    SELECT CASE WHEN c.relispartition THEN regexp_replace(c.relname, '_\\d+$', '') ELSE c.relname END AS name,
        c.relispartition AS is_day, pg_relation_size(c.oid) AS rows, pg_indexes_size(c.oid) AS indexes,
        coalesce(s.n_dead_tup, 0) AS dead, coalesce(s.n_live_tup, 0) AS live
    FROM pg_class c LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
    WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace)
SELECT name, is_day, sum(rows)::int8, sum(indexes)::int8, sum(dead)::int8, sum(live)::int8
FROM each GROUP BY name, is_day
"""
_FOR_EVER = frozenset({"seen", "tombstone", "beginning"})


class Sizes(NamedTuple):
    """Bytes of rows and of indexes: of the days, of the small tables beside them, of what is kept for ever.

    `dead`: rows that vacuum has still to remove, of the days and of the small tables.
    """

    day: int
    partitions: int
    days: int
    day_indexes: int
    beside: int
    for_ever: int
    dead_in_days: int
    dead_beside: int

    @staticmethod
    def heading() -> None:
        """Print the columns' names."""
        say(
            "| day | partitions | days KiB | their indexes | beside | for ever | dead in days | dead beside |"
        )
        say("|---:|---:|---:|---:|---:|---:|---:|---:|")

    def line(self) -> None:
        """Print a day."""
        kib = [size // 1024 for size in (self.days, self.day_indexes, self.beside, self.for_ever)]
        figures = (self.day, self.partitions, *kib, self.dead_in_days, self.dead_beside)
        say("| " + " | ".join(f"{figure:,}" for figure in figures) + " |")


def measure(db: psycopg.Connection, day: int) -> Sizes:
    """Measure after a day; statistics are a second old at most."""
    rows = db.execute(_SIZES).fetchall()
    days = [row for row in rows if row[1]]
    kept = [row for row in rows if not row[1] and row[0] in _FOR_EVER]
    beside = [row for row in rows if not row[1] and row[0] not in _FOR_EVER]
    (partitions,) = db.execute(
        "SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid AND c.relkind = 'r'"
    ).fetchone() or (0,)
    return Sizes(
        day,
        partitions,
        sum(row[2] for row in days),
        sum(row[3] for row in days),
        sum(row[2] + row[3] for row in beside),
        sum(row[2] + row[3] for row in kept),
        sum(row[4] for row in days),
        sum(row[4] for row in beside),
    )
