"""What operators pause waits in the journal, without a place and a try, and goes on when it is resumed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, InDoubt, TryAgain, Verdict
from deliveryd.delivery import passed_time
from deliveryd.journal.orders import Action, Decided, ItemKind, Order
from deliveryd.model import format_instant
from deliveryd.states import State
from support.messages import message
from support.virtual import CONFIG, START, SteppingClock, VirtualSupervisor, VirtualWorld, live

A, B, EMAIL = "sms/a", "sms/b", "email"
BOTH = json.dumps({"content": {"en": {"sms": {"text": "hi"}, "email": {"subject": "s", "body": "b"}}}})
MAIL = json.dumps({"content": {"en": {"email": {"subject": "s", "body": "b"}}}})
BROKEN = json.dumps({"content": {"en": {"sms": {"text": "hi {nobody}"}}}})

TABLES = """
[queue]
poll_interval = "100ms"
max_poll_interval = "10s"
max_in_flight = 20
[events]
flush_interval = "20ms"
[channels]
order = ["sms", "email"]
[channels.sms]
unavailable_after = "2m"
[channels.sms.providers.a]
adapter = "http"
url = "http://a/"
json = { text = "{content.text}" }
[channels.sms.providers.b]
adapter = "http"
url = "http://b/"
json = { text = "{content.text}" }
[channels.email]
adapter = "http"
url = "http://email/"
json = { text = "{content.body}" }
"""

pytestmark = pytest.mark.slow

KINDS = [
    (ItemKind.CHANNEL, "sms"),
    (ItemKind.SETTINGS, "1"),
    (ItemKind.MESSAGE, "1"),
]


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """Settings 1 go by sms, which has two providers, or by e-mail; settings 2 by e-mail."""
    world = VirtualWorld(tmp_path)
    world.path.write_text(CONFIG[: CONFIG.index("[channels.sms]")] + TABLES, encoding="utf-8")
    world.service.settings = {1: BOTH, 2: MAIL}
    return world


async def order(
    supervisor: VirtualSupervisor, verb: Action, kind: ItemKind, *keys: object, lasts: float | None = None
) -> Decided:
    """An order as the control socket gives it."""
    recorder, dispatchers = supervisor.parts.recorder, supervisor.parts.stations.dispatchers
    given = Order(verb, kind, tuple(map(str, keys)), "ops", None, "a test", lasts)
    decided = await recorder.decide(given, dispatchers)
    assert decided.done == given.keys, decided.skipped
    return decided


async def pause(
    supervisor: VirtualSupervisor, kind: ItemKind, *keys: object, lasts: float | None = None
) -> None:
    await order(supervisor, Action.PAUSE, kind, *keys, lasts=lasts)


async def resume(supervisor: VirtualSupervisor, kind: ItemKind, *keys: object) -> None:
    await order(supervisor, Action.RESUME, kind, *keys)


def sent(world: VirtualWorld, *names: str) -> list[int]:
    """The messages that were given to these providers, each as often as it was."""
    return [each.entry.id for name in names or (A, B, EMAIL) for _, each in world.channels[name].attempts]


def running(
    world: VirtualWorld, scene: Callable[[VirtualSupervisor], Awaitable[None]], hours: float = 3.0
) -> VirtualSupervisor:
    """Let a worker run during a scene, and stop it."""
    supervisor = world.supervisor()

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervisor.run)
            await anyio.sleep(0.5)
            await scene(supervisor)
            supervisor.stop()

    live(run, hours)
    return supervisor


@pytest.mark.parametrize(("kind", "key"), KINDS)
def test_what_is_paused_waits_through_a_restart_and_goes_on_when_it_is_resumed(
    world: VirtualWorld, kind: ItemKind, key: str
) -> None:
    """All else is sent meanwhile; nothing is sent twice, and a paused channel's messages take no other."""

    async def first(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, kind, key)
        world.service.enqueue(message(1), message(2, 2))
        await anyio.sleep(5.0)
        assert (sent(world), world.service.statuses(1)) == ([2], ["dequeued"])
        memory = supervisor.parts.memory
        assert (memory.in_flight.held, memory.backlog.count, memory.backlog.paused) == (0, 0, 1)

    async def second(supervisor: VirtualSupervisor) -> None:
        await anyio.sleep(5.0)
        world.service.enqueue(message(3, 2))
        await anyio.sleep(2.0)
        assert sent(world) == [2, 3]
        assert supervisor.parts.memory.backlog.paused == 1
        await resume(supervisor, kind, key)
        await anyio.sleep(2.0)
        assert supervisor.parts.memory.backlog.paused == supervisor.parts.memory.backlog.count == 0

    running(world, first)
    running(world, second)
    assert sorted(sent(world)) == [1, 2, 3]
    assert sent(world, A, B) == [1]
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_a_paused_provider_gives_its_share_to_the_others_and_gets_it_back(world: VirtualWorld) -> None:
    async def scene(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, ItemKind.PROVIDER, A)
        world.service.enqueue(*(message(id_) for id_ in range(1, 41)))
        await anyio.sleep(5.0)
        assert (sent(world, A), len(sent(world, B))) == ([], 40)
        await resume(supervisor, ItemKind.PROVIDER, A)
        world.service.enqueue(*(message(id_) for id_ in range(41, 81)))
        await anyio.sleep(5.0)
        assert 10 < len(sent(world, A)) < 30

    running(world, scene)
    assert sorted(sent(world)) == list(range(1, 81))


