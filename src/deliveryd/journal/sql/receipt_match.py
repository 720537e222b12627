"""Providers' receipts: finding the message and the key that one is about, and taking the steps that follow.

What follows is decided in `rules.receipts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Any

from deliveryd import transitions
from deliveryd.journal.base import NOT_OURS, MatchedReceipt
from deliveryd.journal.orders import Delivered, Effect
from deliveryd.journal.rows import ENTRY, entry_of, to_name
from deliveryd.journal.rules.receipts import (
    AFTER_A_STEP,
    AT_REST,
    BEFORE_A_STEP,
    NO_EFFECT,
    Consequence,
    Matched,
    Tried,
    applied_at,
    consequence,
    fails_after_all,
    goes_on,
    instead_of_step,
    referred_by,
    settled_effect,
    was_tried,
    word_of,
)
from deliveryd.journal.sql import deadlines, statements
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.dead_letters import keep_unread
from deliveryd.journal.sql.outbox import Outbox
from deliveryd.journal.sql.pauses import IS_PAUSED
from deliveryd.journal.sql.provider_ids import ProviderIds
from deliveryd.journal.sql.receipt_bulk import BulkMatching
from deliveryd.journal.sql.statements import empty_words
from deliveryd.model import (
    Entry,
    ProgressReport,
    Receipt,
    RecipientReport,
    Reported,
    SharedReceipt,
    Transition,
    UnreadReport,
    key_prefix,
    message_key,
)
from deliveryd.states import State

_UNMATCHED = "message_id IS NULL AND dropped_at IS NULL"
_COLUMNS = "provider, provider_id, delivered, status, reported_at, received_at, reference"
_KEPT = f"SELECT seq, {_COLUMNS} FROM receipt WHERE {_UNMATCHED}"  # noqa: S608  # constants
_BY_SEQ = f"{_KEPT} AND seq = ?"
_BY_PROVIDER = f"{_KEPT} AND provider_id = ? AND provider = ?"
_BY_MESSAGE = f"""
{_KEPT} AND reference >= ?2 AND reference < ?3
UNION ALL {_KEPT} AND reference = ?4
UNION ALL SELECT seq, {_COLUMNS}
    FROM (SELECT provider_id AS named, provider AS at FROM message WHERE id = ?1
        UNION ALL SELECT provider_id, provider FROM unaccepted WHERE message_id = ?1) AS ids
    CROSS JOIN receipt WHERE {_UNMATCHED} AND provider_id = named AND provider = at
"""  # noqa: S608  # constants
"""By a key of the message, by its id, or by an id that a provider gave it."""

_NAME_TRIES = (
    "UPDATE unaccepted SET provider_id = ? WHERE message_id = ? AND stay = ? AND provider_id IS NULL"
)
_NAME_ACCEPTED = """
UPDATE message SET provider_id = ?1
WHERE id = ?2 AND stay = ?3 AND provider = ?4 AND provider_id IS NULL AND accepted_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM unaccepted WHERE message_id = ?2 AND stay = ?3 AND provider_id = ?1)
"""
_BEGAN = "SELECT min(started_at) FROM attempt WHERE message_id = ? AND stay = ?"
_MATCHED_SAME = f"""
SELECT 1 FROM receipt WHERE message_id = ? AND provider_id = ? AND provider = ? AND delivered = ?
    AND (provider_id <> '' OR (coalesce(reference, '') = coalesce(?, '') AND received_at >= ({_BEGAN})))
"""  # noqa: S608  # a constant
"""Without the provider's id a repeat is one only under one key: by the same name, and not before its try."""

_NOTE_MATCHED = "UPDATE receipt SET message_id = ? WHERE seq = ?"
_FAILURES = f"SELECT {_COLUMNS} FROM receipt WHERE message_id = ? AND delivered = 0 ORDER BY seq"  # noqa: S608
_SAME = f"{_UNMATCHED} AND provider_id = ? AND provider = ? AND delivered = ?"

_SETTLE = """
UPDATE message SET state = ?1, due_at = NULL, provider = ?2, stay = ?3, doubt = 0,
    content = NULL, digest = NULL,
    (stay_tries, started_at, generation) = (SELECT stay_tries, started_at, generation FROM unaccepted
        WHERE message_id = ?4 AND stay = ?3 ORDER BY stay_tries DESC LIMIT 1),
    ended_at = ?5, accepted_at = ?5, provider_id = ?6, reason = ?7{emptied}
WHERE id = ?4
"""

