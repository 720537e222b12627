"""Settings ids take turns at a provider with a backlog, and some go first, over restarts and crashes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, TryAgain, Verdict
from deliveryd.commands.messages.explain import explain
from support.messages import message
from support.virtual import VirtualWorld, live

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})

SLOW = """
rate = "10/s"
[channels.email]
adapter = "http"
url = "http://provider/email"
json = { text = "{content.body}" }
[queue]
max_in_flight = 40
batch_size = 20
poll_interval = "250ms"
max_poll_interval = "250ms"
"""
"""A slow provider with 20 places, beside another one: what finds no place waits in the journal."""

CAMPAIGN, CODES = 1, 99
BACKLOG = 400
"""Messages of the campaign: 40 seconds at the provider's rate."""

OTHERS = range(2, 7)
A_TURN = 3.0
"""Seconds for what is under way, a turn of each id in the journal, and one in the queue."""


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """A world with a slow provider and many settings."""
    world = VirtualWorld(tmp_path)
    world.add(SLOW)
    world.service.settings.update(dict.fromkeys(range(1, 100), SMS))
    return world


class Waits:
    """How long messages wait from when they are put into the service's queue."""

    def __init__(self, world: VirtualWorld) -> None:
        self._world = world
        self._came: dict[int, float] = {}

    def enqueue(self, settings_ids: Iterable[int]) -> list[int]:
        """Put a message of each of these settings ids into the queue; return the messages' ids."""
        ids = []
        for settings_id in settings_ids:
            ids.append(id_ := len(self._came) + 1)
            self._came[id_] = trio.current_time()
            self._world.service.enqueue(message(id_, settings_id))
        return ids

    def longest(self, ids: Iterable[int]) -> float:
        """The longest wait of these messages until their first attempt."""
        first: dict[int, float] = {}
        for at, made in self._world.channels["sms"].attempts:
            first.setdefault(made.entry.id, at)
        return max(first[id_] - self._came[id_] for id_ in ids)


def sent(world: VirtualWorld) -> Counter[int]:
    """How often each message was sent."""
    return Counter(made.entry.id for _, made in world.channels["sms"].attempts)


def reported(world: VirtualWorld) -> list[int]:
    """The messages whose `sent` was reported, in their order."""
    return sorted(event["messageId"] for event in world.service.events if event["status"] == "sent")


def delayed_by_a_turn(world: VirtualWorld, after: float) -> None:
    """Assert that messages wait for a turn that come so many seconds `after` a campaign, and none is lost."""
    waits = Waits(world)

    async def run() -> None:
        waits.enqueue([CAMPAIGN] * BACKLOG)
        async with world.at_work():
            await trio.sleep(after)
            ids = waits.enqueue(OTHERS)
            await trio.sleep(60)
        assert waits.longest(ids) < A_TURN

    live(run)
    assert reported(world) == list(range(1, BACKLOG + len(OTHERS) + 1))


def test_a_campaign_delays_other_messages_by_a_turn(world: VirtualWorld) -> None:
    """Its backlog is 40 seconds long; what comes meanwhile is sent within a few, and nothing is lost."""
    delayed_by_a_turn(world, after=10)


def test_it_does_after_a_restart(world: VirtualWorld) -> None:
    """The worker is stopped with both in the journal; the next one continues with a turn for each."""
    waits = Waits(world)

    async def run() -> None:
        waits.enqueue([CAMPAIGN] * BACKLOG)
        async with world.at_work():
            await trio.sleep(10)
        ids = waits.enqueue(OTHERS)
        await world.run_until_idle()
        assert waits.longest(ids) < A_TURN + 2

    live(run)
    assert set(sent(world).values()) == {1}
    assert reported(world) == list(range(1, BACKLOG + len(OTHERS) + 1))