def test_messages_wait_for_a_provider_that_no_other_replaces(world: VirtualWorld) -> None:
    async def scene(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, ItemKind.PROVIDER, EMAIL)
        await pause(supervisor, ItemKind.PROVIDER, A, B)
        world.service.enqueue(message(1), message(2, 2))
        await anyio.sleep(600.0)
        assert sent(world) == []
        await resume(supervisor, ItemKind.PROVIDER, EMAIL, A, B)
        await anyio.sleep(2.0)

    running(world, scene)
    assert sorted(sent(world)) == [1, 2]
    assert sent(world, EMAIL) == [2]


def test_what_is_in_doubt_at_a_paused_provider_stays_there_and_is_not_repeated(world: VirtualWorld) -> None:
    """Its other messages go to another provider; the repeat after the pause has the same key."""
    verdicts: dict[str, Verdict] = {A: InDoubt("cut off"), B: TryAgain("not now")}
    world.channels[A].verdict = lambda _dispatch: verdicts[A]
    world.channels[B].verdict = lambda _dispatch: verdicts[B]

    async def scene(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, ItemKind.PROVIDER, B)
        world.service.enqueue(message(1))
        await anyio.sleep(0.4)
        verdicts.update({A: Accepted("x"), B: Accepted("y")})
        await resume(supervisor, ItemKind.PROVIDER, B)
        await pause(supervisor, ItemKind.PROVIDER, A)
        world.service.enqueue(message(2))
        await anyio.sleep(300.0)
        assert (sent(world, A), sent(world, B)) == ([1], [2])
        await resume(supervisor, ItemKind.PROVIDER, A)
        await anyio.sleep(2.0)

    running(world, scene)
    assert (sent(world, A), sent(world, B)) == ([1, 1], [2])
    first, repeat = (dispatch.key for _, dispatch in world.channels[A].attempts)
    assert first == repeat