_MATCHED = (
    f"SELECT id, state, stay, accepted_at, provider_id, failed_next, spent, {IS_PAUSED},"  # noqa: S608  # a constant
    " NOT EXISTS (SELECT 1 FROM unaccepted AS u WHERE u.message_id = message.id"
    " AND u.provider = message.provider"
    " AND (u.stay, u.stay_tries) <> (message.stay, message.stay_tries)), started_at"
    " FROM message WHERE id = ?"
)


_LAST_PLACE = 2**63 - 1
"""The place of a receipt that is being received: after all that are kept."""

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Matching:
    """Applies receipts of one log. `namespace` is what all keys begin with, `emptied` as in `emptying`."""

    def __init__(self, outbox: Outbox, namespace: str, emptied: str, ids: ProviderIds) -> None:
        self._settled = _SETTLE.format(emptied=emptied)
        self._confirmed = statements.END_BY_REPORT_WITH_DEADLINE.format(emptied=emptied)
        self._emptied = emptied
        self._outbox = outbox
        self._namespace = namespace
        self._ids = ids
        self._bulk = BulkMatching(outbox, namespace, ids)

    def receive(self, db: Db, reports: Sequence[Reported]) -> list[MatchedReceipt]:
        """Record what providers report, and apply each receipt that can be."""
        keep_unread(db, [report for report in reports if isinstance(report, UnreadReport)])
        reports = [_as_kept(report) for report in reports]
        done = self._bulk.receive(db, [each for each in reports if not isinstance(each, UnreadReport)])
        matched = [self._receive_any(db, report, done) for report in reports]
        deadlines.note_reports(db, reports, matched)
        return matched

    def _receive_any(
        self, db: Db, report: Reported, done: Mapping[Receipt, MatchedReceipt]
    ) -> MatchedReceipt:
        if isinstance(report, Receipt):
            return done.get(report) or self._receive(db, report)
        if isinstance(report, ProgressReport):
            return self._progress(db, report)
        return MatchedReceipt("unread")

    def _progress(self, db: Db, progress: ProgressReport) -> MatchedReceipt:
        """Report an intermediate status to the service once, while the message is sent under this key."""
        provider, provider_id, status, at, reference = progress
        report = Receipt(provider, provider_id, False, status, at, at, reference)
        tried = self._tried(db, report)
        if isinstance(progress, RecipientReport):
            return MatchedReceipt(NOT_OURS if tried is None else "noted")
        if tried is None:
            return MatchedReceipt("noted")
        row = db.execute(
            "SELECT state FROM message WHERE id = ? AND stay = ? AND NOT EXISTS"
            " (SELECT 1 FROM event WHERE message_id = message.id AND status = ?)",
            (*tried, status),
        ).fetchone()
        event = row and transitions.progressed(tried.message_id, State(row[0]), status, at)
        effect = NO_EFFECT
        if event is not None:
            self._outbox.put(db, [event])
            effect = Effect(events=1)
        if _learn(db, tried, report):
            named = {(provider_id, provider): tried}
            effect |= _all_of(self._match_kept(db, tried.message_id, at, AT_REST, named=named))
        return MatchedReceipt("told" if event is not None else "noted", effect, tried.message_id)

    def match_again(self, db: Db, seq: int, at: int) -> Effect | None:
        """Try a receipt once more that was kept; None when it still fits nothing, has to wait or is gone."""
        found = _receipts(db, _BY_SEQ, (seq,))
        tried = self._tried(db, found[seq]) if found else None
        if tried is None:
            return None
        done = self._match_kept(db, tried.message_id, at, AT_REST, new={seq: (found[seq], tried)})
        return _all_of(done) if seq in done else None

    def match_at_rest(self, db: Db, entries: Sequence[Entry], at: int) -> list[Effect]:
        """Apply receipts that were kept for messages which wait now, since the run ended that had them."""
        effects = [_all_of(self._match_kept(db, entry.id, at, AT_REST)) for entry in entries]
        return [effect for effect in effects if effect != NO_EFFECT]

    def are_kept(self, db: Db) -> bool:
        """Whether a receipt is kept that fitted nothing: without one, no step has to look for receipts."""
        query = f"SELECT 1 FROM receipt WHERE {_UNMATCHED} ORDER BY provider_id LIMIT 1"  # noqa: S608  # its index
        return db.execute(query).fetchone() is not None

    def match_before(self, db: Db, steps: Sequence[Transition]) -> dict[int, Effect]:
        """End messages that kept receipts prove to be sent, instead of the steps that they would take."""
        ready = [
            transition for transition in steps if transition.before is State.READY and was_tried(transition)
        ]
        effects = {
            each.entry.id: _all_of(self._match_kept(db, each.entry.id, each.at, BEFORE_A_STEP))
            for each in ready
        }
        return {id_: effect for id_, effect in effects.items() if State.SENT in effect.ended}

    def match_after(self, db: Db, steps: Sequence[Transition]) -> dict[int, Effect]:
        """Apply receipts that were kept while their message was being sent; the effects by message."""
        effects: dict[int, Effect] = {}
        for transition in steps:
            if transition.before is not State.SENDING:
                continue
            done = self._match_kept(db, transition.entry.id, transition.at, AFTER_A_STEP)
            effect = instead_of_step(_all_of(done), transition)
            if effect != NO_EFFECT:
                effects[transition.entry.id] = effect
        return effects

    def _match_kept(
        self,
        db: Db,
        id_: int,
        at: int,
        settleable: frozenset[State],
        *,
        new: Mapping[int, tuple[Receipt, Tried]] = _NOTHING,
        named: Mapping[tuple[str, str], Tried] = _NOTHING,
    ) -> dict[int, Effect]:
        """Apply what is kept for a message, and what is new of it, in the order in which they came.

        `named` are tries that a report named by a provider's id. Returns the effects of those that are done
        with; the others are kept on, as the message is in the line's hands.
        """
        done: dict[int, Effect] = {}
        for seq, (receipt, tried) in sorted(self._kept_for(db, id_, new, named).items()):
            effect = self._apply(db, tried, applied_at(receipt, at), settleable)
            if effect is not None:
                done[seq] = effect
        db.executemany(_NOTE_MATCHED, [(id_, seq) for seq in done if seq != _LAST_PLACE])
        return done

    def _kept_for(
        self,
        db: Db,
        id_: int,
        new: Mapping[int, tuple[Receipt, Tried]],
        named: Mapping[tuple[str, str], Tried],
    ) -> dict[int, tuple[Receipt, Tried]]:
        """What is new and what is kept that is about a message, also by an id that one of them names."""
        keys = key_prefix(self._namespace, id_)
        of_message = (id_, keys, f"{keys}~", str(id_))  # "~" comes after all characters of a key
        kept = _receipts(db, _BY_MESSAGE, of_message)
        found: dict[int, tuple[Receipt, Tried | None]]
        found = {**{seq: (each, self._tried(db, each)) for seq, each in kept.items()}, **new}
        names = dict(named)
        for _, (receipt, tried) in sorted(found.items()):
            if tried is not None and tried.message_id == id_ and _learn(db, tried, receipt):
                names.setdefault((receipt.provider_id, receipt.provider), tried)
        for name, meant in names.items():
            for seq, each in _receipts(db, _BY_PROVIDER, name).items():
                if self._message_named(each) in (id_, None):
                    found[seq] = each, self._tried(db, each) or meant
        return {
            seq: (receipt, tried)
            for seq, (receipt, tried) in found.items()
            if tried is not None and tried.message_id == id_
        }

    def _receive(self, db: Db, receipt: Receipt) -> MatchedReceipt:
        tried = self._tried(db, receipt)
        kept = _kept(db, receipt)
        if _is_repeated(db, receipt, tried, kept):
            return MatchedReceipt("repeated")
        if tried is None and isinstance(receipt, SharedReceipt):
            return MatchedReceipt(NOT_OURS)
        done: Mapping[int, Effect] = _NOTHING
        if tried is not None:
            done = self._match_kept(
                db, tried.message_id, receipt.received_at, AT_REST, new={_LAST_PLACE: (receipt, tried)}
            )
        message_id = tried.message_id if tried is not None and _LAST_PLACE in done else None
        db.execute(
            f"INSERT INTO receipt ({_COLUMNS}, message_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (*receipt, message_id),
        )
        if message_id is not None and kept:  # the same came before in a form that fitted nothing
            same, values = _same_kept(receipt)
            db.execute(f"UPDATE receipt SET message_id = ? WHERE {same}", (message_id, *values))  # noqa: S608
        if message_id is None:
            return MatchedReceipt("unmatched")
        effect = _all_of(done)
        return MatchedReceipt(word_of(effect), effect, message_id)

    def _tried(self, db: Db, receipt: Receipt) -> Tried | None:
        """What a receipt is about, by our own name for it if there is one.

        Where a provider uses an id of its own again, that is the latest accepted try with it.
        """
        referred = (
            self._referred(db, receipt.reference, receipt.provider) if receipt.reference is not None else None
        )
        if referred is not None or not receipt.provider_id:
            return referred
        named = receipt.provider_id, receipt.provider
        return self._ids.latest(db, *named) or _first(db, deadlines.ACCEPTED_BEFORE, named)

    def _referred(self, db: Db, reference: str, provider: str) -> Tried | None:
        """This key, or the latest one of the message with this id, where it was tried on this provider."""
        named = referred_by(reference, self._namespace)
        if named is None:
            return None
        if named.is_key:
            return self._of_key(db, reference, named.message_id, provider)
        return _first(
            db,
            "SELECT message_id, stay FROM attempt"
            " WHERE message_id = ? AND provider = ? ORDER BY stay DESC LIMIT 1",
            (named.message_id, provider),
        )

    def _of_key(self, db: Db, key: str, message_id: int, provider: str) -> Tried | None:
        """The latest stay of a message at a provider under an idempotency key."""
        rows = db.execute(
            "SELECT stay, generation FROM attempt WHERE message_id = ? AND provider = ? ORDER BY stay DESC",
            (message_id, provider),
        )
        return next(
            (
                Tried(message_id, stay)
                for stay, generation in rows
                if message_key(self._namespace, message_id, provider, generation) == key
            ),
            None,
        )

    def _message_named(self, receipt: Receipt) -> int | None:
        named = None if receipt.reference is None else referred_by(receipt.reference, self._namespace)
        return None if named is None else named.message_id

    def _apply(self, db: Db, tried: Tried, receipt: Receipt, settleable: frozenset[State]) -> Effect | None:
        """Take the steps that follow from a receipt; None: not now, as its message is in the line's hands."""
        message = Matched(*db.execute(_MATCHED, (tried.message_id,)).fetchone())
        match consequence(message, tried, receipt, settleable):
            case Consequence.KEPT:
                return None
            case Consequence.CONFIRMS:
                effect = self._confirm(db, message, State(message.state), receipt)
                if State.DELIVERED in effect.ended and message.key == tried.key and message.sent_at:
                    effect = effect._replace(delivered=Delivered(message.sent_at, receipt.reported_at))
                return effect
            case Consequence.SETTLES:
                events = self._settle(db, tried, State(message.state), receipt)
                settled = settled_effect(message, events, receipt.provider)
                return settled | self._confirm(db, message, State.SENT, receipt)
            case _:
                return NO_EFFECT

    def stay_sent(self, db: Db, step: Transition) -> Effect:
        """Take the step of a message that stays sent; it fails if its provider reported so meanwhile."""
        tried = Tried(step.entry.id, deadlines.stay_sent(db, step, self._emptied))
        message = Matched(*db.execute(_MATCHED, (tried.message_id,)).fetchone())
        (began,) = db.execute(_BEGAN, tried).fetchone()
        for row in db.execute(_FAILURES, (tried.message_id,)).fetchall():
            receipt = Receipt(*row)
            if fails_after_all(message, tried, self._tried(db, receipt), receipt, began):
                return self._confirm(db, message, step.after, applied_at(receipt, step.at))
        return NO_EFFECT

    def _settle(self, db: Db, tried: Tried, state: State, receipt: Receipt) -> int:
        """The provider has the message: it is sent under this key, and isn't tried again under any.

        Returns the number of events: none if `sent` was reported for this key before.
        """
        at = receipt.received_at
        step = transitions.proved_sent(tried.message_id, state, at)
        if deadlines.is_accepted(db, *tried):
            deadlines.restore(db, tried, at, reason=transitions.BY_RECEIPT, emptied=self._emptied)
            return 0
        settled = (step.after, receipt.provider, tried.key, tried.message_id, at, receipt.provider_id or None)
        db.execute(self._settled, (*settled, transitions.BY_RECEIPT))
        empty_words(db, [tried.message_id])
        self._outbox.put(db, [step.event])
        return 1

    def _confirm(self, db: Db, message: Matched, state: State, receipt: Receipt) -> Effect:
        """Record how a message ended that was sent: delivered for good, or failed until it is delivered.

        One that failed may go on instead.
        """
        if goes_on(message, state, receipt):
            deadlines.go_on(db, transitions.failed_to_next(_entry(db, message.id), receipt))
            return Effect(waiting=1)
        earlier = () if receipt.delivered else message.failed_before(receipt.provider)
        step = transitions.reported(message.id, state, receipt, *earlier)
        if step is None:
            return NO_EFFECT
        statement = statements.END_BY_REPORT if message.failed_next is None else self._confirmed
        db.execute(statement, (step.after, step.ended_at, message.id))
        if message.failed_next is not None:
            empty_words(db, [message.id])
        self._outbox.put(db, [step.event])
        return Effect(ended=(step.after,), events=1, provider=receipt.provider)


