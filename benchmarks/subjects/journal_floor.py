"""The floor's journal: the rows that a durable worker has to write, in SQLite, hundreds to a commit."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE message (
    id INTEGER PRIMARY KEY, settings_id INTEGER, customer_id INTEGER, variables TEXT,
    state INTEGER, taken_at TEXT, ended_at TEXT
);
CREATE TABLE attempt (
    message_id INTEGER PRIMARY KEY, key TEXT, started_at TEXT, ended_at TEXT, verdict TEXT, provider_id TEXT
);
CREATE TABLE event (
    message_id INTEGER, seq INTEGER, body TEXT, settled INTEGER, PRIMARY KEY (message_id, seq)
) WITHOUT ROWID;
"""

TAKEN = "INSERT INTO message VALUES (?, ?, ?, ?, 0, ?, NULL)"
EVENT = "INSERT INTO event VALUES (?, ?, ?, 0)"
INTENT = "INSERT INTO attempt VALUES (?, ?, ?, NULL, NULL, NULL)"
OUTCOME = "UPDATE attempt SET ended_at = ?, verdict = 'accepted', provider_id = ? WHERE message_id = ?"
ENDED = "UPDATE message SET state = 2, ended_at = ? WHERE id = ?"
SETTLED = "UPDATE event SET settled = 1 WHERE message_id = ? AND seq = ?"

LINGER = 0.002

Rows = list[tuple[Any, ...]]
Callbacks = dict[Callable[[list[Any]], None], list[Any]]


class Journal:
    """Collects writes for 2 ms, commits them together in a thread, then calls back on the loop."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.executescript(TABLES)
        self._rows: dict[str, Rows] = {}
        self._callbacks: Callbacks = {}
        self._lingering = False
        self._work: queue.SimpleQueue[tuple[dict[str, Rows], Callbacks] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._commit_all)
        self._thread.start()

    def write(self, statement: str, rows: Rows) -> None:
        """These rows go into the next commit."""
        known = self._rows.get(statement)
        if known is None:
            self._rows[statement] = rows
        else:
            known += rows
        if not self._lingering:
            self._lingering = True
            self._loop.call_later(LINGER, self._hand_over)

    def then(self, callback: Callable[[list[Any]], None], value: object) -> None:
        """Call back when what was written before is durable, with all values of that commit at once."""
        values = self._callbacks.get(callback)
        if values is None:
            self._callbacks[callback] = [value]
        else:
            values.append(value)

    def close(self) -> None:
        """End the thread."""
        self._work.put(None)
        self._thread.join()
        self._connection.close()

    def _hand_over(self) -> None:
        self._lingering = False
        self._work.put((self._rows, self._callbacks))
        self._rows, self._callbacks = {}, {}

    def _commit_all(self) -> None:
        execute, executemany = self._connection.execute, self._connection.executemany
        while (work := self._work.get()) is not None:
            statements, callbacks = work
            execute("BEGIN IMMEDIATE")
            for statement, rows in statements.items():
                executemany(statement, rows)
            execute("COMMIT")
            self._loop.call_soon_threadsafe(_call_all, callbacks)


def _call_all(callbacks: Callbacks) -> None:
    for callback, values in callbacks.items():
        callback(values)