@pytest.mark.parametrize(("kind", "key"), [*KINDS, (ItemKind.PROVIDER, A)])
def test_queued_messages_leave_their_places_at_once_and_attempts_under_way_finish(
    world: VirtualWorld, kind: ItemKind, key: str
) -> None:
    world.path.write_text(
        world.path.read_text().replace('url = "http://b/"', 'url = "http://b/"\nenabled = false')
        .replace('url = "http://a/"', 'url = "http://a/"\nconcurrency = 1'),
    )  # fmt: skip
    world.channels[A].seconds = 10.0

    async def scene(supervisor: VirtualSupervisor) -> None:
        world.service.enqueue(*(message(id_) for id_ in (9, 1, 8, 7)))
        await anyio.sleep(1.0)
        (dispatcher, *_) = supervisor.parts.stations.dispatchers.values()
        assert (dispatcher.admission.under_way, len(dispatcher.terms.provider.queue)) == (1, 3)
        await pause(supervisor, kind, key)
        await anyio.sleep(0.5)
        others = 2 if kind is ItemKind.MESSAGE else 0
        assert (dispatcher.admission.under_way, len(dispatcher.terms.provider.queue)) == (1, others)
        assert supervisor.parts.memory.in_flight.held == 1 + others
        await anyio.sleep(60.0)
        assert sent(world) == ([9, 8, 7] if others else [9])
        assert world.service.statuses(9) == ["dequeued", "sent"]

    running(world, scene)


@pytest.mark.parametrize(("kind", "key"), [*KINDS, (ItemKind.PROVIDER, A)])
def test_a_paused_message_expires_in_time(world: VirtualWorld, kind: ItemKind, key: str) -> None:
    """Over a restart, too."""
    expires = format_instant(START + 100_000_000)
    text = json.dumps({"content": {"en": {"sms": {"text": "hi"}}}, "delivery": {"expiresAt": expires}})
    world.service.settings[1] = text

    async def first(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, ItemKind.PROVIDER, B)
        await pause(supervisor, kind, key)
        world.service.enqueue(message(1))
        await anyio.sleep(5.0)
        assert world.service.statuses(1) == ["dequeued"]

    async def second(supervisor: VirtualSupervisor) -> None:
        await anyio.sleep_until(99.0)
        assert world.service.statuses(1) == ["dequeued"]
        await anyio.sleep_until(101.0)
        assert world.service.statuses(1) == ["dequeued", "error"]
        assert supervisor.parts.memory.backlog.paused == 0

    running(world, first)
    running(world, second)
    (error,) = world.service.events_of(1, "error")
    assert error["details"] == f"expired at {expires}"
    assert sent(world) == []


@pytest.mark.parametrize(("kind", "key"), KINDS)
def test_a_broken_template_ends_no_message_that_is_paused(
    world: VirtualWorld, kind: ItemKind, key: str
) -> None:
    """It is corrected meanwhile, and the messages are sent as it says then."""
    world.service.settings[1] = BROKEN

    async def first(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, kind, key)
        world.service.enqueue(message(1))
        await anyio.sleep(5.0)
        assert world.service.statuses(1) == ["dequeued"]

    async def second(supervisor: VirtualSupervisor) -> None:
        await resume(supervisor, kind, key)
        await anyio.sleep(2.0)

    running(world, first)
    world.service.settings[1] = BOTH
    world.path.write_text(world.path.read_text().replace('cache_dir = "cache"', 'cache_dir = "other"'))
    running(world, second)
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_a_paused_intake_takes_nothing_and_all_else_goes_on(world: VirtualWorld) -> None:
    world.channels[EMAIL].seconds = 5.0

    def asked() -> int:
        return sum(path == "/queue" for _, path in world.service.asked)

    async def scene(supervisor: VirtualSupervisor) -> None:
        world.service.enqueue(message(1, 2))
        await anyio.sleep(1.0)
        await pause(supervisor, ItemKind.INTAKE, "intake")
        before = asked()
        world.service.enqueue(message(2, 2))
        await anyio.sleep(600.0)
        assert asked() == before
        assert world.service.statuses(1) == ["dequeued", "sent"]
        obstacle = supervisor.parts.recorder.obstacle()
        assert obstacle is not None
        assert obstacle.startswith("paused: intake since 2027-01-15T08:00:01Z by ops (a test)")
        await resume(supervisor, ItemKind.INTAKE, "intake")
        await anyio.sleep(8.0)
        assert supervisor.parts.recorder.obstacle() is None

    running(world, scene)
    assert sent(world) == [1, 2]


