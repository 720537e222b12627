"""Has failed messages begin anew: what stands against it, and what it writes beside the step."""

from __future__ import annotations

from typing import NamedTuple

from deliveryd import transitions
from deliveryd.journal.sql.beginnings import LATEST, MAY_HAVE_ARRIVED
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.outbox import WAITS
from deliveryd.journal.sql.rows import ENTRY, entry_of
from deliveryd.model import Transition
from deliveryd.states import State

NOT_IN_THE_JOURNAL = "it isn't in the journal"
ONLY_ID_KEPT = "it ended longer ago than journal.retention, and its variables are gone"
STILL_MALFORMED = "its queue element was malformed, and would be again"
VARIABLES_GONE = "its variables were removed after it was sent (journal.keep_variables)"
STILL_REPORTED = "the service hasn't accepted all of its events yet; try again when it has"
MAY_ARRIVE_TWICE = "an attempt of it may have arrived: its customer might get it twice (--accept-duplicates)"
"""Why a message can't begin anew, or can't be forgotten."""

_STANDING = f"""
SELECT state, settings_id IS NULL, variables IS NULL, {MAY_HAVE_ARRIVED},
    EXISTS (SELECT 1 FROM event WHERE message_id = message.id AND {WAITS})
FROM message WHERE id = ?
"""  # noqa: S608  # constants
_LEAVE_ACCEPTED = """
INSERT INTO unaccepted SELECT id, key, number, provider, beginning, started_at, accepted_at, 'accepted',
    provider_id, reason, NULL FROM message WHERE id = ? AND accepted_at IS NOT NULL
ON CONFLICT (message_id, key, number) DO UPDATE SET verdict = 'accepted', ended_at = excluded.ended_at,
    provider_id = excluded.provider_id,
    reason = coalesce(unaccepted.reason || '; ' || excluded.reason, unaccepted.reason, excluded.reason)
"""
_LEAVE = """
UPDATE message SET sent_by = NULL, started_at = NULL, accepted_at = NULL, provider_id = NULL, reason = NULL,
    confirm_by = NULL, confirm_within = NULL, failed_next = NULL
WHERE id = ?
"""


class FailedStanding(NamedTuple):
    """What stands for or against a message's beginning anew.

    `is_emptied`: its variables are gone. `is_unsettled`: an event of it waits.
    """

    state: int
    is_malformed: bool
    is_emptied: bool
    may_have_arrived: bool
    is_unsettled: bool


def obstacle_to_beginning_anew(db: Db, id_: int, *, accepted: bool) -> str | None:
    """Return why a message can't begin anew now, or None if it can; `accepted`: duplicates are."""
    row = db.execute(_STANDING, (id_,)).fetchone()
    if row is None:
        is_kept = db.execute("SELECT 1 FROM tombstone WHERE id = ?", (id_,)).fetchone() is not None
        return ONLY_ID_KEPT if is_kept else NOT_IN_THE_JOURNAL
    return obstacle_of(FailedStanding(*row), accepted=accepted)


def obstacle_of(standing: FailedStanding, *, accepted: bool) -> str | None:
    """Return why a message that stands so can't begin anew."""
    if standing.state != State.FAILED:
        return f"it hasn't failed: it is {State(standing.state).name.lower().replace('_', ' ')}"
    if standing.is_malformed:
        return STILL_MALFORMED
    if standing.is_emptied:
        return VARIABLES_GONE
    if standing.is_unsettled:
        return STILL_REPORTED
    return MAY_ARRIVE_TWICE if standing.may_have_arrived and not accepted else None


def begin_anew(db: Db, id_: int, at: int) -> Transition:
    """Write what the step of a failed message leaves behind, and return the step.

    A try that was accepted, and failed by a receipt, is kept: a later receipt may still prove it.
    """
    (count, *row) = db.execute(f"SELECT {LATEST}, {ENTRY} FROM message WHERE id = ?", (id_,)).fetchone()  # noqa: S608
    db.execute(_LEAVE_ACCEPTED, (id_,))
    db.execute(_LEAVE, (id_,))
    return transitions.ordered_anew(entry_of(tuple(row))._replace(beginning=count), at)
