"""A reload while something is paused, and what is removed while it is paused: on the real line."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from deliveryd.channels.base import InDoubt, TryAgain
from deliveryd.errors import ConfigError
from deliveryd.journal.orders import Action, ItemKind, Order
from support.messages import message
from support.virtual import CONFIG, VirtualSupervisor, VirtualWorld, live

pytestmark = pytest.mark.slow

BOTH = json.dumps({"content": {"en": {"sms": {"text": "hi"}, "email": {"subject": "s", "body": "b"}}}})
QUICK = """
[queue]
poll_interval = "100ms"
max_poll_interval = "1s"
"""
HEAD = CONFIG[: CONFIG.index("[channels.sms]")] + QUICK
PROVIDER_A = """
[channels.sms.providers.a]
adapter = "http"
url = "http://a/"
json = { text = "{content.text}" }
"""
PROVIDER_B = PROVIDER_A.replace("providers.a]", "providers.b]").replace("http://a/", "http://b/")
E_MAIL = """
[channels.email]
adapter = "http"
url = "http://email/"
json = { text = "{content.body}" }
"""
ORDER = '[channels]\norder = ["sms", "email"]\n'
A, B, EMAIL = "sms/a", "sms/b", "email"


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    world = VirtualWorld(tmp_path)
    world.service.settings = {1: BOTH}
    world.write(HEAD + ORDER + PROVIDER_A)
    return world


async def carry_out(worker: VirtualSupervisor, verb: Action, kind: ItemKind, key: object) -> tuple[str, ...]:
    """An order as the control socket gives it; what was done."""
    parts = worker.parts
    order = Order(verb, kind, (str(key),), "ops", None, "a test")
    return (await parts.recorder.decide(order, parts.stations.dispatchers)).done


async def reload(worker: VirtualSupervisor, *, accept_orphans: bool = False) -> None:
    assert worker.reloader is not None
    await worker.reloader.reload(accept_orphans=accept_orphans)


def sent(world: VirtualWorld, provider: str) -> list[int]:
    return [dispatch.entry.id for _, dispatch in world.channels[provider].attempts]


def play(world: VirtualWorld, scene: Callable[[VirtualSupervisor], Awaitable[None]]) -> None:
    """Play a scene with a running worker."""
    worker = world.supervisor()

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.run)
            await anyio.sleep(1.0)
            await scene(worker)
            worker.stop()

    live(run)


def test_a_provider_that_a_reload_added_can_be_paused(world: VirtualWorld) -> None:
    """The pause is in force at once."""

    async def scene(worker: VirtualSupervisor) -> None:
        world.write(HEAD + ORDER + PROVIDER_A + PROVIDER_B)
        await reload(worker)
        assert await carry_out(worker, Action.PAUSE, ItemKind.PROVIDER, B)
        world.service.enqueue(*(message(id_) for id_ in range(1, 41)))
        await anyio.sleep(10.0)
        assert (len(sent(world, A)), sent(world, B)) == (40, [])

    play(world, scene)


def test_what_waits_for_a_paused_provider_goes_to_one_that_a_reload_added(world: VirtualWorld) -> None:
    """At once, while the pause goes on."""

    async def scene(worker: VirtualSupervisor) -> None:
        assert await carry_out(worker, Action.PAUSE, ItemKind.PROVIDER, A)
        world.service.enqueue(*(message(id_) for id_ in range(1, 41)))
        await anyio.sleep(10.0)
        assert worker.parts.memory.backlog.paused == 40
        world.write(HEAD + ORDER + PROVIDER_A + PROVIDER_B)
        await reload(worker)
        await anyio.sleep(10.0)
        assert (sent(world, A), len(sent(world, B))) == ([], 40)
        assert worker.parts.memory.backlog.paused == 0

    play(world, scene)


def parked_at_a(world: VirtualWorld, kind: ItemKind, key: str, text: str, *, by_reload: bool) -> None:
    """Pause what message 1 got a 503 from, and message 2 was not tried at; then go on by another file."""
    world.channels[A].verdict = lambda _dispatch: TryAgain("503", 20.0, may_have_arrived=True)

    async def scene(worker: VirtualSupervisor) -> None:
        world.service.enqueue(message(1))
        await anyio.sleep(3.0)
        assert await carry_out(worker, Action.PAUSE, kind, key)
        world.service.enqueue(message(2))
        await anyio.sleep(60.0)
        assert world.journal_rows("SELECT provider FROM message ORDER BY id") == [(A,), ("",)]
        assert worker.parts.memory.backlog.paused == 2
        if by_reload:
            await goes_on(worker)

    async def goes_on(worker: VirtualSupervisor) -> None:
        if by_reload:
            world.write(text)
            await reload(worker, accept_orphans=True)
        await anyio.sleep(90.0)
        assert worker.parts.memory.backlog.paused == worker.parts.memory.backlog.count == 0

    play(world, scene)
    if not by_reload:
        world.write(text)
        play(world, goes_on)


@pytest.mark.parametrize("by_reload", [True, False])
@pytest.mark.parametrize("how", ["disabled", "removed"])
@pytest.mark.parametrize(("kind", "key"), [(ItemKind.PROVIDER, A), (ItemKind.CHANNEL, "sms")])
def test_what_is_paused_leaves_a_provider_that_takes_nothing_new(
    world: VirtualWorld, kind: ItemKind, key: str, how: str, *, by_reload: bool
) -> None:
    """The pause would hold it there for ever, while new messages go to the next channel."""
    world.write(HEAD + ORDER + PROVIDER_A + E_MAIL)
    disabled = PROVIDER_A + "enabled = false\n"
    parked_at_a(
        world, kind, key, HEAD + ORDER + (disabled if how == "disabled" else "") + E_MAIL, by_reload=by_reload
    )
    assert (sent(world, A), sorted(sent(world, EMAIL))) == ([1], [1, 2])


@pytest.mark.parametrize("by_reload", [True, False])
@pytest.mark.parametrize("how", ["enabled", "added"])
def test_what_is_paused_goes_to_another_provider_that_takes_it_now(
    world: VirtualWorld, how: str, *, by_reload: bool
) -> None:
    """Also after a restart, which doesn't know what was different before."""
    if how == "enabled":
        world.write(HEAD + ORDER + PROVIDER_A + PROVIDER_B + "enabled = false\n")
    text = HEAD + ORDER + PROVIDER_A + PROVIDER_B
    parked_at_a(world, ItemKind.PROVIDER, A, text, by_reload=by_reload)
    assert (sent(world, A), sorted(sent(world, B))) == ([1], [1, 2])


