"""The SQL of the line's steps. Each statement takes its states from the transition that it records."""

from __future__ import annotations

from collections.abc import Sequence

from deliveryd import transitions as of
from deliveryd.journal.rows import ENTRY
from deliveryd.journal.sql.db import BulkInsert, Db
from deliveryd.journal.sql.outbox import WATERMARK
from deliveryd.journal.sql.pauses import IS_PAUSED
from deliveryd.model import AT_ONCE

EMPTIED = ", variables = NULL"
"""What a statement that records `sent` empties, unless variables are kept."""

TAKE = BulkInsert(
    "message (id, settings_id, customer_id, variables, state, taken_at)",
    f"(?, ?, ?, ?, {of.TAKEN:d}, ?)",
    " ON CONFLICT (id) DO NOTHING",
)
"""Of two workers that take one id at the same time, one has the message."""

BEGIN_AT = "UPDATE message SET generation = ? WHERE id = ?"
TAKE_MALFORMED = f"""
INSERT INTO message (id, state, taken_at, ended_at) VALUES (?, {of.MALFORMED:d}, ?, ?)
ON CONFLICT (id) DO NOTHING
"""
KEEP_MALFORMED = """
INSERT INTO malformed (digest, raw, reason, message_id, first_at, last_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (digest) DO UPDATE SET times = malformed.times + 1, last_at = excluded.last_at, dropped_at = NULL
"""

# Steps of the line; each names the state that it begins in, so that a step from another state changes no row.

_PROGRESS = """
UPDATE message SET state = ?, due_at = ?, provider = ?, counted_tries = ?, stay = ?, stay_tries = ?,
    spent = ?, doubt = ?, content = ?, digest = ?, generation = ?, sent_by = ?
"""
RECORD_INTENT = f"""
UPDATE message SET state = {of.INTENT.after:d}, provider = ?1, counted_tries = ?2, stay = ?3, stay_tries = ?4,
    digest = ?5, started_at = ?6, spent = ?7, content = iif(stay = ?3, content, NULL)
WHERE id = ?8 AND state = ?9
"""
# It leaves `due_at` alone, which decides what is in an index.
ON_ITS_WAY = """
UPDATE message SET state = ?1, provider = ?3, counted_tries = ?4, stay = ?5, stay_tries = ?6, spent = ?7,
    doubt = ?8, content = ?9, digest = ?10, generation = ?11, sent_by = ?12
WHERE id = ?13 AND state = ?14
"""
TO_WAIT = f"{_PROGRESS}, waits_for = ? WHERE id = ? AND state = ?"
TO_AN_END = f"{_PROGRESS}, ended_at = ? WHERE id = ? AND state = ?"
SENT = f"""
UPDATE message SET state = {of.ACCEPTED.after:d}, counted_tries = ?, doubt = 0, content = NULL, digest = NULL,
    ended_at = ?, accepted_at = ?, provider_id = ?, reason = ?{{emptied}}
WHERE id = ? AND state = ?
"""
SENT_TO_CONFIRM = f"""
UPDATE message SET state = {of.ACCEPTED.after:d}, counted_tries = ?, doubt = 0, content = NULL, digest = NULL,
    ended_at = ?, accepted_at = ?, provider_id = ?, reason = ?,
    confirm_by = ?, confirm_within = ?, failed_next = ?
WHERE id = ? AND state = ?
"""
# Before the message moves on: its row still has the try.
UNACCEPTED = f"""
INSERT INTO unaccepted SELECT id, stay, stay_tries, provider, generation, started_at,
    ?, ?, ?, ?, ? FROM message
WHERE id = ? AND state = {of.ACCEPTED.before:d}
"""
HOLD = """
UPDATE unaccepted SET verdict = 'in_doubt', reason = coalesce(reason || '; ', '') || ?1
WHERE message_id = ?2 AND stay = ?3 AND stay_tries = ?4 AND instr(coalesce(reason, ''), ?1) = 0
"""

# What waits. The states stand in the text: an index is partial by them.

