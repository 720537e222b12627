"""Deletes messages on an operator's order: erased, as a customer's data (see `personal_data`), or forgotten.

An erased message leaves a tombstone like an expired one, without the details of its latest event, so that the
journal still recognizes a repeat of it (see `tombstones`). The id of a forgotten one is taken as new if the
queue gives it again; how often it began outlives that (see `beginnings`), so that its keys are new ones.
"""

from __future__ import annotations

from deliveryd.journal.sql.account import add_forgotten, add_pruned
from deliveryd.journal.sql.beginnings import keep_beginnings, keep_forgotten
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.obstacles import obstacle_to_erasure
from deliveryd.journal.sql.retention import DELETE_MESSAGE
from deliveryd.journal.sql.tombstones import add_tombstones, strip_details

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


def erase_message(db: Db, id_: int) -> str | None:
    """Erase an ended message and everything that belongs to it; return why not if it can't be erased."""
    if (reason := obstacle_to_erasure(db, id_)) is not None:
        return reason
    add_tombstones(db, [(id_,)])
    keep_beginnings(db, [(id_,)])
    strip_details(db, id_)
    for statement in (*DELETE_MESSAGE, "DELETE FROM malformed WHERE message_id = ?"):
        db.execute(statement, (id_,))
    add_pruned(db, 1)
    return None


def erase_malformed(db: Db, digest: str) -> str | None:
    """Erase a malformed element; return why not if it can't be erased."""
    erased = db.execute("DELETE FROM malformed WHERE digest = ?", (digest,)).rowcount
    return None if erased else "it isn't there any more"


def erase_receipt(db: Db, seq: int) -> str | None:
    """Erase an unmatched receipt; return why not if it can't be erased."""
    erased = db.execute("DELETE FROM receipt WHERE seq = ? AND message_id IS NULL", (seq,)).rowcount
    return None if erased else "it isn't there any more, or fits an attempt by now"
