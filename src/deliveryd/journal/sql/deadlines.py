"""Messages that were sent and go on to the next channel: not confirmed in time, or reported as failed.

Deadlines are instants of the listening time: how long this journal's worker could receive receipts so far, in
microseconds. It stands still while the worker is down, so no deadline has to be moved after a restart.
The accepted try of a message that goes on is kept in `unaccepted`: late receipts find it there, and it is
restored if no later channel takes the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from deliveryd import transitions
from deliveryd.errors import IllegalTransition
from deliveryd.journal.base import NOT_OURS, MatchedReceipt, PassedDeadlines
from deliveryd.journal.rows import ENTRY, entry_of, to_json, to_text
from deliveryd.journal.sql.db import Db, each_of
from deliveryd.journal.sql.schema import KNOW_PROVIDER
from deliveryd.journal.sql.statements import empty_words
from deliveryd.model import SECOND, Receipt, Reported, Transition
from deliveryd.states import State

MOST_UNREPORTED = 100
"""Deadlines of a provider that may pass without a single report. If more are due, they stand still."""

NOTED_EVERY = 5 * SECOND
"""Microseconds between two notes that a provider reports."""

_LATEST = 2**63 - 1

_LISTENED = "SELECT listened FROM log"
_ADD_LISTENED = "UPDATE log SET listened = listened + ? RETURNING listened"
_NOTE_REPORT = f"""
UPDATE provider SET reported_at = ?1, passed = 0
WHERE name = ?2 AND (reported_at + {NOTED_EVERY} <= ?1 OR reported_at > ?1)
"""  # noqa: S608  # a constant
_BOUND_REPORTED = "UPDATE provider SET reported_at = ?1 WHERE reported_at > ?1"
_BOUND_ACCEPTED = "UPDATE message SET accepted_at = ?1 WHERE confirms_at IS NOT NULL AND accepted_at > ?1"
_KNOWN = "SELECT reported_at, passed, silent, renewing FROM provider WHERE name = ?"
_KEEP_KNOWN = "UPDATE provider SET passed = ?, silent = ?, renewing = ? WHERE name = ?"
_DUE = "FROM message WHERE confirms_at = ?1 AND confirm_by <= ?2"
_UNREPORTED = f"SELECT count(*) FROM (SELECT 1 {_DUE} AND accepted_at > ?3 LIMIT ?4)"  # noqa: S608  # constants
_SELECT_DUE = f"""
SELECT confirm_within, accepted_at, {ENTRY} {_DUE} AND accepted_at <= ?3 ORDER BY confirm_by LIMIT ?4
"""  # constants
_NEXT = "SELECT min(confirm_by) FROM message WHERE confirms_at = ? AND confirm_by > ?"
_RENEW = """
UPDATE message SET confirm_by = ?1 + confirm_within WHERE id IN (SELECT id FROM message
    WHERE confirms_at = ?2 AND confirm_by < ?1 + confirm_within ORDER BY confirm_by LIMIT ?3)
"""

_NEXT_PROVIDER = "SELECT min(confirms_at) FROM message WHERE confirms_at > ?"
_DROP = """
UPDATE message SET confirm_by = NULL, confirm_within = NULL, failed_next = NULL{emptied}
WHERE id IN (SELECT id FROM message WHERE confirms_at = ? LIMIT ?) RETURNING id
"""

_SENT_ROW = f"id = ? AND state = {transitions.UNCONFIRMED.before:d}"
_KEEP_ACCEPTED = f"""
INSERT INTO unaccepted SELECT id, stay, stay_tries, provider, generation, started_at, accepted_at, 'accepted',
    provider_id, reason, NULL FROM message WHERE {_SENT_ROW}
"""  # noqa: S608  # constants
_GO_ON = f"""
UPDATE message SET state = {transitions.UNCONFIRMED.after:d}, due_at = ?, provider = '', stay = ?,
    stay_tries = 0, counted_tries = 0, spent = ?, sent_by = ?, ended_at = NULL, started_at = NULL,
    accepted_at = NULL, provider_id = NULL, reason = NULL, confirm_by = NULL, confirm_within = NULL,
    failed_next = NULL
