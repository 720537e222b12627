"""No statement writes a message's row beside what `transitions` says: every UPDATE is read and compared."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import deliveryd.journal
from deliveryd import transitions
from deliveryd.journal.rows import progress_of
from deliveryd.model import Confirmation, Content, Entry, Outcome, Receipt, Rendered, Spent, Transition
from deliveryd.states import ENDED, State

HOUSE = Path(deliveryd.journal.__file__).parent
INNERMOST = re.compile(r"(?<== )\((?:[^()])*\)|(?<=\w)\([^()]*\)|\(SELECT [^()]*\)|CASE [^()]*? END\b")
"""A function's arguments, a query in parentheses, or a choice: no column is set in one."""

UPDATE = re.compile(r"UPDATE (?:main\.)?message(?: m)? SET (.*?)(?= FROM | WHERE |$)", re.DOTALL)

PROGRESS = (
    "state",
    "due_at",
    "provider",
    "counted_tries",
    "stay",
    "stay_tries",
    "spent",
    "doubt",
    "content",
    "digest",
    "generation",
    "sent_by",
)
"""The columns that hold an entry, in the order of `rows.progress_of`."""

AT = 1
CONTENT = Content(Rendered("sms", "en", {"text": "hello"}), {})
NEW = Entry(1, 2, 3, {}, taken_at=AT)
BEGUN = NEW.begun("sms", b"12345678", AT)
TRIED = BEGUN.tried()
BUSY = TRIED._replace(content=CONTENT)
DOUBTFUL = BUSY._replace(doubt=True)
SENT = TRIED._replace(digest=None)
SPENT = NEW._replace(spent=(Spent("push", "busy"),), stay=2)
FAILED = Outcome("try_again", None, "busy")
REPORT = Receipt("sms", "p1", False, "failed", AT, AT)


def columns_of(before: Entry, step: Transition) -> frozenset[str]:
    """The columns that a step changes: of the entry, and those that its other values stand in."""
    earlier = Transition(before, step.before, step.before, AT)
    changed = {
        name
        for name, one, other in zip(PROGRESS, progress_of(earlier), progress_of(step), strict=True)
        if one != other
    }
    changed |= {"ended_at"} if (step.before in ENDED) or (step.after in ENDED) else set()
    changed |= {"waits_for", "due_at"} if State.WAITING in step[1:3] else set()
    changed |= {"started_at"} if step.after is State.SENDING else set()
    changed |= {"accepted_at", "provider_id", "reason"} if step.after is State.SENT else set()
    changed |= {"confirm_by", "confirm_within", "failed_next"} if step.confirmation else set()
    return frozenset(changed - {"state"} if step.before is step.after else changed)


def changed_by(*steps: tuple[Entry, Transition]) -> frozenset[str]:
    return frozenset().union(*(columns_of(before, step) for before, step in steps))


INTENT = changed_by(
    (NEW, transitions.intent(BEGUN, AT, ())),
    (SPENT._replace(spent=()), transitions.intent(SPENT.begun("email", b"87654321", AT), AT, ())),
    (BUSY, transitions.intent(BUSY.left("removed").begun("email", b"87654321", AT), AT, ())),
    (BUSY, transitions.intent(BUSY.begun("sms", b"12345678", AT), AT, ())),
    (NEW._replace(counted_tries=1), transitions.intent(BEGUN, AT, ())),
)
"""What an intent may change."""

ANY = frozenset(PROGRESS)
ACCEPTED = frozenset({"started_at", "accepted_at", "provider_id", "reason"})
"""What says which try was accepted."""
AWAITED = frozenset({"confirm_by", "confirm_within", "failed_next"})
"""What says by when that has to be confirmed."""
EMPTIED = frozenset({"variables"})

DUE = changed_by((NEW, Transition(NEW, *transitions.DUE, AT)))
RELEASED = changed_by((TRIED, transitions.released(TRIED, State.WAITING, AT)))
HELD = changed_by((DOUBTFUL, transitions.held_without_provider(DOUBTFUL, State.WAITING, AT)))
TAKEN = changed_by(
    (DOUBTFUL, transitions.accepted(DOUBTFUL, AT, "p1", ())),
    (BUSY, transitions.accepted(BUSY, AT, "p1", ())),
)
WENT_ON = changed_by(
    (SENT, transitions.unconfirmed(SENT, AT, 60.0)), (SENT, transitions.failed_to_next(SENT, REPORT))
)
PROVED = ANY - {"spent"} | {"sent_by", "ended_at"} | ACCEPTED | EMPTIED
"""A receipt, or the lack of a later channel, makes the try that it is about the accepted one of the row."""

ENDS = frozenset({"state", "ended_at"})


class Rule(NamedTuple):
    """What a statement has to set, and what it may set besides."""

    must: frozenset[str]
    may: frozenset[str] = frozenset()


