"""The inboxes of logs: what reaches a log by another worker than the one that has it.

Its holder reads them once a second, and with what it takes over. A row is one of these: reports of providers,
ids that the queue handed out again, numbers of unmatched receipts that may fit now, or an order, whose answer
is waited for.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import Any, NamedTuple

from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.postgresql.connection import Connected
from deliveryd.journal.rows import to_json
from deliveryd.model import (
    ProgressReport,
    Receipt,
    RecipientReport,
    Reported,
    SharedReceipt,
)

ROWS_AT_ONCE = 200
"""Rows that one look reads at most."""

REPORTS_AT_ONCE = 2000
"""Reports after which it reads no further row: a commit of many more would take too long."""

_PUT = "INSERT INTO main.inbox (log, kind, body) VALUES (%s, %s, %s) RETURNING seq"
_READ = f"""
SELECT seq, log, kind, body FROM main.inbox WHERE log = ANY(%s::int8[]) AND answer IS NULL
    AND kind = ANY(%s)
ORDER BY seq LIMIT {ROWS_AT_ONCE}
"""
_ANSWERS = "SELECT seq, answer FROM main.inbox WHERE seq = ANY(%s::int8[]) AND answer IS NOT NULL"
_DELETE = "DELETE FROM main.inbox WHERE seq = ANY(%s::int8[])"
_TAKE_BACK = "DELETE FROM main.inbox WHERE seq = ANY(%s::int8[]) RETURNING seq, answer"
_FORGET = "DELETE FROM main.inbox WHERE answer IS NOT NULL AND seq <= %s"
_ANSWER = "UPDATE main.inbox SET answer = %s WHERE seq = %s"

_REPORTS: Mapping[str, type[Receipt | ProgressReport]] = {
    each.__name__: each for each in (Receipt, SharedReceipt, ProgressReport, RecipientReport)
}


class InboxKind(StrEnum):
    """What a row is."""

    REPORTS = "reports"
    REPEATS = "repeats"
    UNMATCHED = "unmatched"
    ORDER = "order"


class InboxRow(NamedTuple):
    """A row for the holder of a log."""

    seq: int
    log: int
    kind: InboxKind
    body: Any


class HandedOrder(NamedTuple):
    """An order for another worker, given at an instant."""

    order: Order
    at: int


def put_in(db: Connected, log: int, kind: InboxKind, body: object) -> int:
    """Put a row into the inbox of a log; return its number."""
    (seq,) = db.execute(_PUT, (log, kind.value, to_json(body))).fetchone() or (0,)
    return int(seq)


def read_inbox(
    db: Connected, logs: Collection[int], kinds: Collection[InboxKind] = tuple(InboxKind)
) -> Sequence[InboxRow]:
    """Return the oldest rows of these kinds for these logs."""
    rows = db.execute(_READ, (list(logs), [kind.value for kind in kinds])).fetchall()
    found = [InboxRow(seq, log, InboxKind(kind), json.loads(body)) for seq, log, kind, body in rows]
    before = accumulate(map(_reports_in, found), initial=0)
    return [row for row, reports in zip(found, before, strict=False) if reports < REPORTS_AT_ONCE]


def is_full(rows: Sequence[InboxRow]) -> bool:
    """Whether these are as many as one look reads, so that there may be more."""
    return len(rows) >= ROWS_AT_ONCE or sum(map(_reports_in, rows)) >= REPORTS_AT_ONCE


def _reports_in(row: InboxRow) -> int:
    return len(row.body) if row.kind is InboxKind.REPORTS else 0


def delete(db: Connected, seqs: Collection[int]) -> None:
    """Delete rows that are done with."""
    if seqs:
        db.execute(_DELETE, (list(seqs),))


def answer(db: Connected, seq: int, text: object) -> bool:
    """Leave an answer for whoever waits for it; False: it was taken back meanwhile."""
    return db.execute(_ANSWER, (to_json(text), seq)).rowcount == 1


def answers(db: Connected, seqs: Collection[int]) -> Mapping[int, Any]:
    """Return the answers that are there."""
    return {seq: json.loads(text) for seq, text in db.execute(_ANSWERS, (list(seqs),))}


def take_back(db: Connected, seqs: Collection[int]) -> Mapping[int, Any]:
    """Delete rows; return the answers of those that were carried out, and None for the others."""
    rows = db.execute(_TAKE_BACK, (list(seqs),)).fetchall()
    return {seq: None if text is None else json.loads(text) for seq, text in rows}


def forget_answers(db: Connected, up_to: int) -> int:
    """Delete answers up to a number, which nobody waits for any more; return the highest number."""
    db.execute(_FORGET, (up_to,))
    (highest,) = db.execute("SELECT coalesce(max(seq), 0) FROM main.inbox").fetchone() or (0,)
    return int(highest)


def of_reports(reports: Sequence[Reported]) -> object:
    """What a row of reports holds."""
    return [[type(each).__name__, *each] for each in reports]


def reports_of(body: Sequence[Sequence[Any]]) -> list[Receipt | ProgressReport]:
    """Read a row of reports."""
    return [_REPORTS[name](*fields) for name, *fields in body]


def of_order(order: Order, at: int) -> object:
    """What a row of an order holds."""
    return [*order._replace(keys=()), list(order.keys), at]


def order_of(body: Sequence[Any]) -> HandedOrder:
    """Read a row of an order."""
    verb, kind, _, user, caller, reason, lasts, keys, at = body
    return HandedOrder(Order(Action(verb), ItemKind(kind), tuple(keys), user, caller, reason, lasts), at)