_FOR_ITS_TIME = "waits_at = ?"
_FOR_SOMETHING = "waits_for IS NOT NULL AND due_at IS NOT NULL"
SELECT_DUE = f"SELECT {ENTRY} FROM message WHERE {_FOR_ITS_TIME} AND due_at <= ? ORDER BY due_at, id LIMIT ?"
LEFT = f"SELECT count(*) FROM (SELECT 1 FROM message WHERE {_FOR_ITS_TIME} AND due_at <= ? LIMIT ?)"
NEXT_DUE = f"SELECT min(due_at) FROM message WHERE {_FOR_ITS_TIME}"
OVERDUE = f"""
SELECT {IS_PAUSED}, {ENTRY} FROM message INDEXED BY message_held_until WHERE {_FOR_SOMETHING} AND due_at <= ?
ORDER BY due_at LIMIT ?
"""
NEXT_OVERDUE = f"SELECT min(due_at) FROM message INDEXED BY message_held_until WHERE {_FOR_SOMETHING}"
WAKE = """
UPDATE message SET due_at = ?, waits_for = NULL WHERE id IN (SELECT id FROM message
    WHERE waits_for IN (SELECT value FROM json_each(?)) AND due_at IS NOT NULL LIMIT ?)
"""
MAKE_READY = f"UPDATE message SET state = {of.DUE.after:d}, due_at = NULL, waits_for = NULL WHERE id = ?"
RETIME = f"""
UPDATE message SET due_at = min(due_at - ?1, ?2)
WHERE due_at <> {AT_ONCE} AND (?1 <> 0 OR due_at > ?2) AND (waits_for IS NULL OR NOT ({IS_PAUSED}))
    AND id IN (
    SELECT id FROM message WHERE waits_at IS NOT NULL
    UNION ALL SELECT id FROM message WHERE {_FOR_SOMETHING} AND (?1 >= 0 OR due_at > ?2))
"""

# What the service answers to events

OUTBOX = (
    f"SELECT seq, message_id, status, body FROM event WHERE seq > max(?, {WATERMARK}) ORDER BY seq LIMIT ?"
)
RELEASE = f"""
UPDATE message SET state = {of.DEQUEUED_ACCEPTED.after:d} WHERE state = {of.DEQUEUED_ACCEPTED.before:d}
    AND id IN (SELECT message_id FROM event WHERE seq BETWEEN ? AND ? AND status = 'dequeued')
"""
# An operator's decision to drop one stays.
SET_ASIDE_AND_ACCEPTED = f"""
SELECT {ENTRY} FROM message WHERE state = {of.REOPENED.before:d} AND id IN
    (SELECT message_id FROM event WHERE seq BETWEEN ? AND ? AND status = 'dequeued' AND dropped_at IS NULL)
ORDER BY id
"""
END_BY_REPORT = "UPDATE message SET state = ?, ended_at = coalesce(?, ended_at) WHERE id = ?"
END_BY_REPORT_WITH_DEADLINE = """
UPDATE message SET state = ?, ended_at = coalesce(?, ended_at),
    confirm_by = NULL, confirm_within = NULL, failed_next = NULL{emptied}
WHERE id = ?
"""

REOPEN = f"UPDATE message SET state = {of.REOPENED.after:d}, ended_at = NULL WHERE id = ?"
REFUSE = """
UPDATE event SET refused_at = ?, refused = ?, refusals = coalesce(refusals, 0) + 1 WHERE seq = ?
"""
SET_ASIDE = f"""
UPDATE message SET state = {of.DEQUEUED_REFUSED.after:d}, ended_at = ?
WHERE id = ? AND state = {of.DEQUEUED_REFUSED.before:d}
"""

_EMPTY_WORDS = """
UPDATE unaccepted SET words = NULL WHERE message_id = ?1 AND words IS NOT NULL
    AND (SELECT variables IS NULL FROM message WHERE id = ?1)
"""


def empty_words(db: Db, ids: Sequence[int]) -> None:
    """Delete providers' words about tries of those of these messages whose variables were emptied.

    To be called for each that may have more tries than the accepted one; nearly none has.
    """
    if ids:
        db.executemany(_EMPTY_WORDS, [(id_,) for id_ in ids])
