"""Outages of minutes and hours, lived through in virtual time by the real line."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, Misconfigured, TryAgain, Verdict
from deliveryd.model import format_instant
from support.messages import message
from support.virtual import START, VirtualWorld, live

pytestmark = pytest.mark.slow

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello {word}"}}}})


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """A world with one settings id and thirty messages."""
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = SMS
    world.service.enqueue(*(message(id_) for id_ in range(1, 31)))
    return world


def hang_up(_request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("hung up")


def refuse_connection(_request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


TROUBLES: dict[str, Callable[[httpx.Request], httpx.Response]] = {
    "500": lambda _request: httpx.Response(500),
    "503": lambda _request: httpx.Response(503, text="<html>busy</html>"),
    "429 with Retry-After": lambda _request: httpx.Response(429, headers={"Retry-After": "20"}),
    "hanging up": hang_up,
    "no connection": refuse_connection,
    "401": lambda _request: httpx.Response(401),
}
UNREADABLE: dict[str, Callable[[httpx.Request], httpx.Response]] = {
    "half a JSON": lambda _request: httpx.Response(200, text='[{"id": 1, "settin'),
    "HTML": lambda _request: httpx.Response(200, text="<html>welcome</html>"),
    "no array": lambda _request: httpx.Response(200, text='{"messages": []}'),
}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES.keys())
def test_ten_minutes_without_any_endpoint_lose_nothing_and_cause_no_storm(
    world: VirtualWorld, trouble: Callable[[httpx.Request], httpx.Response]
) -> None:
    world.service.trouble = lambda request: (
        trouble(request) if len(world.service.asked) > 1 and trio.current_time() < 600 else None
    )
    world.service.enqueue(*(message(id_) for id_ in range(31, 200)))
    seconds = live(world.run_until_idle)
    assert seconds > 600
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 200))
    assert len(world.channels["sms"].attempts) == 199
    outage = [path for at, path in world.service.asked if at < 600]
    assert 10 < len(outage) < 600


@pytest.mark.parametrize("trouble", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_queue_that_answers_nonsense_for_minutes_is_asked_again_until_it_answers_well(
    world: VirtualWorld, trouble: Callable[[httpx.Request], httpx.Response]
) -> None:
    world.service.trouble = lambda request: (
        trouble(request) if request.url.path == "/queue" and trio.current_time() < 300 else None
    )
    assert live(world.run_until_idle) > 300
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 31))


def test_an_outage_of_the_events_endpoint_stops_the_taking(world: VirtualWorld) -> None:
    world.add("[queue]\nbatch_size = 10\nmax_in_flight = 20\n")
    world.service.trouble = lambda request: (
        httpx.Response(503) if request.url.path == "/events" and trio.current_time() < 900 else None
    )
    taken_at_the_end_of_the_outage: list[int] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.run_until_idle)
            await trio.sleep(899)
            taken_at_the_end_of_the_outage.append(30 - world.service.offers.waiting)

    live(run)
    assert taken_at_the_end_of_the_outage == [20]
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 31))


def test_settings_that_cannot_be_had_hold_up_only_their_own_messages(world: VirtualWorld) -> None:
    world.service.settings[2] = SMS
    world.service.enqueue(message(100, 2))
    world.service.trouble = lambda request: (
        httpx.Response(500) if request.url.path == "/settings/2" and trio.current_time() < 1800 else None
    )
    live(world.run_until_idle)
    at = {dispatch.entry.id: when for when, dispatch in world.channels["sms"].attempts}
    assert all(at[id_] < 5 for id_ in range(1, 31))
    assert 1800 < at[100] < 1900
    assert sum(path == "/settings/2" for _, path in world.service.asked) < 150


@pytest.mark.parametrize(
    "broken", ['{"content": {"en": {"sms": {}}}}', '{"content"', None], ids=["text", "", "404"]
)
def test_a_broken_template_asks_for_no_sends_and_for_few_requests(
    world: VirtualWorld, broken: str | None
) -> None:
    """For five minutes each of its messages ends in an error at once; the others are sent as they come."""
    if broken is not None:
        world.service.settings[2] = broken

    async def run() -> None:
        async with world.at_work():
            for id_ in range(100, 400):
                world.service.enqueue(message(id_, 1 + id_ % 2))
                await trio.sleep(1)
            await trio.sleep(5)

    live(run)
    for id_ in range(100, 400):
        assert world.service.statuses(id_) == ["dequeued", "error" if id_ % 2 else "sent"]
    assert not {one.entry.id for _, one in world.channels["sms"].attempts} & set(range(101, 400, 2))
    assert sum(path == "/settings/2" for _, path in world.service.asked) <= 305 / 30 + 1


def test_a_provider_down_for_minutes_is_retried_until_it_takes_the_messages(world: VirtualWorld) -> None:
    world.add("breaker = { failures = 0 }\n")
    channel = world.channels["sms"]
    channel.verdict = lambda dispatch: (
        TryAgain("provider answered 503") if trio.current_time() < 120 else Accepted(dispatch.key)
    )
    live(world.run_until_idle)
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 31))
    waits = [at for at, dispatch in channel.attempts if dispatch.entry.id == 1]
    gaps = [later - earlier for earlier, later in pairwise(waits)]
    assert len(gaps) >= 4
    assert gaps[-1] > gaps[0] * 4


def test_a_provider_that_never_recovers_ends_in_one_error_that_says_how_often_it_was_tried(
    world: VirtualWorld,
) -> None:
    world.add("breaker = { failures = 0 }\n")
    world.channels["sms"].verdict = lambda _dispatch: TryAgain("provider answered 503")
    live(world.run_until_idle)
    assert world.service.statuses(1) == ["dequeued", "error"]
    (error,) = [
        event for event in world.service.events if event["messageId"] == 1 and event["status"] == "error"
    ]
    assert error["details"] == "sms: provider answered 503 (tried 15 times)"


def test_a_misconfigured_channel_uses_up_no_tries_however_long_it_lasts(world: VirtualWorld) -> None:
    channel = world.channels["sms"]
    channel.verdict = lambda dispatch: (
        Misconfigured("provider answered 401") if trio.current_time() < 1200 else Accepted(dispatch.key)
    )
    live(world.run_until_idle)
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 31))


def test_nothing_is_sent_after_its_expiry_first_attempt_or_retry(world: VirtualWorld) -> None:
    expiry = format_instant(START + 60 * 1_000_000)
    world.service.settings[1] = json.dumps({"delivery": {"expiresAt": expiry}, **json.loads(SMS)})
    channel = world.channels["sms"]
    channel.verdict = lambda _dispatch: TryAgain("provider answered 503")
    live(world.run_until_idle)
    assert max(at for at, _ in channel.attempts) <= 61
    assert world.service.statuses(1) == ["dequeued", "error"]
    errors = {event["details"] for event in world.service.events if event["status"] == "error"}
    assert errors == {f"expired at {expiry}"}


def test_one_slow_message_holds_up_nobody(world: VirtualWorld) -> None:
    channel = world.channels["sms"]

    async def send(dispatch: Dispatch) -> Verdict:
        await trio.sleep(3600 if dispatch.entry.id == 7 else 0.05)
        channel.attempts.append((trio.current_time(), dispatch))
        return Accepted(dispatch.key)

    channel.send = send  # type: ignore[method-assign]
    live(world.run_until_idle)
    at = {dispatch.entry.id: when for when, dispatch in channel.attempts}
    assert at.pop(7) > 3600
    assert max(at.values()) < 5


def test_a_rate_is_kept(world: VirtualWorld) -> None:
    world.add('rate = "2/s"\n')
    live(world.run_until_idle)
    at = sorted(when for when, _ in world.channels["sms"].attempts)
    assert len(at) == 30
    assert at[-1] - at[0] == pytest.approx(14.5, abs=1.5)
    assert all(later - earlier > 0.3 for earlier, later in zip(at, at[2:], strict=False))
