"""A message in doubt is asked for, or said again, when its settings are gone by then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, InDoubt, Taken, TryAgain, Verdict
from deliveryd.model import SECOND, format_instant
from support.messages import message
from support.virtual import START, VirtualWorld, live

LOOKUP = """
retry = { attempts = 4, base = "1s", max = "1s" }
[channels.sms.lookup]
url = "http://provider/{message.key}"
answers = [{ status = [200], verdict = "taken" }]
"""


@pytest.mark.parametrize("now", ["gone", "unreadable"])
@pytest.mark.parametrize("cut_off", ["by a kill", "from its answer"])
def test_a_message_in_doubt_does_not_end_with_its_settings(tmp_path: Path, cut_off: str, now: str) -> None:
    """Its provider is asked for it, or told the same again; it never becomes an error that was sent."""
    world = VirtualWorld(tmp_path)
    world.add(LOOKUP)
    world.service.settings[1] = json.dumps({"content": {"en": {"sms": {"text": "hi"}}}})
    world.service.enqueue(message(1))
    channel = world.channels["sms"]
    channel.lookup_after = 60.0
    send = channel.send

    async def until_in_doubt() -> None:
        with trio.CancelScope() as life:

            async def killed(_: Dispatch) -> Verdict:
                life.cancel()
                await trio.sleep_forever()
                raise AssertionError

            if cut_off == "by a kill":
                channel.send = killed  # type: ignore[method-assign,assignment]
            else:
                channel.verdict = lambda _: InDoubt("cut off")
                life.deadline = trio.current_time() + 5
            await world.run_until_idle()

    live(until_in_doubt)
    channel.send = send  # type: ignore[method-assign]
    asked: list[str] = []

    def found(dispatch: Dispatch) -> Taken:
        asked.append(dispatch.key)
        return Taken("p-1")

    channel.found = found
    if now == "gone":
        del world.service.settings[1]
    else:
        world.service.settings[1] = "{}"
    shutil.rmtree(world.folder / "cache")
    attempts = len(channel.attempts)
    live(world.run_until_idle)
    assert len(asked) + len(channel.attempts) - attempts == 1
    assert world.service.statuses(1)[-1] == "sent"


@pytest.mark.parametrize("now", ["gone", "unreadable", "down"])
@pytest.mark.parametrize("answer", [InDoubt("cut off"), TryAgain("503", may_have_arrived=True)])
def test_nothing_is_repeated_late_once_the_settings_are_gone(
    tmp_path: Path, answer: Verdict, now: str
) -> None:
    """What is kept of a message has its expiry, too: it ends then, and with that reason."""
    world = VirtualWorld(tmp_path)
    world.add('retry = { attempts = 30, base = "10s", max = "10s" }\nbreaker = { failures = 0 }\n')
    world.write(world.path.read_text(encoding="utf-8").replace("[settings]\n", '[settings]\nttl = "5s"\n'))
    world.write(world.path.read_text(encoding="utf-8").replace("ttl", 'stale_while_down = "1s"\nttl'))
    delivery = {"expiresAt": format_instant(START + 30 * SECOND)}
    world.service.settings[1] = json.dumps({"delivery": delivery, "content": {"en": {"sms": {"text": "hi"}}}})
    world.service.enqueue(message(1))
    channel = world.channels["sms"]
    channel.verdict = lambda dispatch: answer if trio.current_time() < 40 else Accepted(dispatch.key)

    def down(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(503) if "settings" in request.url.path else None

    async def run() -> None:
        async with world.at_work():
            await trio.sleep(6)
            if now == "gone":
                del world.service.settings[1]
            elif now == "unreadable":
                world.service.settings[1] = json.dumps({"delivery": {"expiresAt": "soon"}, "content": {}})
            else:
                world.service.trouble = down
            await trio.sleep(120)

    live(run)
    assert max(at for at, _ in channel.attempts) <= 30
    (error,) = world.service.events_of(1, "error")
    assert str(error["details"]).startswith("expired at ")
