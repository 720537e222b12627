"""The inboxes of logs: what reaches a log by another worker than the one that has it; and which log that is.

Its holder reads them once a second, and with what it takes over. A row is one of these: reports of providers,
ids that the queue handed out again, numbers of unmatched receipts that may fit now, or an order, whose answer
is waited for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import Any, NamedTuple

from deliveryd.journal.log import log_of
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.postgresql.connection import Connected
from deliveryd.journal.postgresql.database import plain
from deliveryd.journal.postgresql.logs import all_logs
from deliveryd.journal.rows import to_json, to_name
from deliveryd.journal.rules.receipts import referred_by
from deliveryd.model import (
    ProgressReport,
    Receipt,
    RecipientReport,
    Reported,
    SharedReceipt,
    UnreadReport,
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
    """Delete answers up to a number, which no command waits for any more; return the highest number."""
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


_NUMBER = re.compile(r"-?[0-9]{1,19}")
_BY_ID = """
SELECT id, log FROM main.message WHERE id = ANY(%(ids)s::int8[])
UNION ALL SELECT id, log FROM main.tombstone WHERE id = ANY(%(ids)s::int8[])
"""
_LOCK = [
    f"SELECT id, log FROM main.{table} WHERE id = ANY(%s::int8[]) ORDER BY id FOR {{}}"
    for table in ("message", "tombstone")  # one that is being pruned is a tombstone next
]
_BY_PROVIDER_ID = """
SELECT m.provider_id, m.provider, m.log, m.started_at FROM unnest(%(ids)s::text[]) AS wanted (id)
    CROSS JOIN LATERAL (SELECT * FROM main.message WHERE provider_id = wanted.id OFFSET 0) AS m
UNION ALL SELECT u.provider_id, u.provider, u.log, u.started_at FROM unnest(%(ids)s::text[]) AS wanted (id)
    CROSS JOIN LATERAL (SELECT * FROM main.unaccepted WHERE provider_id = wanted.id OFFSET 0) AS u
ORDER BY 4
"""
_UNMATCHED = """
SELECT seq, provider, provider_id, delivered, status, reported_at, received_at, reference FROM main.receipt
WHERE message_id IS NULL AND dropped_at IS NULL
"""
_UNMATCHED_BY_SEQ = f"{_UNMATCHED} AND seq = ANY(%s::int8[])"
_UNMATCHED_BY_IDS = f"{_UNMATCHED} AND provider_id = ANY(%s::text[])"
_UNMATCHED_LATELY = f"{_UNMATCHED} AND received_at > %s AND seq > %s ORDER BY seq LIMIT %s"


def logs_of_messages(db: Connected, ids: Collection[int]) -> Mapping[int, int]:
    """Return the logs of messages, also of those of which only a tombstone is left."""
    return dict(db.execute(_BY_ID, {"ids": list(ids)}).fetchall()) if ids else {}


def kept_messages(db: Connected, ids: Collection[int]) -> Mapping[int, int]:
    """Return the logs of messages and tombstones, which nobody deletes until the transaction ends."""
    return _locked(db, ids, "KEY SHARE")


def hold_messages(db: Connected, order: Order) -> None:
    """Let nobody keep the messages that an order names until the transaction ends."""
    _locked(db, _numbers(order).values(), "UPDATE")


def _locked(db: Connected, ids: Collection[int], lock: str) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for query in _LOCK:
        found |= dict(db.execute(query.format(lock).encode(), (list(ids),)).fetchall())
    return found


def logs_of_reports(db: Connected, reports: Sequence[Reported], namespace: str) -> list[int | None]:
    """Return for each report the log of the message that it seems to be about; None: there is none."""
    named = [_named(each, namespace) for each in reports]
    logs = logs_of_messages(db, {id_ for id_ in named if id_ is not None})
    wanted = {
        each.provider_id
        for each, id_ in zip(reports, named, strict=True)
        if not isinstance(each, UnreadReport) and each.provider_id and id_ not in logs
    }
    by_id: dict[tuple[str, str], int] = {}
    if wanted:
        rows = db.execute(_BY_PROVIDER_ID, {"ids": [_as_kept(each) for each in wanted]})
        by_id = {(provider_id, provider): log for provider_id, provider, log, _ in rows}
    found: list[int | None] = []
    for each, id_ in zip(reports, named, strict=True):
        if isinstance(each, UnreadReport):
            found.append(None)
        elif id_ is not None and id_ in logs:
            found.append(logs[id_])
        else:
            found.append(by_id.get((_as_kept(each.provider_id), each.provider)))
    return found


def _as_kept(provider_id: str) -> str:
    """An id of a provider as it stands in the tables."""
    return str(plain(to_name(provider_id)))


def _named(report: Reported, namespace: str) -> int | None:
    if isinstance(report, UnreadReport) or report.reference is None:
        return None
    named = referred_by(report.reference, namespace)
    return None if named is None else named.message_id


def logs_of_keys(db: Connected, order: Order, namespace: str) -> Mapping[str, int]:
    """Return the logs of what the keys of an order name; of what belongs to no log, nothing."""
    numbers = _numbers(order)
    if order.kind is ItemKind.EVENT:
        there = all_logs(db)
        return {key: log for key, number in numbers.items() if (log := log_of(number)) in there}
    if order.kind is ItemKind.MESSAGE:
        logs = logs_of_messages(db, numbers.values())
        return {key: logs[number] for key, number in numbers.items() if number in logs}
    if order.kind is ItemKind.RECEIPT:
        found = unmatched(db, numbers.values())
        of = logs_of_reports(db, list(found.values()), namespace)
        return {str(seq): log for seq, log in zip(found, of, strict=True) if log is not None}
    return {}


def _numbers(order: Order) -> Mapping[str, int]:
    """The numbers of 64 bits that the keys of an order are."""
    numbers = {key: int(key) for key in order.keys if _NUMBER.fullmatch(key) is not None}
    return {key: number for key, number in numbers.items() if -(2**63) <= number < 2**63}


def unmatched(db: Connected, seqs: Collection[int]) -> Mapping[int, Receipt]:
    """Return unmatched receipts, by their numbers."""
    return _receipts(db.execute(_UNMATCHED_BY_SEQ, (list(seqs),)))


def unmatched_by_ids(db: Connected, ids: Collection[str]) -> Mapping[int, Receipt]:
    """Return unmatched receipts with these ids of providers."""
    return _receipts(db.execute(_UNMATCHED_BY_IDS, ([_as_kept(each) for each in ids],)))


def unmatched_lately(db: Connected, since: int, after: int, limit: int) -> Mapping[int, Receipt]:
    """Return the next unmatched receipts that came since an instant."""
    return _receipts(db.execute(_UNMATCHED_LATELY, (since, after, limit)))


def _receipts(rows: Iterable[Sequence[object]]) -> dict[int, Receipt]:
    return {int(str(seq)): Receipt._make(rest) for seq, *rest in rows}