def _learn(db: Db, tried: Tried, report: Receipt) -> bool:
    """Note the provider's id that a report has for the tries that it names; False: it has none.

    That id wasn't known before, if the answer with it was lost, or had none. If the accepted try may be
    another one with this id, it stays without: a failure under any id counts for it.
    """
    if report.reference is None or not report.provider_id:
        return False
    db.execute(_NAME_TRIES, (report.provider_id, *tried))
    db.execute(_NAME_ACCEPTED, (report.provider_id, *tried, report.provider))
    return True


def _entry(db: Db, message_id: int) -> Entry:
    return entry_of(db.execute(f"SELECT {ENTRY} FROM message WHERE id = ?", (message_id,)).fetchone())  # noqa: S608


def _receipts(db: Db, query: str, values: tuple[object, ...]) -> dict[int, Receipt]:
    """Return kept receipts, by their place in the order in which they came."""
    return {seq: Receipt(*others) for seq, *others in db.execute(query, values).fetchall()}


def _all_of(done: Mapping[int, Effect]) -> Effect:
    return reduce(or_, done.values(), NO_EFFECT)


def _first(db: Db, query: str, values: tuple[object, ...]) -> Tried | None:
    row = db.execute(query, values).fetchone()
    return None if row is None else Tried(*row)


