"""Commands that concern the workers of a shared journal."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from deliveryd.config import Config
from deliveryd.control.client import caller
from deliveryd.errors import JournalUnusable, UsageError
from deliveryd.journal.place import NOT_INSTALLED, JournalFile
from deliveryd.runtime.rights import at_this_machine, user_name

if TYPE_CHECKING:
    from deliveryd.journal.postgresql.workers import By, Workers


def workers_of(config: Config) -> Workers:
    """Return the workers of the journal. Raises UsageError where it can't be shared."""
    place = config.journal.place
    if isinstance(place, JournalFile):
        raise UsageError(
            f"the journal is the file {place.path}, which one worker uses: deliveryd status shows it;"
            " several workers share a journal in PostgreSQL"
        )
    try:
        from deliveryd.journal.postgresql.workers import Workers  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise JournalUnusable(f"journal.url {NOT_INSTALLED}") from error
    return Workers(place)


def decided_by(reason: str | None) -> By:
    """Return who runs this command at which machine, and why."""
    from deliveryd.journal.postgresql.workers import By  # noqa: PLC0415  # as above

    return By(at_this_machine(user_name(os.geteuid())), caller(), reason)


def present() -> int:
    """Return the present instant."""
    return time.time_ns() // 1000