def test_a_paused_intake_stays_paused_over_a_restart_and_ends_an_idle_run(world: VirtualWorld) -> None:
    async def first(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, ItemKind.INTAKE, "intake")

    running(world, first)
    before = len(world.service.asked)
    world.service.enqueue(message(1, 2))
    supervisor = world.supervisor()
    live(lambda: supervisor.run(until_idle=True))
    assert len(world.service.asked) == before
    assert supervisor.intake_is_paused


def test_an_idle_run_ends_with_what_is_paused(world: VirtualWorld) -> None:
    async def first(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, ItemKind.SETTINGS, 1)
        world.service.enqueue(message(1))
        await anyio.sleep(1.0)

    running(world, first)
    world.service.enqueue(message(2, 2), message(3))
    supervisor = world.supervisor()
    live(lambda: supervisor.run(until_idle=True))
    assert (sent(world), supervisor.paused) == ([2], {"paused settings 1": 2})


@pytest.mark.parametrize(("kind", "key"), [*KINDS, (ItemKind.INTAKE, "intake")])
def test_a_pause_ends_by_itself_over_a_restart(world: VirtualWorld, kind: ItemKind, key: str) -> None:
    async def first(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, kind, key, lasts=600.0)
        world.service.enqueue(message(1))
        await anyio.sleep(300.0)

    async def second(supervisor: VirtualSupervisor) -> None:
        await anyio.sleep_until(599.0)
        assert sent(world) == []
        await anyio.sleep_until(604.0)
        assert sent(world) == [1]
        assert supervisor.parts.memory.pauses.all == ()

    running(world, first)
    running(world, second)


RESTARTED = "while it runs, then the machine is restarted"


@pytest.mark.parametrize("when", ["while it runs", RESTARTED, "between two runs", "while the machine is off"])
@pytest.mark.parametrize("step", [-86400.0, -100.0, 86400.0])
def test_a_pause_ends_in_time_though_the_clock_steps(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch, step: float, when: str
) -> None:
    """It lasts as long as ordered; when the machine was off no longer than that from then on."""
    while_running = when in {"while it runs", RESTARTED}
    world.clock = clock = SteppingClock()
    begun, ended = 0.0, 0.0

    async def ends(supervisor: VirtualSupervisor) -> None:
        nonlocal ended
        while not sent(world):  # noqa: ASYNC110 - in virtual time
            await anyio.sleep(1.0)
        ended = anyio.current_time()

    async def first(supervisor: VirtualSupervisor) -> None:
        nonlocal begun
        begun = anyio.current_time()
        await pause(supervisor, ItemKind.SETTINGS, 1, lasts=600.0)
        world.service.enqueue(message(1))
        await anyio.sleep(10.0)
        if while_running:
            clock.ahead = int(step * 1_000_000)
            await (anyio.sleep(10.0) if when == RESTARTED else ends(supervisor))

    running(world, first, hours=1)
    clock.ahead = int(step * 1_000_000)
    if when in {RESTARTED, "while the machine is off"}:
        monkeypatch.setattr(passed_time, "_boot_id", lambda: "another")
    if when != "while it runs":
        running(world, ends, hours=1)
    if when != "while the machine is off":
        assert ended - begun == pytest.approx(600.0, abs=10.0)
    elif step > 0:
        assert ended - begun < 20.0
    else:
        assert ended < 600.0 + 20.0  # counted anew from the start


