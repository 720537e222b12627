"""Read transactions on a journal, beside a worker or without one."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from deliveryd.errors import JournalError, JournalUnusable
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sqlite.connection import FileConnection, advice, connect_file, unusable
from deliveryd.journal.sqlite.files import refuse_foreign, refuse_leftovers, verify_log
from deliveryd.journal.sqlite.opening import check_format

_T = TypeVar("_T")


class JournalAbsent(JournalError):
    """There is no journal yet; the first run creates it."""


def read(path: Path, query: Callable[[Db], _T]) -> _T:
    """Run a query in one read transaction. Raises JournalError, or JournalAbsent if there is no file."""
    return _open(path, partial(_verified, path, query))


def check_pages(path: Path, db: Db) -> None:
    """Raise JournalUnusable where pages of a file are damaged; for an audit."""
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise JournalUnusable(
            f"{path} is damaged: {found.splitlines()[-1]}. It is left as it is: move it away to start with an"
            " empty one, or restore a backup"
        )


def _verified(path: Path, query: Callable[[Db], _T], db: FileConnection) -> _T:
    try:
        check_format(db)
    except JournalError as error:
        raise JournalUnusable(f"{path} can't be read as a journal: {error}") from None
    return query(db)


def _open(path: Path, query: Callable[[Db], _T]) -> _T:
    try:
        refuse_foreign(path)
        size = path.lstat().st_size
    except FileNotFoundError:
        size = 0
    except OSError as error:
        raise unusable(f"{path} can't be read: {error.strerror}", error) from None
    if size == 0:
        refuse_leftovers(path)
        raise JournalAbsent(f"there is no journal at {path}: deliveryd hasn't run with it yet")
    if not os.access(path, os.R_OK, effective_ids=True):
        raise JournalUnusable(
            f"{path} can't be read by this user; run the command as the user that deliveryd runs as"
        )
    try:
        verify_log(path)
        return _read_undisturbed(path, query)
    except sqlite3.DatabaseError as error:
        raise unusable(f"{path} can't be read as a journal: {error}. {advice(error)}", error) from error
    except OSError as error:
        raise unusable(f"{path} can't be read: {error.strerror}", error) from None


def _read_undisturbed(path: Path, query: Callable[[Db], _T]) -> _T:
    # Without a log no process has the journal open. A plain read would create -wal and -shm with this user as
    # their owner, and the worker might not be allowed to write them.
    log = path.with_name(path.name + "-wal")
    if not log.exists():
        result = _query(path, "immutable=1", query)
        if not log.exists():
            return result
    return _query(path, "mode=ro", query)


def _query(path: Path, mode: str, query: Callable[[Db], _T]) -> _T:
    uri = f"{path.as_uri()}?{mode}"
    with closing(connect_file(uri)) as db:
        db.execute("PRAGMA query_only = ON")
        db.execute("BEGIN")
        return query(db)
