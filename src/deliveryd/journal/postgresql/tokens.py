"""Tokens of providers' signatures that don't cover the report: each counts for one body only."""

from __future__ import annotations

from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.used_tokens import SignedToken

_FORGET = """
DELETE FROM used_token WHERE token = ANY(ARRAY(
    SELECT token FROM used_token WHERE until < %s ORDER BY until LIMIT 10 FOR UPDATE SKIP LOCKED))
"""
_USE = "INSERT INTO used_token (token, body, until) VALUES (%s, %s, %s) ON CONFLICT (token) DO NOTHING"
_USED_FOR = "SELECT body FROM used_token WHERE token = %s"


def use_token(db: Db, token: SignedToken, at: int) -> bool:
    """Note what a token was used for; return whether that is what it was used for the first time."""
    db.execute(_FORGET, (at,))
    db.execute(_USE, (token.digest, token.body, token.until))
    row = db.execute(_USED_FOR, (token.digest,)).fetchone()
    return row is not None and bytes(row[0]) == token.body
