"""What the journal records of reports: progress, a reference alone, and reports that can't be read."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from deliveryd.journal.attention import DEAD_KINDS
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.reader import file_reader
from deliveryd.journal.sql import dead_letters
from deliveryd.journal.sqlite.journal import SqliteJournal, open_journal_file
from deliveryd.model import ProgressReport, Receipt, Reported, UnreadReport, message_key
from journal.samples import (
    NOW,
    accept_all,
    attempt_on,
    begin_attempts,
    deliver_to_sent,
    make_ready,
    waiting_events,
)

pytestmark = pytest.mark.anyio


async def received(journal: SqliteJournal, *reports: Reported) -> list[str]:
    return [each.result for each in await journal.receive(reports)]


def key_of(journal: SqliteJournal, id_: int) -> str:
    return message_key(journal.namespace, id_, "sms", 1)


def progress(id_: str = "p1", reference: str | None = None) -> ProgressReport:
    return ProgressReport("sms", id_, "accepted", NOW + 5, reference)


# ProgressReport


async def test_progress_is_told_once_while_the_message_is_sent(tmp_path: Path) -> None:
    """By the provider's id or by the key; after the end it is only noted."""
    async with open_journal_file(tmp_path / "journal.db") as journal:
        await deliver_to_sent(journal, 1)
        await accept_all(journal)
        assert await received(journal, progress(), progress("", key_of(journal, 1))) == ["told", "noted"]
        assert await waiting_events(journal) == [(1, "accepted")]
        assert await received(journal, Receipt("sms", "p1", True, "ok", NOW, NOW)) == ["matched"]
        assert await received(journal, progress()) == ["noted"]
        (told, _delivered) = await journal.outbox(0, 10)
        assert json.loads(told.body)["status"] == "accepted"


async def test_progress_of_what_isnt_sent_tells_nothing(tmp_path: Path) -> None:
    """Of an unknown message, and of one whose outcome isn't recorded; nothing is kept."""
    async with open_journal_file(tmp_path / "journal.db") as journal:
        await make_ready(journal, 1)
        await begin_attempts(journal, attempt_on(1))
        assert await received(journal, progress(), progress("", key_of(journal, 1))) == ["noted", "noted"]
        assert await waiting_events(journal) == []
        assert (await journal.counts()).receipts_unmatched == 0


# Reports by a reference alone


def echoed(reference: str, *, delivered: bool = True) -> Receipt:
    return Receipt("sms", "", delivered, "ok" if delivered else "no", NOW, NOW, reference)


@pytest.mark.parametrize(("delivered", "end"), [(True, "delivered"), (False, "error")])
async def test_a_reference_alone_names_the_message(tmp_path: Path, delivered: bool, end: str) -> None:
    """A provider that reports nothing but our own reference."""
    async with open_journal_file(tmp_path / "journal.db") as journal:
        await deliver_to_sent(journal, 1)
        await accept_all(journal)
        report = echoed(key_of(journal, 1), delivered=delivered)
        assert await received(journal, report, report) == ["matched", "repeated"]
        assert await waiting_events(journal) == [(1, end)]


async def test_unmatched_references_are_kept_apart(tmp_path: Path) -> None:
    """Each waits for its own message, though none has an id of the provider."""
    async with open_journal_file(tmp_path / "journal.db") as journal:
        for id_ in (1, 2):
            await make_ready(journal, id_)
            await begin_attempts(journal, attempt_on(id_))
        reports = [echoed(key_of(journal, 1)), echoed(key_of(journal, 2)), echoed(key_of(journal, 1))]
        assert await received(journal, *reports) == ["unmatched", "unmatched", "repeated"]
        assert (await journal.counts()).receipts_unmatched == 2


# Reports that can't be read


def unread(raw: str = '{"x":1}', at: int = NOW) -> UnreadReport:
    return UnreadReport("sms", raw, "there is no usable status at /status", at)


