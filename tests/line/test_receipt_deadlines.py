"""Receipts that don't come, on the whole line in virtual time: what the service receives each time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio

from deliveryd.channels.base import Refused, TryAgain
from deliveryd.journal.reader import file_reader
from deliveryd.model import Receipt, format_instant
from deliveryd.states import State
from support.logs import log_lines
from support.virtual import START, VirtualClock, VirtualSupervisor, VirtualWorld, live

MINUTE = 60.0
DEADLINE = 10 * MINUTE
RECEIPT = 'receipt = { provider_id = "/id", status = "/status", delivered = ["d"], failed = ["f"] }'
CONFIG = f"""\
[service]
base_url = "http://service"
[settings]
cache_dir = "cache"
[journal]
url = "sqlite:///journal.db"
[admin]
listen = ""
[channels]
order = ["messenger", "sms", "email"]
[channels.messenger]
receipt_deadline = "10m"
adapter = "http"
url = "http://provider/messenger"
json = {{ text = "{{content.text}}" }}
provider_id = "/id"
{RECEIPT}
[channels.sms]
adapter = "http"
url = "http://provider/sms"
json = {{ text = "{{content.text}}" }}
provider_id = "/id"
{RECEIPT}
"""
BOTH = {"messenger": {"text": "hello {word}"}, "sms": {"text": "hello {word}"}}
MESSENGER_ALONE = {"messenger": {"text": "hello {word}"}}


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """One message that a messenger takes, and an SMS would."""
    world = VirtualWorld(tmp_path)
    world.path.write_text(CONFIG, encoding="utf-8")
    offer(world, BOTH)
    enqueue(world, 1)
    return world


def offer(world: VirtualWorld, blocks: dict[str, Any], settings_id: int = 1, **more: object) -> None:
    world.service.settings[settings_id] = json.dumps({"content": {"en": blocks}, **more})


def enqueue(world: VirtualWorld, *ids: int, settings_id: int = 1) -> None:
    for id_ in ids:
        world.service.enqueue(
            {"id": id_, "settingsId": settings_id, "customerId": 1, "variables": {"word": "you"}}
        )


def change_keys(world: VirtualWorld, old: str, new: str) -> None:
    text = world.path.read_text(encoding="utf-8")
    assert old in text
    world.path.write_text(text.replace(old, new), encoding="utf-8")


def told(world: VirtualWorld, id_: int = 1) -> list[str]:
    """What the service received of a message; a delivery with its channel, an error with its details."""
    return [
        " ".join([event["status"], *(event[key] for key in ("channel", "details") if key in event)])
        for event in world.service.events_of(id_)
    ]


def sent_at(world: VirtualWorld, channel: str) -> list[float]:
    """When a provider accepted or refused each message, in seconds from the beginning."""
    return [round(at, 1) for at, _ in world.channels[channel].attempts]


def keep_busy(world: VirtualWorld) -> None:
    """The SMS provider takes nothing, and is tried again after a minute or two."""
    change_keys(world, "[channels.sms]", '[channels.sms]\nretry = { base = "2m", max = "2m" }')
    world.channels["sms"].verdict = lambda _: TryAgain("busy", only_this=True)


@asynccontextmanager
async def running(world: VirtualWorld) -> AsyncIterator[VirtualSupervisor]:
    """A worker that is stopped when the block ends."""
    async with world.at_work() as worker:
        await trio.sleep(1)
        yield worker


async def report(
    worker: VirtualSupervisor, world: VirtualWorld, channel: str, *, delivered: bool = True
) -> str:
    """A provider reports on the first message that it has; what that did."""
    (_, dispatch), now = world.channels[channel].attempts[0], VirtualClock().now()
    receipt = Receipt(channel, dispatch.key, delivered, "d" if delivered else "f", now, now)
    (matched,) = await worker.parts.recorder.receive([receipt])
    return matched.result


def lived(world: VirtualWorld, story: Callable[[VirtualSupervisor], Awaitable[None]], until: float) -> None:
    """Run a worker until a time; nothing is missing in its journal then."""

    async def run() -> None:
        async with running(world) as worker:
            await story(worker)
            await trio.sleep_until(until)

    live(run)
    assert file_reader(world.folder / "journal.db").audit().is_balanced


async def nothing(_worker: VirtualSupervisor) -> None:
    """Nobody reports anything."""


def columns(world: VirtualWorld, *names: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(world.folder / "journal.db")) as db:
        return db.execute(f"SELECT {', '.join(names)} FROM message ORDER BY id").fetchall()  # noqa: S608


# The next channel


@pytest.mark.slow
def test_a_silent_messenger_is_followed_by_an_sms_and_the_service_receives_sent_twice(
    world: VirtualWorld,
) -> None:
    """Passing itself isn't reported. The SMS has a key of its own and the same variables."""
    lived(world, nothing, 15 * MINUTE)
    assert told(world) == ["dequeued", "sent", "sent"]
    assert sent_at(world, "sms")[0] == pytest.approx(sent_at(world, "messenger")[0] + DEADLINE, abs=1)
    (_, first), (_, second) = world.channels["messenger"].attempts[0], world.channels["sms"].attempts[0]
    assert first.key != second.key
    assert second.rendered.fields["text"] == "hello you"