def _as_kept(report: Reported) -> Reported:
    """The report, with the names by which its message is looked for."""
    if isinstance(report, UnreadReport):
        return report
    provider_id, reference = to_name(report.provider_id) or "", to_name(report.reference)
    if (provider_id, reference) == (report.provider_id, report.reference):
        return report
    return report._replace(provider_id=provider_id, reference=reference)


def _same(receipt: Receipt) -> tuple[str, str, bool]:
    return receipt.provider_id, receipt.provider, receipt.delivered


def _same_kept(receipt: Receipt) -> tuple[str, tuple[object, ...]]:
    """Return which kept receipts report the same: by the provider's id, or without one by the reference."""
    if receipt.provider_id:
        return _SAME, _same(receipt)
    return f"{_SAME} AND reference = ?", (*_same(receipt), receipt.reference)


def _kept(db: Db, receipt: Receipt) -> list[bool]:
    """Of receipts that report the same, and are kept since they fit no attempt: whether by no other name."""
    same, values = _same_kept(receipt)
    query = f"SELECT CAST(? AS TEXT) IS NULL OR reference = ? FROM receipt WHERE {same}"  # noqa: S608
    found = db.execute(query, (receipt.reference, receipt.reference, *values))
    return [bool(is_it) for (is_it,) in found]


def _is_repeated(db: Db, receipt: Receipt, tried: Tried | None, kept: Sequence[bool]) -> bool:
    is_kept = any(kept)
    if tried is None or is_kept:
        return is_kept
    matched = db.execute(_MATCHED_SAME, (tried.message_id, *_same(receipt), receipt.reference, *tried))
    return matched.fetchone() is not None
