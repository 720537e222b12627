"""A message that leaves a provider leaves all of its stay there: no content of one goes out at another."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, InDoubt, TryAgain, Verdict
from deliveryd.directory.base import NoDirectory
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.model import Customer
from deliveryd.states import State
from support.messages import message
from support.virtual import CONFIG, VirtualSupervisor, VirtualWorld, live

BUSY = TryAgain("provider answered 503", may_have_arrived=True)
LOST = InDoubt("the connection broke")

CHANNELS = json.dumps({"content": {"en": {"sms": {"text": "hello"}, "email": {"subject": "s", "body": "b"}}}})
EMAIL = """
[channels.email]
adapter = "http"
url = "http://provider/email"
json = { text = "{content.body}" }
"""
BEFORE, _, SMS = CONFIG.partition("[channels.sms]")
PROVIDER = """
[channels.sms.providers.{name}]
adapter = "http"
url = "http://{name}/sms"
json = {{ text = "{{content.text}}" }}
"""


class Everybody(NoDirectory):
    """All customers have the same phone number."""

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Any]:
        return {id_: Customer(id_, {"phone": "+447700900101"}) for id_ in ids}


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """A world with settings 1 and one message."""
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = CHANNELS
    world.service.enqueue(message(1))
    return world


def providers(*names: str) -> str:
    """The configuration with these providers of one channel."""
    return BEFORE + "".join(PROVIDER.format(name=name) for name in names)


def begin(world: VirtualWorld, seconds: float = 3.0) -> None:
    """Run a worker that dies after so many seconds."""

    async def run() -> None:
        with trio.move_on_after(seconds):
            await world.run_until_idle()

    live(run)


def contents(world: VirtualWorld) -> dict[str, set[str]]:
    """What went out, by key."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name, channel in world.channels.items():
        for _, dispatch in channel.attempts:
            found[f"{name} {dispatch.key}"].add(dispatch.rendered.block + str(dict(dispatch.rendered.fields)))
    return dict(found)


def lost_at_first(world: VirtualWorld, name: str) -> None:
    """The answer to the first attempt at a provider is lost."""
    channel = world.channels[name]
    channel.verdict = lambda dispatch: Accepted(dispatch.key) if len(channel.attempts) > 1 else LOST


def test_after_a_503_and_a_removal_the_next_channel_repeats_its_own_content(world: VirtualWorld) -> None:
    """The worker is restarted without the channel, and the first answer of the next one is lost."""
    world.channels["sms"].verdict = lambda _: BUSY
    world.add(EMAIL)
    begin(world)
    world.write(BEFORE + EMAIL.lstrip())
    lost_at_first(world, "email")
    live(world.run_until_idle)
    mail = [dispatch.rendered.block for _, dispatch in world.channels["email"].attempts]
    assert mail == ["email", "email"]
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_no_key_has_two_contents_after_a_provider_of_the_channel_was_removed(world: VirtualWorld) -> None:
    """Each provider's content is rendered anew; the settings were changed between the two runs."""
    world.write(providers("a", "b"))
    for name in ("sms/a", "sms/b"):
        world.channels[name].verdict = lambda _: BUSY
    begin(world)
    first = next(name for name in ("a", "b") if world.channels[f"sms/{name}"].attempts)
    other = "b" if first == "a" else "a"
    world.channels[f"sms/{other}"].attempts.clear()
    world.write(providers(other))
    world.service.settings[1] = CHANNELS.replace("hello", "bye")
    for file in (world.folder / "cache").iterdir():
        file.unlink()
    lost_at_first(world, f"sms/{other}")
    live(world.run_until_idle)
    assert all(len(said) == 1 for said in contents(world).values())
    assert contents(world)[f"sms/{other} {world.channels[f'sms/{other}'].attempts[0][1].key}"] == {
        "sms{'text': 'bye'}"
    }