@pytest.mark.slow
def test_what_is_reported_only_when_it_fails_has_no_deadline(world: VirtualWorld) -> None:
    """A second provider of the channel confirms; what the first one took isn't sent once more."""
    text = world.path.read_text(encoding="utf-8")
    table = text[text.index('adapter = "http"') : text.index("[channels.sms]")]
    quiet = table.replace('["d"]', "[]")
    providers = (
        f"[channels.messenger.providers.quiet]\n{quiet}[channels.messenger.providers.other]\nweight = 0\n"
    )
    change_keys(world, table, providers + table)
    lived(world, nothing, 30 * MINUTE)
    assert told(world) == ["dequeued", "sent"]
    assert not world.channels["sms"].attempts


@pytest.mark.slow
def test_a_delivery_in_time_ends_it(world: VirtualWorld) -> None:
    async def story(worker: VirtualSupervisor) -> None:
        await trio.sleep_until(DEADLINE - 1)
        assert await report(worker, world, "messenger") == "matched"

    lived(world, story, 30 * MINUTE)
    assert told(world) == ["dequeued", "sent", "delivered messenger"]
    assert not world.channels["sms"].attempts
    assert columns(world, "variables", "confirm_by") == [(None, None)]


@pytest.mark.slow
@pytest.mark.parametrize(("pause", "sms_at"), [(0.0, DEADLINE), (3600.0, DEADLINE + 3600.0)])
def test_after_a_restart_the_deadline_goes_on_and_the_time_without_a_listener_does_not_count(
    world: VirtualWorld, pause: float, sms_at: float
) -> None:
    async def run() -> None:
        async with running(world):
            await trio.sleep_until(5 * MINUTE)
        await trio.sleep(pause)
        async with running(world):
            await trio.sleep(10 * MINUTE)

    live(run)
    assert told(world) == ["dequeued", "sent", "sent"]
    assert sent_at(world, "sms")[0] == pytest.approx(sms_at, abs=10)


@pytest.mark.slow
def test_a_delivery_one_second_late_before_the_next_intent_ends_it(world: VirtualWorld) -> None:
    """The SMS waits for its turn at that time, since another one has just used the rate."""
    change_keys(world, "[channels.sms]", '[channels.sms]\nrate = "1/m"')
    offer(world, {"sms": {"text": "x"}}, 2)

    async def story(worker: VirtualSupervisor) -> None:
        await trio.sleep_until(DEADLINE - 45)
        enqueue(world, 2, settings_id=2)
        await trio.sleep_until(DEADLINE + 2)
        await report(worker, world, "messenger")

    lived(world, story, 15 * MINUTE)
    assert told(world) == ["dequeued", "sent", "delivered messenger"]
    assert [dispatch.entry.id for _, dispatch in world.channels["sms"].attempts] == [2]


@pytest.mark.slow
def test_a_delivery_one_second_late_while_it_waits_for_the_next_channel_ends_it(world: VirtualWorld) -> None:
    """The SMS provider is busy: the message is in the journal, due in a while."""
    keep_busy(world)

    async def story(worker: VirtualSupervisor) -> None:
        await trio.sleep_until(DEADLINE + 2)
        assert len(world.channels["sms"].attempts) == 1
        assert await report(worker, world, "messenger") == "recalled"

    lived(world, story, 30 * MINUTE)
    assert told(world) == ["dequeued", "sent", "delivered messenger"]
    assert len(world.channels["sms"].attempts) == 1
    assert columns(world, "provider", "provider_id", "sent_by", "variables") == [
        ("messenger", world.channels["messenger"].attempts[0][1].key, None, None)
    ]


@pytest.mark.slow
def test_a_delivery_one_second_late_after_the_next_intent_is_reported_once_with_its_channel(
    world: VirtualWorld,
) -> None:
    """It comes while the SMS is being sent; the delivery of the SMS tells nothing new."""
    world.channels["sms"].seconds = 5.0

    async def story(worker: VirtualSupervisor) -> None:
        await trio.sleep_until(DEADLINE + 2)
        assert await report(worker, world, "messenger") == "unmatched"
        await trio.sleep(60)
        assert await report(worker, world, "sms") == "matched"

    lived(world, story, 15 * MINUTE)
    assert told(world) == ["dequeued", "sent", "sent", "delivered messenger"]


