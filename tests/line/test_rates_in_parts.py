"""Rates in SMS parts, on the whole line in virtual time: what a provider gets in each stretch of time."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, TryAgain
from deliveryd.channels.sms_text import sms_parts
from deliveryd.commands.messages.explain import explain
from support.messages import message
from support.virtual import VirtualWorld, live

SHORT, OF_THREE, OF_TWELVE = "a" * 160, "a" * (2 * 153 + 1), "ä€" * 600
"""The last one has characters of two septets."""


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """Three settings ids whose texts have one part, three parts, and twelve."""
    world = VirtualWorld(tmp_path)
    for id_, text in enumerate((SHORT, OF_THREE, OF_TWELVE), 1):
        world.service.settings[id_] = json.dumps({"content": {"en": {"sms": {"text": text}}}})
    world.channels["sms"].seconds = 0.0
    return world


def sent(world: VirtualWorld) -> list[tuple[float, int]]:
    """When the provider was asked, and for how many parts."""
    return [
        (at, sms_parts(each.rendered.fields["text"]).parts) for at, each in world.channels["sms"].attempts
    ]


def most_within(sent: list[tuple[float, int]], seconds: float) -> int:
    return max(sum(parts for at, parts in sent if start <= at < start + seconds) for start, _ in sent)


def enqueue(world: VirtualWorld, count: int, *settings_ids: int) -> None:
    ids = range(1, count + 1)
    world.service.enqueue(
        *(message(id_) | {"settingsId": settings_ids[id_ % len(settings_ids)]} for id_ in ids)
    )


@pytest.mark.parametrize("settings_ids", [(1,), (2,), (3,), (1, 2, 3)], ids=str)
def test_a_rate_in_parts_counts_the_parts_of_each_message(
    world: VirtualWorld, settings_ids: tuple[int, ...]
) -> None:
    """As they are rendered: no second has more than the rate, a twentieth, and one message."""
    world.add('rate = "50 parts/s"\n')
    enqueue(world, 120, *settings_ids)
    live(world.run_until_idle)
    found = sent(world)
    total, longest = sum(parts for _, parts in found), max(parts for _, parts in found)
    assert len(found) == 120
    assert most_within(found, 1.0) <= 50 * 1.05 + longest
    assert found[-1][0] - found[0][0] == pytest.approx(total / 50, rel=0.1, abs=0.3)


def test_a_message_with_more_parts_than_a_second_allows_is_sent_at_once_and_paid_afterwards(
    world: VirtualWorld,
) -> None:
    """At one part a second, a message of twelve parts doesn't wait for ever, and the next one waits 12 s."""
    world.add('rate = "1 parts/s"\n')
    enqueue(world, 3, 3)
    live(world.run_until_idle)
    instants = [at for at, _ in sent(world)]
    assert instants[0] < 5
    assert [round(later - earlier) for earlier, later in pairwise(instants)] == [
        12,
        12,
    ]


def test_repeats_and_probes_use_parts_too(world: VirtualWorld) -> None:
    """While the provider takes nothing and is probed, and when it works again."""
    world.add('rate = "10 parts/s"\nbreaker = { failures = 2, pause = "100ms", max_pause = "200ms" }\n')
    world.channels["sms"].verdict = lambda dispatch: (
        TryAgain("busy") if trio.current_time() < 30 else Accepted(dispatch.key)
    )
    enqueue(world, 20, 2, 3)
    live(world.run_until_idle)
    found = sent(world)
    assert sum(at < 30 for at, _ in found) > 10
    assert most_within(found, 10.0) <= 10 * 10 + 12 + 1


def test_a_reload_changes_between_messages_and_parts(world: VirtualWorld) -> None:
    """What is queued is paced by the new unit."""
    world.add('rate = "50/s"\n')

    async def run() -> None:
        async with world.at_work() as worker:
            await worker.opened.wait()
            enqueue(world, 600, 2)
            await trio.sleep(4)
            world.path.write_text(world.path.read_text().replace("50/s", "30 parts/s"))
            worker.reload()
            await trio.sleep(2)
            begun = trio.current_time()
            await trio.sleep(10)
            late = sum(parts for at, parts in sent(world) if begun <= at < begun + 10)
            assert late == pytest.approx(300, abs=6)
            assert worker.health.overview().providers[0].rate_limit == "30 parts/s"
            counted = worker.parts.metrics.parts.series["sms", "sms"]
            assert counted == pytest.approx(30 * 12, abs=50)

    live(run)


def test_a_rate_in_messages_counts_no_parts(world: VirtualWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is counted where no rate is in parts."""
    world.add('rate = "50/s"\n')
    counted: list[Dispatch] = []
    monkeypatch.setattr("deliveryd.delivery.message.count_parts", counted.append)
    enqueue(world, 50, 3)
    live(world.run_until_idle)
    assert len(sent(world)) == 50
    assert not counted


def test_explain_shows_the_rate_with_its_unit(
    world: VirtualWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a message that waits for its provider."""
    world.add('rate = "1 parts/s"\nconcurrency = 1\n')
    world.channels["sms"].verdict = lambda _: TryAgain("busy", only_this=True)

    async def run() -> None:
        async with world.at_work():
            enqueue(world, 1, 2)
            await trio.sleep(5)

    live(run)
    explain(config=world.path, message_id=1)
    assert re.search(
        r"^  channel +sms, tries so far: [1-9], rate 1 part/s$", capsys.readouterr().out, re.MULTILINE
    )


def test_explain_shows_that_a_message_may_be_queued_at_its_provider(
    world: VirtualWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """The journal knows no more of one that waits there for the rate."""
    world.add('rate = "1/m"\nconcurrency = 1\n')

    enqueue(world, 3, 1)

    async def run() -> None:
        with trio.move_on_after(5):
            await world.supervisor().run()

    live(run)
    explain(config=world.path, message_id=3)
    assert capsys.readouterr().out.startswith("message 3: ready; being prepared, or queued at its provider\n")
