"""What the journal does inside one transaction: plain functions on a connection, each a step of the line."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from deliveryd import transitions
from deliveryd.errors import IllegalTransition
from deliveryd.journal.base import (
    MOST_COUNTED,
    Counted,
    Due,
    FetchPortion,
    OutboxRow,
    Recorded,
)
from deliveryd.journal.orders import Effect
from deliveryd.journal.rows import (
    IDS,
    NONE_SPENT,
    entry_of,
    progress_of,
    spent_text,
    to_json,
    to_name,
    to_text,
    variables_json,
)
from deliveryd.journal.sql import statements
from deliveryd.journal.sql.account import count_more
from deliveryd.journal.sql.counting import count_intents, count_no_more
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.deletion import generations_of
from deliveryd.journal.sql.outbox import Outbox, note_posted, note_settled, settle_events, was_posted
from deliveryd.journal.sql.receipt_match import Matching
from deliveryd.journal.sql.repeats import report_again
from deliveryd.journal.sql.statements import empty_words
from deliveryd.journal.sql.stopped import record_stops
from deliveryd.journal.sql.turns import next_by_turns
from deliveryd.model import Entry, Malformed, Outcome, QueuedMessage, StopChange, Transition
from deliveryd.states import ENDED, State, check_transition

"""After a step to one of these, the try stands in its message's row."""

_EVENTS = attrgetter("events")
_outbox_row: Callable[[tuple[Any, ...]], OutboxRow] = partial(tuple.__new__, OutboxRow)
_HIGHEST = "SELECT max(id) FROM main.message UNION ALL SELECT max(id) FROM main.tombstone"
_KNOWN = f"""
SELECT id FROM {{0}}message WHERE id IN {IDS} UNION SELECT id FROM {{0}}tombstone WHERE id IN {IDS}
"""  # noqa: S608  # constants


class TakenBatch(NamedTuple):
    """A batch that was recorded: the ids that are new, each with its generation, and those of other logs."""

    new: Mapping[int, int]
    of_others: Collection[int] = ()