@pytest.mark.slow
def test_a_provider_that_is_back_does_not_get_its_old_key_with_new_content(world: VirtualWorld) -> None:
    """It was removed after a 503: for this message it is spent, and the error says why."""
    world.write(providers("a"))
    world.channels["sms/a"].verdict = lambda _: BUSY
    begin(world)
    tries = len(world.channels["sms/a"].attempts)
    world.channels["sms/b"].verdict = lambda _: TryAgain("busy", only_this=True)
    world.write(providers("b"))
    begin(world)
    world.write(providers("a", "b"))
    live(world.run_until_idle)
    assert len(world.channels["sms/a"].attempts) == tries
    (error,) = world.service.events_of(1, "error")
    assert str(error["details"]).startswith("sms/a: the provider was removed; sms/b: busy (tried ")


def test_a_message_that_was_only_tried_in_vain_comes_back_to_its_provider(world: VirtualWorld) -> None:
    """No connection was made, so the provider has nothing of it and isn't spent."""
    world.write(providers("a"))
    world.channels["sms/a"].verdict = lambda _: TryAgain("no connection")
    begin(world)
    world.channels["sms/b"].verdict = lambda _: TryAgain("busy")
    world.write(providers("b"))
    begin(world)
    world.channels["sms/a"].verdict = lambda dispatch: Accepted(dispatch.key)
    world.write(providers("a"))
    live(world.run_until_idle)
    assert world.service.statuses(1) == ["dequeued", "sent"]


@pytest.mark.slow
def test_a_provider_that_was_left_while_it_was_down_stays_spent_after_a_crash(world: VirtualWorld) -> None:
    """The worker dies in the first attempt at the other one: its intent says which one was left."""
    world.write(providers("a", "b"))
    world.service.enqueue(*(message(id_) for id_ in range(2, 41)))
    world.channels["sms/a"].verdict = lambda _: BUSY

    async def hang(dispatch: Dispatch) -> Verdict:  # as in the protocol
        await trio.sleep_forever()
        raise AssertionError

    world.channels["sms/b"].send = hang  # type: ignore[method-assign]
    begin(world, 600.0)
    left = world.journal_rows(
        "SELECT spent FROM message WHERE state = 4 AND provider = 'sms/b' AND EXISTS"
        " (SELECT 1 FROM unaccepted WHERE message_id = id AND unaccepted.provider = 'sms/a')"
    )
    assert left
    assert all(str(spent).startswith('[["sms/a",') for (spent,) in left)


@pytest.mark.parametrize("how", ["reload", "restart"])
@pytest.mark.parametrize("answer", [BUSY, TryAgain("provider answered 429", after=3000.0)])
def test_what_waits_at_a_provider_that_is_disabled_goes_to_the_next_channel_at_once(
    world: VirtualWorld, answer: TryAgain, how: str
) -> None:
    """After a 503 it would wait there for ever, since nobody is given up that isn't enabled."""
    retry = 'retry = { attempts = 6, base = "2s", max = "5s" }\n'
    world.write(CONFIG + retry + EMAIL)
    world.channels["sms"].verdict = lambda _: answer
    world.service.enqueue(*(message(id_) for id_ in range(2, 11)))

    async def run() -> None:
        async with world.at_work() as worker:
            await trio.sleep(20)
            world.write(CONFIG + retry + "enabled = false\n" + EMAIL)
            if how == "reload":
                assert worker.reloader is not None
                await worker.reloader.reload(accept_orphans=False)
                await trio.sleep(20)

    async def again() -> None:
        async with world.at_work():
            await trio.sleep(20)

    live(run)
    if how == "restart":
        live(again)
    assert len(world.channels["email"].attempts) == 10
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 11))


def test_what_waits_at_a_provider_that_is_disabled_ends_with_the_reason(world: VirtualWorld) -> None:
    """Without another channel nothing else can take it."""
    world.channels["sms"].verdict = lambda _: BUSY
    begin(world)
    world.add("enabled = false\n")
    live(world.run_until_idle)
    (error,) = world.service.events_of(1, "error")
    assert error["details"] == "sms: the provider was disabled"


