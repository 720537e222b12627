"""Deliberate breaks of what keeps workers on one journal apart, and of what they hand to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from deliveryd.journal.base import FromOthers, Recovery
from deliveryd.journal.orders import Effect
from deliveryd.journal.postgresql import lease, logs
from deliveryd.journal.postgresql.inbox import InboxKind
from deliveryd.journal.postgresql.journal import PostgresqlJournal
from deliveryd.journal.sql import operations
from deliveryd.journal.sql.db import Db

Patch = pytest.MonkeyPatch

# leases and logs


def fence_ignored(patch: Patch) -> None:
    """A worker goes on whose lease others ended."""
    patch.setattr(lease, "_RENEW", _without(lease._RENEW, " AND ended IS NULL"))


def logs_of_the_living_taken_over(patch: Patch) -> None:
    """Nobody asks whether the worker that has a log is still there."""
    patch.setattr(logs, "_LOGS", _without(logs._LOGS, logs._IS_FREE, "true"))


def log_taken_over_twice(patch: Patch) -> None:
    """What a worker left is taken over by everybody who sees it."""
    patch.setattr(
        logs, "_TAKE", _without(logs._TAKE, "IS NOT DISTINCT FROM %s", "IS DISTINCT FROM %s + 1000")
    )


def log_taken_over_as_it_is(patch: Patch) -> None:
    """Nothing is put in order of what an ended worker left."""
    patch.setattr(PostgresqlJournal, "_recover", lambda *_: Recovery([], [], 0, []))


def log_given_back_too_early(patch: Patch) -> None:
    """A log is given back though something in it is open."""
    patch.setattr(logs, "_WITHOUT_WORK", _without(logs._WITHOUT_WORK, f"AND NOT {logs._HAS_WORK}"))


def ids_known_to_one_log(patch: Patch) -> None:
    """A message that another log had is new."""

    def known(db: Db, ids: Sequence[int]) -> set[int]:
        return operations._of_this_log(db, ids)

    patch.setattr(operations, "_known", known)


# what one worker hands to another


def receipts_matched_once(patch: Patch) -> None:
    """A receipt and the outcome that it is about are recorded side by side, and never brought together."""
    patch.setattr(PostgresqlJournal, "_look_once_more", lambda *_: [])


def reports_for_others_lost(patch: Patch) -> None:
    """What lies in an inbox about reports is deleted and not carried out."""
    _ignoring(patch, InboxKind.REPORTS)


def pauses_kept_to_oneself(patch: Patch) -> None:
    """A pause holds at the worker that was told of it, and at those that begin later."""
    usual = PostgresqlJournal.follow

    async def follow(self: PostgresqlJournal, *terms: Any) -> FromOthers:
        return (await usual(self, *terms))._replace(pauses=None)

    patch.setattr(PostgresqlJournal, "follow", follow)


def _ignoring(patch: Patch, kind: InboxKind) -> None:
    usual = PostgresqlJournal._carry_out

    def carry_out(
        self: PostgresqlJournal, db: Any, log: Any, each: InboxKind, *rest: Any
    ) -> Sequence[Effect]:
        return () if each is kind else usual(self, db, log, each, *rest)

    patch.setattr(PostgresqlJournal, "_carry_out", carry_out)


def _without(query: str, part: str, instead: str = "") -> str:
    assert part in query
    return query.replace(part, instead)
