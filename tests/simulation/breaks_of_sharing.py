"""Deliberate breaks of what keeps several workers on one journal apart."""

from __future__ import annotations

import pytest

from deliveryd.journal.orders import Effect
from deliveryd.journal.postgresql import adoption, lease, outbox, retention
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.following import Follower
from deliveryd.journal.postgresql.receipts import Matching
from deliveryd.model import SECOND, WallClock
from simulation import kept_in_database

Patch = pytest.MonkeyPatch


def fence_ignored(patch: Patch) -> None:
    """A worker goes on whose lease others ended."""
    patch.setattr(lease, "_RENEW", _without(lease._RENEW, " AND ended IS NULL"))


def owner_unchecked(patch: Patch) -> None:
    """Who adopts takes what live workers have as well."""
    for name in ("_INTERRUPTED", "_MINE"):
        query = getattr(adoption, name)
        patch.setattr(
            adoption, name, _without(query, "owner = ANY(%s::int8[])", "owner > cardinality(%s::int8[])")
        )


def receipts_matched_once(patch: Patch) -> None:
    """A receipt and the outcome that it is about are recorded side by side, and never brought together."""

    def only_look(_matching: Matching, db: Db, *_: int) -> list[Effect]:
        db.execute("UPDATE unmatched SET looks = NULL WHERE looks IS NOT NULL")
        return []

    patch.setattr(Matching, "sweep", only_look)


def adopted_twice(patch: Patch) -> None:
    """What a worker left is adopted by everybody who sees it."""
    patch.setattr(adoption, "_ORPHANED", _without(adoption._ORPHANED, "(h.ended IS NULL OR ", "(false AND "))


def events_in_any_log(patch: Patch) -> None:
    """An event goes into the log of whoever makes it, while another one has earlier ones of its message."""
    patch.setattr(outbox, "_PENDING", f"{outbox._PENDING} LIMIT 0")


def leases_by_the_wall_clock(patch: Patch) -> None:
    """A clock that is put forward ends leases."""
    patch.setattr(kept_in_database, "boot_time", lambda: WallClock().now() / SECOND)


def pauses_kept_to_oneself(patch: Patch) -> None:
    """A pause holds at the worker that was told of it, and at those that begin later."""
    patch.setattr(Follower, "_pauses", lambda *_: None)


def days_dropped_with_all_in_them(patch: Patch) -> None:
    """Nothing moves to another day before a day is dropped."""
    patch.setattr(retention, "_move", lambda *_: None)
    patch.setattr(retention, "_MOVE_EVENTS", f"{retention._MOVE_EVENTS} AND false")


def _without(query: str, part: str, instead: str = "") -> str:
    assert part in query
    return query.replace(part, instead)
