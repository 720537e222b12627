"""The marks by which a move of the journal keeps workers from a database until it is over, or for good."""

from __future__ import annotations

from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.schema import MOVED_BY, MOVED_TO

_NEVER = 1_000_000
"""A format that no program will have."""


def unfinished_move(db: Db) -> str | None:
    """The token of a move into this database that isn't committed; None: there is none."""
    if db.execute("SELECT to_regclass('unfinished_move')").fetchone() == (None,):
        return None
    row = db.execute("SELECT token FROM unfinished_move").fetchone()
    return "" if row is None else str(row[0])


def begin_move(db: Db, token: str) -> None:
    """Let no worker begin here until the move with this token is committed."""
    with db.transaction():
        db.execute("CREATE TABLE unfinished_move (token text NOT NULL)")
        db.execute("INSERT INTO unfinished_move VALUES (%s)", (token,))


def end_move(db: Db) -> None:
    """The move into this database is over, with the transaction that is open."""
    db.execute("DROP TABLE unfinished_move")


def mark_moved(db: Db, token: str, where: str) -> None:
    """Mark the journal as moved, in the transaction that is open: older programs refuse it for its format.

    `where` is told to people.
    """
    for row in ((MOVED_BY, token), (MOVED_TO, where)):
        db.execute(
            "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value", row
        )
    db.execute("INSERT INTO meta SELECT 'moved', value FROM meta WHERE key = 'written_since'")
    db.execute("UPDATE meta SET value = %s WHERE key = 'written_since'", (str(_NEVER),))


def moved_by(db: Db) -> str | None:
    """The token of the move that marked the journal; None: it isn't marked."""
    if db.execute("SELECT to_regclass('meta')").fetchone() == (None,):
        return None
    row = db.execute(
        "SELECT value FROM meta WHERE key = %s AND EXISTS (SELECT 1 FROM meta WHERE key = 'moved')",
        (MOVED_BY,),
    ).fetchone()
    return None if row is None else str(row[0])


def unmark_moved(db: Db) -> bool:
    """Let the journal be used again, in the transaction that is open; return whether it was marked."""
    if db.execute("SELECT to_regclass('meta')").fetchone() == (None,):
        return False
    since = db.execute("DELETE FROM meta WHERE key = 'moved' RETURNING value").fetchone()
    if since is not None:
        db.execute("UPDATE meta SET value = %s WHERE key = 'written_since'", since)
    return since is not None
