"""What commands need of the workers of a shared journal."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deliveryd.config import Config
from deliveryd.control.client import caller
from deliveryd.errors import JournalUnusable, UsageError
from deliveryd.journal.place import NOT_INSTALLED, JournalFile
from deliveryd.journal.sqlite.opening import JournalAbsent
from deliveryd.model import channel_of
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


def known_providers(config: Config) -> Sequence[str]:
    """Return the providers that are configured here, and those that other workers of the journal have."""
    own = config.channels.named
    if isinstance(config.journal.place, JournalFile):
        return sorted(own)
    try:
        return sorted({*own, *workers_of(config).providers()})
    except JournalAbsent:
        return sorted(own)


def known_channels(config: Config) -> Sequence[str]:
    """Return the channels that are configured here, and those that other workers of the journal have."""
    return sorted(set(map(channel_of, known_providers(config))))


def decided_by(reason: str | None) -> By:
    """Return who runs this command at which machine, and why."""
    from deliveryd.journal.postgresql.workers import By  # noqa: PLC0415  # as above

    return By(at_this_machine(user_name(os.geteuid())), caller(), reason)


def present() -> int:
    """Return the present instant."""
    return time.time_ns() // 1000