@pytest.mark.parametrize("by_reload", [True, False])
def test_what_is_paused_with_its_channel_stays_so_beside_another_provider(
    world: VirtualWorld, *, by_reload: bool
) -> None:
    """The pause of the channel holds there whatever its providers are."""

    async def scene(worker: VirtualSupervisor) -> None:
        await carry_out(worker, Action.PAUSE, ItemKind.CHANNEL, "sms")
        world.service.enqueue(message(1))
        await anyio.sleep(10.0)
        world.write(HEAD + ORDER + PROVIDER_A + PROVIDER_B)
        if by_reload:
            await reload(worker)
            await still_paused(worker)

    async def still_paused(worker: VirtualSupervisor) -> None:
        await anyio.sleep(90.0)
        assert worker.parts.memory.backlog.paused == 1
        assert (sent(world, A), sent(world, B)) == ([], [])

    play(world, scene)
    if not by_reload:
        play(world, still_paused)


def test_a_pause_is_in_force_again_when_a_reload_brings_its_channel_back(world: VirtualWorld) -> None:
    """Without the channel its messages go on: here to the next channel."""
    world.write(HEAD + ORDER + PROVIDER_A + E_MAIL)

    async def scene(worker: VirtualSupervisor) -> None:
        await carry_out(worker, Action.PAUSE, ItemKind.CHANNEL, "sms")
        world.service.enqueue(message(1))
        await anyio.sleep(10.0)
        assert (sent(world, A), sent(world, EMAIL)) == ([], [])
        world.write(HEAD + '[channels]\norder = ["email"]\n' + E_MAIL)
        await reload(worker)
        await anyio.sleep(10.0)
        assert (sent(world, A), sent(world, EMAIL)) == ([], [1])
        world.write(HEAD + ORDER + PROVIDER_A + E_MAIL)
        await reload(worker)
        world.service.enqueue(message(2))
        await anyio.sleep(10.0)
        assert (sent(world, A), sent(world, EMAIL)) == ([], [1])
        assert worker.parts.memory.backlog.paused == 1

    play(world, scene)


