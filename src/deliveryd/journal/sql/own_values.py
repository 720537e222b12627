"""The journal's own values, such as the service whose messages it holds, and the tokens that it has seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from deliveryd.errors import JournalUnusable
from deliveryd.journal.rows import to_json
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.schema import KEEP_VALUE

_PARTS = "parts of settings "
_KEPT_PARTS = f"SELECT key, value FROM meta WHERE substr(key, 1, {len(_PARTS)}) = '{_PARTS}'"  # noqa: S608

SERVICE = "service"
"""The key of the service's base address."""


def namespace_of(db: Db) -> str:
    """Return the prefix of all idempotency keys of this journal. Raises JournalUnusable if it is lost."""
    return _needed(db, "namespace")


def stop_key_of(db: Db) -> bytes:
    """Return the key of this journal's digests of recipients. Raises JournalUnusable if it is lost."""
    return bytes.fromhex(_needed(db, "stop_key"))


def difference(kept: str | None, service: str) -> str | None:
    """Why a worker of the service at this address can't use the journal, and what to do; None: it can.

    Another service's ids mean other messages. `kept` is the address that the journal has; None: it belongs
    to no service yet.
    """
    if kept is None or kept == service:
        return None
    return (
        f"the journal belongs to the service at {kept}, and service.base_url names {service}: if that service"
        " only moved, run deliveryd journal adopt-service; else name another journal in journal.url"
    )


def belong_to(db: Db, service: str) -> None:
    """Belong to a service from now on, if to none so far. Raises JournalUnusable if to another one."""
    kept = kept_service(db)
    if kept is None:
        keep_service(db, service)
    if (problem := difference(kept, service)) is not None:
        raise JournalUnusable(problem)


def kept_service(db: Db) -> str | None:
    """The address of the service that the journal belongs to; None: no worker has used it yet."""
    return _value(db, SERVICE) or None


def keep_service(db: Db, service: str) -> None:
    """Belong to the service at this address, whatever was kept before."""
    db.execute(KEEP_VALUE, (SERVICE, service))


def note_down(db: Db, since: Mapping[str, int]) -> None:
    """Keep since when these providers are down."""
    db.execute(KEEP_VALUE, ("down_since", to_json(dict(since))))


def down_since(db: Db) -> Mapping[str, int]:
    """Since when providers are down, as an earlier run noted it."""
    return dict(json.loads(_value(db, "down_since") or "{}"))


def keep_parts(db: Db, parts: Mapping[int, str]) -> None:
    """Keep what is known of the SMS parts of these settings ids."""
    db.executemany(KEEP_VALUE, [(f"{_PARTS}{id_}", known) for id_, known in parts.items()])


def kept_parts(db: Db) -> Mapping[int, str]:
    """The same of all settings ids."""
    rows = db.execute(_KEPT_PARTS)
    return {int(key.removeprefix(_PARTS)): value for key, value in rows.fetchall()}


def forget_parts(db: Db, settings_id: str) -> None:
    """Forget what is known of a settings id."""
    db.execute("DELETE FROM meta WHERE key = ?", (_PARTS + settings_id,))


def keep_clock(db: Db, record: str) -> None:
    """Keep what is known of the clock."""
    db.execute(KEEP_VALUE, ("clock", record))


def kept_clock(db: Db) -> str:
    """What an earlier run kept of its clock; "": nothing."""
    return _value(db, "clock")


def _needed(db: Db, key: str) -> str:
    if not (value := _value(db, key)):
        raise JournalUnusable(f"the journal is damaged: it has no {key} of its own; restore a backup")
    return value


def _value(db: Db, key: str) -> str:
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return "" if row is None else str(row[0])


class SignedToken(NamedTuple):
    """A signature that covers a token and not the report: digests of both, and until when it is accepted.

    Each such token counts for one body only.
    """

    digest: bytes
    body: bytes
    until: int


_FORGET = """
DELETE FROM used_token WHERE token IN (SELECT token FROM used_token WHERE until < ? ORDER BY until LIMIT 10)
"""
_USE = "INSERT INTO used_token (token, body, until) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_USED_FOR = "SELECT body FROM used_token WHERE token = ?"


def use_token(db: Db, token: SignedToken, at: int) -> bool:
    """Note what a token was used for; return whether that is what it was used for the first time.

    Tokens are forgotten once their signatures are too old to be accepted.
    """
    db.execute(_FORGET, (at,))
    db.execute(_USE, (token.digest, token.body, token.until))
    (body,) = db.execute(_USED_FOR, (token.digest,)).fetchone()
    return bool(body == token.body)
