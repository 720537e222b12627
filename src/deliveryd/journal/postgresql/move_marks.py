"""The marks by which a move of the journal keeps workers from a database until it is over, or for good."""

from __future__ import annotations

from deliveryd.journal.postgresql.connection import Connected
from deliveryd.journal.sql.schema import MOVED_BY, MOVED_TO

_KEEP = """
INSERT INTO main.meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""
_NEVER = 1_000_000
"""A format that no program will have."""


def unfinished_move(db: Connected) -> str | None:
    """The token of a move into this database that isn't committed; None: there is none."""
    if db.execute("SELECT to_regclass('deliveryd_move.unfinished')").fetchone() == (None,):
        return None
    row = db.execute("SELECT token FROM deliveryd_move.unfinished").fetchone()
    return "" if row is None else str(row[0])


def begin_move(db: Connected, token: str) -> None:
    """Let no worker begin here until the move with this token is committed."""
    with db.transaction():
        db.execute("CREATE SCHEMA deliveryd_move")
        db.execute("CREATE TABLE deliveryd_move.unfinished (token text NOT NULL)")
        db.execute("INSERT INTO deliveryd_move.unfinished VALUES (%s)", (token,))


def end_move(db: Connected) -> None:
    """The move into this database is over, with the transaction that is open."""
    db.execute("DROP TABLE deliveryd_move.unfinished")  # first: it notices what another connection made
    db.execute("DROP SCHEMA deliveryd_move")


def mark_moved(db: Connected, token: str, where: str) -> None:
    """Mark the journal as moved, in the transaction that is open: older programs refuse it for its format.

    `where` is told to people.
    """
    for row in ((MOVED_BY, token), (MOVED_TO, where)):
        db.execute(_KEEP, row)
    db.execute("INSERT INTO main.meta SELECT 'moved', value FROM main.meta WHERE key = 'written_since'")
    db.execute("UPDATE main.meta SET value = %s WHERE key = 'written_since'", (str(_NEVER),))


def moved_by(db: Connected) -> str | None:
    """The token of the move that marked the journal; None: it isn't marked."""
    if db.execute("SELECT to_regclass('main.meta')").fetchone() == (None,):
        return None
    row = db.execute(
        "SELECT value FROM main.meta WHERE key = %s AND EXISTS (SELECT 1 FROM main.meta WHERE key = 'moved')",
        (MOVED_BY,),
    ).fetchone()
    return None if row is None else str(row[0])


def unmark_moved(db: Connected) -> bool:
    """Let the journal be used again, in the transaction that is open; return whether it was marked."""
    if db.execute("SELECT to_regclass('main.meta')").fetchone() == (None,):
        return False
    since = db.execute("DELETE FROM main.meta WHERE key = 'moved' RETURNING value").fetchone()
    if since is not None:
        db.execute("UPDATE main.meta SET value = %s WHERE key = 'written_since'", since)
    return since is not None
