"""One provider's trouble is its own: how fast a channel is beside one that stalls and one that fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx
import pytest
import trio

from deliveryd.channels.base import InDoubt, TryAgain
from support.messages import message
from support.virtual import VirtualWorld, live

pytestmark = pytest.mark.slow

RATE = 20
"""Messages for each channel that come into the queue in a second."""

SECONDS = 60
CHANNELS = ("sms", "email", "messenger")
SETTINGS: Mapping[str, object] = {
    "sms": {"text": "hello"},
    "email": {"subject": "s", "body": "b"},
    "messenger": {"text": "hello"},
}
CONFIG = """
[queue]
max_in_flight = 150
batch_size = 30
[channels.email]
adapter = "http"
url = "http://provider/email"
json = { text = "{content.body}" }
[channels.messenger]
adapter = "http"
url = "http://provider/messenger"
json = { text = "{content.text}" }
"""


class Measured(NamedTuple):
    """What became of the messenger's messages: sent while they came in, and their waits in seconds."""

    sent: int
    median: float
    most: float
    drain: float

    def __str__(self) -> str:
        return (
            f"{self.sent / SECONDS:.2f} sent in a second, waits: median {self.median:.2f} s,"
            f" longest {self.most:.2f} s; end of the worker {self.drain:.2f} s"
        )


Trouble = Callable[[VirtualWorld], None]


def measure(folder: Path, trouble: Trouble) -> Measured:
    """Let messages for three channels come in evenly, and watch the third."""
    folder.mkdir()
    world = VirtualWorld(folder)
    world.add(CONFIG)
    for id_, name in enumerate(CHANNELS):
        world.service.settings[id_] = json.dumps({"content": {"en": {name: SETTINGS[name]}}})
    trouble(world)
    came: dict[int, float] = {}
    drain: list[float] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            supervisor = world.supervisor()
            nursery.start_soon(supervisor.run)
            for number in range(RATE * SECONDS):
                for id_ in range(len(CHANNELS)):
                    came[3 * number + id_] = trio.current_time()
                    world.service.enqueue(message(3 * number + id_, id_))
                await trio.sleep(1 / RATE)
            supervisor.stop()
            drain.append(trio.current_time())
        drain.append(trio.current_time())

    live(run)
    sent = [(at, dispatch.entry.id) for at, dispatch in world.channels["messenger"].attempts]
    waits = sorted(at - came[id_] for at, id_ in sent)
    assert len(waits) == len({id_ for _, id_ in sent})
    return Measured(sum(at <= SECONDS for at, _ in sent), median(waits), waits[-1], drain[1] - drain[0])


def healthy(_world: VirtualWorld) -> None:
    """All providers answer."""


def stalled_and_failing(world: VirtualWorld) -> None:
    """One accepts connections and answers nothing until the time is up; one answers 503."""
    world.channels["sms"].seconds = 10.0
    world.channels["sms"].verdict = lambda _dispatch: InDoubt("no whole answer within 10 s")
    world.channels["email"].verdict = lambda _dispatch: TryAgain("provider answered 503")


def test_beside_a_provider_that_stalls_and_one_that_fails_the_third_is_as_fast_as_ever(
    tmp_path: Path,
) -> None:
    """It sends as much as with all well, but for what comes in between two polls; its waits are as short."""
    alone, beside = measure(tmp_path / "alone", healthy), measure(tmp_path / "beside", stalled_and_failing)
    figures = f"with all well: {alone}; beside a stalled and a failing one: {beside}"
    assert abs(beside.sent - alone.sent) <= RATE, figures
    assert beside.median <= 1.1 * alone.median + 0.1, figures
    assert beside.most <= 1.1 * alone.most + 0.1, figures
    assert alone.sent >= 0.98 * RATE * SECONDS, figures
    assert beside.drain < 12, figures


def test_an_event_that_the_service_fails_at_delays_no_other_message(tmp_path: Path) -> None:
    """One `dequeued` gets 500 each time: of the others `sent` is reported as soon as without it."""
    world = VirtualWorld(tmp_path)
    world.add('[queue]\npoll_interval = "250ms"\nmax_poll_interval = "500ms"\n')
    world.service.settings[1] = json.dumps({"content": {"en": {"sms": SETTINGS["sms"]}}})
    reported: dict[int, float] = {}

    def fail(request: httpx.Request) -> httpx.Response | None:
        events = json.loads(request.content) if request.url.path == "/events" else []
        if any(event["messageId"] == 20 for event in events):
            return httpx.Response(500)
        reported.update(
            {event["messageId"]: trio.current_time() for event in events if event["status"] == "sent"}
        )
        return None

    world.service.trouble = fail

    async def run() -> None:
        async with world.at_work():
            for id_ in range(1, 201):
                world.service.enqueue(message(id_))
                await trio.sleep(1)

    live(run)
    late = [id_ for id_ in range(1, 200) if id_ != 20 and reported.get(id_, 1e9) > id_ + 10]
    assert late == []
