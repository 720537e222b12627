"""Tokens of providers' signatures that don't cover the report: each counts for one body only."""

from __future__ import annotations

from typing import NamedTuple

from deliveryd.journal.sql.db import Db


class SignedToken(NamedTuple):
    """A signature that covers a token and not the report: digests of both, and until when it is accepted."""

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
