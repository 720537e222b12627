"""Providers' receipts: finding the attempt that one is about, and taking the steps that follow from it.

A receipt names its attempt by the id that the provider gave it, or by a reference that the provider was given
and echoes. Only a reference tells of an attempt whose answer never came: it was in doubt, and no longer is.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from typing import Literal, NamedTuple

from deliveryd.journal.base import Change, Receipt
from deliveryd.journal.outbox import Outbox
from deliveryd.model import StatusEvent, attempt_id
from deliveryd.states import State, step

Effect = Literal["matched", "settled", "recalled"]
"""What a receipt did: at most confirmed an end; settled a doubt; settled it for a message that waited."""

SETTLED = "settled by the provider's receipt"

_HELD = frozenset({State.WAITING, State.IN_DOUBT})
_UNSENT = _HELD | {State.SENDING}  # within the step that ends in SENDING, nothing has left yet

_UNMATCHED = "message_id IS NULL AND dropped_at IS NULL"
_COLUMNS = "channel, provider_id, delivered, status, reported_at, received_at, reference"
_KEPT = f"SELECT seq, {_COLUMNS} FROM receipt WHERE {_UNMATCHED}"  # noqa: S608  # constants
_BY_PROVIDER = f"{_KEPT} AND provider_id = ? AND channel = ?"
_BY_REFERENCE = f"{_KEPT} AND reference = ? AND channel = ?"
_SAME = f"{_UNMATCHED} AND provider_id = ? AND channel = ? AND delivered = ?"
_ATTEMPT_ID = re.compile(r"([0-9a-f]+)-(-?[0-9]{1,19})-([0-9]{1,9})")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_LARGEST = 2**63


_ERA = "started_at / 14400000000"
_ERA_OF = f"""
WITH RECURSIVE era (n) AS (
    SELECT {2**63 - 1} UNION ALL
    SELECT (SELECT max({_ERA}) FROM message WHERE provider_id IS NOT NULL AND {_ERA} < n)
    FROM era WHERE n IS NOT NULL
)
SELECT n FROM era CROSS JOIN message ON {_ERA} = n AND provider_id = ? AND lane = ? LIMIT 1
"""  # noqa: S608  # constants
_IN_ERA = f"""
SELECT id, attempts FROM message WHERE {_ERA} = ? AND provider_id = ? AND lane = ?
ORDER BY started_at DESC LIMIT 1
"""  # noqa: S608  # constants


class Attempted(NamedTuple):
    """An attempt, by its message and its number."""

    message_id: int
    number: int


class Matching:
    """Applies receipts. `namespace` is what the ids of all attempts begin with."""

    def __init__(self, outbox: Outbox, namespace: str) -> None:
        self._outbox = outbox
        self._namespace = namespace

    def receive(self, db: sqlite3.Connection, receipts: Sequence[Receipt]) -> list[str]:
        """Record providers' updates, and apply each that can be."""
        return [self._receive(db, receipt) for receipt in receipts]

    def match_again(self, db: sqlite3.Connection, seq: int, at: int) -> Effect | None:
        """Try a receipt once more that was kept; None when it still fits no attempt, or one under way."""
        (row,) = db.execute(f"SELECT {_COLUMNS} FROM receipt WHERE seq = ?", (seq,))  # noqa: S608
        receipt = _not_before(Receipt(*row), at)
        attempt = self._attempt_of(db, receipt)
        effect = self._apply(db, attempt, receipt, _HELD) if attempt is not None else None
        if attempt is not None and effect is not None:
            db.execute("UPDATE receipt SET message_id = ? WHERE seq = ?", (attempt.message_id, seq))
        return effect

    def match_early(self, db: sqlite3.Connection, changes: Sequence[Change]) -> set[int]:
        """Apply receipts that came while their attempt was under way; return whose doubt they settled."""
        if not db.execute(f"SELECT 1 FROM receipt WHERE {_UNMATCHED} LIMIT 1").fetchone():  # noqa: S608
            return set()
        return {change.entry.id for change in changes if self._match_early(db, change)}

    def _match_early(self, db: sqlite3.Connection, change: Change) -> bool:
        entry, outcome = change.entry, change.outcome
        if change.after is not State.SENT and (entry.doubt is None or change.after not in _UNSENT):
            return False
        attempt = Attempted(entry.id, entry.attempts)
        names = [(_BY_REFERENCE, attempt_id(self._namespace, *attempt)), (_BY_REFERENCE, str(entry.id))]
        if outcome is not None and outcome.provider_id is not None:
            names.append((_BY_PROVIDER, outcome.provider_id))
        found = {row for query, name in names for row in db.execute(query, (name, entry.lane))}
        effects = []
        for seq, *values in sorted(found):
            db.execute("UPDATE receipt SET message_id = ? WHERE seq = ?", (entry.id, seq))
            effects.append(self._apply(db, attempt, _not_before(Receipt(*values), change.at), _UNSENT))
        return "settled" in effects or "recalled" in effects

    def _receive(self, db: sqlite3.Connection, receipt: Receipt) -> str:
        attempt = self._attempt_of(db, receipt)
        kept = _kept(db, receipt)
        if _is_repeated(db, receipt, attempt, kept):
            return "repeated"
        effect = self._apply(db, attempt, receipt, _HELD) if attempt is not None else None
        message_id = attempt.message_id if attempt is not None and effect is not None else None
        db.execute(
            f"INSERT INTO receipt ({_COLUMNS}, message_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (*receipt, message_id),
        )
        if message_id is not None and kept:  # the same came before in a form that fitted nothing
            same = (message_id, *_same(receipt))
            db.execute(f"UPDATE receipt SET message_id = ? WHERE {_SAME}", same)  # noqa: S608  # a constant
        return effect or "unmatched"

    def _attempt_of(self, db: sqlite3.Connection, receipt: Receipt) -> Attempted | None:
        """The attempt that a receipt is about, by our own name for it if there is one.

        Where a provider uses an id of its own again, that is the latest attempt with it.
        """
        referred = (
            self._referred(db, receipt.reference, receipt.channel) if receipt.reference is not None else None
        )
        return referred or _named(db, receipt.provider_id, receipt.channel)

    def _referred(self, db: sqlite3.Connection, reference: str, channel: str) -> Attempted | None:
        """The attempt with this id, or the latest one of the message with this id, on this channel."""
        named = _ATTEMPT_ID.fullmatch(reference)
        if named is not None and named[1] == self._namespace and _fits(named[2]):
            return _first(
                db,
                "SELECT message_id, number FROM attempt WHERE message_id = ? AND number = ? AND channel = ?",
                (int(named[2]), int(named[3]), channel),
            )
        if not _fits(reference):
            return None
        return _first(
            db,
            "SELECT message_id, number FROM attempt WHERE message_id = ? AND channel = ?"
            " ORDER BY number DESC LIMIT 1",
            (int(reference), channel),
        )

    def _apply(
        self, db: sqlite3.Connection, attempt: Attempted, receipt: Receipt, settleable: frozenset[State]
    ) -> Effect | None:
        """Take the steps that follow from a receipt; None: not yet, for its attempt is under way."""
        number, doubt, latest, accepted_at, provider_id = db.execute(
            "SELECT state, doubt, attempts, accepted_at, provider_id FROM message WHERE id = ?",
            (attempt.message_id,),
        ).fetchone()
        state = State(number)
        if accepted_at is not None and latest == attempt.number:
            # By the message's id an earlier attempt may be meant, whose failure says nothing of this one.
            if receipt.delivered or provider_id in (None, receipt.provider_id):
                self._confirm(db, attempt.message_id, receipt)
            return "matched"
        if latest != attempt.number:
            return "matched"  # it surely failed, and the message went on
        if doubt is not None and state in settleable:
            self._settle(db, attempt, state, receipt)
            return "recalled" if state is State.WAITING else "settled"
        under_way = state is State.SENDING or (state is State.READY and doubt is not None)
        return None if under_way else "matched"

    def _settle(self, db: sqlite3.Connection, attempt: Attempted, state: State, receipt: Receipt) -> None:
        """The provider knows the attempt, so it was sent: it is no longer in doubt, and not repeated."""
        db.execute(
            "UPDATE message SET state = ?1, ended_at = ?2, due_at = NULL, doubt = NULL,"
            " accepted_at = ?2, provider_id = ?3, reason = ?4 WHERE id = ?5",
            (step(state, State.SENT), receipt.received_at, receipt.provider_id, SETTLED, attempt.message_id),
        )
        db.execute("DELETE FROM unaccepted WHERE message_id = ? AND number = ?", attempt)
        self._outbox.put(db, [StatusEvent(attempt.message_id, "sent", receipt.received_at)])
        self._confirm(db, attempt.message_id, receipt)

    def _confirm(self, db: sqlite3.Connection, message_id: int, receipt: Receipt) -> None:
        after = State.DELIVERED if receipt.delivered else State.FAILED
        moved = db.execute(
            "UPDATE message SET state = ?, ended_at = ? WHERE id = ? AND state = ?",
            (after, receipt.received_at, message_id, State.SENT),
        ).rowcount
        if not moved:  # it ended already: a receipt never takes an end back
            return
        if receipt.delivered:
            event = StatusEvent(
                message_id, "delivered", receipt.received_at, receipt.channel, receipt.reported_at
            )
        else:
            details = f"{receipt.channel}: the provider reported {receipt.status}"
            event = StatusEvent(message_id, "error", receipt.received_at, details=details)
        self._outbox.put(db, [event])