def test_what_is_paused_counts_against_a_limit_of_its_own(world: VirtualWorld) -> None:
    """The limit of what waits isn't reached by it, and the other limit stops the intake, by name."""
    world.path.write_text(
        world.path.read_text().replace(
            "max_in_flight = 20", "max_in_flight = 20\nmax_waiting = 5\nmax_paused = 40"
        )
    )

    async def scene(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, ItemKind.SETTINGS, 1)
        world.service.enqueue(*(message(id_) for id_ in range(1, 31)), message(31, 2))
        await anyio.sleep(10.0)
        assert (sent(world), supervisor.parts.recorder.obstacle()) == ([31], None)
        world.service.enqueue(*(message(id_) for id_ in range(32, 100)))
        await anyio.sleep(10.0)
        assert supervisor.parts.recorder.obstacle() == "too many messages are paused (queue.max_paused)"
        assert 40 <= supervisor.parts.memory.backlog.paused < 80
        await resume(supervisor, ItemKind.SETTINGS, 1)
        await anyio.sleep(60.0)

    running(world, scene)
    assert sorted(sent(world)) == list(range(1, 100))


def test_a_message_is_held_before_it_is_taken(world: VirtualWorld) -> None:
    async def scene(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, ItemKind.MESSAGE, 5, 6)
        world.service.enqueue(message(4), message(5), message(6))
        await anyio.sleep(3.0)
        assert sent(world) == [4]
        await resume(supervisor, ItemKind.MESSAGE, 6)
        await anyio.sleep(3.0)

    running(world, scene)
    assert sorted(sent(world)) == [4, 6]


def test_a_message_that_two_pauses_hold_goes_on_after_both(world: VirtualWorld) -> None:
    async def scene(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, ItemKind.SETTINGS, 1)
        await pause(supervisor, ItemKind.CHANNEL, "sms")
        world.service.enqueue(message(1))
        await anyio.sleep(3.0)
        await resume(supervisor, ItemKind.SETTINGS, 1)
        await anyio.sleep(3.0)
        assert sent(world) == []
        assert supervisor.parts.memory.backlog.paused == 1
        await resume(supervisor, ItemKind.CHANNEL, "sms")
        await anyio.sleep(3.0)

    running(world, scene)
    assert sent(world) == [1]


def test_a_pause_of_a_channel_that_is_removed_holds_nothing(world: VirtualWorld) -> None:
    async def first(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, ItemKind.CHANNEL, "sms")
        world.service.enqueue(message(1))
        await anyio.sleep(3.0)

    async def second(supervisor: VirtualSupervisor) -> None:
        await anyio.sleep(3.0)
        assert len(supervisor.parts.memory.pauses.all) == 1

    running(world, first)
    text = world.path.read_text()
    world.path.write_text(
        text[: text.index("[channels]")] + text[text.index("[channels.email]") :], encoding="utf-8"
    )
    running(world, second)
    assert sent(world) == [1]


def test_what_is_in_doubt_is_held_when_its_paused_provider_is_removed(world: VirtualWorld) -> None:
    world.channels[A].verdict = lambda _dispatch: InDoubt("cut off")

    async def first(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, ItemKind.PROVIDER, B)
        world.service.enqueue(message(1))
        await anyio.sleep(0.4)
        await pause(supervisor, ItemKind.SETTINGS, 1)
        await anyio.sleep(60.0)

    async def second(supervisor: VirtualSupervisor) -> None:
        await resume(supervisor, ItemKind.SETTINGS, 1)
        await anyio.sleep(5.0)
        counts = await supervisor.parts.journal.counts()
        assert counts.states == {State.IN_DOUBT: 1}

    running(world, first)
    text = world.path.read_text()
    begin = text.index("[channels.sms.providers.a]")
    world.path.write_text(text[:begin] + text[text.index("[channels.sms.providers.b]") :], encoding="utf-8")
    running(world, second)
    assert sent(world) == [1]


def test_a_paused_provider_is_not_down(world: VirtualWorld) -> None:
    """Though the other one is, its channel's messages don't go to the next after unavailable_after."""
    world.channels[B].verdict = lambda _dispatch: TryAgain("not now")

    async def scene(supervisor: VirtualSupervisor) -> None:
        await pause(supervisor, ItemKind.PROVIDER, A)
        world.service.enqueue(*(message(id_) for id_ in range(1, 21)))
        await anyio.sleep(600.0)
        assert sent(world, A, EMAIL) == []
        await resume(supervisor, ItemKind.PROVIDER, A)
        await anyio.sleep(600.0)

    running(world, scene)
    assert set(sent(world, A)) | {20} >= set(range(1, 20))
    assert sent(world, EMAIL) == []