@pytest.mark.slow
def test_a_delivery_after_the_next_acceptance_is_reported_once_with_the_first_channel(
    world: VirtualWorld,
) -> None:
    async def story(worker: VirtualSupervisor) -> None:
        await trio.sleep_until(DEADLINE + 30)
        assert await report(worker, world, "sms") == "matched"
        assert await report(worker, world, "messenger") == "matched"

    lived(world, story, 15 * MINUTE)
    assert told(world) == ["dequeued", "sent", "sent", "delivered sms"]


@pytest.mark.slow
@pytest.mark.parametrize("key", ['receipt_deadline = "10m"', 'receipt_failed_then = "next"'])
def test_another_provider_of_the_same_channel_is_no_next_channel(world: VirtualWorld, key: str) -> None:
    """Both would reach the same silent messenger; its events carry the channel's name."""
    change_keys(world, 'receipt_deadline = "10m"', f"{key}\n[channels.messenger.providers.one]")
    other = world.path.read_text(encoding="utf-8").partition("[channels.messenger.providers.one]")[2]
    world.add("[channels.messenger.providers.two]" + other.partition("[channels.sms]")[0])

    async def story(worker: VirtualSupervisor) -> None:
        await trio.sleep_until(60)
        (first,) = [name for name, channel in world.channels.items() if channel.attempts]
        if "failed" in key:
            await report(worker, world, first, delivered=False)
        await trio.sleep_until(DEADLINE + 60)
        await report(worker, world, first)

    lived(world, story, 15 * MINUTE)
    assert told(world) == ["dequeued", "sent", "sent", "delivered messenger"]
    assert sorted(name for name, channel in world.channels.items() if channel.attempts)[1:] == ["sms"]


# No other channel


@pytest.mark.slow
def test_without_content_for_a_later_channel_it_stays_sent(world: VirtualWorld) -> None:
    """The row says why; a delivery counts afterwards as well."""
    offer(world, MESSENGER_ALONE)

    async def story(worker: VirtualSupervisor) -> None:
        await trio.sleep_until(DEADLINE + 60)
        assert columns(world, "state", "provider", "reason", "variables") == [
            (State.SENT, "messenger", "messenger: not confirmed within 10m", None)
        ]
        assert worker.parts.memory.is_idle
        assert await report(worker, world, "messenger") == "matched"

    lived(world, story, 15 * MINUTE)
    assert told(world) == ["dequeued", "sent", "delivered messenger"]


@pytest.mark.slow
def test_an_earlier_channel_of_the_order_is_no_later_one(world: VirtualWorld) -> None:
    """The SMS goes out since the messenger can't be filled; its deadline leads to no messenger."""
    change_keys(world, 'receipt_deadline = "10m"\n', "")
    change_keys(world, "[channels.sms]", '[channels.sms]\nreceipt_deadline = "10m"')
    change_keys(world, 'order = ["messenger", "sms", "email"]', 'order = ["messenger", "sms"]')
    offer(world, {"sms": {"text": "x"}})
    lived(world, nothing, 15 * MINUTE)
    assert told(world) == ["dequeued", "sent"]
    assert columns(world, "confirm_by", "variables") == [(None, None)]


@pytest.mark.slow
def test_an_earlier_channel_is_no_later_one_although_that_of_the_message_is_off_by_now(
    world: VirtualWorld,
) -> None:
    """A restart with the messenger turned on, and the SMS off."""
    change_keys(world, 'receipt_deadline = "10m"\n', "enabled = false\n")
    change_keys(world, "[channels.sms]", '[channels.sms]\nreceipt_deadline = "10m"\nenabled = true')
    world.add('[channels.email]\nadapter = "http"\nurl = "http://x/"\njson = { t = "{content.body}" }')
    offer(world, {**BOTH, "email": {"subject": "s", "body": "b"}})
    lived(world, nothing, 5 * MINUTE)
    change_keys(world, "enabled = false", "enabled = turned")
    change_keys(world, "enabled = true", "enabled = false")
    change_keys(world, "enabled = turned", "enabled = true")
    lived(world, nothing, 25 * MINUTE)
    assert (sent_at(world, "messenger"), len(sent_at(world, "email"))) == ([], 1)
    assert told(world) == ["dequeued", "sent", "sent"]


