"""Providers' receipts: what they may be about is read at once, each is decided by itself in their order, and
what all of them change is written at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from deliveryd import transitions
from deliveryd.errors import IllegalTransition
from deliveryd.journal.base import NOT_OURS, MatchedReceipt
from deliveryd.journal.orders import Effect
from deliveryd.journal.postgresql.book import COLUMNS, Book
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.days import of_day
from deliveryd.journal.postgresql.deadlines import note_reports
from deliveryd.journal.postgresql.outbox import Outbox
from deliveryd.journal.postgresql.steps import StepWriter
from deliveryd.journal.postgresql.unread import keep_unread
from deliveryd.journal.postgresql.values import LOCATED, arrays, as_kept, indexable, named_ids, plain
from deliveryd.journal.receipt_decisions import (
    AFTER_A_STEP,
    AT_REST,
    BEFORE_A_STEP,
    NO_EFFECT,
    Consequence,
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
from deliveryd.model import (
    ProgressReport,
    Receipt,
    RecipientReport,
    Reported,
    SharedReceipt,
    Transition,
    UnreadReport,
)
from deliveryd.states import ENDED, State

_KEPT_ALIKE = f"""
SELECT u.seq, {", ".join(f"u.{name}" for name in COLUMNS.split(", "))}
FROM (SELECT DISTINCT * FROM unnest(%s::text[], %s::text[]) AS n (provider_id, provider)) AS n
JOIN unmatched u ON u.provider_id = n.provider_id AND u.provider = n.provider WHERE u.dropped_at IS NULL
"""
_KEPT_FOR = f"""
SELECT seq, {COLUMNS} FROM unmatched WHERE dropped_at IS NULL AND seq = ANY(ARRAY(
    SELECT u.seq FROM unmatched u WHERE u.named = ANY(%(ids)s::int8[])
    UNION ALL
    SELECT u.seq FROM unnest(%(numbers)s::text[], %(providers)s::text[]) AS n (provider_id, provider)
        JOIN unmatched u ON u.provider_id = n.provider_id AND u.provider = n.provider
)) ORDER BY seq
"""
_KEPT_FOR_EARLIER = f"""
SELECT seq, {COLUMNS} FROM unmatched WHERE dropped_at IS NULL AND seq = ANY(ARRAY(
    SELECT u.seq FROM unnest(%s::int8[]) AS s (id) JOIN unaccepted t ON t.message_id = s.id
        JOIN unmatched u ON u.provider_id = t.provider_id AND u.provider = t.provider
)) ORDER BY seq
"""
_ONE_KEPT = f"SELECT {COLUMNS} FROM unmatched WHERE seq = %s"
_KEEP = f"""
INSERT INTO unmatched ({COLUMNS}, named)
SELECT * FROM unnest(%s::text[], %s::text[], %s::bool[], %s::text[], %s::int8[], %s::int8[], %s::text[],
    %s::int8[])
"""
_MATCH = f"""
INSERT INTO receipt (seq, message_id, day, {COLUMNS})
SELECT nextval('receipt_seq'), m.id, m.day, {", ".join(f"s.{name}" for name in COLUMNS.split(", "))}
FROM unnest(%s::int8[], %s::text[], %s::text[], %s::bool[], %s::text[], %s::int8[], %s::int8[], %s::text[])
    AS s (id, {COLUMNS}) {LOCATED.format(id="s.id")}
"""
_MATCH_OF_DAY = f"""
INSERT INTO receipt_of_day (seq, message_id, day, {COLUMNS})
SELECT nextval('receipt_seq'), s.id, %s, {", ".join(f"s.{name}" for name in COLUMNS.split(", "))}
FROM unnest(%s::int8[], %s::text[], %s::text[], %s::bool[], %s::text[], %s::int8[], %s::int8[], %s::text[])
    AS s (id, {COLUMNS})
"""
_MATCH_KEPT = f"""
WITH gone AS (DELETE FROM unmatched u USING unnest(%s::int8[], %s::int8[]) AS s (seq, id)
    WHERE u.seq = s.seq RETURNING u.*, s.id)
