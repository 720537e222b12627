"""The list of recipients who can't be reached on a channel any more: what it keeps, and who is on it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.delivery.recorder import Recorder
from deliveryd.delivery.stopped import StoppedRecipients
from deliveryd.journal.orders import Action, Decided, ItemKind, Order
from deliveryd.journal.reader import file_reader
from deliveryd.journal.sql.stopped import digest_of_address
from deliveryd.journal.sqlite.journal import SqliteJournal, open_journal_file
from deliveryd.journal.sqlite.opening import read
from deliveryd.metrics import MetricCounts, Metrics
from deliveryd.model import Customer, OptOut, StopChange
from deliveryd.runtime.threads import inline
from deliveryd.testing.samples import opened
from support.line import memory_on
from support.logs import log_lines

KEY = b"0123456789abcdef"
ADA = "+44 7700 900101"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def change(at: int, *, stopped: bool = True, address: str = ADA, source: str = "answer") -> StopChange:
    return StopChange("sms", digest_of_address(KEY, "sms", address), at, stopped, None, source)


def in_force(path: Path) -> list[tuple[int, str]]:
    return [(each.at, each.source) for each in file_reader(path).stopped(None)]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("+447700900101", "+44 7700 900-101", True),
        ("+447700900101", "00447700900101", True),
        ("+447700900101", "447700900101", True),
        ("+447700900101", "+447700900102", False),
        ("Ada@Example.com", "ada@example.com ", True),
        ("Ada <ada@example.com>", "ada@example.com", True),
        ("ada@b\u00fccher.example", "ada@XN--BCHER-KVA.example.", True),
        ("ada@bu\u0308cher.example", "ada@B\u00dcCHER.example", True),
        ("\ufeffada@example.com", "ada@example.com\u00a0", True),
        ("ada@stra\u00dfe.example", "ada@strasse.example", False),
        ("Token-a", "token-a", False),
        ("12345", "1234", False),
    ],
)
def test_notations_of_an_address(one: str, other: str, same: bool) -> None:
    """Reports write numbers with and without a plus, and mail addresses in any case."""
    assert (digest_of_address(KEY, "sms", one) == digest_of_address(KEY, "sms", other)) is same


def test_a_digest_depends_on_the_channel_and_the_key() -> None:
    """Without the key, nobody can tell who is on the list."""
    digests = {
        digest_of_address(key, channel, ADA) for key in (KEY, KEY[::-1]) for channel in ("sms", "messenger")
    }
    assert len(digests) == 4


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([change(1)], [(1, "answer")]),
        ([change(1), change(5)], [(5, "answer")]),
        ([change(5), change(1)], [(5, "answer")]),
        ([change(1), change(5, stopped=False)], []),
        ([change(5), change(1, stopped=False)], [(5, "answer")]),
        ([change(1), change(5, stopped=False), change(3)], []),
        ([change(1), change(5, stopped=False), change(7, source="receipt")], [(7, "receipt")]),
        ([change(5, stopped=False)], []),
        ([change(5, stopped=False, source="receipt"), change(1, source="receipt")], []),
        (
            [change(5, stopped=False, source="receipt"), change(7, source="receipt")],
            [(7, "receipt")],
        ),
        (
            [change(1), change(3, stopped=False), change(7, stopped=False, source="receipt"), change(5)],
            [],
        ),
    ],
)
async def test_the_latest_report_counts(
    path: Path, changes: list[StopChange], left: list[tuple[int, str]]
) -> None:
    """In whatever order they come in."""
    async with open_journal_file(path) as journal:
        for each in changes:
            await journal.receive([], [each])
        assert await journal.stopped() == [
            (each.channel, each.digest) for each in file_reader(path).stopped("sms")
        ]
    assert in_force(path) == left


@pytest.mark.anyio
async def test_what_a_report_did_is_told(path: Path) -> None:
    """A change of the list, or nothing new."""
    async with open_journal_file(path) as journal:
        results = await journal.receive([], [change(1), change(2), change(3, stopped=False), change(2)])
        assert [each.result for each in results] == ["matched", "repeated", "matched", "repeated"]


def recorder_on(journal: SqliteJournal) -> tuple[Recorder, StoppedRecipients]:
    memory, metrics = memory_on(journal), Metrics(["sms"], "0")
    return Recorder(journal, memory, metrics), memory.stopped


@pytest.mark.anyio
async def test_the_recorder_follows_reports_and_orders_and_loads_what_is_in_force(path: Path) -> None:
    """What it has in memory is what the journal has."""
    async with open_journal_file(path) as journal:
        recorder, listed = recorder_on(journal)
        await recorder.receive([], [OptOut("sms", ADA, True, 1, 1)])
        assert listed.includes("sms", ["447700900101"])
        assert not listed.includes("email", ["447700900101"])
        await recorder.receive([], [OptOut("sms", ADA, False, 2, 2)])
        assert listed.digests == {}
        await recorder.decide(Order(Action.STOP, ItemKind.RECIPIENT, (f"sms {ADA}",)), ["sms"])
        assert listed.includes("sms", [ADA])
        again, listed_again = recorder_on(journal)
        await again.recover([])
        assert listed_again.digests == listed.digests


@pytest.mark.anyio
async def test_an_operator_lifts_what_a_provider_reported_with_a_clock_that_is_ahead(path: Path) -> None:
    async with open_journal_file(path) as journal:
        recorder, _ = recorder_on(journal)
        await recorder.receive([], [OptOut("sms", ADA, True, 3600, 3600)])
        [stopped] = file_reader(path).stopped("sms")
        assert (await ordered(journal, Action.LIFT, stopped.name)).skipped == {}
        assert await journal.stopped() == []
        assert (await ordered(journal, Action.STOP, stopped.name)).skipped == {}
        assert len(await journal.stopped()) == 1


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.anyio
async def test_a_report_counts_though_an_earlier_one_came_by_a_clock_that_was_ahead(
    path: Path, stopped: bool
) -> None:
    """A customer's STOP isn't left out, nor a START."""
    async with open_journal_file(path) as journal:
        recorder, listed = recorder_on(journal)
        await recorder.receive([], [OptOut("sms", ADA, stopped, 3600, 3600)])
        await recorder.receive([], [OptOut("sms", ADA, not stopped, 3601, 3601)])
        await journal.retime(3600, lambda: 9, 9)
        await recorder.receive([], [OptOut("sms", ADA, stopped, 10, 10)])
        assert listed.includes("sms", [ADA]) is stopped
        assert bool(await journal.stopped()) is stopped


def test_what_is_in_memory_is_what_the_journal_has_whichever_task_goes_on_first(path: Path) -> None:
    """A report and an order, at the same time, may go into one commit. Trio draws who goes on."""

    async def at_once() -> None:
        async with open_journal_file(path, blocking=inline) as journal:
            recorder, listed = recorder_on(journal)
            lift = Order(Action.LIFT, ItemKind.RECIPIENT, (f"sms {ADA}",))
            for at in range(20):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(recorder.receive, [], [OptOut("sms", ADA, True, at, at)])
                    tasks.start_soon(recorder.decide, lift, ["sms"])
                assert listed.includes("sms", [ADA]) is bool(await journal.stopped())

    anyio.run(at_once, backend="trio")


async def ordered(journal: SqliteJournal, verb: Action, *recipients: str) -> Decided:
    keys = tuple(f"sms {each}" for each in recipients)
    return await journal.decide(Order(verb, ItemKind.RECIPIENT, keys, user="ops"), 9, ["sms"])


@pytest.mark.anyio
async def test_orders_are_recorded_without_addresses(path: Path) -> None:
    """A decision names the digest, by which a recipient can be lifted as well."""
    async with open_journal_file(path) as journal:
        decided = await ordered(journal, Action.STOP, ADA, "", "digest:12", "a\nb")
        assert decided.done == (f"sms {ADA}",)
        assert set(decided.skipped.values()) == {"not an address, and no digest either"}
        order = Order(Action.STOP, ItemKind.RECIPIENT, (f"s\0ms {ADA}",))
        assert [*(await journal.decide(order, 9, ["sms"])).skipped.values()] == ["not the name of a channel"]
        [stopped] = file_reader(path).stopped("sms")
        assert (stopped.source, stopped.at) == ("operator", 9)
        again = await ordered(journal, Action.STOP, ADA)
        assert again.skipped == {f"sms {ADA}": "is suppressed already on sms"}
        lifted = await ordered(journal, Action.LIFT, stopped.name)
        assert lifted.done == (f"sms {stopped.name}",)
        never = await ordered(journal, Action.LIFT, ADA)
        assert never.skipped == {f"sms {ADA}": "isn't suppressed on sms"}
    keys = read(path, lambda db: db.execute("SELECT verb, key, user FROM decision").fetchall())
    assert keys == [("stop", f"sms {stopped.name}", "ops"), ("lift", f"sms {stopped.name}", "ops")]
    with closing(sqlite3.connect(path)) as db:
        assert ADA not in "".join(db.iterdump())


@pytest.mark.anyio
async def test_who_was_lifted_long_ago_is_forgotten(path: Path) -> None:
    """Who is on the list stays there."""
    async with open_journal_file(path) as journal:
        await journal.receive([], [change(1), change(2, address="x@example.com"), change(3, stopped=False)])
        await journal.prune(100, 10)
        assert in_force(path) == [(2, "answer")]
    assert read(path, lambda db: db.execute("SELECT count(*) FROM stopped").fetchone()) == (1,)


def test_an_empty_list_computes_nothing() -> None:
    """There is nothing to look up on a channel that nobody stopped."""
    stopped = StoppedRecipients(KEY)
    change_ = stopped.stop("sms", ADA, 1, "blocked")
    assert set(stopped.digests) == {"sms"}
    stopped.apply(change_._replace(stopped=False))
    stopped.apply(change_._replace(stopped=False))
    assert stopped.digests == {}
    assert not stopped.includes("sms", [ADA])


# the address


STOPPED = [{"status": [403], "verdict": "stopped"}]


def options(**more: Any) -> HttpChannelOptions:
    return HttpChannelOptions.model_validate({"url": "http://h/", **more})


@pytest.mark.parametrize(
    ("more", "address"),
    [
        ({"json": {"to": "{customer.phone}", "who": "{customer.name}"}}, "{customer.phone}"),
        ({"json": {"to": [{"id": "tel:{customer.phone}"}], "t": "{content.text}"}}, "{customer.phone}"),
        ({"json": {"to": "{customer.id}"}}, "{customer.id}"),
        ({"json": {"to": "{customer.phone}", "device": "{customer.device}"}}, None),
        (
            {"json": {"to": "{customer.phone}", "d": "{customer.d}"}, "recipient": "{customer.d}"},
            "{customer.d}",
        ),
        ({"json": {"text": "{content.text}"}}, None),
    ],
)
def test_the_address_of_a_mapping(more: dict[str, Any], address: str | None) -> None:
    """The only customer field that is sent, or the one that `recipient` names."""
    assert options(**more).address() == address
    if address is None:
        with pytest.raises(ValidationError, match=r'set recipient = "\{customer\.FIELD\}"'):
            options(**more, answers=STOPPED)
    else:
        assert options(**more, answers=STOPPED).answers


@pytest.mark.parametrize("recipient", ["phone", "{message.id}", "{customer.a}{customer.b}", "+{customer.a}"])
def test_a_recipient_that_is_no_customer_field(recipient: str) -> None:
    """One placeholder, as it stands in the mapping."""
    with pytest.raises(ValidationError, match="expected one placeholder"):
        options(json={"to": "{customer.phone}"}, recipient=recipient)


@pytest.mark.anyio
async def test_the_recipient_of_an_adapter() -> None:
    """The value that it would send."""
    mapping = {"url": "http://127.0.0.1:9/", "json": {"to": "{customer.phone}", "n": "{customer.name}"}}
    async with opened("http", mapping, block="sms") as http:
        assert http.recipients(Customer(1, {"phone": "+1", "name": "Ada"})) == ("+1",)
        assert http.recipients(Customer(1, {"name": "Ada"})) == ()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_recipient_of_a_mail() -> None:
    """The bare address."""
    smtp = {"host": "127.0.0.1", "sender": "a@example.com"}
    async with opened("smtp", smtp, block="email") as mail:
        assert mail.recipients(Customer(1, {"email": "Ada <ada@example.com>"})) == ("ada@example.com",)
        assert mail.recipients(Customer(1, {"email": "nobody"})) == ()
        assert mail.recipients(Customer(1, {})) == ()


def test_changes_of_the_list_are_counted_once_each() -> None:
    """By a metric, and in the log by one line for each channel and each report of the sums."""
    metrics = Metrics(["sms", "email"], "1")
    stopped = StoppedRecipients(KEY, metrics)
    stops = [stopped.stop("sms", f"+44770090010{number}", 1, "blocked") for number in range(5)]
    stopped.stop("sms", "+447700900100", 2, "blocked")
    stopped.stop("fax", "+447700900100", 2, "of a channel that was removed")
    for change_ in stops[:2]:
        stopped.apply(change_._replace(stopped=False))
    (family,) = [each for each in metrics.families if each.name.endswith("recipients_stopped")]
    assert isinstance(family, MetricCounts)
    assert {labels: count for labels, count in family.series.items() if count} == {
        ("sms", "stopped"): 5,
        ("sms", "resumed"): 2,
    }
    with log_lines("info") as lines:
        stopped.log_counts()
        stopped.log_counts()
    assert [(line["event"], line["channel"], line["count"]) for line in lines()] == [
        ("recipients.stopped", "fax", 1),
        ("recipients.resumed", "sms", 2),
        ("recipients.stopped", "sms", 5),
    ]
