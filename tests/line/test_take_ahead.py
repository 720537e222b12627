"""What is taken ahead waits in the journal for a place: it is bounded, and the important passes it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import httpx
import pytest
import trio

from deliveryd.commands.messages.explain import explain
from support.messages import message
from support.virtual import START, VirtualWorld, live

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})

ONE_PROVIDER = """
rate = "10/s"
[queue]
max_in_flight = 40
batch_size = 20
poll_interval = "250ms"
max_poll_interval = "250ms"
take_ahead = AHEAD
[[rules]]
settings = [99]
priority = "high"
"""
CAMPAIGN, CODES = 1, 99
BACKLOG = 400
"""Messages of the campaign: 40 seconds at the provider's rate."""

CODE = 1000
PROMPT = 2.0
"""Seconds in which a code is sent: the report of `dequeued`, a free place, and the message before it."""


def world_with(folder: Path, ahead: int) -> VirtualWorld:
    """A world with one slow provider, a campaign in the queue, and so many that are taken ahead."""
    world = VirtualWorld(folder)
    world.add(ONE_PROVIDER.replace("AHEAD", str(ahead)))
    world.service.settings.update(dict.fromkeys((*range(1, 10), CODES), SMS))
    world.service.enqueue(*(message(id_, CAMPAIGN) for id_ in range(1, BACKLOG + 1)))
    return world


def test_it_begins_at_once_at_a_provider_that_frees_places_all_the_time(tmp_path: Path) -> None:
    """At 60/s, reported at once, there are always some places, and never enough for a whole batch."""
    world = world_with(tmp_path, 1000)
    text = world.path.read_text(encoding="utf-8").replace('rate = "10/s"', 'rate = "60/s"\nconcurrency = 200')
    world.write(text + '[events]\nflush_interval = "20ms"\n')

    async def run() -> None:
        async with world.at_work():
            await trio.sleep(1)
            assert left_in_queue(world) == 0

    live(run)


def wait_of_a_code(world: VirtualWorld) -> float:
    """Run until all is sent; return how long a code waited that came ten seconds after the campaign."""

    async def run() -> None:
        async with world.at_work():
            await trio.sleep(10)
            world.service.enqueue(message(CODE, CODES))
            await trio.sleep(60)

    live(run)
    return began(world)[CODE] - 10


def began(world: VirtualWorld) -> dict[int, float]:
    """When the first attempt of each message ended."""
    first: dict[int, float] = {}
    for at, made in world.channels["sms"].attempts:
        first.setdefault(made.entry.id, at)
    return first


def all_reported(world: VirtualWorld, messages: int) -> bool:
    """Whether each message was sent once, and reported once."""
    statuses = Counter((event["messageId"], event["status"]) for event in world.service.events)
    made = Counter(each.entry.id for _, each in world.channels["sms"].attempts)
    return set(made.values()) == {1} and list(statuses.values()) == [1] * 2 * messages


def left_in_queue(world: VirtualWorld) -> int:
    """How many messages the service still has."""
    return world.service.offers.waiting


def test_a_code_passes_a_campaign_that_was_taken_ahead(tmp_path: Path) -> None:
    """Without it, the code waits at the service until the campaign has left it."""
    for folder in ("without", "with"):
        (tmp_path / folder).mkdir()
    without, with_it = world_with(tmp_path / "without", 0), world_with(tmp_path / "with", 1000)
    assert wait_of_a_code(without) > 20
    assert wait_of_a_code(with_it) < PROMPT
    assert all_reported(without, BACKLOG + 1)
    assert all_reported(with_it, BACKLOG + 1)


def test_a_campaign_goes_in_its_order(tmp_path: Path) -> None:
    """What comes later waits behind what was taken ahead, also while places are free again and again."""
    world = world_with(tmp_path, 100)
    wait_of_a_code(world)
    order = [id_ for id_ in began(world) if id_ != CODE]
    assert max(abs(id_ - place) for place, id_ in enumerate(order, 1)) < 40  # what is in flight


def test_no_more_are_taken_ahead_than_may_wait(tmp_path: Path) -> None:
    """The rest stays at the service, and is taken as the others leave the journal."""
    world = world_with(tmp_path, 100)
    counts: list[int] = []

    async def run() -> None:
        async with world.at_work():
            for _ in range(60):
                await trio.sleep(1)
                sent = len(world.channels["sms"].attempts)
                counts.append(BACKLOG - left_in_queue(world) - sent)

    live(run)
    assert max(counts) <= 100 + 40
    assert (
        min(counts[2:20]) > 100 + 40 - 3 * 20
    )  # one batch on its way, one less than fits, and what was sent
    assert all_reported(world, BACKLOG)


