"""The line's steps, each kind in one statement for all of its messages, in the order of their ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deliveryd import transitions
from deliveryd.errors import IllegalTransition
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.days import ByDay, Days, by_day
from deliveryd.journal.postgresql.schema import day_of
from deliveryd.journal.postgresql.stopped import record_stops
from deliveryd.journal.postgresql.values import LOCATED, arrays, indexable, plain
from deliveryd.journal.rows import progress_of, spent_text
from deliveryd.model import SECOND, Outcome, Transition
from deliveryd.states import ENDED, State, check_transition

_IN_HAND = frozenset({State.TAKEN, State.READY, State.SENDING})
_NOBODYS = frozenset({State.WAITING, State.IN_DOUBT})
IN_DOUBT = 0
"""The owner of messages that are held in doubt: nobody."""

_IN_HAND_SQL = f"ARRAY[{', '.join(f'{state:d}' for state in sorted(_IN_HAND))}]::int2[]"


def _moving(changes: str, types: str, columns: str, only: str = "true") -> ByDay:
    """A statement for a kind of step: what it sets of `m`, and the types and names of the columns of `s`.

    `only`: which messages it may move.
    """
    arrays_of = ", ".join(f"%s::{each}[]" for each in f"int8 int2 {types}".split())
    return by_day(f"""
UPDATE {{message}} m SET {changes}
FROM unnest({arrays_of}) AS s (id, before, {columns}) {{located}}
WHERE {{is_there}} AND m.state = s.before AND {only}
    AND (s.before <> ALL({_IN_HAND_SQL})
        OR m.owner = ANY(ARRAY(SELECT w.id FROM worker w WHERE w.holder = %s)))
RETURNING m.id, m.log
""")


_INTENT = _moving(
    f"""state = {transitions.INTENT.after:d}, provider = s.provider, tries = s.tries,
    key = s.key, number = s.number, digest = s.digest, started_at = s.at,
    spent = s.spent, content = CASE WHEN m.key = s.key THEN m.content END""",
    "text int4 int4 int4 bytea int8 text",
    "provider, tries, key, number, digest, at, spent",
)
_PROGRESS = _moving(
    """state = s.after, provider = s.provider, tries = s.tries, key = s.key, number = s.number,
    spent = s.spent, doubt = s.doubt, content = s.content, digest = s.digest, beginning = s.beginning,
    ended_at = s.ended_at, owner = s.owner""",
    "int2 text int4 int4 int4 text bool text bytea int4 int8 int8",
    "after, provider, tries, key, number, spent, doubt, content, digest, beginning, ended_at, owner",
    # One that is held may have been tried again at another worker, and be held for that.
    f"(s.before <> {State.IN_DOUBT:d} OR s.key > m.key OR (s.key = m.key AND s.number >= m.number))",
)
_SENT = _moving(
    f"""state = {transitions.ACCEPTED.after:d}, tries = s.tries, doubt = false, content = NULL,
    digest = NULL, ended_at = s.at, owner = NULL, accepted_at = s.accepted_at, provider_id = s.provider_id,
    reason = s.reason, variables = CASE WHEN s.is_emptied THEN NULL ELSE m.variables END""",
    "int4 int8 int8 text text bool",
    "tries, at, accepted_at, provider_id, reason, is_emptied",
)
_WAIT = """
INSERT INTO waiting (id, provider, doubt, due_at, waits_for)
SELECT * FROM unnest(%s::int8[], %s::text[], %s::bool[], %s::int8[], %s::text[])
"""
_BEHIND = 10 * SECOND
"""Microseconds that are added at most at once to the listening time, which one worker records for all."""
# Where another worker counts the listening time, or may begin to, this one knows an old one, and the record
# is behind: a deadline may be late by that, but never early.
_AWAIT = f"""
INSERT INTO awaited (id, provider, accepted_at, confirm_by, confirm_within, failed_next)
SELECT s.id, s.provider, s.accepted_at,
    greatest(s.confirm_by, heard.listened + s.confirm_within) - coalesce(p.unheard, 0),
    s.confirm_within, s.failed_next
FROM unnest(%s::int8[], %s::text[], %s::int8[], %s::int8[], %s::int8[], %s::bool[])
    AS s (id, provider, accepted_at, confirm_by, confirm_within, failed_next)