def test_what_was_answered_503_is_not_sent_to_who_stopped_meanwhile(world: VirtualWorld) -> None:
    """Nothing of it is in doubt, so that the next channel takes it, as with a message not tried yet."""
    world.write(CONFIG + 'retry = { attempts = 6, base = "60s", max = "60s" }\n' + EMAIL)
    world.directory = Everybody()
    channel = world.channels["sms"]
    channel.customer_fields = frozenset({"phone"})
    channel.reaches = lambda customer: customer is not None  # type: ignore[method-assign]
    channel.verdict = lambda dispatch: BUSY if len(channel.attempts) < 2 else Accepted(dispatch.key)

    async def run() -> None:
        async with world.at_work() as worker:
            await trio.sleep(5)
            order = Order(Action.STOP, ItemKind.RECIPIENT, ("sms +447700900101",))
            assert (await worker.parts.recorder.decide(order, ["sms", "email"])).done
            await trio.sleep(300)

    live(run)
    assert len(channel.attempts) == 1
    assert [dispatch.rendered.block for _, dispatch in world.channels["email"].attempts] == ["email"]
    assert world.journal_rows("SELECT spent FROM message") == [
        ('[["sms","the recipient is suppressed",false]]',)
    ]


async def reload(world: VirtualWorld, worker: VirtualSupervisor, text: str) -> None:
    """Let a worker go on by another configuration."""
    world.write(text)
    assert worker.reloader is not None
    await worker.reloader.reload(accept_orphans=True)


def without_sms(world: VirtualWorld, how: str) -> str:
    """The configuration with the provider sms disabled or removed."""
    if how == "removed":
        return BEFORE + EMAIL
    text = world.path.read_text(encoding="utf-8")
    return text.replace("[channels.sms]\n", "[channels.sms]\nenabled = false\n")


@pytest.mark.parametrize("how", ["disabled", "removed"])
@pytest.mark.parametrize("answer", [BUSY, TryAgain("provider answered 503", 3000.0, may_have_arrived=True)])
def test_an_attempt_during_a_reload_does_not_keep_its_message_at_the_provider(
    world: VirtualWorld, how: str, answer: TryAgain
) -> None:
    """Its step is recorded after those were released that waited; the next look comes within a minute."""
    world.add(EMAIL)
    world.channels["sms"].seconds = 8.0
    world.channels["sms"].verdict = lambda _: answer

    async def run() -> None:
        async with world.at_work() as worker:
            await trio.sleep(4)
            await reload(world, worker, without_sms(world, how))
            await trio.sleep(90)

    live(run)
    assert len(world.channels["sms"].attempts) == 1
    assert world.service.statuses(1) == ["dequeued", "sent"]


@pytest.mark.parametrize("how", ["disabled", "removed"])
@pytest.mark.parametrize("by_reload", [True, False])
def test_what_is_held_after_a_503_leaves_its_provider(
    world: VirtualWorld, how: str, *, by_reload: bool
) -> None:
    """It was held since its kept content doesn't fit any more: there is no doubt that keeps it."""
    world.add(EMAIL)
    channel = world.channels["sms"]
    channel.verdict = lambda _: TryAgain("provider answered 503", 5.0, may_have_arrived=True)

    async def run() -> None:
        async with world.at_work() as worker:
            await trio.sleep(1)
            channel.reaches = lambda customer: False  # type: ignore[method-assign]  # noqa: ARG005
            await trio.sleep(60)
            assert world.journal_rows("SELECT state, doubt FROM message") == [(State.IN_DOUBT, 0)]
            text = without_sms(world, how)
            if by_reload:
                await reload(world, worker, text)
                await trio.sleep(10)
                assert worker.parts.memory.backlog.count == 0
        world.write(text)
        if not by_reload:
            async with world.at_work():
                await trio.sleep(10)

    live(run)
    assert world.service.statuses(1) == ["dequeued", "sent"]
    assert world.journal_rows("SELECT provider, spent FROM message") == [
        ("email", f'[["sms","the provider was {how}",false]]')
    ]
