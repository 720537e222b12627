"""What budgets and caps count: with the intents that it belongs to, in their transaction.

A budget has one row for each period. Caps have one for each customer, with what the customer got lately. Both
are locked before they are compared with what is allowed, so that workers of one database can't both take the
last of something. All lock in the same order: customers first, then budgets, each by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from json import loads

from deliveryd.journal.base import NOTHING_COUNTED, BudgetUse, Counted
from deliveryd.journal.rows import to_json
from deliveryd.journal.sql.db import Db
from deliveryd.model import BudgetShare, Claim, Transition
from deliveryd.states import State

_ADD = """
INSERT INTO budget (name, since, until, messages, parts, changes) VALUES (?, ?, ?, ?, ?, 1)
ON CONFLICT (name, since, until) DO UPDATE SET messages = budget.messages + excluded.messages,
    parts = budget.parts + excluded.parts, changes = budget.changes + 1
RETURNING messages, parts, changes
"""
_TAKE_BACK = """
UPDATE budget SET messages = messages - ?, parts = parts - ?, changes = changes + 1
WHERE name = ? AND since = ? AND until = ? RETURNING messages, parts, changes
"""
_USES = "SELECT name, since, until, messages, parts, changes FROM budget WHERE until > ?"
_LOCK = """
INSERT INTO capped (customer, until) VALUES (?, ?)
ON CONFLICT (customer) DO UPDATE SET until = max(capped.until, excluded.until)
"""
_GOT = "SELECT customer, got FROM capped WHERE customer IN (SELECT value FROM json_each(?))"
_KEEP = "UPDATE capped SET got = ? WHERE customer = ?"

_Key = tuple[str, int, int]
_Got = dict[int, tuple[int, int, int]]
"""What a customer got: by message, when, its settings id, and how many tries may have brought it."""


def count_intents(db: Db, steps: Sequence[Transition]) -> Counted:
    """Count what is about to be sent; of what is too much, nothing is counted, and its steps aren't taken."""
    claims = {
        step.entry.id: step.claim for step in steps if step.claim is not None and step.after is State.SENDING
    }
    if not claims:
        return NOTHING_COUNTED
    given_back = [step.claim for step in steps if step.claim is not None and step.entry.id not in claims]
    customers = _Customers(db, [*claims.values(), *given_back])
    full: dict[tuple[str, str], int] = {}
    refused = set()
    for id_, claim in claims.items():
        if found := customers.full(id_, claim):
            refused.add(id_)
            full |= {(claim.customer, cap): until for cap, until in found.items()}
        else:
            customers.add(id_, claim)
    uses = _count(db, [claim for id_, claim in claims.items() if id_ not in refused], given_back)
    beyond, uses = _beyond(db, claims, refused, uses)
    for id_ in beyond:
        customers.remove(id_, claims[id_])
    customers.keep()
    return Counted(refused | beyond, list(uses.values()), full)


def count_no_more(db: Db, steps: Iterable[Transition]) -> Sequence[BudgetUse]:
    """Count no more what providers don't have for sure; return what is used of the budgets now."""
    claims = {
        step.entry.id: step.claim
        for step in steps
        if step.claim is not None and step.after is not State.SENDING
    }
    if not claims:
        return ()
    customers = _Customers(db, claims.values())
    for id_, claim in claims.items():
        customers.remove(id_, claim)
    customers.keep()
    return list(_take_back(db, claims.values()).values())


def uses_of(db: Db, now: int) -> Sequence[BudgetUse]:
    """What is used of all budgets in periods that aren't over."""
    return [BudgetUse(*row) for row in db.execute(_USES, (now,))]


def _sums(claims: Iterable[Claim]) -> Sequence[tuple[_Key, int, int]]:
    """What claims have in common of each budget and period: messages and parts, by name."""
    found: defaultdict[_Key, list[int]] = defaultdict(lambda: [0, 0])
    for claim in claims:
        for key in {_key(share) for share in claim.budgets}:
            found[key][0] += 1
            found[key][1] += claim.parts
    return [(key, *found[key]) for key in sorted(found)]  # type: ignore[misc]


def _key(share: BudgetShare) -> _Key:
    return share.budget, share.since, share.until


