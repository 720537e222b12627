"""What a journal stores about a customer, found by reading it in portions beside a worker."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from deliveryd.journal.read_transaction import read
from deliveryd.journal.rows import IDS
from deliveryd.journal.traces import PersonalData, is_about, named_by, names_customer

ERASURE_PORTION = 20_000
"""Messages per read transaction. While one is open, the write-ahead log can't be truncated."""

_LEAST, _MOST = -(2**63), 2**63 - 1
_OF_A_CUSTOMER = """
SELECT max(id), group_concat(iif(customer_id = ?2, id, NULL)) FROM
    (SELECT id, customer_id FROM message WHERE id >= ?1 ORDER BY id LIMIT ?3)
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


def find_personal_data(path: Path, customer_id: int) -> PersonalData:
    """Find a customer's data, in several read transactions. Works beside a worker. Raises JournalError."""
    messages: list[int] = []
    begin: int | None = _LEAST
    while begin is not None:
        last, found = read(path, partial(_portion, customer_id, begin))
        messages += found
        begin = None if last is None or last == _MOST else last + 1
    malformed = read(path, lambda db: list(_malformed(db, customer_id)))
    messages += sorted({id_ for _, id_ in malformed if id_ is not None}.difference(messages))
    receipts = read(path, partial(_receipts, set(messages)))
    reports = read(path, partial(_reports, set(messages)))
    return PersonalData(messages, [digest for digest, _ in malformed], receipts, reports)


def _portion(customer_id: int, begin: int, db: sqlite3.Connection) -> tuple[int | None, list[int]]:
    last, ids = db.execute(_OF_A_CUSTOMER, (begin, customer_id, ERASURE_PORTION)).fetchone()
    return last, [int(id_) for id_ in ids.split(",")] if ids else []


def _malformed(db: sqlite3.Connection, customer_id: int) -> Iterator[tuple[str, int | None]]:
    """Yield malformed elements with this customer id in any notation, each with the id of its message."""
    for digest, raw, message_id in db.execute(_MALFORMED):
        if names_customer(raw, customer_id):
            yield digest, message_id


def _receipts(ids: Collection[int], db: sqlite3.Connection) -> list[int]:
    """Return the unmatched receipts whose reference is the id or a key of one of these messages."""
    return [seq for seq, reference in db.execute(_UNMATCHED) if named_by(reference) in ids]


def _reports(ids: Collection[int], db: sqlite3.Connection) -> list[str]:
    """Return the reports that can't be read, and that name one of these messages in any way.

    By its id, by one of its keys, or by an id that a provider gave it.
    """
    unread = db.execute(_UNREAD).fetchall()
    if not unread or not ids:
        return []
    known = {provider_id for (provider_id,) in db.execute(_PROVIDER_IDS, (json.dumps(list(ids)),))}
    return [digest for digest, raw in unread if is_about(raw, ids, known)]
