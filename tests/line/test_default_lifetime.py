"""`content.default_lifetime`: how long a message is tried whose settings name no expiry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Dispatch, Misconfigured, TryAgain, Verdict
from deliveryd.model import SECOND, format_instant
from support.messages import message
from support.virtual import START, SteppingClock, VirtualWorld, live

SMS = {"content": {"en": {"sms": {"text": "hello"}}}}
MINUTE = 60 * SECOND


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """A world where messages live for an hour, and are tried on and on."""
    world = VirtualWorld(tmp_path)
    world.add('retry = { attempts = 1000, base = "1m", max = "1m" }\n[content]\ndefault_lifetime = "1h"\n')
    world.service.settings[1] = json.dumps(SMS)
    world.service.enqueue(message(1))
    return world


def expiry(world: VirtualWorld, id_: int = 1) -> str:
    """The instant that the service was given, after its words."""
    (event,) = (
        each for each in world.service.events if (each["messageId"], each["status"]) == (id_, "error")
    )
    return str(event["details"]).removeprefix("expired at ").partition(";")[0]


@pytest.mark.slow
@pytest.mark.parametrize("verdict", [TryAgain("busy"), Misconfigured("401")], ids=["busy", "misconfigured"])
def test_a_provider_that_never_accepts_is_not_tried_for_ever(world: VirtualWorld, verdict: Verdict) -> None:
    """On its last channel a message would wait without an end."""
    world.channels["sms"].verdict = lambda _dispatch: verdict
    assert 3600 <= live(world.run_until_idle) < 3660
    assert format_instant(START) <= expiry(world) <= format_instant(START + 61 * MINUTE)


@pytest.mark.slow
def test_it_counts_from_the_take_through_a_kill_and_a_restart(world: VirtualWorld) -> None:
    """Also where the worker was down for most of the time."""

    async def cut_off() -> None:
        with trio.move_on_after(600):
            await world.supervisor().run()

    world.channels["sms"].verdict = lambda _dispatch: TryAgain("busy")
    live(cut_off)
    ((taken_at,),) = world.journal_rows("SELECT taken_at FROM message")
    assert isinstance(taken_at, int)
    world.clock = SteppingClock(55 * MINUTE)
    assert 300 <= live(world.run_until_idle) < 360
    assert expiry(world) == format_instant(taken_at + 60 * MINUTE)
    assert world.service.statuses(1) == ["dequeued", "error"]


def test_the_expiry_of_the_settings_goes_before(world: VirtualWorld) -> None:
    """Whether it is sooner or later."""
    for id_, minutes in ((2, 5), (3, 90)):
        delivery = {"expiresAt": format_instant(START + minutes * MINUTE)}
        world.service.settings[id_] = json.dumps({**SMS, "delivery": delivery})
        world.service.enqueue(message(id_, id_))
    world.channels["sms"].verdict = lambda _dispatch: TryAgain("busy")
    live(world.run_until_idle)
    assert [expiry(world, id_) for id_ in (2, 3)] == [
        format_instant(START + 5 * MINUTE),
        format_instant(START + 90 * MINUTE),
    ]


def test_an_adapter_knows_the_end(world: VirtualWorld) -> None:
    """So that a provider is given the rest of the time as the validity."""
    live(world.run_until_idle)
    ((_, dispatch),) = world.channels["sms"].attempts
    assert dispatch.expires_at == dispatch.entry.taken_at + 60 * MINUTE


def test_without_it_a_message_is_tried_on(world: VirtualWorld) -> None:
    """Nothing ends that the issuer didn't end."""
    world.write(world.path.read_text("utf-8").replace('default_lifetime = "1h"', ""))
    accepts_late = 0

    def after_a_while(dispatch: Dispatch) -> Verdict:
        nonlocal accepts_late
        accepts_late += 1
        return TryAgain("busy") if accepts_late < 90 else world.channels["other"].verdict(dispatch)

    world.channels["sms"].verdict = after_a_while
    live(world.run_until_idle)
    assert world.service.statuses(1) == ["dequeued", "sent"]
