"""How often messages began whose rows are deleted, so that no idempotency key is ever used again.

Only what began more than once, may have arrived though it failed, or was forgotten has a row here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from deliveryd.journal.rows import IDS, to_json
from deliveryd.journal.sql.db import Db
from deliveryd.states import State

MAY_HAVE_ARRIVED = (
    f"(message.state = {State.FAILED:d} AND (message.doubt = 1 OR message.sent_by IS NOT NULL))"
)
"""SQL for whether a failed message may have arrived: an outcome is unknown, or an acceptance unconfirmed."""

LATEST = (
    "max(message.beginning, coalesce((SELECT max(u.beginning) FROM unaccepted u"
    " WHERE u.message_id = message.id), 1))"
)
"""SQL for how often a message began: a receipt may have brought it back to the key of an earlier time."""

_KEEP = f"""
INSERT INTO beginning (id, count, doubt) SELECT id, count, doubt FROM (
    SELECT id, {LATEST} AS count, iif({MAY_HAVE_ARRIVED}, 1, 0) AS doubt FROM message WHERE id = ?) AS kept
WHERE count > 1 OR doubt = 1
ON CONFLICT (id) DO UPDATE SET count = max(beginning.count, excluded.count), doubt = excluded.doubt
"""  # noqa: S608  # constants
_KEEP_FORGOTTEN = """
INSERT INTO beginning (id, count) VALUES (?, 1) ON CONFLICT (id) DO UPDATE SET doubt = 0
"""
_HIGHEST = "SELECT max(id) FROM beginning"
_COUNTS = f"SELECT id, count FROM beginning WHERE id IN {IDS}"  # noqa: S608  # a constant


class Begun(NamedTuple):
    """What is kept of a message whose row is deleted: how often it began, and whether it may have arrived."""

    times: int = 1
    doubt: bool = False


def keep_beginnings(db: Db, ids: Sequence[tuple[int]]) -> None:
    """Keep how often messages began that are about to be deleted."""
    db.executemany(_KEEP, ids)


def keep_forgotten(db: Db, id_: int) -> None:
    """Keep that a message began, whose beginnings may have been kept already; its doubt is accepted."""
    db.execute(_KEEP_FORGOTTEN, (id_,))


def begun(db: Db, id_: int) -> Begun:
    """Return what is kept of a message."""
    row = db.execute("SELECT count, doubt FROM beginning WHERE id = ?", (id_,)).fetchone()
    return Begun() if row is None else Begun(row[0], bool(row[1]))


def beginnings_of(db: Db, ids: Collection[int]) -> Mapping[int, int]:
    """Return with which beginning new messages start, of those that began before."""
    (highest,) = db.execute(_HIGHEST).fetchone()
    if highest is None or not ids or highest < min(ids):
        return {}
    return {id_: count + 1 for id_, count in db.execute(_COUNTS, (to_json(list(ids)),))}
