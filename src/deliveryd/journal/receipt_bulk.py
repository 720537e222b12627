"""Many receipts at once: those about messages that are sent, with a query for all instead of one for each.

Only the plain case is handled here: the message is sent, its accepted try is the one meant, nobody has
reported it before, and no other receipt of the batch is about it. All others go one by one.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from deliveryd import transitions
from deliveryd.journal.base import MatchedReceipt
from deliveryd.journal.orders import Effect
from deliveryd.journal.outbox import Outbox
from deliveryd.model import Receipt, ReceiptStep, StatusEvent, message_key
from deliveryd.states import State

FEWEST = 4
"""Receipts from which it pays."""

_KEY = re.compile(r"[0-9a-f]+-(-?[0-9]{1,18})-[0-9a-z]+")
_ERA = "started_at / 14400000000"
_ERAS = f"""
WITH RECURSIVE era (n) AS (
    SELECT max({_ERA}) FROM message WHERE provider_id IS NOT NULL UNION ALL
    SELECT (SELECT max({_ERA}) FROM message WHERE provider_id IS NOT NULL AND {_ERA} < n)
    FROM era WHERE n IS NOT NULL
)
SELECT n FROM era WHERE n IS NOT NULL
"""  # noqa: S608  # constants
_SENT = f"""
SELECT message.id, message.provider_id, message.beginning, message.state = {State.SENT:d}
    AND message.accepted_at IS NOT NULL
"""
_BY_IDS = f"""
{_SENT} FROM json_each(?3) AS wanted CROSS JOIN message
    ON {_ERA} = ?1 AND message.provider_id = wanted.value AND message.provider = ?2
"""  # constants
_BY_MESSAGES = f"""
{_SENT} FROM json_each(?2) AS wanted CROSS JOIN message
    ON message.id = wanted.value WHERE message.provider = ?1
"""  # constants
_KEPT = """
SELECT 1 FROM json_each(?2) AS wanted CROSS JOIN receipt ON receipt.provider_id = wanted.value
    AND receipt.provider = ?1 AND receipt.message_id IS NULL AND receipt.dropped_at IS NULL LIMIT 1
"""
_REPORTED = """
SELECT receipt.message_id FROM json_each(?) AS wanted CROSS JOIN receipt ON receipt.message_id = wanted.value
"""
_MATCHED = """
INSERT INTO receipt
    (provider, provider_id, delivered, status, reported_at, received_at, reference, message_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_CONFIRM = "UPDATE message SET state = ?, ended_at = ? WHERE id = ?"


class BulkMatching:
    """Applies receipts of the plain case. `namespace` is what all keys begin with."""

    def __init__(self, outbox: Outbox, namespace: str) -> None:
        self._outbox = outbox
        self._namespace = namespace

    def receive(self, db: sqlite3.Connection, receipts: Sequence[Receipt]) -> dict[Receipt, MatchedReceipt]:
        """Apply the receipts that can be; return what they did. The others are left as they are."""
        if len(receipts) < FEWEST:
            return {}
        by_provider: defaultdict[str, list[Receipt]] = defaultdict(list)
        for receipt in receipts:
            by_provider[receipt.provider].append(receipt)
        found: dict[Receipt, int] = {}
        for provider, group in by_provider.items():
            found |= self._plain(db, provider, group)
        return self._apply(db, found)

    def _plain(
        self, db: sqlite3.Connection, provider: str, receipts: Sequence[Receipt]
    ) -> dict[Receipt, int]:
        """Return the messages of a provider's receipts that are the plain case."""
        ids = Counter(receipt.provider_id for receipt in receipts)
        if "" in ids or db.execute(_KEPT, (provider, json.dumps(list(ids)))).fetchone():
            return {}
        named = [receipt for receipt in receipts if ids[receipt.provider_id] == 1]
        meant = self._by_key(db, provider, named)
        meant |= _by_id(db, provider, [receipt for receipt in named if receipt.reference is None])
        messages = Counter(meant.values())
        wanted = json.dumps([id_ for id_, count in messages.items() if count == 1])
        reported = {id_ for (id_,) in db.execute(_REPORTED, (wanted,))}
        return {receipt: id_ for receipt, id_ in meant.items() if messages[id_] == 1 and id_ not in reported}

    def _by_key(
        self, db: sqlite3.Connection, provider: str, receipts: Iterable[Receipt]
    ) -> dict[Receipt, int]:
        """Return the messages that are named by their key, and have the provider's id that is reported."""
        ids = {
            int(key[1]): receipt
            for receipt in receipts
            if receipt.reference is not None and (key := _KEY.fullmatch(receipt.reference))
        }
        rows = db.execute(_BY_MESSAGES, (provider, json.dumps(list(ids)))) if ids else ()
        return {
            ids[id_]: id_
            for id_, provider_id, beginning, is_sent in rows
            if is_sent
            and provider_id == ids[id_].provider_id
            and ids[id_].reference == message_key(self._namespace, id_, provider, beginning)
        }

    def _apply(self, db: sqlite3.Connection, found: Mapping[Receipt, int]) -> dict[Receipt, MatchedReceipt]:
        """Take the step of each."""
        steps: dict[Receipt, ReceiptStep] = {}
        events: list[StatusEvent] = []
        for receipt, id_ in found.items():
            step = transitions.reported(id_, State.SENT, receipt)
            if step is not None:
                steps[receipt] = step
                events.append(step.event)
        db.executemany(_MATCHED, [(*receipt, found[receipt]) for receipt in steps])
        db.executemany(
            _CONFIRM, [(step.after, each.received_at, found[each]) for each, step in steps.items()]
        )
        self._outbox.put(db, events)
        return {
            receipt: MatchedReceipt("matched", Effect(ended=(step.after,), events=1))
            for receipt, step in steps.items()
        }


def _by_id(db: sqlite3.Connection, provider: str, receipts: Iterable[Receipt]) -> dict[Receipt, int]:
    """Return the messages that are sent under an id of the provider, sought back from era to era.

    An id that was used again within an era is left out.
    """
    left = {receipt.provider_id: receipt for receipt in receipts}
    found: dict[Receipt, int] = {}
    for (era,) in db.execute(_ERAS).fetchall() if left else ():
        rows = db.execute(_BY_IDS, (era, provider, json.dumps(list(left)))).fetchall()
        times = Counter(row[1] for row in rows)
        for id_, provider_id, _beginning, is_sent in rows:
            receipt = left.pop(provider_id, None)
            if receipt is not None and is_sent and times[provider_id] == 1:
                found[receipt] = id_
        if not left:
            break
    return found
