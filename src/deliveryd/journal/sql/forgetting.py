"""Forgets messages on an operator's order: an id that the queue gives again is taken as new.

How often it began outlives that (see `beginnings`), so that its keys are new ones.
"""

from __future__ import annotations

import json

from deliveryd.journal.sql.account import add_forgotten, add_pruned
from deliveryd.journal.sql.anew import MAY_ARRIVE_TWICE, NOT_IN_THE_JOURNAL, STILL_REPORTED
from deliveryd.journal.sql.beginnings import MAY_HAVE_ARRIVED, begun, keep_beginnings, keep_forgotten
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.outbox import WAITS
from deliveryd.journal.sql.tombstones import read_tombstone
from deliveryd.journal.sql.upkeep import DELETE_MESSAGE
from deliveryd.states import State

WAS_SENT = "it was sent: if the queue gives it again, its customer gets it twice (--accept-duplicates)"
"""Why a message that arrived can't be forgotten."""

_STANDING = f"""
SELECT state, ended_at IS NOT NULL, {MAY_HAVE_ARRIVED} FROM message WHERE id = ?
"""  # noqa: S608  # constants
_IS_REPORTING = f"SELECT 1 FROM event WHERE message_id = ? AND {WAITS} LIMIT 1"  # noqa: S608
_KEEP_DECISIONS = "UPDATE decision SET message_id = NULL WHERE message_id = ?"
"""Those about the message itself name it by their key as well."""


def obstacle_to_forgetting(db: Db, id_: int, *, accepted: bool) -> str | None:
    """Return why a message can't be forgotten now, or None if it can; `accepted`: duplicates are."""
    found = _standing(db, id_)
    if isinstance(found, str):
        return found
    if db.execute(_IS_REPORTING, (id_,)).fetchone() is not None:
        return STILL_REPORTED
    was_sent, may_have_arrived = found
    if accepted:
        return None
    return WAS_SENT if was_sent else MAY_ARRIVE_TWICE if may_have_arrived else None


def _standing(db: Db, id_: int) -> tuple[bool, bool] | str:
    """Return whether a message was sent, and whether it may have arrived; or why it can't be forgotten."""
    row = db.execute(_STANDING, (id_,)).fetchone()
    if row is not None:
        state, has_ended, may_have_arrived = row
        if not has_ended:
            return f"it hasn't ended: it is {State(state).name.lower().replace('_', ' ')}"
        return state in (State.SENT, State.DELIVERED), bool(may_have_arrived)
    tombstone = read_tombstone(db, id_)
    if tombstone is None:
        return NOT_IN_THE_JOURNAL
    status = "" if tombstone.latest is None else json.loads(tombstone.latest)["status"]
    return status in ("sent", "delivered"), begun(db, id_).doubt


def forget_message(db: Db, id_: int) -> None:
    """Delete a message, or what is kept of one, so that its id is unknown."""
    keep_beginnings(db, [(id_,)])
    db.execute(_KEEP_DECISIONS, (id_,))
    for statement in (*DELETE_MESSAGE, "DELETE FROM malformed WHERE message_id = ?"):
        db.execute(statement, (id_,))
    add_pruned(db, -db.execute("DELETE FROM tombstone WHERE id = ?", (id_,)).rowcount)
    keep_forgotten(db, id_)
    add_forgotten(db, 1)
