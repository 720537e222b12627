"""Finds messages by the ids that providers gave them.

Ids of providers have no order. In one index of all of them each new one would touch a page of its own, and in
a file a message would cost the more the more messages there are. So a file's index is divided by eras, of
which the latest stays small, and ids are sought back from era to era. A database's index needs none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from deliveryd.journal.rules.receipts import Tried
from deliveryd.journal.sql.db import Db
from deliveryd.states import State

SENT_ROWS = f"""
SELECT message.id, message.provider_id, message.generation, message.started_at, message.state = {State.SENT:d}
    AND message.accepted_at IS NOT NULL AND message.confirm_by IS NULL AND message.failed_next IS NULL
    AND message.spent = '[]'
"""
"""The columns of a message that a receipt may be about, up to whether it is sent and nothing else is left."""

_ERA = "started_at / 14400000000"
_ERAS = f"""
WITH RECURSIVE era (n) AS (
    SELECT max({_ERA}) FROM message WHERE provider_id IS NOT NULL UNION ALL
    SELECT (SELECT max({_ERA}) FROM message WHERE provider_id IS NOT NULL AND {_ERA} < n)
    FROM era WHERE n IS NOT NULL
)
SELECT n FROM era WHERE n IS NOT NULL
"""  # noqa: S608  # constants
_ERA_OF = f"""
WITH RECURSIVE era (n) AS (
    SELECT {2**63 - 1} UNION ALL
    SELECT (SELECT max({_ERA}) FROM message WHERE provider_id IS NOT NULL AND {_ERA} < n)
    FROM era WHERE n IS NOT NULL
)
SELECT n FROM era
WHERE EXISTS (SELECT 1 FROM message WHERE {_ERA} = n AND provider_id = ? AND provider = ?) LIMIT 1
"""  # noqa: S608  # constants
_IN_ERA = f"""
SELECT id, stay FROM message WHERE {_ERA} = ? AND provider_id = ? AND provider = ?
ORDER BY started_at DESC LIMIT 1
"""  # noqa: S608  # constants
_ALL_IN_ERA = f"""
{SENT_ROWS} FROM json_each(?3) AS wanted CROSS JOIN message
WHERE {_ERA} = ?1 AND message.provider_id = wanted.value AND message.provider = ?2
"""  # constants
_LATEST = (
    "SELECT id, stay FROM message WHERE provider_id = ? AND provider = ? ORDER BY started_at DESC LIMIT 1"
)
_ALL = f"""
{SENT_ROWS} FROM json_each(?2) AS wanted CROSS JOIN message
WHERE message.provider_id = wanted.value AND message.provider = ?1
"""  # constants


class ProviderIds(Protocol):
    """How a store looks for them."""

    def latest(self, db: Db, provider_id: str, provider: str) -> Tried | None:
        """Return the key of the latest accepted try with this id of the provider."""

    def all_of(self, db: Db, provider: str, left: Mapping[str, object]) -> Iterator[Sequence[Any]]:
        """Yield the rows of messages with one of these ids, in portions, until none of the ids is left."""


class IdsByEra:
    """In a file."""

    def latest(self, db: Db, provider_id: str, provider: str) -> Tried | None:
        """Seek back from era to era."""
        era = db.execute(_ERA_OF, (provider_id, provider)).fetchone()
        row = None if era is None else db.execute(_IN_ERA, (*era, provider_id, provider)).fetchone()
        return None if row is None else Tried(*row)

    def all_of(self, db: Db, provider: str, left: Mapping[str, object]) -> Iterator[Sequence[Any]]:
        """Yield a portion of each era."""
        for (era,) in db.execute(_ERAS).fetchall() if left else ():
            yield db.execute(_ALL_IN_ERA, (era, provider, json.dumps(list(left)))).fetchall()
            if not left:
                return


class IdsInOneIndex:
    """In a database."""

    def latest(self, db: Db, provider_id: str, provider: str) -> Tried | None:
        """Look the id up."""
        row = db.execute(_LATEST, (provider_id, provider)).fetchone()
        return None if row is None else Tried(*row)

    def all_of(self, db: Db, provider: str, left: Mapping[str, object]) -> Iterator[Sequence[Any]]:
        """Yield all of them."""
        if left:
            yield db.execute(_ALL, (provider, json.dumps(list(left)))).fetchall()
