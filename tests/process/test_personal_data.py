"""What is kept of a person, for how long, how it is erased, and who decided what."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from deliveryd.control import client
from deliveryd.control.protocol import read_request
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.reader import file_reader
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.model import (
    Entry,
    QueuedMessage,
    Receipt,
    StatusEvent,
    Transition,
    UnreadReport,
    message_key,
)
from deliveryd.runtime.rights import user_name
from deliveryd.sandbox.faults import FaultAnswer
from deliveryd.states import State
from deliveryd.worker.supervisor import CUT_INTERVAL
from journal.samples import deliver_to_sent
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.terminal import Answered, command
from support.virtual import START, VirtualWorld, live
from support.world import World, open_world

SENT, FAILED = "canary-of-what-was-sent", "canary-of-what-failed"
NOW = START
MINUTE = 60


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": id_, "name": "Ann", "phone": "+447700900101"} for id_ in (1, 2)])
        world.state.settings[1] = sms_settings()
        yield world


def of(world: World, name: str, *words: object) -> Answered:
    return command(name, "--config", world.config, *words)


def on_disk(folder: Path) -> bytes:
    """All that the files of a journal hold."""
    return b"".join(file.read_bytes() for file in sorted(folder.glob("journal.db*")) if file.is_file())


# what is emptied


@pytest.mark.slow
def test_variables_are_gone_from_the_disk_once_a_message_is_sent_and_stay_when_it_failed(
    world: World,
) -> None:
    """An operator may still retry what failed; explain says why the others are missing."""
    world.state.enqueue(message(1, word=SENT), message(2, settings_id=99, word=FAILED))
    world.run_until_idle()
    there = on_disk(world.folder)
    assert (SENT.encode() in there, FAILED.encode() in there) == (False, True)
    assert "variables  removed after sending" in of(world, "explain", 1, "--show-variables").out
    assert of(world, "explain", 1, "--json").data["message"]["variables"] is None
    assert FAILED in of(world, "explain", 2, "--show-variables").out


@pytest.mark.slow
def test_variables_of_sent_messages_are_kept_where_the_configuration_says_so(world: World) -> None:
    world.change("[journal]\n", "[journal]\nkeep_variables = true\n")
    world.state.enqueue(message(1, word=SENT))
    world.run_until_idle()
    assert SENT in of(world, "explain", 1, "--show-variables").out


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_receipt_that_proves_a_failed_message_to_be_sent_empties_it_too(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    queued = QueuedMessage(7, 2, 3, {"word": SENT})
    entry = Entry(*queued, provider="sms", stay_tries=1, taken_at=NOW)
    async with open_journal_file(path) as journal:
        await journal.take([queued], [], NOW)
        await journal.accept(await journal.outbox(0, 10), NOW)
        await journal.change([Transition(entry, State.READY, State.SENDING, NOW)])
        error = StatusEvent(7, "error", NOW, details="given up")
        await journal.change([Transition(entry, State.SENDING, State.FAILED, NOW, events=(error,))])
        kept = file_reader(path).lives([7])[0].message
        assert kept is not None
        assert kept.variables == {"word": SENT}
        key = message_key(journal.namespace, 7, "sms", 1)
        (received,) = await journal.receive([Receipt("sms", "p", True, "DELIVRD", NOW, NOW, key)])
        assert received.result == "settled"
        emptied = file_reader(path).lives([7])[0].message
        assert emptied is not None
        assert (emptied.state, emptied.variables) == (State.DELIVERED, None)
        assert await journal.cut_log()
        assert SENT.encode() not in on_disk(tmp_path)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_pages_of_large_variables_are_overwritten_when_they_are_given_up(tmp_path: Path) -> None:
    """Also by a SQLite that doesn't do so by itself."""
    path = tmp_path / "journal.db"
    async with open_journal_file(path) as journal:
        queued = QueuedMessage(7, 2, 3, {"word": SENT * 2000})
        await journal.take([queued], [], NOW)
        await journal.accept(await journal.outbox(0, 10), NOW)
        entry = Entry(*queued, provider="sms", stay_tries=1, taken_at=NOW)
        await journal.change([Transition(entry, State.READY, State.SENDING, NOW)])
        sent = StatusEvent(7, "sent", NOW)
        await journal.change([Transition(entry, State.SENDING, State.SENT, NOW, events=(sent,))])
        assert journal._db.execute("PRAGMA secure_delete").fetchone() == (1,)
        assert await journal.cut_log()
        assert SENT.encode() not in on_disk(tmp_path)


