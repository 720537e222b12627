"""What leaves the journal once a message was sent: the values of its variables, and what may quote them."""

from __future__ import annotations

from collections.abc import Sequence

from deliveryd.journal.sql.db import Db

EMPTIED = ", variables = NULL"
"""What a statement that records `sent` empties, unless variables are kept."""

_EMPTY_WORDS = """
UPDATE unaccepted SET words = NULL WHERE message_id = ?1 AND words IS NOT NULL
    AND (SELECT variables IS NULL FROM message WHERE id = ?1)
"""


def empty_words(db: Db, ids: Sequence[int]) -> None:
    """Delete what providers said about tries of those of these messages whose variables were emptied.

    To be called for each that may have more tries than the accepted one; nearly none has.
    """
    if ids:
        db.executemany(_EMPTY_WORDS, [(id_,) for id_ in ids])
