"""Whether all workers of a shared journal go by its latest pauses."""

from __future__ import annotations

import time
from collections.abc import Sequence

from deliveryd.errors import JournalUnusable
from deliveryd.journal.place import NOT_INSTALLED, JournalFile, JournalPlace

FOLLOWED_EVERY = 0.2
"""Seconds between two looks whether workers follow."""

NOT_FOLLOWED = "may begin attempts still: see deliveryd workers, and fence one that hangs"
"""What is reported of workers that don't."""


def await_followers(place: JournalPlace, lease: float) -> Sequence[str]:
    """Wait until all workers go by the journal's pauses, for a lease at most; return who doesn't yet.

    Raises JournalError.
    """
    if isinstance(place, JournalFile):
        return ()
    try:
        from deliveryd.journal.postgresql.workers import Workers  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise JournalUnusable(f"journal.url {NOT_INSTALLED}") from error
    workers, until = Workers(place), time.monotonic() + lease
    while (behind := workers.behind()) and time.monotonic() < until:
        time.sleep(FOLLOWED_EVERY)
    return behind