@pytest.mark.slow
def test_an_expired_message_stays_sent(world: VirtualWorld) -> None:
    expires_at = format_instant(START + int(5 * MINUTE * 1e6))
    offer(world, BOTH, delivery={"expiresAt": expires_at})
    lived(world, nothing, 15 * MINUTE)
    assert told(world) == ["dequeued", "sent"]
    assert not world.channels["sms"].attempts


@pytest.mark.slow
def test_a_message_that_expires_while_the_next_channel_is_busy_stays_sent(world: VirtualWorld) -> None:
    keep_busy(world)
    offer(world, BOTH, delivery={"expiresAt": format_instant(START + int(13 * MINUTE * 1e6))})
    lived(world, nothing, 30 * MINUTE)
    assert len(world.channels["sms"].attempts) > 1
    assert told(world) == ["dequeued", "sent"]
    assert columns(world, "state", "provider", "variables") == [(State.SENT, "messenger", None)]


@pytest.mark.slow
def test_if_all_later_channels_fail_one_error_names_all(world: VirtualWorld) -> None:
    """A delivery after that counts, and `sent` isn't reported again."""
    world.channels["sms"].verdict = lambda _: Refused("no such number")

    async def story(worker: VirtualSupervisor) -> None:
        await trio.sleep_until(DEADLINE + 60)
        assert await report(worker, world, "messenger") == "settled"

    lived(world, story, 15 * MINUTE)
    assert told(world) == [
        "dequeued",
        "sent",
        "error messenger: not confirmed within 10m; sms: no such number",
        "delivered messenger",
    ]


@pytest.mark.slow
def test_a_failure_reported_meanwhile_is_told_if_no_later_channel_takes_the_message(
    world: VirtualWorld,
) -> None:
    keep_busy(world)
    offer(world, BOTH, delivery={"expiresAt": format_instant(START + int(13 * MINUTE * 1e6))})

    async def story(worker: VirtualSupervisor) -> None:
        await trio.sleep_until(DEADLINE + 30)
        assert await report(worker, world, "messenger", delivered=False) == "matched"

    lived(world, story, 20 * MINUTE)
    assert told(world) == ["dequeued", "sent", "error messenger: the provider reported f"]


# What doesn't change


def test_until_idle_does_not_wait_for_a_deadline(world: VirtualWorld) -> None:
    assert live(world.run_until_idle) < MINUTE
    assert told(world) == ["dequeued", "sent"]


@pytest.mark.slow
def test_a_worker_that_ends_leaves_a_deadline_that_passes_meanwhile_to_the_next_start(
    world: VirtualWorld,
) -> None:
    """Its end takes until after the deadline, as a provider is slow; nothing is left waiting by it."""
    offer(world, {"sms": {"text": "hello"}}, settings_id=2)
    world.add('[queue]\nmax_poll_interval = "1s"\n')
    world.channels["sms"].seconds = 10.0

    async def run() -> None:
        async with running(world):
            await trio.sleep_until(DEADLINE - 4)
            enqueue(world, 2, settings_id=2)
            await trio.sleep_until(DEADLINE - 1)
        assert trio.current_time() > DEADLINE + 3
        assert columns(world, "state") == [(State.SENT,), (State.SENT,)]
        async with running(world):
            await trio.sleep(60)

    live(run)
    assert told(world) == ["dequeued", "sent", "sent"]


@pytest.mark.slow
def test_a_changed_deadline_applies_to_later_acceptances(world: VirtualWorld) -> None:
    async def run() -> None:
        async with running(world):
            await trio.sleep_until(60)
        change_keys(world, '"10m"', '"1m"')
        async with running(world):
            enqueue(world, 2)
            await trio.sleep_until(15 * MINUTE)

    live(run)
    first, second = sorted(world.channels["sms"].attempts, key=lambda each: -each[1].entry.id)
    assert (round(first[0], -1), first[1].entry.id) == (120, 2)
    assert second[0] == pytest.approx(DEADLINE, abs=10)


@pytest.mark.slow
def test_nothing_is_kept_for_channels_without_the_keys(world: VirtualWorld) -> None:
    change_keys(world, 'receipt_deadline = "10m"\n', "")
    lived(world, nothing, 15 * MINUTE)
    assert columns(world, "confirm_by", "variables", "sent_by") == [(None, None, None)]
    with closing(sqlite3.connect(world.folder / "journal.db")) as db:
        assert db.execute("SELECT listened, (SELECT count(*) FROM provider) FROM log").fetchall() == [(0, 0)]


