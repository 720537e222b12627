"""A message in doubt is asked for, or said again, when its settings are gone by then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Dispatch, InDoubt, Taken, Verdict
from support.messages import message
from support.virtual import VirtualWorld, live

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
