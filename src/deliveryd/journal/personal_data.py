"""What a journal stores about a customer, found by reading it in portions beside a worker."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import NamedTuple

from deliveryd.journal.erasure import obstacle
from deliveryd.journal.read_transaction import read

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
_CUSTOMER = re.compile(r'"customerId"\s*:\s*"?\s*(-?[0-9][0-9.eE+-]{0,40})')
_UNREAD = "SELECT digest, raw FROM unread"
_PROVIDER_IDS = """
SELECT provider_id FROM message WHERE provider_id IS NOT NULL AND id IN (SELECT value FROM json_each(?1))
UNION SELECT provider_id FROM unaccepted
    WHERE provider_id IS NOT NULL AND message_id IN (SELECT value FROM json_each(?1))
"""
_REFERENCE = re.compile(r"(?:[0-9a-f]+-(-?[0-9]{1,19})-[0-9a-z]{1,9}|(-?[0-9]{1,19}))")
_WORD = re.compile(r"[0-9A-Za-z_.-]+")
"""What may be a key, a message's id or a provider's id in the text of a report."""


class PersonalData(NamedTuple):
    """What a journal stores about a customer.

    Ids of messages, digests of malformed elements, numbers of unmatched receipts, and digests of reports that
    can't be read.
    """

    messages: list[int]
    malformed: list[str]
    receipts: list[int]
    reports: list[str]


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
        if any(_is(number, customer_id) for number in _CUSTOMER.findall(raw)):
            yield digest, message_id


def _is(number: str, customer_id: int) -> bool:
    try:
        return Decimal(number) == customer_id
    except InvalidOperation:
        return False


def _receipts(ids: Collection[int], db: sqlite3.Connection) -> list[int]:
    """Return the unmatched receipts whose reference is the id or a key of one of these messages."""
    return [seq for seq, reference in db.execute(_UNMATCHED) if _named(reference) in ids]


def _reports(ids: Collection[int], db: sqlite3.Connection) -> list[str]:
    """Return the reports that can't be read, and that name one of these messages in any way.

    By its id, by one of its keys, or by an id that a provider gave it.
    """
    unread = db.execute(_UNREAD).fetchall()
    if not unread or not ids:
        return []
    known = {provider_id for (provider_id,) in db.execute(_PROVIDER_IDS, (json.dumps(list(ids)),))}
    return [digest for digest, raw in unread if _is_about(raw, ids, known)]


def _is_about(raw: str, ids: Collection[int], provider_ids: Collection[str]) -> bool:
    if any(word in provider_ids or _named(word) in ids for word in _WORD.findall(raw)):
        return True
    return any(id_ in raw for id_ in provider_ids if _WORD.fullmatch(id_) is None)


def _named(reference: str) -> int | None:
    found = _REFERENCE.fullmatch(reference)
    return None if found is None else int(found[1] or found[2])


def find_unerasable(path: Path, ids: Sequence[int]) -> dict[int, str]:
    """Return which of these messages can't be erased now, and why. Works beside a worker."""
    found: dict[int, str] = {}
    for begin in range(0, len(ids), ERASURE_PORTION):
        found |= read(path, partial(_unerasable, ids[begin : begin + ERASURE_PORTION]))
    return found


def _unerasable(ids: Sequence[int], db: sqlite3.Connection) -> dict[int, str]:
    return {id_: reason for id_ in ids if (reason := obstacle(db, id_)) is not None}