CROSS JOIN (SELECT coalesce((SELECT value::int8 FROM meta WHERE key = 'listened'), 0) + CASE
    WHEN coalesce((SELECT value::int8 FROM meta WHERE key = 'listener'),
        (SELECT min(w.id) FROM worker w WHERE w.ended IS NULL AND w.id <> here.id), here.id) = here.id THEN 0
    ELSE {_BEHIND} END AS listened FROM (SELECT %s::int8 AS id) AS here) AS heard
LEFT JOIN provider p ON p.name = s.provider
"""
# Before the message moves on: its row still has the try. It is locked, so that both stay in one day.
_UNACCEPTED = f"""
WITH tried AS (
    SELECT m.id, m.day, m.key, m.number, m.provider, m.beginning, m.started_at,
        s.ended_at, s.verdict, s.provider_id, s.reason, s.words
    FROM unnest(%s::int8[], %s::int8[], %s::text[], %s::text[], %s::text[], %s::text[])
        AS s (id, ended_at, verdict, provider_id, reason, words)
    {LOCATED.format(id="s.id")} WHERE m.state = {transitions.ACCEPTED.before:d}
    ORDER BY m.id FOR NO KEY UPDATE OF m)
INSERT INTO unaccepted (message_id, day, key, number, provider, beginning, started_at,
    ended_at, verdict, provider_id, reason, words)
SELECT * FROM tried
"""
_HOLD = """
UPDATE unaccepted u SET verdict = 'in_doubt', reason = coalesce(u.reason || '; ', '') || s.reason
FROM unnest(%s::int8[], %s::int4[], %s::int4[], %s::text[]) AS s (id, key, number, reason)
WHERE u.message_id = s.id AND u.key = s.key AND u.number = s.number
    AND strpos(coalesce(u.reason, ''), s.reason) = 0
