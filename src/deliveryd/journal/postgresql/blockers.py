"""Whose lock keeps a commit waiting, so that an operator knows which session to end."""

from __future__ import annotations

from deliveryd.journal.postgresql.connection import Connected

# Nothing of another user's session is visible but its number and user, unless the role may read statistics.
_BLOCKERS = """
SELECT a.pid, a.usename, nullif(a.application_name, ''), a.state,
    extract(epoch FROM clock_timestamp() - a.xact_start)::int,
    (SELECT string_agg(DISTINCT c.relname, ', ' ORDER BY c.relname) FROM pg_locks l
        JOIN pg_class c ON c.oid = l.relation AND c.relkind IN ('r', 'p')
            AND c.relnamespace = current_schema()::regnamespace
        WHERE l.pid = a.pid AND l.granted AND l.mode <> 'AccessShareLock')
FROM pg_stat_activity a WHERE a.pid = ANY(pg_blocking_pids(%s::int4)) ORDER BY a.xact_start, a.pid
"""


def blocked_by(db: Connected, pid: int) -> str | None:
    """Return which session holds the lock that a session waits for, and on which tables; None: none does."""
    rows = db.execute(_BLOCKERS, (pid,)).fetchall()
    if not rows:
        return None
    blocker, user, program, state, seconds, tables = rows[0]
    known = [f"user {user}", program, state, None if seconds is None else f"transaction of {seconds} s"]
    others = "" if len(rows) == 1 else f" and {len(rows) - 1} others"
    return (
        f"session {blocker} ({', '.join(each for each in known if each)}){others} holds a lock on"
        f" {tables or 'its rows'}: end its transaction, or SELECT pg_terminate_backend({blocker})"
    )
