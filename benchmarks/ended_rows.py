"""Makes journals with many ended or waiting messages behind them, by bulk inserts into the real schema."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from deliveryd.journal.sqlite.journal import open_journal_file

NOW = 1_767_225_600_000_000
"""The instant at which every benchmark begins, in microseconds."""

STRIDE = 1000
"""The distance between ids that a journal has: room for random ones in between."""

BYTES_PER_MESSAGE = 1200
"""What an ended message takes on the disk while it is built, generously."""

_CHUNK = 100_000
_POST = 100  # events that the service accepted at one time
_LIFE = 2_000_000  # microseconds from the take to the end
_NUMBERS = "WITH RECURSIVE number(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM number WHERE i < :last)"
_VARIABLES = '{"order":"A-4711","city":"Tallinn","amount":"10.50","day":"2026-01-01"}'
_INSTANT = "2026-01-01T00:00:00.000000Z"

_ENDED = f"""
INSERT INTO message
    (id, settings_id, customer_id, variables, state, taken_at, provider, tries, number, ended_at,
    started_at, accepted_at, provider_id)
{_NUMBERS} SELECT :base + i * :stride, i % 20, i, '{_VARIABLES}', 6, :begin + i * :step, 'sms', 1, 1,
    :begin + i * :step + {_LIFE}, :begin + i * :step, :begin + i * :step + {_LIFE},
    lower(hex(randomblob(16))) FROM number;
INSERT INTO event (message_id, seq, status, body)
{_NUMBERS} SELECT :base + (i + 1) / 2 * :stride, i, iif(i % 2, 'dequeued', 'sent'),
    '{{"timestamp":"{_INSTANT}","messageId":' || (:base + (i + 1) / 2 * :stride) || ',"status":"'
    || iif(i % 2, 'dequeued', 'sent') || '"}}' FROM number;
INSERT INTO post (last, first, at)
{_NUMBERS} SELECT i * {_POST}, (i - 1) * {_POST} + 1, :begin + i * {_POST} * :step / 2 FROM number;
"""  # noqa: S608  # constants

_WAITING = f"""
INSERT INTO message (id, settings_id, customer_id, variables, state, taken_at, due_at, provider)
{_NUMBERS} SELECT :base + i * :stride, i % 20, i, '{_VARIABLES}', 3, :begin,
    :begin + i * :step, 'sms' FROM number;
INSERT INTO event (message_id, seq, status, body)
{_NUMBERS} SELECT :base + i * :stride, i, 'dequeued',
    '{{"timestamp":"{_INSTANT}","messageId":' || (:base + i * :stride) || ',"status":"dequeued"}}'
    FROM number;
INSERT INTO post (last, first, at)
{_NUMBERS} SELECT i * {_POST}, (i - 1) * {_POST} + 1, :begin FROM number;
"""  # noqa: S608  # constants


async def with_ended(path: Path, number: int, *, base: int = 0) -> None:
    """A journal with so many messages that were sent during the last seven days, all of it accepted.

    The first id is one stride above `base`, and the others follow.
    """
    async with open_journal_file(path):
        pass
    step = 7 * 86_400_000_000 // number
    _fill(path, _ENDED, number, {"base": base, "begin": NOW - step * number - _LIFE, "step": step}, events=2)


async def with_waiting(path: Path, number: int, *, base: int = 0, begin: int = NOW) -> None:
    """A journal with so many messages that wait for one channel; from `begin` on one is due each second."""
    async with open_journal_file(path):
        pass
    _fill(path, _WAITING, number, {"base": base, "begin": begin, "step": 1_000_000}, events=1)


def _fill(path: Path, script: str, number: int, values: dict[str, int], *, events: int) -> None:
    """Run a script for chunks of numbers. Each message has so many events."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA cache_size = -2000000")
        statements = [statement for statement in script.split(";\n") if statement.strip()]
        for first in range(1, number + 1, _CHUNK):
            last = min(first + _CHUNK - 1, number)
            db.execute("BEGIN")
            for statement in statements:
                rows, of_messages = _share(statement, events)
                bounds = {"first": (first - 1) * rows // of_messages + 1, "last": last * rows // of_messages}
                db.execute(statement, {**values, **bounds, "stride": STRIDE})
            db.execute("COMMIT")
        db.execute("UPDATE log SET settled = ?, taken = ?", (number * events, number))
        db.execute("PRAGMA journal_mode = WAL")


def _share(statement: str, events: int) -> tuple[int, int]:
    """How many rows a statement makes for how many messages."""
    if "INTO event" in statement:
        return events, 1
    return (events, _POST) if "INTO post" in statement else (1, 1)