def test_it_does_after_a_kill(world: VirtualWorld) -> None:
    """A second after the others came: they are in the line's hands, or in the journal."""
    waits = Waits(world)
    ids: list[int] = []

    async def run() -> None:
        waits.enqueue([CAMPAIGN] * BACKLOG)
        with trio.move_on_after(11), trio.CancelScope():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.supervisor().run)
                await trio.sleep(10)
                ids.extend(waits.enqueue(OTHERS))
                await trio.sleep_forever()
        await world.run_until_idle()
        assert waits.longest(ids) < A_TURN + 2

    live(run)
    assert sum(sent(world).values()) <= BACKLOG + len(OTHERS) + 10  # what was under way is in doubt
    assert reported(world) == list(range(1, BACKLOG + len(OTHERS) + 1))


def test_repeats_of_a_campaign_delay_other_messages_by_a_turn(world: VirtualWorld) -> None:
    """Its provider puts off all of it for 20 seconds: 200 repeats are due when the others come."""
    put_off: set[int] = set()

    def verdict(made: Dispatch) -> Verdict:
        if made.entry.settings_id != CAMPAIGN or made.entry.id in put_off or len(put_off) == BACKLOG // 2:
            return Accepted(made.key)
        put_off.add(made.entry.id)
        return TryAgain("later", after=20.0, only_this=True)

    world.channels["sms"].verdict = verdict
    delayed_by_a_turn(world, after=41)


def test_codes_go_first_from_a_reload_on_and_leave_a_share_to_the_others(world: VirtualWorld) -> None:
    """Thirty campaigns wait, whose turns take three seconds; a code waits for one of them, then for none.

    While more codes come than can be sent, one of ten messages is of a campaign.
    """
    waits = Waits(world)

    async def run() -> None:
        waits.enqueue(list(range(1, 31)) * 20)
        async with world.at_work() as worker:
            await trio.sleep(10)
            before = waits.enqueue([CODES])
            await trio.sleep(10)
            world.add(f'[[rules]]\nsettings = [{CODES}]\npriority = "high"\n')
            assert worker.reloader is not None
            await worker.reloader.reload(accept_orphans=False)
            after = waits.enqueue([CODES])
            await trio.sleep(10)
            waits.enqueue([CODES] * 400)
            await trio.sleep(5)
            seen = len(world.channels["sms"].attempts)
            await trio.sleep(20)
            made = [each.entry.settings_id for _, each in world.channels["sms"].attempts[seen:]]
            await trio.sleep(60)
        assert waits.longest(before) > 2 * waits.longest(after)
        assert waits.longest(after) < 1
        assert made.count(CODES) == pytest.approx(0.9 * len(made), abs=5)

    live(run)
    assert set(sent(world).values()) == {1}
    assert len(reported(world)) == 600 + 402


def test_explain_shows_the_turn_of_a_message_that_waits(
    world: VirtualWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others of its settings id are ahead, and other ids take turns with it; a rule gives its priority."""
    waits = Waits(world)
    world.add(f'[[rules]]\nsettings = [{CAMPAIGN}]\npriority = "low"\n')

    async def run() -> None:
        waits.enqueue([CAMPAIGN] * 60)
        waits.enqueue(range(2, 42))
        async with world.at_work():
            await trio.sleep(2)

    live(run)
    query = "SELECT max(id) FROM message WHERE settings_id = 1 AND waits_for = 'room sms'"
    ((last,),) = world.journal_rows(query)
    explain(config=world.path, message_id=int(str(last)))
    lines = capsys.readouterr().out.splitlines()
    ((ahead,),) = world.journal_rows("SELECT count(*) - 1 FROM message WHERE settings_id = 1 AND state = 3")
    others = world.journal_rows(
        "SELECT DISTINCT settings_id FROM message WHERE settings_id > 1 AND waits_for = 'room sms'"
    )
    assert "  settings   1, priority low" in lines
    assert [line.strip() for line in lines if "ahead" in line or "take turns" in line] == [
        f"messages of its settings id that are ahead: {ahead}",
        f"other settings ids that wait there and take turns with it: {len(others)}",
    ]