def test_messages_that_wait_for_a_provider_are_parked_when_it_is_paused(world: VirtualWorld) -> None:
    """They stop counting as waiting though the provider is down, and all are sent after the pause."""
    down = [True]
    for name in (A, B):
        world.channels[name].verdict = lambda _dispatch: TryAgain("not now") if down[0] else Accepted("x")

    async def scene(supervisor: VirtualSupervisor) -> None:
        backlog = supervisor.parts.memory.backlog
        world.service.enqueue(*(message(id_) for id_ in range(1, 301)))
        await anyio.sleep(60.0)
        assert backlog.count > 280
        await pause(supervisor, ItemKind.CHANNEL, "sms")
        await anyio.sleep(1.0)
        assert backlog.count < 100
        await anyio.sleep(60.0)
        assert (backlog.count, backlog.paused) == (0, 300)
        before = len(sent(world))
        down[0] = False
        await anyio.sleep(600.0)
        assert (len(sent(world)), backlog.paused) == (before, 300)
        await resume(supervisor, ItemKind.CHANNEL, "sms")
        await anyio.sleep(600.0)
        assert (backlog.count, backlog.paused) == (0, 0)

    running(world, scene)
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 301))


def test_orders_that_cannot_be_carried_out_say_why(world: VirtualWorld) -> None:
    async def scene(supervisor: VirtualSupervisor) -> None:
        world.service.enqueue(message(1))
        await anyio.sleep(2.0)
        decide = supervisor.parts.recorder.decide
        providers = supervisor.parts.stations.dispatchers

        async def skipped(verb: Action, kind: ItemKind, key: str) -> str:
            return (await decide(Order(verb, kind, (key,)), providers)).skipped[key]

        assert await skipped(Action.PAUSE, ItemKind.CHANNEL, "smss") == "no such channel is configured"
        assert await skipped(Action.PAUSE, ItemKind.PROVIDER, "sms") == "no such provider is configured"
        assert await skipped(Action.PAUSE, ItemKind.SETTINGS, "1.5") == "its id is no integer of 64 bits"
        assert await skipped(Action.PAUSE, ItemKind.MESSAGE, "1") == "it has ended: it is sent"
        assert await skipped(Action.RESUME, ItemKind.MESSAGE, "1") == "it isn't paused"
        assert "no order" in await skipped(Action.PAUSE, ItemKind.EVENT, "1")

    running(world, scene)


def dispatched(world: VirtualWorld) -> list[tuple[float, Dispatch]]:
    return sorted(
        (each for channel in world.channels.values() for each in channel.attempts), key=lambda each: each[0]
    )


def test_nothing_begins_after_the_answer_to_the_order(world: VirtualWorld) -> None:
    """However the messages are on their way: only attempts that were under way end after it."""
    for channel in (A, B, EMAIL):
        world.channels[channel].seconds = 0.2

    async def scene(supervisor: VirtualSupervisor) -> None:
        for number in range(1, 30):
            ids = range(number * 100, number * 100 + 30)
            world.service.enqueue(*(message(id_, 1 + id_ % 2) for id_ in ids))
            await anyio.sleep(0.1 + number * 0.013)
            await pause(supervisor, ItemKind.CHANNEL, "sms", "email")
            begun = trio.current_time()
            await anyio.sleep(3.0)
            late = [each for at, each in dispatched(world) if at - 0.2 > begun + 0.01]
            assert not late
            await resume(supervisor, ItemKind.CHANNEL, "sms", "email")
            await anyio.sleep(3.0)

    running(world, scene)
    assert len(sent(world)) == len(set(sent(world))) == 29 * 30
