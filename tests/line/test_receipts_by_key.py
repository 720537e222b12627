"""Receipts that name a key, on the whole line in virtual time: what they end, and what the line forgets."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, InDoubt, Refused, TryAgain, Verdict
from deliveryd.journal.reader import file_reader
from deliveryd.model import format_instant
from deliveryd.receipts.request import ReceiptRequest
from support.virtual import START, VirtualSupervisor, VirtualWorld, live

RECEIPT = """
receipt = { provider_id = "/id", status = "/status", delivered = ["delivered"], failed = ["failed"], \
reference = "/reference" }
"""
EMAIL = f"""
[channels.email]
adapter = "http"
url = "http://provider/email"
json = {{ text = "{{content.body}}" }}
provider_id = "/id"
{RECEIPT}
"""
SMS = {"content": {"en": {"sms": {"text": "hello"}}}}
BOTH = {"content": {"en": {"sms": {"text": "hello"}, "email": {"subject": "s", "body": "b"}}}}
BUSY = TryAgain("provider answered 503", may_have_arrived=True)
UNKNOWN = InDoubt("cut off")


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """One message; its provider is tried again after an hour, at most three times."""
    world = VirtualWorld(tmp_path)
    text = world.path.read_text().replace('[receipts]\nlisten = ""', '[receipts]\nlisten = "127.0.0.1:0"')
    world.path.write_text(text)
    world.add(f'provider_id = "/id"\nretry = {{ attempts = 3, base = "1h", max = "1h" }}{RECEIPT}')
    world.service.settings[1] = json.dumps(SMS)
    world.service.enqueue({"id": 1, "settingsId": 1, "customerId": 1, "variables": {}})
    return world


async def report(worker: VirtualSupervisor, dispatch: Dispatch, channel: str, status: str) -> str:
    """The provider reports by the key that it was given; what the report did."""
    assert worker.parts.receipts is not None
    body = json.dumps({"id": "q1", "status": status, "reference": dispatch.key}).encode()
    request = ReceiptRequest("POST", f"/receipts/{channel}", b"", [], body)
    (result,) = (await worker.parts.receipts.take_in(channel, request)).results
    return result


def told(world: VirtualWorld) -> list[Any]:
    """What the service heard of the message, deliveries with their channel."""
    return [
        (event["status"], event["channel"]) if "channel" in event else event["status"]
        for event in world.service.events
    ]


def reported_during(
    world: VirtualWorld, at: float, status: str = "delivered", channel: str = "sms", until: float = 20_000.0
) -> str:
    """Run a worker until it is idle; a receipt for the first try comes at some time. What it is answered."""
    answers: list[str] = []

    async def run() -> None:
        worker = world.supervisor()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: worker.run(until_idle=True))
            await trio.sleep(at)
            (_, first), *_ = world.channels[channel].attempts
            answers.append(await report(worker, first, channel, status))
        assert trio.current_time() < until

    live(run, hours=10)
    assert file_reader(world.folder / "journal.db").audit().is_balanced
    return answers[0]


def reported_one_by_one(world: VirtualWorld, at: float, *statuses: str) -> list[str]:
    """Run a worker that goes on after the end; receipts come at some time. What they are answered."""
    answers: list[str] = []

    async def run() -> None:
        async with world.at_work() as worker:
            await trio.sleep(at)
            (_, first), *_ = world.channels["sms"].attempts
            answers.extend([await report(worker, first, "sms", status) for status in statuses])
            await trio.sleep(60)

    live(run)
    assert file_reader(world.folder / "journal.db").audit().is_balanced
    return answers


@pytest.mark.parametrize("failure", [BUSY, UNKNOWN, TryAgain("provider answered 429")])
@pytest.mark.parametrize(
    ("status", "end"), [("delivered", ("delivered", "sms")), ("failed", "error")], ids=["delivered", "failed"]
)
def test_a_receipt_while_its_retry_waits_ends_the_message(
    world: VirtualWorld, failure: Verdict, status: str, end: object
) -> None:
    """It isn't sent again, and the line doesn't wait for it any more: the worker is idle at once."""
    world.channels["sms"].verdict = lambda _dispatch: failure
    assert reported_during(world, 60, status, until=300) == "recalled"
    assert len(world.channels["sms"].attempts) == 1
    assert told(world) == ["dequeued", "sent", end]


@pytest.mark.slow
def test_a_delivery_of_what_expired_in_doubt_is_told(world: VirtualWorld) -> None:
    """Taken, answer lost, expired before the repeat: the error says that nobody knew, then it is known."""
    expires_at = format_instant(START + 600_000_000)
    world.service.settings[1] = json.dumps({**SMS, "delivery": {"expiresAt": expires_at}})
    world.channels["sms"].verdict = lambda _dispatch: UNKNOWN
    assert reported_one_by_one(world, 6000, "delivered") == ["settled"]
    assert told(world) == ["dequeued", "error", "sent", ("delivered", "sms")]
    assert world.service.events[1]["details"] == f"expired at {expires_at}; sms: outcome unknown"


def gone_to_email(world: VirtualWorld, seconds: float, verdict: Callable[[Dispatch], Verdict]) -> None:
    """The message fails on sms, though the provider took it, and goes to a slow provider of email."""
    world.add(EMAIL)
    world.service.settings[1] = json.dumps(BOTH)
    answers = iter([BUSY])
    world.channels["sms"].verdict = lambda _dispatch: next(answers, Refused("out of service"))
    world.path.write_text(world.path.read_text().replace("attempts = 3", "attempts = 1"))
    world.channels["email"].seconds = seconds
    world.channels["email"].verdict = verdict


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Accepted("e1"), ["dequeued", "sent", ("delivered", "sms")]),
        (TryAgain("busy"), ["dequeued", "sent", ("delivered", "sms")]),
        (UNKNOWN, ["dequeued", "sent", ("delivered", "sms")]),
    ],
    ids=["accepted", "not taken", "in doubt"],
)
def test_a_delivery_on_the_first_channel_while_the_second_one_is_tried_is_told_once(
    world: VirtualWorld, verdict: Verdict, expected: list[object]
) -> None:
    """It is kept until the outcome is known; nothing is tried after it."""
    gone_to_email(world, 100.0, lambda _dispatch: verdict)
    assert reported_during(world, 60, until=300) == "unmatched"
    assert len(world.channels["email"].attempts) == 1
    assert told(world) == expected


def test_a_failure_on_the_first_channel_says_nothing_of_the_second(world: VirtualWorld) -> None:
    gone_to_email(world, 100.0, lambda _dispatch: Accepted("e1"))
    reported_during(world, 60, "failed", until=300)
    assert told(world) == ["dequeued", "sent"]


def test_a_delivery_on_the_first_channel_keeps_a_message_from_the_second(world: VirtualWorld) -> None:
    """It waits for the second one's breaker, and isn't sent there."""
    gone_to_email(world, 0.05, lambda _dispatch: TryAgain("busy"))
    world.add('retry = { attempts = 9, base = "1h", max = "1h" }\n')
    assert reported_during(world, 60, until=300) == "recalled"
    assert len(world.channels["email"].attempts) == 1
    assert told(world) == ["dequeued", "sent", ("delivered", "sms")]
    with closing(sqlite3.connect(world.folder / "journal.db")) as db:
        assert db.execute("SELECT provider, stay FROM message").fetchall() == [("sms", 1)]


def test_what_failed_and_is_delivered_after_all_is_told(world: VirtualWorld) -> None:
    """The provider's second word counts."""
    world.channels["sms"].verdict = lambda _dispatch: Accepted(None)
    answers = reported_one_by_one(world, 60, "failed", "delivered", "failed")
    assert answers == ["matched", "matched", "repeated"]
    assert told(world) == ["dequeued", "sent", "error", ("delivered", "sms")]