def test_what_is_paused_in_doubt_at_a_provider_keeps_it_from_being_removed(world: VirtualWorld) -> None:
    """Accepted all the same, it is held, and repeated under its key when the provider is back."""
    both = HEAD + ORDER + PROVIDER_A + 'retry = { base = "5s", max = "5s" }\n' + PROVIDER_B
    world.write(both.replace('"http://b/"', '"http://b/"\nenabled = false'))
    world.channels[A].verdict = lambda _dispatch: InDoubt("no answer")

    async def scene(worker: VirtualSupervisor) -> None:
        world.service.enqueue(message(1))
        await anyio.sleep(3.0)
        await carry_out(worker, Action.PAUSE, ItemKind.MESSAGE, 1)
        await anyio.sleep(20.0)
        assert sent(world, A) == [1]
        world.write(HEAD + ORDER + PROVIDER_B)
        with pytest.raises(ConfigError, match="removing it would orphan messages: 1 in doubt"):
            await reload(worker)
        await reload(worker, accept_orphans=True)
        await carry_out(worker, Action.RESUME, ItemKind.MESSAGE, 1)
        await anyio.sleep(90.0)
        assert world.journal_rows("SELECT state, provider FROM message") == [(5, A)]
        world.write(both)
        await reload(worker)
        await anyio.sleep(20.0)

    play(world, scene)
    keys = [dispatch.key for _, dispatch in world.channels[A].attempts]
    assert len(keys) > 1
    assert len(set(keys)) == 1
    assert sent(world, B) == []


def test_the_limit_of_paused_messages_changes_without_a_restart(world: VirtualWorld) -> None:
    world.write(HEAD + "max_paused = 1\n" + ORDER + PROVIDER_A)

    async def scene(worker: VirtualSupervisor) -> None:
        await carry_out(worker, Action.PAUSE, ItemKind.SETTINGS, 1)
        world.service.enqueue(message(1))
        await anyio.sleep(5.0)
        assert worker.parts.recorder.obstacle() == "too many messages are paused (queue.max_paused)"
        world.write(HEAD + "max_paused = 2\n" + ORDER + PROVIDER_A)
        await reload(worker)
        assert worker.parts.recorder.obstacle() is None

    play(world, scene)


def test_a_forgotten_message_takes_its_pause_with_it(world: VirtualWorld) -> None:
    """Given again by the queue, it is sent."""
    world.channels[A].seconds = 5.0

    async def scene(worker: VirtualSupervisor) -> None:
        world.service.enqueue(message(1))
        await anyio.sleep(2.0)
        assert await carry_out(worker, Action.PAUSE, ItemKind.MESSAGE, 1)
        await anyio.sleep(10.0)
        assert world.service.statuses(1) == ["dequeued", "sent"]
        assert await carry_out(worker, Action.FORGET_ANYWAY, ItemKind.MESSAGE, 1)
        world.service.enqueue(message(1))
        await anyio.sleep(20.0)
        assert len(sent(world, A)) == 2
        assert worker.parts.memory.pauses.all == ()

    play(world, scene)
