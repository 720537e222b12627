"""What the database stores about a customer, found by reading it in portions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.values import LOCATED, VISIBLE
from deliveryd.journal.traces import PersonalData, is_about, named_by, names_customer

QueryRunner = Callable[[Callable[[Db], Any]], Any]
"""Runs a query in a transaction of its own."""

_PORTION = 20_000
"""Messages per read transaction: a long one keeps the database from cleaning up."""

_TEXTS = 500
"""Malformed elements that are read at once: each may be large."""

_LEAST, _MOST = -(2**63), 2**63 - 1
_OF_A_CUSTOMER = f"""
SELECT max(id), array_agg(id ORDER BY id) FILTER (WHERE customer_id = %s) FROM (
    SELECT m.id, m.customer_id FROM message m WHERE m.id >= %s AND {VISIBLE}
    ORDER BY m.id LIMIT %s) AS portion
"""
_MALFORMED = f"""
SELECT f.digest, f.raw, (SELECT m.id FROM seen JOIN message m ON m.day = seen.day AND m.id = seen.id
    WHERE seen.id = f.message_id AND m.settings_id IS NULL AND {VISIBLE})
FROM malformed f WHERE f.digest > %s ORDER BY f.digest LIMIT %s
"""
_UNMATCHED = "SELECT seq, reference FROM unmatched WHERE reference IS NOT NULL ORDER BY seq"
_UNREAD = "SELECT digest, raw FROM unread ORDER BY digest"
_WANTED = f"FROM unnest(%(ids)s::int8[]) AS wanted (id) {LOCATED.format(id='wanted.id')}"
_PROVIDER_IDS = f"""
SELECT m.provider_id {_WANTED} WHERE m.provider_id IS NOT NULL
UNION SELECT u.provider_id {_WANTED} JOIN unaccepted u ON u.message_id = m.id AND u.day = m.day
    WHERE u.provider_id IS NOT NULL
"""


def find_personal_data(read: QueryRunner, customer_id: int) -> PersonalData:
    """Find a customer's data, in several transactions, each of which is one call of `read`."""
    messages: list[int] = []
    begin: int | None = _LEAST
    while begin is not None:
        last, found = read(partial(_portion, customer_id, begin))
        messages += found
        begin = None if last is None or last == _MOST else last + 1
    malformed = _malformed(read, customer_id)
    messages += sorted({id_ for _, id_ in malformed if id_ is not None}.difference(messages))
    receipts = read(partial(_receipts, set(messages)))
    reports = read(partial(_reports, set(messages)))
    return PersonalData(messages, [digest for digest, _ in malformed], receipts, reports)


def _portion(customer_id: int, begin: int, db: Db) -> tuple[int | None, list[int]]:
    last, ids = db.execute(_OF_A_CUSTOMER, (customer_id, begin, _PORTION)).fetchone() or (None, None)
    return last, ids or []


def _malformed(read: QueryRunner, customer_id: int) -> list[tuple[str, int | None]]:
    """Find malformed elements with this customer id in any notation, each with the id of its message."""
    found: list[tuple[str, int | None]] = []
    after: str | None = ""
    while after is not None:
        rows = read(partial(_elements, after))
        found += [(digest, id_) for digest, raw, id_ in rows if names_customer(raw, customer_id)]
        after = rows[-1][0] if len(rows) == _TEXTS else None
    return found


def _elements(after: str, db: Db) -> list[tuple[Any, ...]]:
    return db.execute(_MALFORMED, (after, _TEXTS)).fetchall()


def _receipts(ids: Collection[int], db: Db) -> list[int]:
    """Return the unmatched receipts whose reference is the id or a key of one of these messages."""
    return [seq for seq, reference in db.execute(_UNMATCHED) if named_by(reference) in ids]


def _reports(ids: Collection[int], db: Db) -> list[str]:
    """Return the reports that can't be read, and that name one of these messages in any way."""
    unread = db.execute(_UNREAD).fetchall()
    if not unread or not ids:
        return []
    known = {provider_id for (provider_id,) in db.execute(_PROVIDER_IDS, {"ids": list(ids)})}
    return [digest for digest, raw in unread if is_about(raw, ids, known)]