# the journal's log


@pytest.mark.slow
def test_what_was_emptied_has_left_the_log_of_a_running_worker_within_15_minutes(tmp_path: Path) -> None:
    """Though nothing else happens meanwhile that would overwrite it."""
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = '{"content": {"en": {"sms": {"text": "hi"}}}}'
    left = []

    async def life() -> None:
        async with world.at_work():
            await anyio.sleep(30.0)  # virtual: the worker has begun, and emptied its log once
            world.service.enqueue(message(1, word=SENT))
            await anyio.sleep(MINUTE)
            left.append(SENT.encode() in on_disk(tmp_path))
            await anyio.sleep(14 * MINUTE)
            left.append(SENT.encode() in on_disk(tmp_path))

    live(life)
    assert world.service.statuses(1) == ["dequeued", "sent"]
    assert left == [True, False]
    assert CUT_INTERVAL <= 15 * MINUTE / 2


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_who_reads_the_journal_keeps_the_log_and_holds_up_no_commit(tmp_path: Path) -> None:
    """The log is emptied at the next try, and nobody waits for the reader."""
    path = tmp_path / "journal.db"
    async with open_journal_file(path) as journal:
        await journal.take([QueuedMessage(1, 2, 3, {})], [], NOW)
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM message").fetchone()
            await journal.take([QueuedMessage(2, 2, 3, {})], [], NOW)
            began = time.monotonic()
            assert not await journal.cut_log()
            await journal.take([QueuedMessage(3, 2, 3, {})], [], NOW)
            assert time.monotonic() - began < 2.0  # a busy checkpoint waits for five
        assert await journal.cut_log()
        assert path.with_name("journal.db-wal").stat().st_size == 0


# erasing


@pytest.fixture
def filled(world: World) -> World:
    """Of customer 1: sent, failed, refused, set aside, malformed; and of customer 2: sent."""
    world.change("[journal]\n", "[journal]\nkeep_variables = true\n")
    world.state.enqueue(
        message(1, word=SENT),
        message(2, settings_id=99, word=FAILED),
        message(4, customer_id=2, word="somebody-else"),
        '{"id": 5, "settingsId": 1, "customerId": 1.0, "variables": "canary-malformed"}',
        '{"settingsId": 1, "customerId": "1", "variables": {"a": "canary-without-id"}}',
        '{"settingsId": 1, "customerId": 11, "variables": {"a": "somebody-elses"}}',
    )
    world.run_until_idle()
    return world


CANARIES = (SENT, FAILED, "canary-malformed", "canary-without-id")


@pytest.mark.slow
def test_erasing_a_customer_leaves_nothing_of_them_on_the_disk_and_all_of_others(filled: World) -> None:
    """It says what it did; the journal still adds up, and a second time there is nothing left to do."""
    assert all(canary.encode() in on_disk(filled.folder) for canary in CANARIES)
    assert of(filled, "erase", "--customer", 1, "--dry-run").out.startswith("would erase for customer 1: 5\n")
    erased = of(filled, "erase", "--customer", 1)
    assert (erased.status, erased.err) == (0, "")
    assert erased.out == (
        "erased for customer 1: 5\n"
        "  messages, with their variables, attempts, events and receipts: 3\n"
        "  malformed elements of the queue: 2\n"
    )
    there = on_disk(filled.folder)
    assert [canary for canary in CANARIES if canary.encode() in there] == []
    assert all(text in there for text in (b"somebody-else", b"somebody-elses"))
    assert file_reader(filled.folder / "journal.db").audit().is_balanced
    again = of(filled, "erase", "--customer", 1, "--json")
    nothing = {"messages": 0, "malformed": 0, "receipts": 0, "reports": 0}
    assert (again.status, again.data["erased"], again.data["refused"]) == (0, nothing, {})