class Operations:
    """The steps that the line takes."""

    def __init__(self, outbox: Outbox, matching: Matching, emptied: str) -> None:
        self._outbox = outbox
        self._matching = matching
        self._sent = statements.SENT.format(emptied=emptied)

    # intake

    def take(
        self,
        db: Db,
        messages: Sequence[QueuedMessage],
        malformed: Sequence[Malformed],
        at: int,
    ) -> TakenBatch:
        """Record a batch of the queue."""
        numbers = [number for bad in malformed if (number := bad.number) is not None]
        ids = [message.id for message in messages] + numbers
        known = _known(db, ids)
        new: dict[int, QueuedMessage] = {}
        for message in messages:
            if message.id not in known:
                new.setdefault(message.id, message)
        rows = [(m.id, m.settings_id, m.customer_id, variables_json(m.variables), at) for m in new.values()]
        if statements.TAKE.run(db, rows) < len(rows):  # others took some of them at the same time
            mine = _of_this_log(db, new)
            known |= new.keys() - mine
            new = {id_: new[id_] for id_ in new if id_ in mine}
        self._outbox.put(db, transitions.dequeued(new, at))
        failed = self._set_aside(db, malformed, known | new.keys(), at)
        count_more(db, taken=len(new) + failed)
        mine = _of_this_log(db, known) if known else known
        report_again(db, self._outbox, mine, at)
        again = generations_of(db, new)
        if again:
            db.executemany(statements.BEGIN_AT, [(count, id_) for id_, count in again.items()])
        return TakenBatch({**dict.fromkeys(new, 1), **again}, known - mine)

    def _set_aside(self, db: Db, malformed: Sequence[Malformed], known: set[int], at: int) -> int:
        """Keep malformed elements; return how many of them are messages, with an id that wasn't known."""
        before = len(known)
        for bad in malformed:
            raw, reason, number = to_text(bad.raw), to_text(bad.reason), bad.number
            db.execute(
                statements.KEEP_MALFORMED,
                (_digest(bad.raw), raw, reason, number, at, at),
            )
            if number is None or number in known:
                continue
            if db.execute(statements.TAKE_MALFORMED, (number, at, at)).rowcount:
                known.add(number)
                self._outbox.put(db, transitions.malformed(bad, at))
        return len(known) - before

    # delivery

    def change(self, db: Db, steps: Sequence[Transition]) -> Recorded:
        """Record steps of messages, and apply the receipts that were kept for them, instead or afterwards."""
        if not self._matching.are_kept(db):
            if not [step for step in steps if step.claim is not None]:
                return Recorded((), self._record(db, steps))
            steps, counted = _counted(db, steps)
            effects = self._record(db, steps)
            return Recorded((), effects, _given_back(db, steps, counted))
        overtaken = self._matching.match_before(db, steps)
        steps = [transition for transition in steps if transition.entry.id not in overtaken]
        steps, counted = _counted(db, steps)
        effects = self._record(db, steps)
        followed = self._matching.match_after(db, steps)
        settled = {id_ for id_, effect in followed.items() if State.SENT in effect.ended}
        counted = _given_back(db, [step for step in steps if step.entry.id not in settled], counted)
        effects = [*effects, *overtaken.values(), *followed.values()]
        return Recorded(overtaken.keys() | settled, effects, counted)

    def _record(self, db: Db, steps: Sequence[Transition]) -> Sequence[Effect]:
        """Record steps, with their tries and events; return what receipts did to those that stay sent."""
        _conclude(db, steps)
        restored = _move(db, steps, self._sent)
        self._outbox.put(db, chain.from_iterable(map(_EVENTS, steps)))
        return [self._matching.stay_sent(db, step) for step in restored]

    def retime(self, db: Db, back: int, latest: int) -> None:
        """Bring due times in line with a clock that was set, and let none be later than `latest`."""
        if back > 0:
            self._outbox.note_step(db)
        db.execute(statements.RETIME, (back, latest))

    def due(self, db: Db, now: int, room: Mapping[str, int]) -> Due:
        """Make waiting messages READY whose time has come."""
        entries: list[Entry] = []
        coming: list[int] = []
        left = 0
        for provider, limit in room.items():
            found = _make_ready(db, db.execute(statements.SELECT_DUE, (provider, now, limit)))
            entries += found
            more = 0
            if len(found) == limit:
                (more,) = db.execute(statements.LEFT, (provider, now, MOST_COUNTED)).fetchone()
                left += more
            if not more:
                (next_due,) = db.execute(statements.NEXT_DUE, (provider,)).fetchone()
                coming += [next_due] if next_due is not None else []
        return Due(entries, min(coming, default=None), left)

    def overdue(self, db: Db, now: int, limit: int) -> Due:
        """Make messages READY that have waited for something for long enough."""
        rows = db.execute(statements.OVERDUE, (now, limit)).fetchall()
        entries = _make_ready(db, (row for _, *row in rows))
        paused = sum(is_paused for is_paused, *_ in rows)
        return Due(entries, db.execute(statements.NEXT_OVERDUE).fetchone()[0], paused=paused)

    def resume(
        self, db: Db, waits_for: Sequence[str], portions: Sequence[FetchPortion], limit: int
    ) -> list[Entry]:
        """Make messages READY that wait for one of these; what one portion leaves, the others have."""
        entries: list[Entry] = []
        again = [portion._replace(most=limit) for portion in portions] if len(portions) > 1 else []
        allowed = 0
        for portion in (*portions, *again):
            allowed = min(allowed + portion.most, limit)
            if wanted := allowed - len(entries):
                entries += _make_ready(db, next_by_turns(db, waits_for, portion, wanted))
        return entries

    # reporting

    def outbox(self, db: Db, after: int, limit: int) -> list[OutboxRow]:
        """The oldest events that wait."""
        return list(map(_outbox_row, db.execute(statements.OUTBOX, (after, limit))))

    def accept(self, db: Db, rows: Sequence[OutboxRow], at: int) -> list[Entry]:
        """Mark events as accepted; return the messages that were set aside and may be sent now."""
        settled = settle_events(db, rows)
        if not settled:
            return []
        self._outbox.note(db, at)
        note_settled(db, settled, at)
        dequeued = [row.status for row in rows].count("dequeued")
        return _release(db, settled, dequeued) if dequeued else []

    def accept_early(self, db: Db, rows: Sequence[OutboxRow], at: int) -> list[Entry]:
        """Let messages go on whose `dequeued` was accepted; the events stay in the outbox."""
        self._outbox.note(db, at)
        note_posted(db, [row.seq for row in rows], at)
        dequeued = [row.seq for row in rows if row.status == "dequeued"]
        return [entry for seq in dequeued for entry in _release(db, range(seq, seq + 1), 1)]

    def put_last(self, db: Db, rows: Sequence[OutboxRow]) -> None:
        """Have events wait behind all others, with the later ones of their messages."""
        later = "SELECT seq FROM event WHERE message_id = ? AND seq >= ? ORDER BY seq"
        found = [seq for row in rows for (seq,) in db.execute(later, (row.message_id, row.seq))]
        self._outbox.put_last(db, found)

    def refuse(self, db: Db, row: OutboxRow, reason: str, at: int) -> int:
        """Set an event aside; return how often it was refused by now; 0: it was accepted before.

        After a restart events are posted again that were accepted early, which the service may refuse.
        """
        settled = settle_events(db, [row])
        if not settled:
            return 0
        self._outbox.note(db, at)
        if was_posted(db, row.seq):
            note_settled(db, settled, at)
            return 0
        db.execute(statements.REFUSE, (at, to_text(reason), row.seq))
        if row.status == "dequeued":
            db.execute(statements.SET_ASIDE, (at, row.message_id))
        found = db.execute("SELECT refusals FROM event WHERE seq = ?", (row.seq,)).fetchone()
        return 0 if found is None else int(found[0])


