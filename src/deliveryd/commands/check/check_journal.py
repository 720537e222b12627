"""Checks the journal, be it a file or a database, and the socket for orders. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread

from deliveryd.commands.check.findings import Finding, Level
from deliveryd.config import Config
from deliveryd.control.client import listener_at
from deliveryd.control.protocol import socket_at
from deliveryd.errors import JournalError, JournalFull, JournalUnusable
from deliveryd.journal.place import NOT_INSTALLED, JournalDatabase, JournalFile
from deliveryd.journal.service_adoption import read_service
from deliveryd.journal.sql.own_values import difference
from deliveryd.journal.sqlite.files import check_writable
from deliveryd.journal.sqlite.lock import lock_owner
from deliveryd.journal.sqlite.opening import JournalAbsent
from deliveryd.model import format_duration

MOST_APART = 5.0
"""Seconds by which the clocks of this machine and of the database may differ unnoticed."""

_URL = "journal.url"


def running_worker(config: Config) -> int | None:
    """Return the process of the worker that runs on this machine with this journal; None: none is known."""
    place = config.journal.place
    if isinstance(place, JournalFile):
        return lock_owner(place.path)
    return listener_at(socket_at(place, config.control.socket))


def check_folder(key: str, folder: Path, good: str | None = None) -> Finding:
    """Check that a folder is writable or can be created."""
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        return Finding(key, Level.ERROR, f"{nearest} isn't a folder")
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
        return Finding(key, Level.ERROR, f"{nearest} can't be written by this user")
    return Finding(
        key, Level.OK, good or f"{folder} {'can be used' if nearest == folder else 'will be created'}"
    )


def check_journal_files(config: Config) -> list[Finding]:
    """Check what of the journal is on this machine: its file, or else the place of the worker's socket."""
    place = config.journal.place
    if isinstance(place, JournalFile):
        return list(_file(place.path, config.service.address))
    return [_socket(config.control.socket)]


def _file(path: Path, service: str) -> Iterator[Finding]:
    try:
        kept = read_service(path)
        check_writable(path)
    except JournalAbsent:
        yield check_folder(_URL, path.parent, f"{path} will be created")
    except JournalUnusable as error:
        yield Finding(_URL, Level.ERROR, str(error))
    except JournalError as error:
        yield Finding(_URL, Level.FAILED, str(error))
    else:
        holder = lock_owner(path)
        used = f", in use by process {holder}" if holder is not None else ""
        yield Finding(_URL, Level.OK, f"{path} is a journal{used}")
        yield from _other_service(kept, service)


def _other_service(kept: str | None, service: str) -> Iterator[Finding]:
    if (problem := difference(kept, service)) is not None:
        yield Finding("service.base_url", Level.ERROR, problem)


def _socket(path: Path) -> Finding:
    """Check the folder of the socket. A worker runs without one, but not reload, status, top and tail."""
    if path.parent.is_dir() and os.access(path.parent, os.W_OK | os.X_OK, effective_ids=True):
        return Finding("control.socket", Level.OK, f"{path.parent} can be used")
    problem = "this user can't write to" if path.parent.is_dir() else "there is no folder"
    text = (
        f"{problem} {path.parent}: a unit with RuntimeDirectory= has it while it runs; otherwise make it, or"
        " this machine's worker can be neither reloaded nor watched by commands"
    )
    return Finding("control.socket", Level.WARNING, text)


async def check_database(config: Config) -> list[Finding]:
    """Connect to the journal's database, if it is one, and judge it."""
    place = config.journal.place
    if not isinstance(place, JournalDatabase):
        return []
    return await anyio.to_thread.run_sync(_database, place, config.service.address)


def _database(place: JournalDatabase, service: str) -> list[Finding]:
    try:
        from deliveryd.journal.postgresql.workers import examine_database  # noqa: PLC0415  # an extra
    except ImportError:
        return [Finding(_URL, Level.ERROR, NOT_INSTALLED)]
    try:
        seen = examine_database(place)
    except JournalFull as error:  # not reached, or no room: may be better later
        return [Finding(_URL, Level.FAILED, str(error))]
    except JournalError as error:
        return [Finding(_URL, Level.ERROR, str(error))]
    if seen.missing is not None:
        return [Finding(_URL, Level.ERROR, f"{seen.where} can't be written: {seen.missing}")]
    if seen.halted is not None:
        text = (
            f"{seen.where}: the database lost commits that it had acknowledged, as the worker {seen.halted}"
            " noticed; no worker starts until you decide: run deliveryd accept-loss"
        )
        return [Finding(_URL, Level.FAILED, text)]
    state = "is a journal" if seen.exists else "is empty: the journal will be created"
    used = f", in use by {', '.join(seen.workers)}" if seen.workers else ""
    good = Finding(_URL, Level.OK, f"{seen.where} ({seen.server}) {state}{used}")
    unsafe = _unsafe_settings(seen.synchronous, seen.fsync)
    return [good, *_other_service(seen.service, service), *unsafe, *_clocks(seen.ahead)]


def _unsafe_settings(synchronous: str, fsync: str) -> Iterator[Finding]:
    if synchronous in ("off", "local"):
        text = (
            f"the database has synchronous_commit = {synchronous}: deliveryd uses on instead, because its"
            " records must survive a power loss; set that for its user, so that it is visible"
        )
        yield Finding(_URL, Level.WARNING, text)
    if fsync == "off":
        text = "the server has fsync = off: when its machine loses power, messages are lost; set it to on"
        yield Finding(_URL, Level.WARNING, text)


def _clocks(ahead: float) -> Iterator[Finding]:
    if abs(ahead) > MOST_APART:
        which = "behind" if ahead > 0 else "ahead of"
        text = (
            f"this machine's clock is {format_duration(round(abs(ahead)))} {which} the database's:"
            " synchronise all clocks (NTP), because workers continue with one another's times"
        )
        yield Finding(_URL, Level.WARNING, text)