def test_while_the_service_accepts_no_dequeued_no_more_are_taken_than_places(tmp_path: Path) -> None:
    """An outage of the events endpoint stops the taking; after it all goes on."""
    world = world_with(tmp_path, 1000)
    world.service.trouble = lambda request: (
        httpx.Response(503) if request.url.path == "/events" and trio.current_time() < 20 else None
    )
    left: list[int] = []

    async def run() -> None:
        async with world.at_work():
            await trio.sleep(19)
            left.append(left_in_queue(world))
            await trio.sleep(80)

    live(run)
    assert BACKLOG - left[0] <= 2 * 40
    assert all_reported(world, BACKLOG)


@pytest.mark.parametrize("seconds", [0.3, 1.0, 5.0, 12.0])
def test_a_kill_loses_nothing_of_it(tmp_path: Path, seconds: float) -> None:
    """At any time: before `dequeued` was accepted, and in the journal. The code passes after it, too."""
    world = world_with(tmp_path, 1000)

    async def run() -> None:
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.supervisor().run)
                await trio.sleep_forever()
        await trio.sleep(5)
        world.service.enqueue(message(CODE, CODES))
        begin = trio.current_time()
        await world.run_until_idle()
        assert began(world)[CODE] - begin < PROMPT + 2  # the campaign has to be taken before it

    live(run)
    made = Counter(each.entry.id for _, each in world.channels["sms"].attempts)
    assert set(made) == {*range(1, BACKLOG + 1), CODE}
    assert sum(made.values()) <= BACKLOG + 1 + 10  # what was under way is in doubt
    statuses = Counter((event["messageId"], event["status"]) for event in world.service.events)
    assert set(statuses) == {(id_, status) for id_ in made for status in ("dequeued", "sent")}


def test_a_reload_applies_it(tmp_path: Path) -> None:
    """Taking ahead begins with a reload, and stops with one: then as many are taken as there are places."""
    world = world_with(tmp_path, 0)
    left: list[int] = []

    async def run() -> None:
        async with world.at_work() as worker:
            await trio.sleep(1)
            assert worker.reloader is not None
            for ahead in (0, 200, 0):
                text = world.path.read_text(encoding="utf-8")
                before = next(line for line in text.splitlines() if line.startswith("take_ahead"))
                world.write(text.replace(before, f"take_ahead = {ahead}"))
                await worker.reloader.reload(accept_orphans=False)
                await trio.sleep(5)
                left.append(left_in_queue(world))
            await trio.sleep(60)

    live(run)
    assert left[0] > BACKLOG - 40 - 60
    assert left[1] < BACKLOG - 200
    assert left[1] - left[2] <= 5 * 10  # what was sent meanwhile
    assert all_reported(world, BACKLOG)


def test_what_expires_meanwhile_ends_as_error(tmp_path: Path) -> None:
    """It isn't sent late; its end is reported when it is fetched, an hour after the take at the latest."""
    world = world_with(tmp_path, 1000)
    instant = "2027-01-15T08:00:15Z"  # 15 seconds after the start
    assert START == 1_800_000_000_000_000
    settings = {"content": {"en": {"sms": {"text": "hello"}}}, "delivery": {"expiresAt": instant}}
    world.service.settings[CAMPAIGN] = json.dumps(settings)

    async def run() -> None:
        await world.run_until_idle()

    assert live(run) < 3600
    ended = Counter(event["status"] for event in world.service.events)
    assert ended["sent"] == len(world.channels["sms"].attempts)
    assert ended["sent"] + ended["error"] == BACKLOG
    assert 100 < ended["sent"] <= 160
    assert max(began(world).values()) <= 15.1


def test_explain_shows_what_it_waits_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A place, its priority, and how many of its settings id are ahead of it."""
    world = world_with(tmp_path, 1000)

    async def run() -> None:
        async with world.at_work():
            await trio.sleep(2)

    live(run)
    explain(config=world.path, message_id=BACKLOG)
    out = capsys.readouterr().out
    assert "one of the places in flight (queue.max_in_flight)" in out
    ((ahead,),) = world.journal_rows("SELECT count(*) - 1 FROM message WHERE waits_for = 'room '")
    assert f"messages of its settings id that are ahead: {ahead}" in out
