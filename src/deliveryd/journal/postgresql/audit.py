"""The audit: checks the whole database for contradictions between its tables, on one snapshot."""

from __future__ import annotations

from deliveryd.journal.postgresql.checks import CHECKS
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.schema import LOG_BITS
from deliveryd.journal.postgresql.sharing import SHARING_CHECKS
from deliveryd.journal.postgresql.upkeep import account, meta
from deliveryd.journal.postgresql.values import VISIBLE
from deliveryd.journal.reconciliation import SHOWN, Audit, AuditFinding, LostBatches
from deliveryd.states import State

_STATES = f"SELECT m.state, count(*) FROM message m WHERE {VISIBLE} GROUP BY m.state ORDER BY m.state"
_COUNTS = f"""
SELECT (SELECT count(*) FROM tombstone),
    (SELECT count(*) FROM worker w JOIN event e ON e.seq > w.settled AND e.seq < (w.id + 1) << {LOG_BITS})
        + (SELECT count(*) FROM inbox),
    (SELECT count(*) FROM event WHERE refused_at IS NOT NULL AND dropped_at IS NULL)
"""
_BROKEN = "SELECT id, count(*) OVER () FROM ({query}) AS broken (id) ORDER BY id LIMIT %s"


def audit_journal(db: Db) -> Audit:
    """Check everything; for one read transaction."""
    states: dict[int, int] = dict(db.execute(_STATES).fetchall())
    kept, waiting, refused = db.execute(_COUNTS).fetchone() or (0, 0, 0)
    checks = {**CHECKS, **SHARING_CHECKS}
    findings = [_find(db, check, query) for check, query in checks.items()]
    return Audit(
        account(db),
        {state: states[state] for state in State if state in states},
        kept,
        waiting,
        refused,
        _lost_batches(db),
        tuple(finding for finding in findings if finding.messages),
        len(checks),
    )


def _lost_batches(db: Db) -> LostBatches:
    last_at = meta(db, "batch_lost_at")
    return LostBatches(int(meta(db, "batches_lost") or 0), None if last_at is None else int(last_at))


def _find(db: Db, check: str, query: str) -> AuditFinding:
    rows = db.execute(_BROKEN.format(query=query), (SHOWN,)).fetchall()
    return AuditFinding(check, rows[0][1] if rows else 0, tuple(id_ for id_, _ in rows))