INSERT INTO receipt (seq, message_id, day, {COLUMNS})
SELECT gone.seq, m.id, m.day, {", ".join(f"gone.{name}" for name in COLUMNS.split(", "))}
FROM gone {LOCATED.format(id="gone.id")}
"""
# Who restores what was accepted before reads the receipts that came meanwhile: none may come unseen.
_LOCK_ALL = f"""
SELECT 1 FROM unnest(%s::int8[]) AS wanted (id) {LOCATED.format(id="wanted.id")}
ORDER BY m.id FOR NO KEY UPDATE OF m
"""
_UNSWEPT = f"""
SELECT seq, coalesce(horizon <= pg_snapshot_xmin(pg_current_snapshot()), false), {COLUMNS}
FROM unmatched WHERE looks IS NOT NULL AND dropped_at IS NULL
ORDER BY looks, seq LIMIT %s FOR UPDATE SKIP LOCKED
"""
_LOOKED = """
UPDATE unmatched SET looks = CASE WHEN s.is_over THEN NULL ELSE looks + 1 END,
    horizon = coalesce(horizon, CASE WHEN s.was_seen THEN pg_current_xact_id() END)
FROM unnest(%s::int8[], %s::bool[], %s::bool[]) AS s (seq, is_over, was_seen) WHERE unmatched.seq = s.seq
"""
MOST_SEEN = 10_000
"""How many receipts are remembered that earlier sweeps saw."""


class _KeptReceipt(NamedTuple):
    """A receipt that was kept since it fitted no attempt; `seq` None: one of this batch."""

    seq: int | None
    receipt: Receipt


class StepsRecorded(NamedTuple):
    """What receipts did that were kept until their messages took these steps.

    `settled`: messages that they ended. `effects`: the changes of the recorder's counts, by message. `lost`:
    messages that another worker moved first. `elsewhere`: those that ended and whose events others report.
    """

    settled: Collection[int]
    effects: Mapping[int, Sequence[Effect]]
    lost: Collection[int] = ()
    elsewhere: Collection[int] = ()


class _KeptMatched(NamedTuple):
    """What kept receipts did, by message, and the messages whose events others will report."""

    effects: Mapping[int, Effect]
    elsewhere: frozenset[int]


class Matching:
    """Applies receipts. `namespace` is what all keys begin with."""

    def __init__(
        self, outbox: Outbox, recorder: StepWriter, namespace: str, *, keeps_variables: bool
    ) -> None:
        self._outbox = outbox
        self._recorder = recorder
        self._namespace = namespace
        self._keeps_variables = keeps_variables
        self._seen: set[int] = set()

    def _book(self) -> Book:
        return Book(self._namespace, self._outbox.days, keeps_variables=self._keeps_variables)

    # receipts as they come

    def receive(self, db: Db, reports: Sequence[Reported]) -> list[MatchedReceipt]:
        """Record what providers report, and apply each receipt that can be."""
        if not reports:
            return []
        keep_unread(db, [report for report in reports if isinstance(report, UnreadReport)])
        batch = _ReceiptBatch(self._book(), self._namespace)
        batch.read(db, [as_kept(report) for report in reports if not isinstance(report, UnreadReport)])
        matched = [
            MatchedReceipt("unread") if isinstance(report, UnreadReport) else batch.receive(as_kept(report))
            for report in reports
        ]
        batch.write(db, self._outbox)
        note_reports(db, reports, matched)
        return matched

    def match_again(self, db: Db, seq: int, at: int) -> tuple[int, Effect] | None:
        """Try a receipt once more that was kept; None when it still fits nothing, or has to wait."""
        row = db.execute(_ONE_KEPT, (seq,)).fetchone()
        if row is None:
            return None
        receipt, book = applied_at(Receipt(*row), at), self._book()
        book.read(db, _referred([receipt], self._namespace), named_ids([receipt]))
        tried = book.tried(receipt)
        effect = apply(book, tried, receipt, AT_REST) if tried is not None else None
        if tried is None or effect is None:
            return None
        book.write(db, self._outbox)
        db.execute(_MATCH_KEPT, ([seq], [tried.message_id]))
        return tried.message_id, effect

    def sweep(self, db: Db, at: int, limit: int) -> list[Effect]:
        """Match receipts again that were kept while another worker's commit was under way.

        Neither saw the other: the receipt no outcome, and the step that has the outcome no receipt. A receipt
        is looked at until every transaction has ended that may have missed it. Those have lower numbers than
        one that began when the receipt had been seen; a snapshot's own upper bound isn't above all of them.
        """
        rows = db.execute(_UNSWEPT, (limit,)).fetchall()
        if not rows:
            return []
        book = self._book()
        receipts = [applied_at(Receipt(*values), at) for _, _, *values in rows]
        book.read(db, _referred(receipts, self._namespace), [each for each in named_ids(receipts) if each[0]])
        effects: list[Effect] = []
        matched: list[tuple[int, int]] = []
        looked: list[tuple[int, bool, bool]] = []
        for (seq, is_over, *_), receipt in zip(rows, receipts, strict=True):
            tried = book.tried(receipt)
            effect = apply(book, tried, receipt, AT_REST) if tried is not None else None
            if tried is None or effect is None:
                looked.append((seq, is_over, seq in self._seen))
            else:
                matched.append((seq, tried.message_id))
                effects.append(effect)
        book.write(db, self._outbox, {id_ for _, id_ in matched})
        if matched:
            db.execute(_MATCH_KEPT, arrays(matched))
        if looked:
            db.execute(_LOOKED, arrays(looked))
            self._seen = {seq for seq, *_ in looked}.union(self._seen if len(self._seen) < MOST_SEEN else ())
        return [effect for effect in effects if effect != NO_EFFECT]

    # receipts that were kept, around the steps of their messages

    def change(self, db: Db, steps: Sequence[Transition]) -> StepsRecorded:
        """Record steps of messages, and apply the receipts that were kept for them, instead or afterwards."""
        effects: defaultdict[int, list[Effect]] = defaultdict(list)
        kept = self._kept_for(db, steps)
        ready = {each.entry.id: each for each in steps if each.before is State.READY and was_tried(each)}
        before = self._match_kept(db, kept, ready, BEFORE_A_STEP)
        overtaken = {id_: effect for id_, effect in before.effects.items() if State.SENT in effect.ended}
        steps = [step for step in steps if step.entry.id not in overtaken]
        done = self._recorder.record(db, steps)
        for id_, effect in self._stay_sent(db, done.restored).items():
            effects[id_].append(effect)
        events = [event for step in steps if step.entry.id not in done.lost for event in step.events]
        elsewhere = self._outbox.put(db, events, done.places, done.days)
        for id_, effect in overtaken.items():
            effects[id_].append(effect)
        sending = {each.entry.id: each for each in steps if each.before is State.SENDING}
        settled = set(overtaken)
        after = self._match_kept(db, kept, sending, AFTER_A_STEP)
        for id_, found in after.effects.items():
            effect = instead_of_step(found, sending[id_])
            if State.SENT in effect.ended:
                settled.add(id_)
            if effect != NO_EFFECT:
                effects[id_].append(effect)
        elsewhere |= before.elsewhere | after.elsewhere
        elsewhere &= settled.union(step.entry.id for step in steps if step.after in ENDED)
        return StepsRecorded(settled | done.lost, effects, done.lost, elsewhere)

    def _kept_for(self, db: Db, steps: Sequence[Transition]) -> list[_KeptReceipt]:
        """Kept receipts that seem to be about messages that were tried, in the order in which they came."""
        tried = [
            step
            for step in steps
            if step.before is State.SENDING or (step.before is State.READY and was_tried(step))
        ]
        if not tried:
            return []
        named = [
            (indexable(step.outcome.provider_id), step.entry.provider or "")
            for step in tried
            if step.outcome is not None and step.outcome.provider_id is not None
        ]
        numbers, providers = arrays(named) if named else ([], [])
        values = {"ids": [step.entry.id for step in tried], "numbers": numbers, "providers": providers}
        rows = db.execute(_KEPT_FOR, values).fetchall()
        if named := [(row[2], row[1]) for row in rows if row[2]]:  # others may be kept under these ids
            rows = sorted({*rows, *db.execute(_KEPT_ALIKE, arrays(named))}, key=lambda row: row[0])
        if earlier := [step.entry.id for step in tried if step.entry.number > 1 or step.entry.key > 1]:
            rows = sorted({*rows, *db.execute(_KEPT_FOR_EARLIER, (earlier,))}, key=lambda row: row[0])
        return [_KeptReceipt(seq, Receipt(*values)) for seq, *values in rows]

    def _match_kept(
        self,
        db: Db,
        kept: Sequence[_KeptReceipt],
        steps: Mapping[int, Transition],
        settleable: frozenset[State],
    ) -> _KeptMatched:
        """Apply kept receipts to the messages of these steps."""
        if not kept or not steps:
            return _KeptMatched({}, frozenset())
        book = self._book()
        receipts = [each.receipt for each in kept]
        book.read(db, {*steps, *_referred(receipts, self._namespace)}, named_ids(receipts))
        effects: dict[int, Effect] = {}
        matched: list[tuple[int | None, int]] = []
        for _seq, receipt in kept:
            if (tried := book.tried(receipt)) is not None:
                book.learn(tried, receipt)
        for seq, receipt in kept:
            tried = book.tried(receipt)
            if tried is None or tried.message_id not in steps:
                continue
            done = apply(book, tried, applied_at(receipt, steps[tried.message_id].at), settleable)
            if done is not None:
                matched.append((seq, tried.message_id))
                effects[tried.message_id] = effects.get(tried.message_id, NO_EFFECT) | done
        elsewhere = book.write(db, self._outbox)
        if matched:
            db.execute(_MATCH_KEPT, arrays(matched))
        return _KeptMatched(effects, elsewhere)

    def _stay_sent(self, db: Db, steps: Sequence[Transition]) -> Mapping[int, Effect]:
        """Take the steps of messages that stay sent; one fails if its provider reported so meanwhile."""
        if not steps:
            return {}
        db.execute(_LOCK_ALL, (sorted(step.entry.id for step in steps),))
        book = self._book()
        book.read(db, [step.entry.id for step in steps], ())
        effects = {step.entry.id: _stays_sent(book, step) for step in steps}
        book.write(db, self._outbox)
        return effects


def _stays_sent(book: Book, step: Transition) -> Effect:
    entry = step.entry
    record = book.records.get(entry.id)
    keys = [
        each.key
        for each in book.tries[entry.id]
        if each.provider == entry.sent_by and each.verdict == "accepted"
    ]
    if record is None or record.state != step.before or not keys:
        raise IllegalTransition(f"message {entry.id} wasn't sent before, or isn't {step.before.name}")
    tried, reason = Tried(entry.id, max(keys)), step.outcome and step.outcome.reason
    book.restore(tried, step.at, plain(reason or ""))
    message, began = book.matched(entry.id), book.began(tried)
    for receipt in book.receipts[entry.id]:
        if fails_after_all(message, tried, book.tried(receipt), receipt, began):
            return _confirm(book, entry.id, step.after, applied_at(receipt, step.at))
    return NO_EFFECT


def apply(book: Book, tried: Tried, receipt: Receipt, settleable: frozenset[State]) -> Effect | None:
    """Take the steps that follow from a receipt; None: not now, as its message is in the line's hands."""
    message = book.matched(tried.message_id)
    match consequence(message, tried, receipt, settleable):
        case Consequence.KEPT:
            return None
        case Consequence.CONFIRMS:
            return _confirm(book, message.id, State(message.state), receipt)
        case Consequence.SETTLES:
            events = book.settle(tried, receipt)
            settled = settled_effect(message, events, receipt.provider)
            return settled | _confirm(book, message.id, State.SENT, receipt)
        case _:
            return NO_EFFECT


