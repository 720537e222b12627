"""Where a journal is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from deliveryd.errors import how_to_install

NOT_INSTALLED = "names a PostgreSQL database, which needs a driver" + how_to_install("postgresql")
"""What is wrong with journal.url where the driver is missing."""


class JournalFile(NamedTuple):
    """A SQLite file, for one worker; all other files of the journal are beside it."""

    path: Path

    @property
    def name(self) -> str:
        """The place as text for people."""
        return str(self.path)


class JournalDatabase(NamedTuple):
    """A PostgreSQL database, for several workers. `password_file` None: it asks for no password."""

    url: str
    password_file: Path | None = None

    @property
    def name(self) -> str:
        """The place as text for people: without user, password and options."""
        scheme, _, rest = self.url.partition("://")
        hosts, slash, path = rest.partition("?")[0].partition("/")
        return f"{scheme}://{hosts.rpartition('@')[2]}{slash}{path}"


JournalPlace = JournalFile | JournalDatabase


def both_are(place: JournalPlace) -> str:
    """Return why a journal isn't moved to another place of its kind, and what to do instead."""
    if isinstance(place, JournalFile):
        return "both are SQLite files: while no worker has it, a copy of the file will do"
    return "both are PostgreSQL databases: pg_dump and pg_restore copy one"