def _release(db: Db, accepted: range, dequeued: int) -> list[Entry]:
    """Make READY what awaits the acceptance of one of these; return what had been set aside."""
    if db.execute(statements.RELEASE, (accepted[0], accepted[-1])).rowcount == dequeued:
        return []
    return _reopen(db, accepted)


def _reopen(db: Db, accepted: range) -> list[Entry]:
    """Make READY what was set aside, and whose `dequeued` the service accepted after all."""
    entries = [
        entry_of(row) for row in db.execute(statements.SET_ASIDE_AND_ACCEPTED, (accepted[0], accepted[-1]))
    ]
    db.executemany(statements.REOPEN, [(entry.id,) for entry in entries])
    return entries


def _make_ready(db: Db, rows: Iterable[Sequence[Any]]) -> list[Entry]:
    entries = [entry_of(row) for row in rows]
    db.executemany(statements.MAKE_READY, [(entry.id,) for entry in entries])
    return entries


def _known(db: Db, ids: Sequence[int]) -> set[int]:
    """Which of these ids were seen before. Where ids grow, the two highest ones show that none was."""
    highest = [id_ for (id_,) in db.execute(_HIGHEST) if id_ is not None]
    if not ids or not highest or max(highest) < min(ids):
        return set()
    return {id_ for (id_,) in db.execute(_KNOWN.format("main."), (to_json(ids),))}


def _of_this_log(db: Db, ids: Iterable[int]) -> set[int]:
    """Those of these ids that this log has."""
    return {id_ for (id_,) in db.execute(_KNOWN.format(""), (to_json(list(ids)),))}


def _digest(raw: str) -> str:
    return hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()