def _confirm(book: Book, id_: int, state: State, receipt: Receipt) -> Effect:
    """Record how a message ended that was sent: delivered for good, or failed until it is delivered.

    One that failed may go on instead.
    """
    record = book.records[id_]
    message = book.matched(id_)
    if goes_on(message, state, receipt):
        book.go_on(transitions.failed_to_next(record.entry, receipt))
        return Effect(waiting=1)
    earlier = () if receipt.delivered else message.failed_before(receipt.provider)
    step = transitions.reported(id_, state, receipt, *earlier)
    if step is None:
        return NO_EFFECT
    book.end(record, step.after, receipt.received_at, step.event)
    return Effect(ended=(step.after,), events=1, provider=receipt.provider)


class _ReceiptBatch:
    """Receipts that came together."""

    def __init__(self, book: Book, namespace: str) -> None:
        self._book = book
        self._namespace = namespace
        self._alike: defaultdict[tuple[str, str], list[_KeptReceipt]] = defaultdict(list)
        self._new: list[tuple[int, Receipt]] = []
        self._gone: list[tuple[int, int]] = []

    def read(self, db: Db, reports: Sequence[Receipt | ProgressReport]) -> None:
        """Read what these may be about."""
        if not reports:
            return
        named = named_ids(reports)
        self._book.read(db, _referred(reports, self._namespace), [each for each in named if each[0]])
        for seq, *values in db.execute(_KEPT_ALIKE, arrays(sorted(named))):
            receipt = Receipt(*values)
            self._alike[receipt.provider_id, receipt.provider].append(_KeptReceipt(seq, receipt))
        if any(isinstance(report, ProgressReport) for report in reports):
            self._book.read_statuses(db)

    def receive(self, report: Receipt | ProgressReport) -> MatchedReceipt:
        """Apply one."""
        return self._receipt(report) if isinstance(report, Receipt) else self._progress(report)

    def _receipt(self, receipt: Receipt) -> MatchedReceipt:
        tried = self._book.tried(receipt)
        alike = [
            each for each in self._alike[receipt.provider_id, receipt.provider] if _says_same(each, receipt)
        ]
        if self._is_repeated(receipt, tried, alike):
            return MatchedReceipt("repeated")
        if tried is None and isinstance(receipt, SharedReceipt):
            return MatchedReceipt(NOT_OURS)
        is_naming = tried is not None and self._book.learn(tried, receipt)
        effect = apply(self._book, tried, receipt, AT_REST) if tried is not None else None
        if tried is None or effect is None:
            self._alike[receipt.provider_id, receipt.provider].append(_KeptReceipt(None, receipt))
            return MatchedReceipt("unmatched")
        self._new.append((tried.message_id, receipt))
        self._book.receipts[tried.message_id].append(receipt)
        for each in alike:  # the same came before in a form that fitted nothing
            self._take_out(each, tried.message_id)
        if is_naming:
            effect |= self._follow(tried, receipt)
        return MatchedReceipt(word_of(effect), effect, tried.message_id)

    def _follow(self, tried: Tried, receipt: Receipt) -> Effect:
        """Apply what was kept under the provider's id that a receipt has for its message."""
        effect = NO_EFFECT
        for each in self._alike[receipt.provider_id, receipt.provider].copy():
            about = self._book.tried(each.receipt) or tried
            if about.message_id != tried.message_id:
                continue
            if self._message_named(each.receipt) not in {None, tried.message_id}:
                continue
            done = apply(self._book, about, applied_at(each.receipt, receipt.received_at), AT_REST)
            if done is not None:
                self._take_out(each, tried.message_id)
                effect |= done
        return effect

    def _take_out(self, kept: _KeptReceipt, message_id: int) -> None:
        """A kept receipt is matched."""
        self._alike[kept.receipt.provider_id, kept.receipt.provider].remove(kept)
        self._book.receipts[message_id].append(kept.receipt)
        if kept.seq is None:
            self._new.append((message_id, kept.receipt))
        else:
            self._gone.append((kept.seq, message_id))

    def _is_repeated(self, receipt: Receipt, tried: Tried | None, alike: Sequence[_KeptReceipt]) -> bool:
        is_kept = any(receipt.reference in (None, each.receipt.reference) for each in alike)
        if tried is None or is_kept:
            return is_kept
        same = [each for each in self._book.receipts[tried.message_id] if each[:3] == receipt[:3]]
        if same and not receipt.provider_id:
            began = self._book.began(tried)
            return any(each.reference == receipt.reference and each.received_at >= began for each in same)
        return bool(same)

    def _progress(self, progress: ProgressReport) -> MatchedReceipt:
        """Tell the service an intermediate status once, while the message is sent under this key."""
        provider, provider_id, status, at, reference = progress
        report = Receipt(provider, provider_id, False, status, at, at, reference)
        tried = self._book.tried(report)
        if tried is None or isinstance(progress, RecipientReport):
            is_theirs = tried is None and isinstance(progress, RecipientReport)
            return MatchedReceipt(NOT_OURS if is_theirs else "noted")
        record = self._book.records[tried.message_id]
        is_new = record.key == tried.key and not self._book.has_told(record.id, status)
        event = transitions.progressed(record.id, State(record.state), status, at) if is_new else None
        effect = NO_EFFECT
        if event is not None:
            self._book.tell(event)
            effect = Effect(events=1)
        if self._book.learn(tried, report):
            effect |= self._follow(tried, report)
        return MatchedReceipt("told" if event is not None else "noted", effect, record.id)

    def write(self, db: Db, outbox: Outbox) -> None:
        """Write all that these led to."""
        self._book.write(db, outbox, {id_ for id_, _ in self._new})
        rows, days = [(id_, *receipt) for id_, receipt in self._new], self._book.days
        for day, group in outbox.days.grouped(rows, lambda row: days.get(row[0], 0)):
            if day:
                db.execute(of_day(_MATCH_OF_DAY, day), (day, *arrays(group)))
            else:
                db.execute(_MATCH, arrays(group))
        if self._gone:
            db.execute(_MATCH_KEPT, arrays(self._gone))
        kept = [each.receipt for group in self._alike.values() for each in group if each.seq is None]
        if kept:
            db.execute(_KEEP, arrays([(*each, self._message_named(each)) for each in kept]))

    def _message_named(self, receipt: Receipt) -> int | None:
        named = None if receipt.reference is None else referred_by(receipt.reference, self._namespace)
        return None if named is None else named.message_id


def _says_same(kept: _KeptReceipt, receipt: Receipt) -> bool:
    """Whether a kept receipt says the same: by the provider's id, or without one by the reference."""
    same = kept.receipt.delivered == receipt.delivered
    return same and (bool(receipt.provider_id) or kept.receipt.reference == receipt.reference)


def _referred(reports: Iterable[Receipt | ProgressReport], namespace: str) -> set[int]:
    """The messages that references name."""
    named = (referred_by(each.reference, namespace) for each in reports if each.reference is not None)
    return {each.message_id for each in named if each is not None}