WHERE {_SENT_ROW}
"""  # noqa: S608  # constants
_ACCEPTED_KEY = (
    "SELECT max(stay) FROM unaccepted WHERE message_id = ? AND provider = ? AND verdict = 'accepted'"
)
_IS_ACCEPTED = "SELECT 1 FROM unaccepted WHERE message_id = ? AND stay = ? AND verdict = 'accepted'"
_RESTORE = """
UPDATE message SET state = {after:d}, due_at = NULL, waits_for = NULL, ended_at = ?3,
    (provider, stay, generation, stay_tries, counted_tries, started_at, accepted_at, provider_id, reason) = (
        SELECT provider, stay, generation, stay_tries, stay_tries, started_at, ended_at, provider_id,
            iif(instr(reason, ?4) > 0, reason, coalesce(reason || '; ' || ?4, reason, ?4))
        FROM unaccepted WHERE message_id = ?1 AND stay = ?2 AND verdict = 'accepted'
        ORDER BY stay_tries DESC LIMIT 1),
    doubt = 0, content = NULL, digest = NULL, sent_by = NULL{emptied}
WHERE id = ?1
"""
_DROP_ACCEPTED = """
DELETE FROM unaccepted WHERE message_id = ?1 AND stay = ?2 AND verdict = 'accepted' AND stay_tries = (
    SELECT stay_tries FROM message WHERE id = ?1)
"""
ACCEPTED_BEFORE = """
SELECT message_id, stay FROM unaccepted WHERE provider_id = ? AND provider = ?
ORDER BY started_at DESC LIMIT 1
"""
"""Finds the message and the key that a provider accepted under an id, of messages that went on since."""


class KnownReports(NamedTuple):
    """What is known of a provider's reports.

    `reported_at` is when the last one was recorded. `passed` counts messages that were accepted since and
    whose deadline passed. `silent`: deadlines stand still. `renewing`: the provider reports again, and
    deadlines begin again at this point of the listening time.
    """

    reported_at: int = 0
    passed: int = 0
    silent: int = 0
    renewing: int | None = None


class Passed(NamedTuple):
    """What became of one provider's deadlines."""

    passed: int
    silent: bool
    is_complete: bool
    next_by: int | None


def listened(db: Db) -> int:
    """Return the listening time."""
    (now,) = db.execute(_LISTENED).fetchone()
    return int(now)


def bound_instants(db: Db, now: int) -> None:
    """Date no report and no acceptance later than now, after the clock was put back.

    Until the clock was there again, reports would seem to be older than the acceptances before them.
    """
    db.execute(_BOUND_REPORTED, (now,))
    db.execute(_BOUND_ACCEPTED, (now,))


def note_reports(db: Db, reports: Sequence[Reported], matched: Sequence[MatchedReceipt]) -> None:
    """Note which providers with deadlines reported on a message of this journal."""
    latest = {
        report.provider: report.received_at
        for report, match in zip(reports, matched, strict=True)
        if isinstance(report, Receipt) and match.result not in ("unmatched", NOT_OURS)
    }
    db.executemany(_NOTE_REPORT, [(at, name) for name, at in latest.items()])


def pass_deadlines(
    db: Db, listened: int, at: int, providers: Collection[str], limit: int, *, emptied: str
) -> PassedDeadlines:
    """Add to the listening time; send on what wasn't confirmed in time, up to `limit` of each provider.

    Drop the deadlines of all other providers. `emptied` is as in `emptying`.
    """
    row = db.execute(_ADD_LISTENED, (listened,)) if listened else db.execute(_LISTENED)
    (now,) = row.fetchone()
    done = {name: _pass_of(db, name, now, at, limit) for name in providers}
    dropped = {name: _drop(db, name, limit, emptied) for name in each_of(db, _NEXT_PROVIDER) - {*providers}}
    return PassedDeadlines(
        now,
        {name: each.passed for name, each in done.items() if each.passed},
        frozenset(name for name, each in done.items() if each.silent),
        dropped,
        min((each.next_by for each in done.values() if each.next_by is not None), default=None),
        all(each.is_complete for each in done.values()) and all(each < limit for each in dropped.values()),
    )