def _named(db: sqlite3.Connection, provider_id: str, channel: str) -> Attempted | None:
    """The latest attempt that the provider gave this id, sought from era to era, back from the newest.

    Ids of providers have no order. In one index of all of them, each new one would touch a page of its own,
    and a message would cost the more the more messages there are; an era's part of the index stays small.
    """
    era = db.execute(_ERA_OF, (provider_id, channel)).fetchone()
    return None if era is None else _first(db, _IN_ERA, (*era, provider_id, channel))


def _first(db: sqlite3.Connection, query: str, values: tuple[object, ...]) -> Attempted | None:
    row = db.execute(query, values).fetchone()
    return None if row is None else Attempted(*row)


def _fits(text: str) -> bool:
    """Whether it is a number that may be a message's id."""
    return _NUMBER.fullmatch(text) is not None and -_LARGEST <= int(text) < _LARGEST


def _not_before(receipt: Receipt, at: int) -> Receipt:
    return receipt._replace(received_at=max(receipt.received_at, at))


def _same(receipt: Receipt) -> tuple[str, str, bool]:
    return receipt.provider_id, receipt.channel, receipt.delivered


def _kept(db: sqlite3.Connection, receipt: Receipt) -> list[str | None]:
    """The references of receipts that say the same, and are kept since they fitted no attempt."""
    found = db.execute(f"SELECT reference FROM receipt WHERE {_SAME}", _same(receipt))  # noqa: S608
    return [reference for (reference,) in found]


def _is_repeated(
    db: sqlite3.Connection, receipt: Receipt, attempt: Attempted | None, kept: Sequence[str | None]
) -> bool:
    is_kept = any(receipt.reference in (None, reference) for reference in kept)
    if attempt is None or is_kept:
        return is_kept
    matched = db.execute(
        "SELECT 1 FROM receipt WHERE message_id = ? AND provider_id = ? AND channel = ? AND delivered = ?",
        (attempt.message_id, *_same(receipt)),
    )
    return matched.fetchone() is not None
