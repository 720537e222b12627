"""Many receipts at once: those about messages that are sent, with a query for all instead of one for each.

Only plain cases are handled here: the message is sent, its accepted try is the one meant, no report came
before, and no other report of the batch may be about it; or no message has the provider's id. All others
go one by one, afterwards: two about one message are taken in the order in which they came.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from deliveryd import transitions
from deliveryd.journal.base import NOT_OURS, MatchedReceipt
from deliveryd.journal.orders import Delivered, Effect
from deliveryd.journal.sql import statements
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.outbox import Outbox
from deliveryd.journal.sql.provider_ids import SENT_ROWS, ProviderIds
from deliveryd.model import ProgressReport, Receipt, ReceiptStep, SharedReceipt, StatusEvent, message_key
from deliveryd.states import State

FEWEST = 4
"""Receipts from which it pays."""

_KEY = re.compile(r"[0-9a-f]+-(-?[0-9]{1,18})-[0-9a-z]+")
_REFERENCE = re.compile(r"(?:[0-9a-f]+-)?(-?[0-9]{1,19})(?:-[0-9a-z]+)?")
_BY_MESSAGES = f"""
{SENT_ROWS} FROM json_each(?2) AS wanted CROSS JOIN message
WHERE message.id = CAST(wanted.value AS BIGINT) AND message.provider = ?1
"""  # constants
_KEPT = """
SELECT 1 FROM json_each(?2) AS wanted CROSS JOIN receipt WHERE receipt.provider_id = wanted.value
    AND receipt.provider = ?1 AND receipt.message_id IS NULL AND receipt.dropped_at IS NULL LIMIT 1
