"""Budgets and caps in the line: what is used, as far as it is known, and what waits or ends for them.

The journal decides, with each intent. What is kept here only spares intents that it would refuse.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from deliveryd import transitions
from deliveryd.delivery.message import Delivery
from deliveryd.journal.base import BudgetUse, Counted
from deliveryd.model import (
    SECOND,
    BudgetShare,
    Claim,
    Transition,
    format_duration,
    format_instant,
)
from deliveryd.options.quotas import NEARLY_SPENT, WhenSpent, format_quota
from deliveryd.rules.budgets import NO_BUDGETS, Budget, Budgets
from deliveryd.rules.caps import NO_CAPS, Cap, Caps
from deliveryd.runtime import waits
from deliveryd.states import State
from deliveryd.telemetry.log_events import Event, log

_MOST_KEPT = 10_000
"""Customers that are known to have reached a cap."""

_STRENGTH: Sequence[WhenSpent] = ("next", "wait", "error")

_Key = tuple[str, int, int]


class Shortage(NamedTuple):
    """What keeps a message from being sent now: what it waits for, until when, or what else becomes of it.

    `is_larger`: it needs more than the whole budget, so that no period has enough.
    """

    waits_for: str
    until: int
    then: WhenSpent
    reason: str
    is_larger: bool = False


class BudgetLevel(NamedTuple):
    """How much of a budget is used in its present period."""

    budget: Budget
    used: int
    until: int

    @property
    def ratio(self) -> float:
        """The share that is used, at most all of it: 1 for a budget of nothing."""
        most = self.budget.quota.most
        return min(self.used / most, 1.0) if most else 1.0


class SendingLimits:
    """The budgets and caps in force, and what is known of their use. A reload replaces them; counts stay."""

    def __init__(self, key: bytes) -> None:
        self.budgets = NO_BUDGETS
        self.caps = NO_CAPS
        self.any = False
        """Whether anything is limited: if not, nothing is computed."""

        self._key = key[:64]
        self._uses: dict[_Key, BudgetUse] = {}
        self._warned: dict[_Key, float] = {}
        self._full: dict[tuple[str, str], int] = {}  # until when, by a customer's digest and a cap
        self.freed: set[_Key] = set()
        """Budgets of which something was given back."""

    def follow(self, budgets: Budgets, caps: Caps) -> None:
        """Go by these from now on."""
        self.budgets, self.caps = budgets, caps
        self.any = bool(budgets.all or caps.all)
        self._full.clear()

    @property
    def names(self) -> Iterator[str]:
        """What messages wait for that one of these keeps back."""
        yield from (waits.budget(budget.name) for budget in self.budgets.all)
        yield from (waits.cap(cap.name) for cap in self.caps.all)

    # what is known

    def load(self, uses: Iterable[BudgetUse], now: int) -> None:
        """Take over what an earlier run counted, and warned about."""
        for use in uses:
            self._uses[use.budget, use.since, use.until] = use
        for budget in self.budgets.all:
            share = budget.share(now)
            self._warned[_key(share)] = self._ratio(share)

    def refresh(self, uses: Iterable[BudgetUse]) -> None:
        """Take over what all workers used by now."""
        self.note(Counted(uses=tuple(uses)))

    def note(self, counted: Counted) -> None:
        """Take over what the journal counted or refused, and warn of what is nearly spent."""
        for use in counted.uses:
            key = use.budget, use.since, use.until
            known = self._uses.get(key)
            if known is None:
                self._forget(use.since)
            if known is None or use.changes > known.changes:
                self._uses[key] = use
                if known is not None and (use.messages < known.messages or use.parts < known.parts):
                    self.freed.add(key)
        if counted.uses:
            self._warn({(use.budget, use.since, use.until) for use in counted.uses})
        if counted.full:
            if len(self._full) >= _MOST_KEPT:
                self._full.clear()
            self._full |= counted.full

    def take_freed(self, now: int) -> Iterator[tuple[str, int]]:
        """What messages wait for of which something was given back, and how many may go on."""
        freed, self.freed = self.freed, set()
        for budget in self.budgets.all if freed else ():
            share = budget.share(now)
            if _key(share) in freed and (left := share.most - self._used(share)) > 0:
                yield waits.budget(budget.name), left

    def given_back(self, steps: Iterable[Transition]) -> None:
        """Customers whose message wasn't taken may get another one."""
        if self._full:
            gave = {step.claim.customer for step in steps if step.claim and step.after is not State.SENDING}
            self._full = {key: until for key, until in self._full.items() if key[0] not in gave}

    def levels(self, now: int) -> Iterator[BudgetLevel]:
        """How much of each budget is used."""
        for budget in self.budgets.all:
            share = budget.share(now)
            yield BudgetLevel(budget, self._used(share), share.until)

    def _forget(self, since: int) -> None:
        """Forget periods that were over when this one began."""
        for key in [key for key in self._uses if key[2] <= since]:
            del self._uses[key]
            self._warned.pop(key, None)

    def _used(self, share: BudgetShare) -> int:
        use = self._uses.get(_key(share))
        return 0 if use is None else use.parts if share.in_parts else use.messages

    def _ratio(self, share: BudgetShare) -> float:
        return self._used(share) / share.most if share.most else 1.0

    def _warn(self, keys: Collection[_Key]) -> None:
        for budget in self.budgets.all:
            for key in keys:
                if key[0] == budget.name:
                    share = budget.share(key[1])
                    if _key(share) == key:
                        self._warn_of(budget, share, self._ratio(share))

    def _warn_of(self, budget: Budget, share: BudgetShare, ratio: float) -> None:
        """Log once in each period that a budget is nearly spent, and once that it is."""
        key = _key(share)
        before = self._warned.get(key, 0.0)
        self._warned[key] = max(before, ratio)
        if before < 1.0 <= ratio:
            event = Event.BUDGET_SPENT
        elif before < NEARLY_SPENT <= ratio:
            event = Event.BUDGET_NEARLY_SPENT
        else:
            return
        log(
            event,
            key=budget.name, count=self._used(share), limit=share.most,
            reason=f"{format_quota(budget.quota)}, until {format_instant(share.until)}",
        )  # fmt: skip

    # what is asked before a message is queued

    def route(
        self, message: Delivery, now: int, choose: Callable[[Collection[str]], Delivery | Transition | None]
    ) -> Delivery | Transition | None:
        """The message at the first provider that may send it, or the step by which it waits or ends.

        `choose` chooses one without those whose budget is spent. None: that depends on the customer.
        """
        without: set[str] = set()
        short: list[Shortage] = []
        while True:
            route = choose(without)
            if route is None:
                return None
            if not isinstance(route, Delivery):
                return self._without_spent(message, route, short, now)
            found = self.shortage(route, now)
            if found is None:
                return route
            if found.then != "next":
                return self._short(message, found, now)
            if not message.looked_up:
                message.provider = ""
                return None
            short.append(found)
            without.add(route.provider)

    def _without_spent(
        self, message: Delivery, route: Transition, short: Sequence[Shortage], now: int
    ) -> Transition:
        """The step of a message that no provider takes now but those whose budget is spent, if any is."""
        waiting = [each for each in short if not each.is_larger]
        if waiting:
            first = min(waiting, key=_until)
            if route.due_at is None:
                return self._short(message, first, now)
            return transitions.no_later_than(route, first.until)
        if short and route.due_at is None:
            return self._short(message, short[-1]._replace(then="error"), now)
        return route

    def _short(self, message: Delivery, short: Shortage, now: int) -> Transition:
        message.provider = ""
        if short.then == "error":
            return transitions.undeliverable(message.entry, now, message.entry.ending(short.reason))
        return message.within_its_time(transitions.deferred(message.entry, now, short.until, short.waits_for))

    def shortage(self, message: Delivery, now: int) -> Shortage | None:
        """What keeps a message from its provider now; None: nothing. What may be there already goes again."""
        entry = message.entry
        if entry.may_have_arrived:
            return None
        found: list[Shortage] = []
        caps = self.caps.of(entry.settings_id) if self._full and entry.sent_by is None else ()
        if caps:
            customer = self.digest(entry.customer_id)
            full = ((cap, self._full.get((customer, cap.name), 0)) for cap in caps)
            found += [_over(cap, until) for cap, until in full if until > now]
        for budget in self.budgets.of(entry.settings_id, message.provider):
            if (short := self._exceeded(budget, message, now)) is not None:
                found.append(short)
        if not found:
            return None
        return max(found, key=lambda each: (_STRENGTH.index(each.then), each.until))

    def spent(self, message: Delivery, providers: Iterable[str], now: int) -> Collection[str]:
        """Those of some providers whose budgets have too little left for a message."""
        if not self.budgets.all or message.entry.may_have_arrived:
            return ()
        return [
            name
            for name in providers
            for budget in self.budgets.of(message.entry.settings_id, name)
            if self._exceeded(budget, message, now) is not None
        ]

    def _exceeded(self, budget: Budget, message: Delivery, now: int) -> Shortage | None:
        share = budget.share(now)
        amount = message.parts if share.in_parts else 1
        if self._used(share) + amount <= share.most:
            return None
        waits_for, name = waits.budget(budget.name), f"{budget.scope}, {format_quota(budget.quota)}"
        if amount > share.most:
            unit = budget.quota.unit.removesuffix("s") if amount == 1 else budget.quota.unit
            reason = f"it needs {amount} {unit}, more than the whole budget of {name}"
            then: WhenSpent = "error" if budget.spent == "wait" else budget.spent
            return Shortage(waits_for, share.until, then, reason, is_larger=True)
        self._warn_of(budget, share, 1.0)
        return Shortage(waits_for, share.until, budget.spent, f"the budget of {name}, is spent")

    # what is counted with an intent

    def claim(self, message: Delivery, now: int) -> Claim | None:
        """What a try of a message counts for; None: nothing, or it was counted with an earlier try."""
        entry = message.entry
        if entry.may_have_arrived:
            return None
        budgets = self.budgets.of(entry.settings_id, message.provider)
        caps = self.caps.of(entry.settings_id) if entry.sent_by is None else ()
        if not budgets and not caps:
            return None
        return Claim(
            entry,
            message.parts if budgets else 1,
            tuple([budget.share(now) for budget in budgets]),
            self.digest(entry.customer_id) if caps else "",
            tuple(cap.share for cap in caps),
            self.caps.longest,
            now,
        )

    def digest(self, customer_id: int) -> str:
        """What stands for a customer in the journal's counts."""
        text = f"customer {customer_id}".encode()
        return hashlib.blake2b(text, digest_size=16, key=self._key).hexdigest()


def given_back(step: Transition, claim: Claim) -> Transition:
    """The step after an attempt: it gives back what was counted, unless the provider has the message.

    Of one that it may have, the claim is dropped before.
    """
    is_accepted = step.outcome is not None and step.outcome.verdict == "accepted"
    return step if is_accepted else step._replace(claim=claim)


def _key(share: BudgetShare) -> _Key:
    return share.budget, share.since, share.until


def _until(short: Shortage) -> int:
    return short.until


def _over(cap: Cap, until: int) -> Shortage:
    per = format_duration(cap.share.per / SECOND)
    reason = f"the customer got {cap.share.most} within {per}, which is the cap of {cap.name}"
    return Shortage(waits.cap(cap.name), until, cap.over, reason)
