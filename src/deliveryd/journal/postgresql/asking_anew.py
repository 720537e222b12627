"""Answers of the service or a directory that an ended worker may have asked for: they are asked for anew.

Nobody records who asked. So all that waits for such an answer is made due when a worker ends: in portions,
since during an outage that may be very much. What waits for an answer to a live worker waits again.
"""

from __future__ import annotations

import secrets

from deliveryd.journal.postgresql.connection import Db
from deliveryd.runtime import waits

ASKED_AT_ONCE = 10_000
"""Messages that one commit makes due at most: a lease has to be renewed in between."""

_FIRST = -(2**63)
_BEGIN = "INSERT INTO meta VALUES (%s, %s)"
# Each end has a row of its own: whoever ends a worker waits for nobody who stands still with another one.
_BEGUN = """
SELECT key, value::int8 FROM meta WHERE key >= 'unasked ' AND key < 'unasked!'
ORDER BY key LIMIT 1 FOR UPDATE SKIP LOCKED
"""
_GO_ON = "UPDATE meta SET value = %s WHERE key = %s"
_FOR_AN_ANSWER = f"""
(waits_for = '{waits.DIRECTORY}' OR (waits_for >= 'settings ' AND waits_for < 'settings!')
    OR (waits_for >= 'customer ' AND waits_for < 'customer!'))
"""
_FOUND = f"SELECT id FROM waiting WHERE id > %s AND {_FOR_AN_ANSWER} ORDER BY id LIMIT {ASKED_AT_ONCE}"
_MAKE_DUE = f"""
UPDATE waiting SET due_at = 0, waits_for = NULL WHERE id = ANY(ARRAY(
    SELECT id FROM waiting WHERE id = ANY(%s::int8[]) AND {_FOR_AN_ANSWER}
    ORDER BY id FOR UPDATE SKIP LOCKED)) RETURNING id
"""


def ask_anew(db: Db) -> None:
    """Make due what waits for an answer to a worker whose lease ends now: the first portion of it."""
    db.execute(_BEGIN, (f"unasked {secrets.token_hex(8)}", str(_FIRST)))
    go_on_asking(db)


def go_on_asking(db: Db) -> None:
    """Make the next portion due, if there is one that no other worker is at.

    A message that another worker holds is looked at again: only its due time may change.
    """
    row = db.execute(_BEGUN).fetchone()
    if row is None:
        return
    key, after = row
    found = [id_ for (id_,) in db.execute(_FOUND, (after,))]
    due = {id_ for (id_,) in db.execute(_MAKE_DUE, (found,))} if found else set()
    missed = [id_ for id_ in found if id_ not in due]
    if missed:
        db.execute(_GO_ON, (str(missed[0] - 1), key))
    elif len(found) < ASKED_AT_ONCE:
        db.execute("DELETE FROM meta WHERE key = %s", (key,))
    else:
        db.execute(_GO_ON, (str(found[-1]), key))