def _count(db: Db, claims: Iterable[Claim], given_back: Iterable[Claim]) -> dict[_Key, BudgetUse]:
    """Count claims; of budgets of which something will be given back, the rows are locked in their turn."""
    sums = {key: amounts for key, *amounts in _sums(claims)}
    uses = {}
    for key in sorted({*sums, *(_key(share) for claim in given_back for share in claim.budgets)}):
        if key in sums:
            uses[key] = BudgetUse(*key, *db.execute(_ADD, (*key, *sums[key])).fetchone())
        else:
            db.execute(_TAKE_BACK, (0, 0, *key))
    return uses


def _take_back(db: Db, claims: Iterable[Claim]) -> dict[_Key, BudgetUse]:
    found = {}
    for key, messages, parts in _sums(claims):
        if (row := db.execute(_TAKE_BACK, (messages, parts, *key)).fetchone()) is not None:
            found[key] = BudgetUse(*key, *row)
    return found


def _beyond(
    db: Db, claims: Mapping[int, Claim], refused: Collection[int], uses: dict[_Key, BudgetUse]
) -> tuple[set[int], dict[_Key, BudgetUse]]:
    """The messages, the last ones first, without which no budget is exceeded; they are taken back."""
    beyond: set[int] = set()
    shares = {share for claim in claims.values() for share in claim.budgets}
    if not any(_exceeds(uses.get(_key(share)), share) for share in shares):
        return beyond, uses
    left = {key: [use.messages, use.parts] for key, use in uses.items()}
    for id_, claim in reversed(list(claims.items())):
        if id_ in refused:
            continue
        if any(left[_key(each)][each.in_parts] > each.most for each in claim.budgets):
            beyond.add(id_)
            for key in {_key(each) for each in claim.budgets}:
                left[key][0] -= 1
                left[key][1] -= claim.parts
    if beyond:
        uses = uses | _take_back(db, [claims[id_] for id_ in sorted(beyond)])
    return beyond, uses


def _exceeds(use: BudgetUse | None, share: BudgetShare) -> bool:
    return use is not None and (use.parts if share.in_parts else use.messages) > share.most


class _Customers:
    """What customers of some claims got, locked until the end of the transaction."""

    def __init__(self, db: Db, claims: Iterable[Claim]) -> None:
        self._db = db
        self._got: dict[str, _Got] = {}
        self._kept: dict[str, str] = {}
        until: dict[str, int] = {}
        for claim in claims:
            if claim.customer:
                until[claim.customer] = max(until.get(claim.customer, 0), claim.at + claim.kept)
        if not until:
            return
        db.executemany(_LOCK, sorted(until.items()))
        for customer, text in db.execute(_GOT, (to_json(list(until)),)).fetchall():
            self._kept[customer] = text
            self._got[customer] = {
                id_: (at, settings_id, tries) for id_, at, settings_id, tries in loads(text)
            }

    def full(self, id_: int, claim: Claim) -> Mapping[str, int]:
        """The caps by which the customer doesn't get a message now, and until when."""
        if not claim.customer:
            return {}
        got, found = self._got[claim.customer], {}
        for each, (at, settings_id, tries) in got.items():
            if at > claim.at:  # the clock was ahead: it counts from now on
                got[each] = claim.at, settings_id, tries
        for cap in claim.caps:
            times = sorted(
                at
                for each, (at, settings_id, _) in got.items()
                if each != id_
                and at > claim.at - cap.per
                and (not cap.settings or settings_id in cap.settings)
            )
            if len(times) >= cap.most:
                found[cap.cap] = times[len(times) - cap.most] + cap.per
        return found

    def add(self, id_: int, claim: Claim) -> None:
        """Count a try: a message once, from the latest one under a key of its own on."""
        if claim.customer:
            got = self._got[claim.customer]
            *_, tries = got.get(id_, (0,))
            got[id_] = claim.at, claim.entry.settings_id, tries + 1
            for old in [each for each, (when, *_) in got.items() if when <= claim.at - claim.kept]:
                del got[old]

    def remove(self, id_: int, claim: Claim) -> None:
        """Count a try no more."""
        if claim.customer and id_ in (got := self._got[claim.customer]):
            at, settings_id, tries = got.pop(id_)
            if tries > 1:
                got[id_] = at, settings_id, tries - 1

    def keep(self) -> None:
        """Record what differs."""
        texts = {
            customer: to_json([[id_, *each] for id_, each in got.items()])
            for customer, got in self._got.items()
        }
        changed = [(text, customer) for customer, text in texts.items() if text != self._kept[customer]]
        if changed:
            self._db.executemany(_KEEP, changed)