"""
_WENT_ON = """
SELECT unaccepted.provider_id, unaccepted.message_id FROM json_each(?2) AS wanted CROSS JOIN unaccepted
WHERE unaccepted.provider_id = wanted.value AND unaccepted.provider = ?1
"""
"""The ids under which messages were accepted that went on since, with the messages."""

_REPORTED = """
SELECT receipt.message_id FROM json_each(?) AS wanted CROSS JOIN receipt
WHERE receipt.message_id = CAST(wanted.value AS BIGINT)
"""
_MATCHED = """
INSERT INTO receipt
    (provider, provider_id, delivered, status, reported_at, received_at, reference, message_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""


class _Sent(NamedTuple):
    """A message that is sent, and when its try began."""

    id: int
    at: int


class BulkMatching:
    """Applies receipts of the plain case. `namespace` is what all keys begin with."""

    def __init__(self, outbox: Outbox, namespace: str, ids: ProviderIds) -> None:
        self._outbox = outbox
        self._namespace = namespace
        self._ids = ids

    def receive(self, db: Db, reports: Sequence[Receipt | ProgressReport]) -> dict[Receipt, MatchedReceipt]:
        """Apply the receipts that can be; return what they did. The other reports are left as they are.

        None of them if one has an id with a NUL: SQLite reads text of JSON up to that only.
        """
        if sum(isinstance(report, Receipt) for report in reports) < FEWEST:
            return {}
        if any("\0" in report.provider_id for report in reports):
            return {}
        by_provider: defaultdict[str, list[Receipt | ProgressReport]] = defaultdict(list)
        for report in reports:
            by_provider[report.provider].append(report)
        meant: dict[Receipt, _Sent] = {}
        unmatched: list[Receipt] = []
        went_on: list[int] = []
        for provider, group in by_provider.items():
            ids = Counter(report.provider_id for report in group)
            rows = db.execute(_WENT_ON, (provider, json.dumps(list(ids)))).fetchall()
            went_on += [id_ for _, id_ in rows]  # a provider may use an id again
            gone = {provider_id for provider_id, _ in rows}
            alone = [each for each in group if ids[each.provider_id] == 1 and each.provider_id not in gone]
            found, unknown = self._plain(db, provider, ids, alone)
            meant |= found
            unmatched += unknown
        others = [id_ for report in reports if report not in meant and (id_ := _referred(report)) is not None]
        messages = Counter([*(sent.id for sent in meant.values()), *others, *went_on])
        wanted = json.dumps([sent.id for sent in meant.values() if messages[sent.id] == 1])
        reported = {id_ for (id_,) in db.execute(_REPORTED, (wanted,))}
        not_ours = [each for each in unmatched if isinstance(each, SharedReceipt)]
        kept = [each for each in unmatched if not isinstance(each, SharedReceipt)]
        db.executemany(_MATCHED, [_row(receipt, None) for receipt in kept])
        done = self._apply(
            db,
            {
                each: sent
                for each, sent in meant.items()
                if messages[sent.id] == 1 and sent.id not in reported
            },
        )
        done |= dict.fromkeys(kept, MatchedReceipt("unmatched"))
        return done | dict.fromkeys(not_ours, MatchedReceipt(NOT_OURS))

    def _plain(
        self,
        db: Db,
        provider: str,
        ids: Collection[str],
        reports: Iterable[Receipt | ProgressReport],
    ) -> tuple[dict[Receipt, _Sent], list[Receipt]]:
        """Return the messages that a provider's reports are about, and the receipts about none.

        `ids` are those of all its reports.
        """
        if "" in ids or db.execute(_KEPT, (provider, json.dumps(list(ids)))).fetchone():
            return {}, []
        named = [each for each in reports if isinstance(each, Receipt)]
        by_id = [receipt for receipt in named if receipt.reference is None]
        meant, unknown = _by_id(db, self._ids, provider, by_id)
        return meant | self._by_key(db, provider, named), unknown

    def _by_key(self, db: Db, provider: str, receipts: Iterable[Receipt]) -> dict[Receipt, _Sent]:
        """Return the messages that are named by their key, and have the provider's id that is reported."""
        ids = {
            int(key[1]): receipt
            for receipt in receipts
            if receipt.reference is not None and (key := _KEY.fullmatch(receipt.reference))
        }
        rows = db.execute(_BY_MESSAGES, (provider, json.dumps(list(ids)))) if ids else ()
        return {
            ids[id_]: _Sent(id_, sent_at)
            for id_, provider_id, generation, sent_at, is_sent in rows
            if is_sent
            and provider_id == ids[id_].provider_id
            and ids[id_].reference == message_key(self._namespace, id_, provider, generation)
        }

    def _apply(self, db: Db, found: Mapping[Receipt, _Sent]) -> dict[Receipt, MatchedReceipt]:
        """Take the step of each."""
        steps: dict[Receipt, ReceiptStep] = {}
        events: list[StatusEvent] = []
        for receipt, sent in found.items():
            step = transitions.reported(sent.id, State.SENT, receipt)
            if step is not None:
                steps[receipt] = step
                events.append(step.event)
        db.executemany(_MATCHED, [_row(receipt, found[receipt].id) for receipt in steps])
        db.executemany(
            statements.END_BY_REPORT,
            [(+step.after, step.ended_at, found[each].id) for each, step in steps.items()],
        )
        self._outbox.put(db, events)
        return {receipt: _matched(receipt, found[receipt], step) for receipt, step in steps.items()}


def _matched(receipt: Receipt, sent: _Sent, step: ReceiptStep) -> MatchedReceipt:
    timing = Delivered(sent.at, receipt.reported_at) if receipt.delivered else None
    effect = Effect(ended=(step.after,), events=1, provider=receipt.provider, delivered=timing)
    return MatchedReceipt("matched", effect, sent.id)


def _row(receipt: Receipt, message_id: int | None) -> tuple[object, ...]:
    """The values of `_MATCHED`, in plain types: sqlite3 takes twice as long over what derives from them."""
    provider, provider_id, delivered, *others = receipt
    return provider, provider_id, int(delivered), *others, message_id


def _referred(report: Receipt | ProgressReport) -> int | None:
    """The message that a reference may mean: by its key, or by its id."""
    found = _REFERENCE.fullmatch(report.reference) if report.reference is not None else None
    return None if found is None else int(found[1])


def _by_id(
    db: Db, ids: ProviderIds, provider: str, receipts: Iterable[Receipt]
) -> tuple[dict[Receipt, _Sent], list[Receipt]]:
    """Return the messages that are sent under an id of the provider, and the receipts whose id none has.

    An id that was used again lately is neither.
    """
    left = {receipt.provider_id: receipt for receipt in receipts}
    found: dict[Receipt, _Sent] = {}
    for rows in ids.all_of(db, provider, left):
        times = Counter(row[1] for row in rows)
        for id_, provider_id, _beginning, sent_at, is_sent in rows:
            receipt = left.pop(provider_id, None)
            if receipt is not None and is_sent and times[provider_id] == 1:
                found[receipt] = _Sent(id_, sent_at)
    return found, list(left.values())
