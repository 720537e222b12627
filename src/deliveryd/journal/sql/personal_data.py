"""What a journal stores about a customer, found by reading it in portions beside a worker."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import NamedTuple

from deliveryd.journal.rows import IDS
from deliveryd.journal.sql.db import Db, InReadTransaction

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


def find_personal_data(read: InReadTransaction, customer_id: int) -> PersonalData:
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


_CUSTOMER = re.compile(r'"customerId"\s*:\s*"?\s*(-?[0-9][0-9.eE+-]{0,40})')
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


def names_customer(raw: str, customer_id: int) -> bool:
    """Whether a malformed element has this customer id, in any notation of the number."""
    return any(_is(number, customer_id) for number in _CUSTOMER.findall(raw))


def _is(number: str, customer_id: int) -> bool:
    try:
        return Decimal(number) == customer_id
    except InvalidOperation:
        return False


def named_by(reference: str) -> int | None:
    """The message whose id or key a receipt's reference is; None: it is neither."""
    found = _REFERENCE.fullmatch(reference)
    return None if found is None else int(found[1] or found[2])


def is_about(raw: str, ids: Collection[int], provider_ids: Collection[str]) -> bool:
    """Whether a report names one of these messages: by its id, by one of its keys, or by a provider's id."""
    if any(word in provider_ids or named_by(word) in ids for word in _WORD.findall(raw)):
        return True
    return any(id_ in raw for id_ in provider_ids if _WORD.fullmatch(id_) is None)
