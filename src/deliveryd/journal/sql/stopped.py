"""Recipients who can't be reached on a channel any more, known by a keyed digest of their address.

The addresses themselves aren't stored. The key belongs to the journal, so the digests of two journals differ.
"""

from __future__ import annotations

import hmac
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from deliveryd.cleaning import cleaned
from deliveryd.journal.base import MatchedReceipt
from deliveryd.journal.orders import Effect
from deliveryd.journal.rows import to_text
from deliveryd.journal.sql.db import Db
from deliveryd.journal.sql.own_values import stop_key_of
from deliveryd.model import StopChange
from deliveryd.network.address import ascii_domain

DIGEST = 16
"""Bytes of a digest."""

DIGEST_PREFIX = "digest:"
"""What begins a digest where an address may stand as well."""

LONGEST_RECIPIENT = 1000

_NUMBER = re.compile(r"\+?[0-9][0-9 ()/.-]{2,}")
_HEX = re.compile(rf"[0-9a-f]{{{2 * DIGEST}}}")
_IN_FORCE = "SELECT channel, digest FROM stopped WHERE lifted_at IS NULL"
_LIST = "SELECT channel, digest, at, reason, source FROM stopped WHERE lifted_at IS NULL"
_STOP = """
INSERT INTO stopped (channel, digest, at, reason, source) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (channel, digest) DO UPDATE SET at = ?3, lifted_at = NULL, reason = ?4, source = ?5
"""
_LIFT = """
INSERT INTO stopped (channel, digest, at, lifted_at, source) VALUES (?1, ?2, ?3, ?3, ?4)
ON CONFLICT (channel, digest) DO UPDATE SET lifted_at = ?3
"""
_BOUND_STOPPED = "UPDATE stopped SET at = ?1 WHERE at > ?1"
_BOUND_LIFTED = "UPDATE stopped SET lifted_at = ?1 WHERE lifted_at > ?1"


class StoppedRecipient(NamedTuple):
    """A recipient on the list: since when, why, and by what: an answer, a receipt or an operator."""

    channel: str
    digest: bytes
    at: int
    reason: str | None
    source: str

    @property
    def name(self) -> str:
        """The recipient as commands write it."""
        return DIGEST_PREFIX + self.digest.hex()


class StopList(NamedTuple):
    """The key of a journal's digests, and the channel and the digest of each recipient on the list."""

    key: bytes
    digests: Sequence[tuple[str, bytes]]


def digest_of_address(key: bytes, channel: str, address: str) -> bytes:
    """Return the digest of an address. Notations of the same address have the same digest."""
    return hmac.digest(key, f"{channel}\0{_plain(address)}".encode("utf-8", "backslashreplace"), "sha256")[
        :DIGEST
    ]


def _plain(address: str) -> str:
    """Return a telephone number as its digits, a mail address without its name, anything else as it is."""
    text = cleaned(address)
    if _NUMBER.fullmatch(text):
        return "".join(filter(str.isdigit, text)).removeprefix("00")
    if "@" not in text:
        return text
    if text.endswith(">"):
        text = text[text.rfind("<") + 1 : -1]
    local, _, domain = text.rpartition("@")
    return f"{unicodedata.normalize('NFC', local).lower()}@{ascii_domain(domain)}"


def digest_named(key: bytes, channel: str, recipient: str) -> bytes | None:
    """Return the digest of an address or of `digest:HEX`; None: it is neither."""
    if recipient.startswith(DIGEST_PREFIX):
        text = recipient.removeprefix(DIGEST_PREFIX)
        return bytes.fromhex(text) if _HEX.fullmatch(text) else None
    if not recipient.strip() or not recipient.isprintable() or len(recipient) > LONGEST_RECIPIENT:
        return None
    return digest_of_address(key, channel, recipient)


def in_force(db: Db) -> list[tuple[str, bytes]]:
    """Return the channel and the digest of each recipient on the list."""
    return db.execute(_IN_FORCE).fetchall()


def record_stops(db: Db, changes: Iterable[StopChange]) -> list[bool]:
    """Record changes; return for each whether it changed the list.

    The latest in time counts, whichever is reported first, and an operator's at once.
    """
    return [_record(db, change) for change in changes]


def _record(db: Db, change: StopChange) -> bool:
    channel, digest, source = change.channel, change.digest, change.source
    row = db.execute(
        "SELECT at, lifted_at FROM stopped WHERE channel = ? AND digest = ?", (channel, digest)
    ).fetchone()
    since, lifted_at = row or (change.at, change.at)
    was_stopped = lifted_at is None
    changed_at = since if was_stopped else lifted_at
    at = max(change.at, changed_at) if source == "operator" else change.at  # a provider's clock may be ahead
    if at < changed_at:
        return False
    if change.stopped:
        db.execute(_STOP, (channel, digest, at, to_text(change.reason), source))
    elif was_stopped or source == "receipt":  # else nobody was stopped
        db.execute(_LIFT, (channel, digest, at, source))
    return change.stopped is not was_stopped


def _not_after(change: StopChange, now: int) -> StopChange:
    """Return a report as of now if its instant is in the future: nothing of today could lift it.

    So it is dated if it has no instant.
    """
    return change._replace(at=min(change.at, now) if change.is_dated else now)


def stops_reported(db: Db, changes: Sequence[StopChange]) -> list[MatchedReceipt]:
    """Record what receipts say of recipients; return what each one did."""
    changes = [each if each.heard_at is None else _not_after(each, each.heard_at) for each in changes]
    return [
        MatchedReceipt("matched", Effect(stop=change)) if changed else MatchedReceipt("repeated")
        for change, changed in zip(changes, record_stops(db, changes), strict=True)
    ]


def bound_stops(db: Db, now: int) -> None:
    """Date no change of the list later than now, after the clock was put back, so that the next counts."""
    db.execute(_BOUND_STOPPED, (now,))
    db.execute(_BOUND_LIFTED, (now,))


def stop_list(db: Db) -> StopList:
    """Return who is on the list."""
    return StopList(stop_key_of(db), in_force(db))


def stopped_recipients(db: Db, channel: str | None) -> Sequence[StoppedRecipient]:
    """Return the list, of one channel if given, oldest first."""
    rows = db.execute(f"{_LIST} AND channel = coalesce(?, channel) ORDER BY at, channel, digest", (channel,))
    return [StoppedRecipient(*row) for row in rows]