async def test_what_cant_be_read_is_kept_once_and_shown(tmp_path: Path) -> None:
    """With the reports beside it, which count."""
    path = tmp_path / "journal.db"
    async with open_journal_file(path) as journal:
        await deliver_to_sent(journal, 1)
        receipt = Receipt("sms", "p1", True, "ok", NOW, NOW)
        assert await received(journal, unread(), receipt, unread(at=NOW + 1)) == [
            "unread",
            "matched",
            "unread",
        ]
        (letter,) = file_reader(path).dead_letters(DEAD_KINDS, 0, "")
        assert (letter.kind, letter.what, letter.at) == (ItemKind.REPORT, "sms, came 2 times", NOW + 1)
        shown = file_reader(path).dead_letter(ItemKind.REPORT, letter.key)
        assert shown is not None
        assert (shown["raw"], shown["provider"], shown["times"]) == ('{"x":1}', "sms", 2)
        retried = await journal.decide(Order(Action.RETRY, ItemKind.REPORT, (letter.key,)), NOW, ["sms"])
        assert "report it again" in retried.skipped[letter.key]
        drop = Order(Action.DROP, ItemKind.REPORT, (letter.key,))
        assert (await journal.decide(drop, NOW, ["sms"])).done == (letter.key,)
        assert "was dropped" in (await journal.decide(drop, NOW, ["sms"])).skipped[letter.key]
        assert file_reader(path).dead_letters(DEAD_KINDS, 0, "") == []
        erase = Order(Action.ERASE, ItemKind.REPORT, (letter.key,))
        assert (await journal.decide(erase, NOW, ["sms"])).done == (letter.key,)
        assert "any more" in (await journal.decide(erase, NOW, ["sms"])).skipped[letter.key]


async def test_only_the_latest_of_what_cant_be_read_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many come; and no longer than the retention."""
    monkeypatch.setattr(dead_letters, "MOST_UNREAD", 3)
    path = tmp_path / "journal.db"
    async with open_journal_file(path) as journal:
        await received(journal, *(unread(str(number), NOW + number) for number in range(10)))
        kept = file_reader(path).dead_letters([ItemKind.REPORT], 0, "")
        assert [letter.at - NOW for letter in kept] == [7, 8, 9]
        await journal.prune(NOW + 9, 100)
        assert [letter.at - NOW for letter in file_reader(path).dead_letters([ItemKind.REPORT], 0, "")] == [9]


# Many at once


def mixed(journal: SqliteJournal) -> list[Receipt]:
    """By id, by key, failed, repeated, unknown, two of one message, an id that was used again."""
    by_id = [Receipt("sms", f"p{number}", number % 3 > 0, "x", NOW, NOW + 9) for number in range(1, 11)]
    by_key = [
        Receipt("sms", f"p{number}", True, "x", NOW, NOW + 9, key_of(journal, number))
        for number in range(11, 15)
    ]
    other = [
        Receipt("sms", "p15", True, "x", NOW, NOW + 9, "15"),
        Receipt("sms", "q16", False, "x", NOW, NOW + 9, key_of(journal, 16)),
        Receipt("sms", "p17", False, "x", NOW, NOW + 9),
        Receipt("sms", "p17", True, "x", NOW, NOW + 9),
        Receipt("sms", "p1", True, "x", NOW, NOW + 9),
        Receipt("sms", "p21", True, "x", NOW, NOW + 9),
        Receipt("sms", "nobody", True, "x", NOW, NOW + 9),
        Receipt("email", "p2", True, "x", NOW, NOW + 9),
        echoed(key_of(journal, 18)),
    ]
    return [*by_id, *by_key, *other]


async def ended_by(
    path: Path, portion: int, *, with_echo: bool
) -> tuple[list[str], list[object], list[object]]:
    """Send messages, receive the receipts in portions twice; their results, and what is recorded then."""
    async with open_journal_file(path) as journal:
        for number in range(1, 21):
            await deliver_to_sent(journal, number, f"p{number}")
        for number in (21, 22):
            await deliver_to_sent(journal, number, "p21")
        await accept_all(journal)
        receipts = [each for each in mixed(journal) if with_echo or each.provider_id]
        results: list[str] = []
        for _ in range(2):
            for begin in range(0, len(receipts), portion):
                results += await received(journal, *receipts[begin : begin + portion])
        events = sorted((row.message_id, row.status) for row in await journal.outbox(0, 1000))
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT id, state, ended_at, provider_id FROM message ORDER BY id").fetchall()
        rows += db.execute(
            "SELECT provider, provider_id, delivered, message_id FROM receipt ORDER BY 1, 2, 3, 4"
        ).fetchall()
    return results, list(events), rows


@pytest.mark.parametrize("with_echo", [True, False])
async def test_many_at_once_do_what_one_by_one_do(tmp_path: Path, with_echo: bool) -> None:
    """The same results, events and rows."""
    together = await ended_by(tmp_path / "together.db", 1000, with_echo=with_echo)
    alone = await ended_by(tmp_path / "alone.db", 1, with_echo=with_echo)
    assert together == alone
    assert together[0].count("matched") >= 15
