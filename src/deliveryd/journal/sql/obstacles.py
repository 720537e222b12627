"""What stands against an operator's order about a message, so that it isn't carried out now."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial

from deliveryd.journal.orders import Action
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.deletion import MAY_HAVE_ARRIVED, read_tombstones, was_in_doubt
from deliveryd.journal.sql.outbox import WAITS
from deliveryd.states import State

NOT_IN_THE_JOURNAL = "it isn't in the journal"
ONLY_ID_KEPT = "it ended longer ago than journal.retention, and its variables are gone"
STILL_MALFORMED = "its queue element was malformed, and would be again"
VARIABLES_GONE = "its variables were removed after it was sent (journal.keep_variables)"
STILL_REPORTED = "the service hasn't accepted all of its events yet; try again when it has"
MAY_ARRIVE_TWICE = "an attempt of it may have arrived: its customer might get it twice (--accept-duplicates)"
WAS_SENT = "it was sent: if the queue gives it again, its customer gets it twice (--accept-duplicates)"

_IS_REPORTING = f"EXISTS (SELECT 1 FROM event WHERE message_id = message.id AND {WAITS})"  # noqa: S608
_TO_BEGINNING_ANEW = f"""
SELECT state, settings_id IS NULL, variables IS NULL, {MAY_HAVE_ARRIVED}, {_IS_REPORTING}
FROM message WHERE id = ?
"""  # noqa: S608  # constants
_TO_FORGETTING = f"""
SELECT state, ended_at IS NOT NULL, {MAY_HAVE_ARRIVED} FROM message WHERE id = ?
"""  # noqa: S608  # constants
_REPORTING = f"SELECT 1 FROM event WHERE message_id = ? AND {WAITS} LIMIT 1"  # noqa: S608
_TO_ERASURE = f"SELECT state, ended_at IS NOT NULL, {_IS_REPORTING} FROM message WHERE id = ?"  # noqa: S608


def _to_beginning_anew(accepted: bool, db: Db, id_: int) -> str | None:
    """Why a message can't begin anew now; `accepted`: duplicates are."""
    row = db.execute(_TO_BEGINNING_ANEW, (id_,)).fetchone()
    if row is None:
        is_kept = db.execute("SELECT 1 FROM tombstone WHERE id = ?", (id_,)).fetchone() is not None
        return ONLY_ID_KEPT if is_kept else NOT_IN_THE_JOURNAL
    state, is_malformed, is_emptied, may_have_arrived, is_reporting = row
    if state != State.FAILED:
        return f"it hasn't failed: it is {State(state).name.lower().replace('_', ' ')}"
    if is_malformed:
        return STILL_MALFORMED
    if is_emptied:
        return VARIABLES_GONE
    if is_reporting:
        return STILL_REPORTED
    return MAY_ARRIVE_TWICE if may_have_arrived and not accepted else None


def _to_forgetting(accepted: bool, db: Db, id_: int) -> str | None:
    """Why a message can't be forgotten now; `accepted`: duplicates are."""
    found = _arrival(db, id_)
    if isinstance(found, str):
        return found
    if db.execute(_REPORTING, (id_,)).fetchone() is not None:
        return STILL_REPORTED
    was_sent, may_have_arrived = found
    if accepted:
        return None
    return WAS_SENT if was_sent else MAY_ARRIVE_TWICE if may_have_arrived else None


def _arrival(db: Db, id_: int) -> tuple[bool, bool] | str:
    """Return whether a message was sent, and whether it may have arrived; or why it can't be forgotten."""
    row = db.execute(_TO_FORGETTING, (id_,)).fetchone()
    if row is not None:
        state, has_ended, may_have_arrived = row
        if not has_ended:
            return f"it hasn't ended: it is {State(state).name.lower().replace('_', ' ')}"
        return state in (State.SENT, State.DELIVERED), bool(may_have_arrived)
    tombstone = read_tombstones(db, [id_]).get(id_)
    if tombstone is None:
        return NOT_IN_THE_JOURNAL
    status = "" if tombstone.latest is None else json.loads(tombstone.latest)["status"]
    return status in ("sent", "delivered"), was_in_doubt(db, id_)


def _to_erasure(db: Db, id_: int) -> str | None:
    """Why a message can't be erased now."""
    row = db.execute(_TO_ERASURE, (id_,)).fetchone()
    if row is None:
        return "it isn't there any more"
    state, has_ended, is_reporting = row
    if not has_ended:
        return f"it hasn't ended: it is {State(state).name.lower()}"
    return "the service hasn't accepted all of its events yet" if is_reporting else None


OBSTACLES: Mapping[Action, Callable[[Db, int], str | None]] = {
    Action.BEGIN_ANEW: partial(_to_beginning_anew, False),
    Action.BEGIN_ANEW_ANYWAY: partial(_to_beginning_anew, True),
    Action.FORGET: partial(_to_forgetting, False),
    Action.FORGET_ANYWAY: partial(_to_forgetting, True),
    Action.ERASE: _to_erasure,
}
"""By the order, why it can't be carried out for a message now, or None if it can."""