@pytest.mark.slow
def test_an_erased_message_that_the_queue_gives_again_is_not_sent(filled: World) -> None:
    """It is reported again with its last status, without details that might tell about somebody."""
    received = len(filled.state.received)
    of(filled, "erase", "--customer", 1)
    filled.state.enqueue(message(1), message(2))
    filled.run_until_idle()
    assert len(filled.state.received) == received
    assert filled.state.statuses(1) == ["dequeued", "sent"] * 2
    last = [event for event in filled.state.events if event["messageId"] == 2][-1]
    assert (last["status"], "details" in last) == ("error", False)


@pytest.mark.slow
def test_a_running_worker_erases_and_its_log_has_nothing_left(filled: World) -> None:
    asked = filled.state.requests["queue"]
    worker = filled.start()
    filled.sandbox.state.wait_for(lambda state: state.requests["queue"] > asked, PATIENCE)
    erased = of(filled, "erase", "--customer", 1, "--json")
    assert erased.data["erased"] == {"messages": 3, "malformed": 2, "receipts": 0, "reports": 0}
    assert erased.err == ""  # a file of customers isn't asked, and no answer of it kept
    there = on_disk(filled.folder)
    assert [canary for canary in CANARIES if canary.encode() in there] == []
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0


@pytest.mark.slow
def test_what_has_not_ended_is_refused_and_listed_and_the_rest_is_erased(filled: World) -> None:
    """Status 1; once it has ended, it can be erased as well."""
    filled.state.fail_until_healed("settings", FaultAnswer(503))
    filled.state.settings[7] = sms_settings()
    filled.state.enqueue(message(6, settings_id=7, word="canary-under-way"))
    worker = filled.start(log="info")
    filled.sandbox.state.wait_for(lambda state: state.statuses(6) == ["dequeued"], PATIENCE)
    worker.kill()
    worker.wait()
    would = of(filled, "erase", "--customer", 1, "--dry-run", "--json")
    assert (would.status, list(would.data["refused"])) == (1, ["message:6"])
    erased = of(filled, "erase", "--customer", 1)
    assert erased.status == 1
    assert "refused: 1; erase again when they have ended\n  message:6: it hasn't ended: it is " in erased.out
    assert SENT.encode() not in on_disk(filled.folder)
    assert file_reader(filled.folder / "journal.db").personal_data(1).messages == [6]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_messages_are_sought_in_portions_over_all_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deliveryd.journal.sql.personal_data.ERASURE_PORTION", 2)
    path = tmp_path / "journal.db"
    ids = [-(2**63), -5, 0, 1, 2, 3, 2**63 - 1]
    async with open_journal_file(path) as journal:
        await journal.take([QueuedMessage(id_, 1, id_ % 2, {}) for id_ in ids], [], NOW)
        kept = [Receipt("sms", "p", True, "DELIVRD", NOW, NOW, reference) for reference in ("2", "3", "x")]
        await journal.receive(kept)
    assert file_reader(path).personal_data(0) == ([-(2**63), 0, 2], [], [1], [])


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_unread_reports_and_receipts_that_name_a_message_in_any_way_are_found(tmp_path: Path) -> None:
    """By its key, its id, or an id that a provider gave it, in JSON as in a form; others stay."""
    path = tmp_path / "journal.db"
    async with open_journal_file(path) as journal:
        await deliver_to_sent(journal, 701, "wamid.a+b==")
        await deliver_to_sent(journal, 702, "p702")
        key = message_key(journal.namespace, 701, "sms", 1)
        named = (f'{{"ref":"{key}"}}', '{"ref":701}', '{"id":"wamid.a+b=="}', "id=701&state=x")
        other = ('{"ref":7011}', '{"id":"p702"}', '{"id":"wamid.a"}', "")
        raws = {raw: UnreadReport("sms", raw, "no status", NOW) for raw in (*named, *other)}
        await journal.receive([*raws.values(), Receipt("sms", "q", True, "ok", NOW, NOW, f"{key}")])
        await journal.receive([Receipt("email", "q", True, "ok", NOW, NOW, key)])
        found = file_reader(path).personal_data(70100)
        digests = {raw: hashlib.sha256(f"sms {raw}".encode()).hexdigest() for raw in raws}
        assert sorted(found.reports) == sorted(digests[raw] for raw in named)
        assert len(found.receipts) == 1
        erased = Order(Action.ERASE, ItemKind.REPORT, tuple(found.reports))
        assert len((await journal.decide(erased, NOW, ["sms"])).done) == 4
    assert file_reader(path).personal_data(70100).reports == []


