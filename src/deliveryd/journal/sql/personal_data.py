"""What a journal stores about a customer, found by reading it in portions beside a worker."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from functools import partial

from deliveryd.journal.sql.db import Db, Read
from deliveryd.journal.sql.rows import IDS
from deliveryd.journal.traces import PersonalData, is_about, named_by, names_customer

ERASURE_PORTION = 20_000
"""Messages per read transaction. While one is open, the write-ahead log can't be truncated."""

_LEAST, _MOST = -(2**63), 2**63 - 1
_PORTION = """
SELECT id, customer_id FROM message WHERE id >= ?1 ORDER BY id LIMIT ?2
"""
_MALFORMED = """
SELECT digest, raw, (SELECT id FROM message WHERE id = malformed.message_id AND settings_id IS NULL)
FROM malformed
"""
_UNMATCHED = "SELECT seq, reference FROM receipt WHERE message_id IS NULL AND reference IS NOT NULL"
_UNREAD = "SELECT digest, raw FROM unread"
_PROVIDER_IDS = f"""
SELECT provider_id FROM message WHERE provider_id IS NOT NULL AND id IN {IDS}
UNION SELECT provider_id FROM unaccepted
    WHERE provider_id IS NOT NULL AND message_id IN {IDS}
"""  # noqa: S608  # a constant


def find_personal_data(read: Read, customer_id: int) -> PersonalData:
    """Find a customer's data, in several read transactions. Works beside a worker. Raises JournalError."""
    messages: list[int] = []
    begin: int | None = _LEAST
    while begin is not None:
        last, found = read(partial(_portion, customer_id, begin))
        messages += found
        begin = None if last is None or last == _MOST else last + 1
    malformed = read(lambda db: list(_malformed(db, customer_id)))
    messages += sorted({id_ for _, id_ in malformed if id_ is not None}.difference(messages))
    receipts = read(partial(_receipts, set(messages)))
    reports = read(partial(_reports, set(messages)))
    return PersonalData(messages, [digest for digest, _ in malformed], receipts, reports)


def _portion(customer_id: int, begin: int, db: Db) -> tuple[int | None, list[int]]:
    rows = db.execute(_PORTION, (begin, ERASURE_PORTION)).fetchall()
    return (rows[-1][0] if rows else None), [id_ for id_, customer in rows if customer == customer_id]


def _malformed(db: Db, customer_id: int) -> Iterator[tuple[str, int | None]]:
    """Yield malformed elements with this customer id in any notation, each with the id of its message."""
    for digest, raw, message_id in db.execute(_MALFORMED):
        if names_customer(raw, customer_id):
            yield digest, message_id


def _receipts(ids: Collection[int], db: Db) -> list[int]:
    """Return the unmatched receipts whose reference is the id or a key of one of these messages."""
    return [seq for seq, reference in db.execute(_UNMATCHED) if named_by(reference) in ids]


def _reports(ids: Collection[int], db: Db) -> list[str]:
    """Return the reports that can't be read, and that name one of these messages in any way.

    By its id, by one of its keys, or by an id that a provider gave it.
    """
    unread = db.execute(_UNREAD).fetchall()
    if not unread or not ids:
        return []
    known = {provider_id for (provider_id,) in db.execute(_PROVIDER_IDS, (json.dumps(list(ids)),))}
    return [digest for digest, raw in unread if is_about(raw, ids, known)]
