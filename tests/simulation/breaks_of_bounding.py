"""Deliberate breaks of what budgets and caps count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from deliveryd.delivery.attempts import Attempts
from deliveryd.delivery.limits import SendingLimits
from deliveryd.delivery.message import Delivery
from deliveryd.journal.base import Counted
from deliveryd.journal.journal import Journal
from deliveryd.journal.sql import counting, operations
from deliveryd.journal.sql.counting import _Customers
from deliveryd.journal.sql.db import Db
from deliveryd.model import Claim, Transition

Patch = pytest.MonkeyPatch


def what_is_given_back_is_so_twice(patch: Patch) -> None:
    """A refusal frees two messages' worth."""
    once = counting.count_no_more

    def twice(db: Db, steps: Sequence[Transition]) -> object:
        once(db, steps)
        return once(db, steps)

    patch.setattr(operations, "count_no_more", twice)


def doubts_are_given_back(patch: Patch) -> None:
    """What may have arrived counts no more."""
    failed = Attempts._after_failure

    def kept(self: Attempts, message: Delivery, *terms: Any) -> Transition:
        claim = message.claim
        step = failed(self, message, *terms)
        message.claim = claim
        return step

    patch.setattr(Attempts, "_after_failure", kept)


def counts_are_lost_with_the_worker(patch: Patch) -> None:
    """They are kept in memory, and begin at 0 with each start."""
    recover = Journal.recover

    async def forgetful(self: Journal, *terms: Any) -> object:
        def forget(db: Db) -> None:
            db.execute("DELETE FROM budget")
            db.execute("DELETE FROM capped")

        await self._commit(forget)
        return await recover(self, *terms)

    patch.setattr(Journal, "recover", forgetful)


def intents_are_counted_without_a_check(patch: Patch) -> None:
    """Attempts that are under way at a time exceed what is left."""

    def beyond(_db: Db, _claims: object, _refused: object, uses: Mapping[Any, Any]) -> object:
        return set(), uses

    patch.setattr(counting, "_beyond", beyond)


def counted_in_a_transaction_of_its_own(patch: Patch) -> None:
    """What a kill leaves between both is sent, and wasn't counted."""
    count = counting.count_intents
    before: list[Sequence[Transition]] = []

    def late(db: Db, steps: Sequence[Transition]) -> Counted:
        for each in before:
            count(db, each)
        before[:] = [steps]
        return Counted()

    patch.setattr(operations, "count_intents", late)


def caps_ignore_what_is_in_doubt(patch: Patch) -> None:
    """Only what a provider accepted for sure counts."""
    failed = Attempts._after_failure

    def given_back(self: Attempts, message: Delivery, *terms: Any) -> Transition:
        claim = message.claim
        step = failed(self, message, *terms)
        message.claim = None if claim is None else claim._replace(budgets=())
        return step

    patch.setattr(Attempts, "_after_failure", given_back)


def caps_are_counted_for_each_settings_id(patch: Patch) -> None:
    """What a customer got with another id of the rule doesn't count."""
    full = _Customers.full

    def of_its_own(self: _Customers, id_: int, claim: Claim) -> Mapping[str, int]:
        mine = frozenset({claim.entry.settings_id})
        return full(self, id_, claim._replace(caps=tuple(cap._replace(settings=mine) for cap in claim.caps)))

    patch.setattr(_Customers, "full", of_its_own)


def parts_are_counted_as_messages(patch: Patch) -> None:
    """An SMS of two parts uses up one."""
    claim = SendingLimits.claim

    def as_one(self: SendingLimits, message: Delivery, now: int) -> Claim | None:
        found = claim(self, message, now)
        return None if found is None else found._replace(parts=1)

    patch.setattr(SendingLimits, "claim", as_one)