def rules() -> Mapping[str, Rule]:
    to_wait = changed_by(
        (BUSY, transitions.released(BUSY, State.WAITING, AT)),
        (BUSY, transitions.retry_later(BUSY, AT, 2, FAILED, None)),
    )
    confirmed = transitions.accepted(DOUBTFUL, AT, "p1", (), Confirmation(1, 1, failed_next=True))
    return {
        "statements.BEGIN_AT": Rule(frozenset({"generation"})),
        "statements.RECORD_INTENT": Rule(INTENT),
        "statements.ON_ITS_WAY": Rule(
            frozenset({"state", "provider", "stay", "stay_tries"}), ANY - {"due_at"}
        ),
        "statements.TO_WAIT": Rule(to_wait, ANY | {"waits_for"}),
        "statements.TO_AN_END": Rule(ENDS, ANY | ENDS),
        "statements.SENT": Rule(TAKEN, EMPTIED),
        "statements.SENT_TO_CONFIRM": Rule(changed_by((DOUBTFUL, confirmed))),
        "statements.WAKE": Rule(DUE - {"state"}),
        "statements.MAKE_READY": Rule(DUE),
        "deadlines._BOUND_ACCEPTED": Rule(frozenset({"accepted_at"})),
        "statements.RETIME": Rule(frozenset({"due_at"})),
        "statements.RELEASE": Rule(frozenset({"state"})),
        "statements.END_BY_REPORT": Rule(ENDS),
        "statements.END_BY_REPORT_WITH_DEADLINE": Rule(ENDS | AWAITED, EMPTIED),
        "statements.REOPEN": Rule(ENDS),
        "statements.SET_ASIDE": Rule(ENDS),
        "recovery._INTERRUPTED": Rule(DUE),
        "recovery._DUE_NOW": Rule(DUE - {"state"}),
        "recovery._HOLD_PAUSED": Rule(HELD),
        "recovery._WAKE_PAUSED": Rule(DUE - {"state"}),
        "deadlines._RENEW": Rule(frozenset({"confirm_by"})),
        "deadlines._DROP": Rule(AWAITED, EMPTIED),
        "deadlines._GO_ON": Rule(WENT_ON - {"waits_for"}, ACCEPTED | AWAITED),
        "deadlines._RESTORE": Rule(PROVED - {"counted_tries"} - EMPTIED, PROVED | {"waits_for"}),
        "receipt_match._NAME_ACCEPTED": Rule(frozenset({"provider_id"})),
        "receipt_match._SETTLE": Rule(ENDS | {"stay", "stay_tries"} | ACCEPTED, PROVED),
        "orders._LEAVE": Rule(frozenset({"sent_by"}) | ACCEPTED, AWAITED),
        "pauses._PARK": Rule(frozenset({"waits_for"})),
        "turns._WAIT_FOR_ROOM": Rule(DUE - {"state"}),
    }  # fmt: skip


def modules() -> Iterator[ModuleType]:
    for path in sorted(HOUSE.rglob("*.py")):
        names = path.relative_to(HOUSE).with_suffix("").parts
        yield import_module(".".join(["deliveryd.journal", *(each for each in names if each != "__init__")]))


def set_by(text: str) -> frozenset[str] | None:
    """The columns that an UPDATE of `message` sets; None: it is none."""
    flat = " ".join(text.split())
    while (plain := INNERMOST.sub("x", flat)) != flat:
        flat = plain
    found = UPDATE.search(flat)
    if found is None:
        return None
    names = re.findall(r"(?:^|, )(?:\(([\w, ]+)\)|(\w+)) = ", found[1])
    return frozenset(name for group, one in names for name in (group.split(", ") if group else [one]))


def statements() -> Mapping[str, frozenset[str]]:
    """What each UPDATE of a journal sets, by the name of its module and its own; fragments aside."""
    found = {}
    for module in modules():
        for name, value in vars(module).items():
            columns = (
                set_by(value.replace("{emptied}", ", variables = NULL")) if isinstance(value, str) else None
            )
            if (
                columns is not None
                and f"{module.__name__}.{name}" != "deliveryd.journal.sql.statements._PROGRESS"
            ):
                found[f"{module.__name__.rpartition('.')[2]}.{name}"] = columns
    return found


def test_every_statement_sets_the_columns_that_its_step_changes_and_no_others() -> None:
    """A database's journal has none of its own."""
    found, expected = statements(), rules()
    assert found.keys() == expected.keys()
    wrong = {
        name: {
            "left out": sorted(rule.must - found[name]),
            "besides": sorted(found[name] - rule.must - rule.may),
        }
        for name, rule in expected.items()
        if not rule.must <= found[name] <= rule.must | rule.may
    }
    assert not wrong


def test_no_statement_about_messages_is_written_within_a_function() -> None:
    """The test above would not see it."""
    for path in HOUSE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                texts = (each.value for each in ast.walk(function) if isinstance(each, ast.Constant))
                assert not any(UPDATE.search(text) for text in texts if isinstance(text, str)), path


def test_a_release_changes_nothing_that_belongs_to_the_stay() -> None:
    """It goes on at the same provider; the router has it leave one that takes it no more."""
    assert not {"stay", "stay_tries", "spent", "content", "digest"} & RELEASED