def passed_in_logs(found: Sequence[PassedDeadlines]) -> PassedDeadlines:
    """What became of the deadlines of several logs, by the listening time of the last one."""
    if len(found) == 1:
        return found[0]
    passed: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for each in found:
        passed.update(each.passed)
        dropped.update(each.dropped)
    listened = found[-1].listened
    coming = [listened + each.next_by - each.listened for each in found if each.next_by is not None]
    return PassedDeadlines(
        listened,
        passed,
        frozenset().union(*(each.silent for each in found)),
        dropped,
        min(coming, default=None),
        all(each.is_complete for each in found),
    )


def _drop(db: Db, name: str, limit: int, emptied: str) -> int:
    ids = [id_ for (id_,) in db.execute(_DROP.format(emptied=emptied), (name, limit))]
    empty_words(db, ids)
    return len(ids)


def _pass_of(db: Db, name: str, now: int, at: int, limit: int) -> Passed:
    row = db.execute(_KNOWN, (name,)).fetchone()
    known = KnownReports(*(row or ()))
    room = MOST_UNREPORTED - known.passed
    (unreported,) = db.execute(_UNREPORTED, (name, now, known.reported_at, room + 1)).fetchone()
    silent = unreported > room
    renewing = now if known.silent and not silent else known.renewing
    if renewing is not None and db.execute(_RENEW, (renewing, name, limit)).rowcount < limit:
        renewing = None
    rows = []
    if renewing is None:
        latest = known.reported_at if silent else _LATEST
        rows = db.execute(_SELECT_DUE, (name, now, latest, limit)).fetchall()
    for within, _accepted_at, *row in rows:
        go_on(db, transitions.unconfirmed(entry_of(tuple(row)), at, within / SECOND))
    passed = known.passed + sum(accepted_at > known.reported_at for _, accepted_at, *_ in rows)
    (next_by,) = db.execute(_NEXT, (name, now)).fetchone()
    if (passed, silent, renewing) != known[1:] or (row is None and next_by is not None):
        db.execute(KNOW_PROVIDER, (name,))
        db.execute(_KEEP_KNOWN, (passed, int(silent), renewing, name))
    return Passed(len(rows), silent, renewing is None and len(rows) < limit, next_by)


def go_on(db: Db, step: Transition) -> None:
    """Take the step of a sent message that goes on. Raises IllegalTransition if it isn't sent."""
    entry = step.entry
    db.execute(_KEEP_ACCEPTED, (entry.id,))
    progress = (step.due_at, entry.stay, to_json([tuple(each) for each in entry.spent]), entry.sent_by)
    if db.execute(_GO_ON, (*progress, entry.id)).rowcount != 1:
        raise IllegalTransition(f"message {entry.id} isn't sent")


def is_accepted(db: Db, message_id: int, key: int) -> bool:
    """Return whether a message went on although a try under this key was accepted."""
    return db.execute(_IS_ACCEPTED, (message_id, key)).fetchone() is not None


def restore(db: Db, tried: tuple[int, int], at: int, *, reason: str | None, emptied: str) -> None:
    """Take a step to SENT: the accepted try under this key is the one of its message's row again.

    `reason`, why it is, is added to what was recorded of that try.
    """
    db.execute(
        _RESTORE.format(after=transitions.STAYS_SENT.after, emptied=emptied), (*tried, at, to_text(reason))
    )
    db.execute(_DROP_ACCEPTED, tried)
    empty_words(db, [tried[0]])


def stay_sent(db: Db, step: Transition, emptied: str) -> int:
    """Take the step of a message that stays sent, as no later channel takes it; return the key of its try."""
    entry = step.entry
    (key,) = db.execute(_ACCEPTED_KEY, (entry.id, entry.sent_by)).fetchone()
    is_there = db.execute(
        "SELECT 1 FROM message WHERE id = ? AND state = ?", (entry.id, step.before)
    ).fetchone()
    if key is None or is_there is None:
        raise IllegalTransition(f"message {entry.id} wasn't sent before, or isn't {step.before.name}")
    # The outcome of a try for the rest of a customer's devices is recorded with that try.
    reason = None if step.outcome is None or step.before is State.SENDING else step.outcome.reason
    restore(db, (entry.id, key), step.at, reason=reason, emptied=emptied)
    return int(key)