# who decided


@pytest.mark.slow
def test_explain_says_who_erased_a_message_and_on_whose_behalf(
    filled: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user is the kernel's word; who called sudo is only claimed, and said to be."""
    me = user_name(os.geteuid())
    monkeypatch.setenv("SUDO_USER", "anna")
    of(filled, "erase", "--customer", 1)
    told = of(filled, "explain", 1).out
    assert told.startswith("message 1: erased by an operator; only these events are kept\n")
    assert "operator's order: erase\n" in told
    assert f"by the user {me}, on behalf of anna, as claimed\n" in told
    [decision] = of(filled, "explain", 1, "--json").data["decisions"]
    assert (decision["user"], decision["caller"]) == (me, "anna")


@pytest.mark.slow
def test_a_worker_records_who_is_at_the_other_end_of_its_socket(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = user_name(os.geteuid())
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setattr(client, "LOGIN", world.folder / "absent")
    world.state.enqueue('{"id": 5, "settingsId": 1, "customerId": 1, "variables": 0}')
    worker = world.start()
    world.state.wait_for(lambda state: state.statuses(5) == ["dequeued", "error"], PATIENCE)
    drop = ("dead", "drop", "--config", world.config, "--all")
    assert command(*drop, "--reason", "a test of theirs").status == 0
    told = of(world, "explain", 5).out
    assert f"by the user {me}\n" in told
    assert "reason: a test of theirs\n" in told
    assert "claimed" not in told
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0


@pytest.mark.parametrize("claim", ["", "x" * 65, "a\x1b]0;title\x07", "two\nlines", None, 7, ["a"]])
def test_a_claim_that_is_no_users_name_is_left_out_and_the_order_carried_out(claim: object) -> None:
    """On either side of the socket."""
    order = {"request": "order", "verb": "drop", "kind": "event", "keys": ["1"], "caller": claim}
    assert read_request(json.dumps(order).encode()) == Order(Action.DROP, ItemKind.EVENT, ("1",))


@pytest.mark.parametrize("reason", ["", "  ", "x" * 501, "a\x1b]0;title\x07", "two\nlines", 7, ["a"]])
def test_an_order_with_a_reason_that_cannot_be_kept_is_refused(reason: object) -> None:
    """Nothing is recorded that the operator didn't write."""
    order = {
        "request": "order",
        "verb": "drop",
        "kind": "event",
        "keys": ["1"],
        "caller": None,
        "reason": reason,
    }
    with pytest.raises(ValueError, match="reason"):
        read_request(json.dumps(order).encode())


def test_a_reason_that_is_too_long_is_a_usage_error() -> None:
    told = command("dead", "drop", "--all", "--reason", "x" * 501)
    assert told.status == 2
    assert "at most 500" in told.err
