"""A walk of a journal through all of its operations, and the plans of the statements that it makes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.sqlite.journal import SqliteJournal
from deliveryd.model import (
    Confirmation,
    Entry,
    Malformed,
    Outcome,
    Receipt,
    StatusEvent,
    Transition,
    message_key,
)
from deliveryd.states import State
from support.messages import queued_message as message

NOW = 1_700_000_000_000_000


def entry(id_: int, **progress: Any) -> Entry:
    return Entry(*message(id_))._replace(provider="sms", stay_tries=1, begun_at=NOW, **progress)


async def make_ready(journal: Journal, *ids: int) -> None:
    await journal.take([message(id_) for id_ in ids], [], NOW)
    await journal.accept(await journal.outbox(0, 1000), NOW)


async def walk_through_everything(journal: SqliteJournal) -> None:
    """Each operation, with each of its branches, on a few messages."""
    await make_ready(journal, 1, 2, 3, 4)
    await journal.take([message(5)], [Malformed("{}", "no id", None), Malformed("{ }", "no name", 6)], NOW)
    await journal.refuse((await journal.outbox(0, 1))[0], "400", NOW)
    await journal.accept(await journal.outbox(0, 10), NOW)
    await journal.take([message(1), message(5)], [], NOW)
    await journal.change([Transition(entry(id_), State.READY, State.SENDING, NOW) for id_ in (1, 2, 3)])
    await journal.receive([Receipt("sms", "p1", True, "ok", NOW, NOW)])
    for id_ in (1, 2):
        sent = (StatusEvent(id_, "sent", NOW),)
        outcome = Outcome("accepted", f"p{id_}")
        await journal.change([Transition(entry(id_), State.SENDING, State.SENT, NOW, None, outcome, sent)])
    await journal.receive([Receipt("sms", "p2", False, "failed", NOW, NOW)])
    await journal.change([Transition(entry(3, doubt=True), State.SENDING, State.WAITING, NOW, NOW)])
    await journal.due(NOW, {"sms": 10, "": 10})
    await journal.change([Transition(entry(3, doubt=True), State.READY, State.WAITING, NOW, NOW)])
    await settle_by_reference(journal)
    await go_on_without_receipts(journal)
    await decide_everything(journal)
    await journal.accept(await journal.outbox(0, 100), NOW)
    await journal.prune(NOW + 1, 10)
    await journal.take([message(1)], [], NOW)


async def settle_by_reference(journal: SqliteJournal) -> None:
    """Attempts in doubt that receipts tell of: one that waits, one that is held, one about to be repeated."""
    await make_ready(journal, 11, 12, 13)
    for id_, after in ((11, State.WAITING), (12, State.IN_DOUBT), (13, State.WAITING)):
        await journal.change([Transition(entry(id_), State.READY, State.SENDING, NOW)])
        doubtful = entry(id_, doubt=True)
        due_at = NOW + 5 if after is State.WAITING else None
        await journal.change([Transition(doubtful, State.SENDING, after, NOW, due_at, Outcome("in_doubt"))])
    await journal.receive(
        [
            Receipt("sms", "q11", True, "ok", NOW, NOW, "11"),
            Receipt("sms", "q12", False, "no", NOW, NOW, message_key(journal.namespace, 12, "sms", 1)),
            Receipt("sms", "q99", True, "ok", NOW, NOW, "99"),
        ]
    )
    due = (await journal.due(NOW + 5, {"sms": 9})).entries[-1]
    await journal.receive([Receipt("sms", "q13", True, "ok", NOW, NOW, "13")])
    again = Transition(due.begun("sms", b"12345678", NOW), State.READY, State.SENDING, NOW + 5)
    assert set((await journal.change([again])).settled) == {13}


async def go_on_without_receipts(journal: SqliteJournal) -> None:
    """Messages that aren't confirmed in time, or are reported as failed, and what late receipts do."""
    await make_ready(journal, 31, 32, 33, 34)
    confirmation = Confirmation(NOW, 9, failed_next=True)
    for id_ in (31, 32, 33, 34):
        await journal.change([Transition(entry(id_), State.READY, State.SENDING, NOW)])
        sent = (StatusEvent(id_, "sent", NOW),)
        outcome = Outcome("accepted", f"p{id_}")
        accepted = Transition(
            entry(id_), State.SENDING, State.SENT, NOW, None, outcome, sent, None, confirmation
        )
        await journal.change([accepted])
    await journal.receive([Receipt("sms", "p34", False, "failed", NOW, NOW)])
    assert (await journal.pass_deadlines(NOW, NOW, ["sms"], 9)).passed == {"sms": 3}
    due = {each.id: each for each in (await journal.due(NOW, {"": 9})).entries}
    assert set(due) == {31, 32, 33, 34}
    await journal.receive([Receipt("sms", "p31", True, "ok", NOW, NOW)])
    begun = due[31].begun("email", b"12345678", NOW)
    assert set((await journal.change([Transition(begun, State.READY, State.SENDING, NOW)])).settled) == {31}
    await journal.receive([Receipt("sms", "p32", False, "failed", NOW, NOW)])
    stays = [
        Transition(due[id_], State.READY, State.SENT, NOW, None, Outcome("accepted")) for id_ in (32, 33)
    ]
    await journal.change(stays)
    await journal.count_overdue("sms", None, NOW + 1)
    await journal.pass_deadlines(0, NOW, ["sms"], 9)


async def decide_everything(journal: SqliteJournal) -> None:
    """Each thing that an operator can order, and each for what isn't there."""
    await make_ready(journal, 21, 22, 23, 24)
    for id_ in (21, 22, 23, 24):
        await journal.change([Transition(entry(id_), State.READY, State.SENDING, NOW)])
        doubtful = entry(id_, doubt=True)
        await journal.change(
            [Transition(doubtful, State.SENDING, State.IN_DOUBT, NOW, None, Outcome("in_doubt"))]
        )
    verbs = (Action.RESEND, Action.SETTLE_SENT, Action.SETTLE_FAILED, Action.RESEND_ANEW)
    for verb, key in zip(verbs, ("21", "22", "23", "24"), strict=True):
        assert (await journal.decide(Order(verb, ItemKind.MESSAGE, (key,)), NOW, ["sms"])).done == (key,)
    for row in await journal.outbox(0, 100):
        await journal.refuse(row, "400", NOW)
    for verb in Action:
        for kind in ItemKind:
            keys = tuple(map(str, range(1, 60)))
            await journal.decide(Order(verb, kind, keys), NOW, ["sms"])


def plans_of(db: sqlite3.Connection, statements: Iterable[str]) -> set[tuple[str, str]]:
    """The steps of all plans, each with its statement."""
    return {
        (row[3], statement)
        for statement in dict.fromkeys(statements)
        if statement not in ("BEGIN IMMEDIATE", "COMMIT")
        for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")
    }