"""
_EMPTY_WORDS = f"""
UPDATE unaccepted u SET words = NULL FROM unnest(%s::int8[]) AS wanted (id) {LOCATED.format(id="wanted.id")}
WHERE u.message_id = m.id AND u.day = m.day AND u.words IS NOT NULL
"""


@dataclass(slots=True)
class _Rows:
    """What steps write, by the statement that writes it, and the steps of messages that stay sent."""

    begun: list[tuple[Any, ...]] = field(default_factory=list)
    moved: list[tuple[Any, ...]] = field(default_factory=list)
    sent: list[tuple[Any, ...]] = field(default_factory=list)
    sent_at_last: list[int] = field(default_factory=list)
    waits: list[tuple[Any, ...]] = field(default_factory=list)
    awaited: list[tuple[Any, ...]] = field(default_factory=list)
    restored: list[Transition] = field(default_factory=list)


class StepsWritten(NamedTuple):
    """What became of steps.

    `restored`: those of messages that stay sent, which are left out. `lost`: messages that were nobody's and
    that another worker moved first. `places`: the column `log` of those whose latest event isn't in this
    worker's own log. `days`: of those that were moved, as far as it is known; they are locked there.
    """

    restored: Sequence[Transition]
    lost: frozenset[int]
    places: Mapping[int, int | None]
    days: Mapping[int, int]


class StepWriter:
    """Records steps. `keeps_variables`: also those of messages that are sent."""

    def __init__(self, worker: int, days: Days, *, keeps_variables: bool) -> None:
        self._worker = worker
        self._days = days
        self._keeps_variables = keeps_variables

    def record(self, db: Db, steps: Sequence[Transition]) -> StepsWritten:
        """Move messages from state to state, all of them or none, with their tries. Raises IllegalTransition.

        But messages that were nobody's may be another worker's by now.
        """
        steps = sorted(steps, key=lambda step: step.entry.id)
        _conclude(db, steps)
        return self._move(db, steps)

    def _move(self, db: Db, steps: Sequence[Transition]) -> StepsWritten:
        rows = _Rows()
        for step in steps:
            self._sort(step, rows)
        left = [step.entry.id for step in steps if step.before is State.WAITING]
        if left:
            db.execute("DELETE FROM waiting WHERE id = ANY(%s::int8[])", (left,))
        logs: dict[int, int | None] = {}
        days: dict[int, int] = {}
        taken_on = {step.entry.id: day_of(step.entry.taken_at) for step in steps}
        for statement, moved in ((_INTENT, rows.begun), (_PROGRESS, rows.moved), (_SENT, rows.sent)):
            if moved:
                found = self._days.lock_anywhere(db, statement, moved, taken_on, self._worker)
                logs |= found.logs
                days |= found.days
        lost = self._lost(steps, rows, logs)
        if waits := [row for row in rows.waits if row[0] not in lost]:
            db.execute(_WAIT, arrays(waits))
        if awaited := [row for row in rows.awaited if row[0] not in lost]:
            db.execute(_AWAIT, (*arrays(awaited), self._worker))
        if not self._keeps_variables:
            empty_words(db, rows.sent_at_last)
        places = {id_: log for id_, log in logs.items() if log != self._worker}
        return StepsWritten(rows.restored, lost, places, days)

    def _lost(self, steps: Sequence[Transition], rows: _Rows, moved: Collection[int]) -> frozenset[int]:
        """The messages that were nobody's and that another worker moved. Raises IllegalTransition."""
        if len(moved) + len(rows.restored) == len(steps):
            return frozenset()
        stay = {step.entry.id for step in rows.restored}
        left = [step for step in steps if step.entry.id not in moved and step.entry.id not in stay]
        wrong = [step for step in left if step.before not in _NOBODYS]
        if not left:
            raise IllegalTransition("one message has several steps at once")
        if wrong:
            raise IllegalTransition(
                f"{len(wrong)} of {len(steps)} messages aren't in the state that their step begins in"
            )
        return frozenset(step.entry.id for step in left)

    def _sort(self, step: Transition, rows: _Rows) -> None:
        """Add what a step writes. Raises IllegalTransition."""
        entry, before = step.entry, step.before
        after = check_transition(before, step.after)
        if after is State.SENDING:
            progress = entry.provider or "", entry.tries, entry.key, entry.number, entry.digest, step.at
            rows.begun.append((entry.id, before, *progress, spent_text(entry)))
        elif after is not State.SENT:
            rows.moved.append(self._progress(step))
            if after is State.WAITING:
                rows.waits.append((entry.id, entry.provider or "", entry.doubt, step.due_at, step.waits_for))
        elif before is State.READY:
            rows.restored.append(step)
        else:
            rows.sent.append(self._accepted(step))
            if step.confirmation is not None:
                rows.awaited.append((entry.id, entry.provider or "", step.at, *step.confirmation))
            elif entry.key > 1 or entry.number > 1 or before is not State.SENDING:
                rows.sent_at_last.append(entry.id)

    def _progress(self, step: Transition) -> tuple[Any, ...]:
        after, _due_at, *progress = progress_of(step)
        ended_at = step.at if step.after in ENDED else None
        owner = self._worker if step.after in _IN_HAND else IN_DOUBT if step.after is State.IN_DOUBT else None
        return step.entry.id, step.before, after, *progress, ended_at, owner

    def _accepted(self, step: Transition) -> tuple[Any, ...]:
        entry, outcome = step.entry, step.outcome
        taken: tuple[Any, ...] = (None, None, None)
        if outcome is not None:
            taken = step.at, indexable(outcome.provider_id), plain(outcome.reason)
        is_emptied = step.confirmation is None and not self._keeps_variables
        return entry.id, step.before, entry.tries, step.at, *taken, is_emptied


def _conclude(db: Db, steps: Iterable[Transition]) -> None:
    """Record the outcomes of tries that weren't accepted; all others stand in their message's row."""
    ended, held, stops = [], [], []
    for step in steps:
        entry, outcome = step.entry, step.outcome
        if step.after in {State.SENDING, State.SENT}:
            continue
        if step.before is State.SENDING:
            ended.append((entry.id, *_outcome(outcome, step.at)))
            if step.stop is not None:
                stops.append(step.stop)
        elif step.after is State.IN_DOUBT and outcome is not None:
            held.append((entry.id, entry.key, entry.number, plain(outcome.reason)))
    for statement, rows in ((_UNACCEPTED, ended), (_HOLD, held)):
        if rows:
            db.execute(statement, arrays(rows))
    record_stops(db, stops)


def empty_words(db: Db, ids: Sequence[int]) -> None:
    """Delete what providers said about tries of messages whose variables are emptied: it may quote them."""
    if ids:
        db.execute(_EMPTY_WORDS, (ids,))


def _outcome(outcome: Outcome | None, at: int) -> tuple[Any, ...]:
    """The columns of a try: ended_at, verdict, provider_id, reason, words."""
    if outcome is None:
        return None, None, None, None, None
    verdict, provider_id, reason, words = outcome
    return at, verdict, indexable(provider_id), plain(reason), plain(words)
