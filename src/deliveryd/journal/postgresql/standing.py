"""What stands against an order for a message; read for the order, and for its preview."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from deliveryd.journal.anew import (
    MAY_ARRIVE_TWICE,
    NOT_IN_THE_JOURNAL,
    ONLY_ID_KEPT,
    STILL_REPORTED,
    FailedStanding,
    obstacle_of,
)
from deliveryd.journal.forgetting import WAS_SENT
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.outbox import PRESENT, WAITS
from deliveryd.journal.postgresql.tombstones import read_tombstones
from deliveryd.journal.postgresql.values import LOCATED, VISIBLE
from deliveryd.states import State

MAY_HAVE_ARRIVED = f"(m.state = {State.FAILED:d} AND (m.doubt OR m.sent_by IS NOT NULL))"
"""SQL for whether a failed message may have arrived: an outcome is unknown, or an acceptance unconfirmed."""

_REPORTING = (
    f"SELECT 1 FROM event e WHERE e.message_id = wanted.id AND {WAITS} AND {PRESENT}"
    " UNION ALL SELECT 1 FROM inbox i WHERE i.message_id = wanted.id"
)
_STANDING = f"""
SELECT m.state, m.settings_id IS NULL, m.variables IS NULL, {MAY_HAVE_ARRIVED}, EXISTS ({_REPORTING}),
    m.ended_at IS NOT NULL
FROM unnest(ARRAY[%s::int8]) AS wanted (id) {LOCATED.format(id="wanted.id")} WHERE {VISIBLE}
"""
_IS_REPORTING = f"SELECT EXISTS ({_REPORTING}) FROM unnest(ARRAY[%s::int8]) AS wanted (id)"


class _Found(NamedTuple):
    standing: FailedStanding
    has_ended: bool


def _find(db: Db, id_: int) -> _Found | None:
    row = db.execute(_STANDING, (id_,)).fetchone()
    return None if row is None else _Found(FailedStanding(*row[:5]), row[5])


def obstacle_to_beginning_anew(db: Db, id_: int, *, accepted: bool) -> str | None:
    """Return why a message can't begin anew now, or None if it can; `accepted`: duplicates are."""
    found = _find(db, id_)
    if found is None:
        return ONLY_ID_KEPT if read_tombstones(db, [id_]) else NOT_IN_THE_JOURNAL
    return obstacle_of(found.standing, accepted=accepted)


def obstacle_to_forgetting(db: Db, id_: int, *, accepted: bool) -> str | None:
    """Return why a message can't be forgotten now, or None if it can; `accepted`: duplicates are."""
    found = _find(db, id_)
    if found is not None:
        state = State(found.standing.state)
        if not found.has_ended:
            return f"it hasn't ended: it is {_words(state)}"
        was_sent, may_have_arrived = state in (State.SENT, State.DELIVERED), found.standing.may_have_arrived
    else:
        tombstone = read_tombstones(db, [id_]).get(id_)
        if tombstone is None:
            return NOT_IN_THE_JOURNAL
        status = "" if tombstone.latest is None else json.loads(tombstone.latest)["status"]
        was_sent = status in ("sent", "delivered")
        may_have_arrived = bool(_one(db, "SELECT doubt FROM beginning WHERE id = %s", id_))
    if _one(db, _IS_REPORTING, id_):
        return STILL_REPORTED
    if accepted:
        return None
    return WAS_SENT if was_sent else MAY_ARRIVE_TWICE if may_have_arrived else None


def obstacle_to_erasing(db: Db, id_: int) -> str | None:
    """Return why a message can't be erased now, or None if it can."""
    found = _find(db, id_)
    if found is None:
        return "it isn't there any more"
    if not found.has_ended:
        return f"it hasn't ended: it is {State(found.standing.state).name.lower()}"
    return "the service hasn't accepted all of its events yet" if found.standing.is_unsettled else None


def _words(state: State) -> str:
    return state.name.lower().replace("_", " ")


def _one(db: Db, query: str, id_: int) -> Any:
    row = db.execute(query, (id_,)).fetchone()
    return None if row is None else row[0]
