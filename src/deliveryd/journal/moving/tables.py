"""The tables of a journal, as both sides have them, and what of their rows differs between the sides."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from deliveryd.journal.log import LOG_BITS

OWN_META = frozenset({"moved_by", "moved_to", "moved", "format", "written_since", "clock"})
"""The values of a side that aren't the journal's."""

NUMBERS = {"event": ("seq", "first_seq"), "post": ("last", "first")}
"""The columns that are numbers of events."""

FIRST_LOG = 1
FIRST_NUMBER = FIRST_LOG << LOG_BITS
"""The log in a database that a file becomes, and the number that its events follow there."""

_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY rowid"


def tables_of(file: sqlite3.Connection) -> Sequence[str]:
    """The names of all tables, but for the log's own row and the journal's own values."""
    return [name for (name,) in file.execute(_TABLES) if name not in ("log", "meta")]


def columns_of(file: sqlite3.Connection, table: str) -> Sequence[str]:
    """The columns of a table that hold something of their own."""
    return [row[1] for row in file.execute(f"PRAGMA table_info({table})")]


def named(columns: Sequence[str]) -> str:
    """Columns as SQL."""
    return ", ".join(f'"{column}"' for column in columns)
