"""Forgets messages on an operator's order: an id that the queue gives again is taken as new.

How often it began outlives that (see `beginnings`), so that its keys are new ones.
"""

from __future__ import annotations

from deliveryd.journal.sql.account import add_forgotten, add_pruned
from deliveryd.journal.sql.beginnings import keep_beginnings, keep_forgotten
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.upkeep import DELETE_MESSAGE

_KEEP_DECISIONS = "UPDATE decision SET message_id = NULL WHERE message_id = ?"
"""Those about the message itself name it by their key as well."""


def forget_message(db: Db, id_: int) -> None:
    """Delete a message, or what is kept of one, so that its id is unknown."""
    keep_beginnings(db, [(id_,)])
    db.execute(_KEEP_DECISIONS, (id_,))
    for statement in (*DELETE_MESSAGE, "DELETE FROM malformed WHERE message_id = ?"):
        db.execute(statement, (id_,))
    add_pruned(db, -db.execute("DELETE FROM tombstone WHERE id = ?", (id_,)).rowcount)
    keep_forgotten(db, id_)
    add_forgotten(db, 1)