# A failure that is reported


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "events"),
    [
        ('"error"', ["dequeued", "sent", "error messenger: the provider reported f"]),
        ('"next"', ["dequeued", "sent", "sent"]),
    ],
)
def test_a_late_failure_leads_to_an_error_or_to_the_next_channel(
    world: VirtualWorld, key: str, events: list[str]
) -> None:
    change_keys(world, 'receipt_deadline = "10m"', f"receipt_failed_then = {key}")

    async def story(worker: VirtualSupervisor) -> None:
        await trio.sleep_until(60)
        assert await report(worker, world, "messenger", delivered=False) == "matched"

    lived(world, story, 15 * MINUTE)
    assert told(world) == events


def test_a_late_failure_without_a_later_channel_is_an_error(world: VirtualWorld) -> None:
    change_keys(world, 'receipt_deadline = "10m"', 'receipt_failed_then = "next"')
    offer(world, MESSENGER_ALONE)

    async def story(worker: VirtualSupervisor) -> None:
        await trio.sleep_until(60)
        await report(worker, world, "messenger", delivered=False)

    lived(world, story, 5 * MINUTE)
    assert told(world) == ["dequeued", "sent", "error messenger: the provider reported f"]


# A provider that reports nothing


@pytest.mark.slow
def test_deadlines_of_a_provider_that_reports_nothing_stand_still_until_it_reports(
    world: VirtualWorld,
) -> None:
    """150 are due at once. After the first report all deadlines begin anew; the log has one line for each."""
    enqueue(world, *range(2, 151))

    async def story(worker: VirtualSupervisor) -> None:
        await trio.sleep_until(60 * MINUTE)
        assert not world.channels["sms"].attempts
        assert worker.parts.stations.deadlines.silent == {"messenger"}
        await report(worker, world, "messenger")
        await trio.sleep_until(69 * MINUTE)
        assert not world.channels["sms"].attempts
        assert not worker.parts.stations.deadlines.silent

    with log_lines("info") as lines:
        lived(world, story, 75 * MINUTE)
    assert len(world.channels["sms"].attempts) == 149
    events = [line["event"] for line in lines() if line["event"].startswith("receipt.")]
    assert events == ["receipt.silent", "receipt.reporting", "receipt.unconfirmed"]


@pytest.mark.slow
def test_of_a_silent_provider_a_hundred_go_on_one_by_one_and_no_more(world: VirtualWorld) -> None:
    """The count outlives a restart."""

    async def run() -> None:
        for begin in (2, 62):
            async with running(world):
                for id_ in range(begin, begin + 60):
                    enqueue(world, id_)
                    await trio.sleep(2)
                await trio.sleep(DEADLINE + 10)

    live(run)
    assert len(world.channels["sms"].attempts) == 100


# Overdue


@pytest.mark.slow
def test_what_is_never_confirmed_is_counted_once_and_listed(world: VirtualWorld) -> None:
    change_keys(world, 'receipt_deadline = "10m"', 'receipt_overdue = "1h"')
    enqueue(world, 2, 3)

    async def story(worker: VirtualSupervisor) -> None:
        await trio.sleep_until(60)
        await report(worker, world, "messenger")

    with log_lines("info") as lines:
        lived(world, story, 3 * 60 * MINUTE - 10)
    (line,) = [line for line in lines() if line["event"] == "receipt.overdue"]
    assert (line["provider"], line["count"]) == ("messenger", 2)
    later = START + int(2 * 3600e6)
    found = file_reader(world.folder / "journal.db").overdue({"messenger": later, "sms": later})
    assert len(found) == 2
    assert told(world, found[0].message_id) == ["dequeued", "sent"]


# A reload


@pytest.mark.slow
@pytest.mark.parametrize("others", [RECEIPT, ""])
def test_a_reload_that_removes_a_provider_drops_its_deadlines(world: VirtualWorld, others: str) -> None:
    """As a start does, whether another one reports or not: what was sent, or is just being sent, stays so."""
    world.channels["messenger"].seconds = 20.0
    before, _, tables = world.path.read_text(encoding="utf-8").partition("[channels.messenger]")
    sms = tables[tables.index("[channels.sms]") :].replace(RECEIPT, others)

    async def remove(worker: VirtualSupervisor) -> None:
        await trio.sleep(25.0)
        enqueue(world, 2)
        await trio.sleep(10.0)
        world.write(before + sms)
        assert worker.reloader is not None
        await worker.reloader.reload(accept_orphans=True)
        await trio.sleep(30.0)
        assert columns(world, "state", "confirm_by") == [(State.SENT, None)] * 2

    lived(world, remove, 15 * MINUTE)
    assert [told(world, id_) for id_ in (1, 2)] == [["dequeued", "sent"]] * 2