def _move(db: Db, steps: Sequence[Transition], sent_statement: str) -> list[Transition]:
    """Move messages from state to state, all of them or none. Raises IllegalTransition.

    Returns the steps that it leaves out: those of messages that stay sent.
    """
    restored = []
    begun = []
    on_its_way = []
    to_wait = []
    accepted = []
    sent_at_last = []
    to_confirm = []
    at_an_end = []
    # Once for all steps: the members of an enum are slow to look up.
    ready, waiting, sending, sent = State.READY, State.WAITING, State.SENDING, State.SENT
    for transition in steps:
        entry, before = transition.entry, transition.before
        after = check_transition(before, transition.after)
        came_from = +before  # a plain int: sqlite3 takes twice as long over what only derives from one
        if after is sent:
            if before is ready or (entry.sent_by is not None and _stays_sent(transition)):
                restored.append(transition)
                continue
            progress = (entry.counted_tries, transition.at, *_accepted(transition))
            if transition.confirmation is None:
                accepted.append((*progress, entry.id, came_from))
                if entry.stay > 1 or entry.stay_tries > 1 or before is not sending:
                    sent_at_last.append(entry.id)
            else:
                to_confirm.append((*progress, *transition.confirmation, entry.id, came_from))
        elif after is sending:
            spent = spent_text(entry) if entry.spent else NONE_SPENT
            try_ = entry.provider or "", entry.counted_tries, entry.stay, entry.stay_tries, entry.digest
            begun.append((*try_, transition.at, spent, entry.id, came_from))
        elif after in ENDED or before in ENDED:  # only these write the indexed column `ended_at`
            ended_at = transition.at if after in ENDED else None
            at_an_end.append((*progress_of(transition), ended_at, entry.id, came_from))
        elif after is waiting or before is waiting:
            to_wait.append((*progress_of(transition), transition.waits_for, entry.id, came_from))
        else:
            on_its_way.append((*progress_of(transition), entry.id, came_from))
    moved = sum(
        db.executemany(statement, rows).rowcount
        for statement, rows in (
            (statements.RECORD_INTENT, begun),
            (statements.ON_ITS_WAY, on_its_way),
            (statements.TO_WAIT, to_wait),
            (sent_statement, accepted),
            (statements.SENT_TO_CONFIRM, to_confirm),
            (statements.TO_AN_END, at_an_end),
        )
        if rows
    )
    empty_words(db, sent_at_last)
    moved += len(restored)
    if moved != len(steps):
        raise IllegalTransition(
            f"{len(steps) - moved} of {len(steps)} messages aren't in the state that their step begins in"
        )
    return restored


def _counted(db: Db, steps: Sequence[Transition]) -> tuple[Sequence[Transition], Counted]:
    """Count what the intents claim; return the steps that may be taken."""
    counted = count_intents(db, steps)
    if counted.refused:
        steps = [step for step in steps if step.entry.id not in counted.refused]
    return steps, counted


def _given_back(db: Db, steps: Sequence[Transition], counted: Counted) -> Counted:
    """Count no more what steps that were taken give back."""
    uses = count_no_more(db, steps)
    return counted._replace(uses=[*counted.uses, *uses]) if uses else counted


def _stays_sent(transition: Transition) -> bool:
    """Whether a step to SENT isn't that of an attempt which was accepted: the message was sent before."""
    outcome = transition.outcome
    return transition.after is State.SENT and outcome is not None and outcome.verdict != "accepted"


def _accepted(transition: Transition) -> tuple[int | None, str | None, str | None]:
    """What a message's row has of its accepted attempt: the instant, the provider's id, the reason."""
    if transition.outcome is None:
        return None, None, None
    _verdict, provider_id, reason, _words = transition.outcome
    return transition.at, to_name(provider_id), to_text(reason)


def _conclude(db: Db, steps: Sequence[Transition]) -> None:
    """Record the outcomes of tries that weren't accepted; all others stand in their message's row."""
    ended = []
    held = []
    stops: list[StopChange] = []
    sending, sent = State.SENDING, State.SENT
    for transition in steps:
        after = transition.after
        if after is sending:
            continue
        if transition.stops:
            stops += transition.stops
        if after is sent and (transition.entry.sent_by is None or not _stays_sent(transition)):
            continue
        entry, before, outcome = transition.entry, transition.before, transition.outcome
        if before is sending:
            ended.append((*_outcome(outcome, transition.at), entry.id))
        elif after is State.IN_DOUBT and outcome is not None:
            held.append((to_text(outcome.reason), entry.id, entry.stay, entry.stay_tries))
    for statement, rows in ((statements.UNACCEPTED, ended), (statements.HOLD, held)):
        if rows:
            db.executemany(statement, rows)
    if stops:
        record_stops(db, stops)


def _outcome(outcome: Outcome | None, at: int) -> tuple[int | str | None, ...]:
    """The columns of a try: ended_at, verdict, provider_id, reason, words."""
    if outcome is None:
        return None, None, None, None, None
    verdict, provider_id, reason, words = outcome
    return at, verdict, to_name(provider_id), to_text(reason), to_text(words)
