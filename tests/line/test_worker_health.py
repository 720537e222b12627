"""Signs of life: what a worker says of itself, in virtual time, while its loops really turn or don't."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import trio

from deliveryd.admin.sections import facts_of
from deliveryd.channels.base import Accepted, Dispatch, InDoubt, Refused, TryAgain, Verdict
from deliveryd.journal.base import Counts, Open
from deliveryd.runtime.threads import Blocking, inline
from deliveryd.states import State
from deliveryd.telemetry.overview import as_json
from deliveryd.worker.health import WorkerHealth
from deliveryd.worker.outside import open_outside
from deliveryd.worker.supervisor import Supervisor
from deliveryd.worker.systemd import Notifier
from deliveryd.worker.wiring import Parts, assemble
from support.messages import message
from support.virtual import VirtualClock, VirtualWorld, live

T = TypeVar("T")

SMS = json.dumps({"content": {"en": {"sms": {"text": "canary-text"}}}})


def canary(id_: int) -> dict[str, Any]:
    """A message whose value must be nowhere but at the provider."""
    return message(id_, word="canary-value")


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = SMS
    return world


@asynccontextmanager
async def running(
    world: VirtualWorld, blocking: Blocking = inline
) -> AsyncIterator[tuple[WorkerHealth, Parts]]:
    """The health of a worker whose loops turn, and its parts; `blocking` is where its journal is written."""
    config = world.config()
    async with (
        open_outside(config, world.openers()) as outside,
        assemble(config, VirtualClock(), outside, blocking) as parts,
        trio.open_nursery() as loops,
    ):
        await parts.pipeline.recover()
        for loop in parts.pipeline.loops():
            loops.start_soon(loop)
        yield WorkerHealth(config, parts, VirtualClock()), parts
        loops.cancel_scope.cancel()


def scene(
    world: VirtualWorld,
    play: Callable[[WorkerHealth, Parts], Awaitable[None]],
    blocking: Blocking = inline,
) -> None:
    """Play a scene with a running worker."""

    async def run() -> None:
        async with running(world, blocking) as (health, parts):
            await play(health, parts)

    live(run)


@pytest.mark.slow
def test_an_idle_worker_is_alive_and_takes_messages(world: VirtualWorld) -> None:
    """After an hour without work every loop has turned within the last seconds."""

    async def play(health: WorkerHealth, _parts: Parts) -> None:
        await trio.sleep(3600)
        alive, ages = health.alive()
        assert alive
        assert {name for name, _ in ages} == {
            "intake", "reporting", "settling", "delivery", "due", "availability", "dispatcher sms"
        }  # fmt: skip
        assert max(age for _, age in ages) <= 5
        assert health.ready() == (True, "taking messages")

    scene(world, play)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "words"), [("/queue", "the queue gives no usable answer"), ("/events", "accepts no events")]
)
def test_an_endpoint_that_is_down_takes_readiness_and_never_life(
    world: VirtualWorld, path: str, words: str
) -> None:
    """For half an hour the worker says what it misses, and a minute later it is ready again."""
    world.service.enqueue(canary(1))
    world.service.trouble = lambda request: (
        httpx.Response(503) if request.url.path == path and trio.current_time() < 1800 else None
    )

    async def play(health: WorkerHealth, _parts: Parts) -> None:
        for _ in range(59):
            await trio.sleep(30)
            ready, reason = health.ready()
            assert not ready
            assert words in reason
            assert words in health.sentence().lower()
            assert health.alive()[0]
        await trio.sleep(120)
        assert health.ready() == (True, "taking messages")

    scene(world, play)


def test_events_that_the_service_does_not_accept_are_counted_at_once(world: VirtualWorld) -> None:
    """The journal's figures are older than the reason, which is that they wait."""
    world.service.enqueue(canary(1), canary(2))
    world.service.trouble = lambda request: httpx.Response(503) if request.url.path == "/events" else None

    async def play(health: WorkerHealth, _parts: Parts) -> None:
        health.refresh(Counts({}, 0, 0, 0, 0), Open())
        await trio.sleep(5)
        overview = health.overview()
        assert overview.reason == "the service accepts no events; they wait in the journal"
        assert (overview.events.waiting, health.levels().outbox) == (2, 2)
        assert "2 events to report" in health.sentence()
        [events] = [fact for fact in facts_of(overview) if fact.name == "events"]
        assert (events.number, events.asides) == ("2", [])

    scene(world, play)


@pytest.mark.parametrize("state", ["waiting", "in_doubt"])
def test_messages_that_are_paused_or_in_doubt_are_not_denied(world: VirtualWorld, state: str) -> None:
    """They are the only ones, and the oldest one is that of the others."""

    async def play(health: WorkerHealth, _parts: Parts) -> None:
        health.refresh(Counts({State[state.upper()]: 22}, 0, 0, 0, 0), Open())
        [waiting] = [fact for fact in facts_of(health.overview()) if fact.name == "waiting"]
        assert (waiting.number, waiting.asides) == {
            "waiting": ("22", []), "in_doubt": ("0", ["22 in doubt"]),
        }[state]  # fmt: skip

    scene(world, play)


@pytest.mark.slow
def test_a_provider_that_is_down_is_shown_and_costs_neither_life_nor_readiness(world: VirtualWorld) -> None:
    """For half an hour the sentence, the status and a gauge say so; a minute after it is back none does."""
    world.service.enqueue(*(canary(id_) for id_ in range(1, 31)))
    world.channels["sms"].verdict = lambda dispatch: (
        TryAgain("busy") if trio.current_time() < 1800 else Accepted(dispatch.key)
    )

    async def play(health: WorkerHealth, _parts: Parts) -> None:
        for _ in range(58):
            await trio.sleep(30)
            assert health.ready() == (True, "taking messages, but a provider keeps failing")
            assert health.alive()[0]
            assert '"open": true' in json.dumps(health.overview().lanes)
            assert health.levels().providers_open == {"sms": True}
        await trio.sleep(180)
        assert health.ready() == (True, "taking messages")
        assert health.levels().providers_open == {"sms": False}

    scene(world, play)


@pytest.mark.slow
def test_settings_that_a_provider_refuses_are_named_and_cost_no_readiness(world: VirtualWorld) -> None:
    """The sentence says that there are some, the status which; when they are accepted none does."""
    world.service.settings[2] = SMS
    world.service.enqueue(*({**canary(id_), "settingsId": 1 + id_ % 2} for id_ in range(1, 101)))
    world.channels["sms"].verdict = lambda dispatch: (
        Refused("provider answered 400", "sms.example.com")
        if dispatch.entry.settings_id == 1 and trio.current_time() < 60
        else Accepted(dispatch.key)
    )

    async def play(health: WorkerHealth, _parts: Parts) -> None:
        await trio.sleep(50)
        assert health.ready() == (
            True,
            "taking messages, but a provider refuses all messages of some settings",
        )
        assert '"open": false, "refused_settings": [1]' in json.dumps(health.overview().lanes)
        await trio.sleep(120)
        assert health.ready() == (True, "taking messages")
        assert '"refused_settings": []' in json.dumps(health.overview().lanes)

    scene(world, play)


@pytest.mark.slow
def test_too_many_waiting_messages_are_a_reason_not_to_be_ready(world: VirtualWorld) -> None:
    """The sentence names the key that an operator would turn."""
    world.add("[queue]\nmax_waiting = 3\n")
    world.service.enqueue(*(canary(id_) for id_ in range(1, 6)))
    world.channels["sms"].verdict = lambda _dispatch: TryAgain("busy", after=1000.0)

    async def play(health: WorkerHealth, _parts: Parts) -> None:
        await trio.sleep(60)
        ready, reason = health.ready()
        assert not ready
        assert "queue.max_waiting" in reason
        world.channels["sms"].verdict = lambda dispatch: Accepted(dispatch.key)
        await trio.sleep(1200)
        assert health.ready()[0]

    scene(world, play)


def test_a_worker_that_ends_is_not_ready(world: VirtualWorld) -> None:
    """While it finishes, nobody should count on it."""

    async def play(health: WorkerHealth, _parts: Parts) -> None:
        health.draining = True
        assert health.ready() == (False, "finishing work in progress; no more messages are taken")

    scene(world, play)


def test_a_loop_that_stands_still_is_named(world: VirtualWorld) -> None:
    """A loop that hasn't turned for long isn't alive, however well the others do."""

    async def play(health: WorkerHealth, parts: Parts) -> None:
        parts.heartbeats.beat("a loop of its own")
        await trio.sleep(60)
        assert health.alive()[0]
        await trio.sleep(60)
        alive, ages = health.alive()
        assert not alive
        name, age = max(ages, key=lambda item: item[1])
        assert (name, round(age)) == ("a loop of its own", 120)
        assert health.overview().alive is False

    scene(world, play)


class Disk:
    """A disk that takes its time to sync, and answers nothing from `hang` to `mend`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._answers = trio.Event()
        self.mend()

    def hang(self) -> None:
        self._answers = trio.Event()

    def mend(self) -> None:
        self._answers.set()

    async def __call__(self, work: Callable[[], T], /) -> T:
        await self._answers.wait()
        await trio.sleep(self.seconds)
        return work()


def with_a_backlog(world: VirtualWorld, count: int) -> None:
    """So many messages wait in the queue, and the provider takes 20 to 80 ms for each."""
    world.add("concurrency = 40\n")
    world.service.enqueue(*(canary(id_) for id_ in range(1, count + 1)))
    channel = world.channels["sms"]
    send = channel.send

    async def send_at_its_own_pace(dispatch: Dispatch) -> Verdict:
        channel.seconds = 0.02 + 0.001 * (dispatch.entry.id * 37 % 61)
        return await send(dispatch)

    channel.send = send_at_its_own_pace  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_lane_that_always_has_a_next_batch_is_alive(world: VirtualWorld) -> None:
    """20 ms a sync and 400 messages a second: for half a minute no loop is seen to stand still."""
    with_a_backlog(world, 12_000)

    async def play(health: WorkerHealth, _parts: Parts) -> None:
        oldest = 0.0
        for _ in range(25):
            await trio.sleep(1)
            oldest = max(oldest, *(age for _, age in health.alive()[1]))
        sent = len(world.channels["sms"].attempts)
        assert sent > 25 * 300
        assert oldest <= 6

    scene(world, play, Disk(0.02))


@pytest.mark.slow
def test_a_lane_whose_disk_hangs_in_the_middle_of_its_work_is_seen(world: VirtualWorld) -> None:
    """Beats mark progress: a commit that never comes back ends them, however much there is to do."""
    with_a_backlog(world, 12_000)
    disk = Disk(0.02)

    async def play(health: WorkerHealth, _parts: Parts) -> None:
        await trio.sleep(10)
        assert health.alive()[0]
        disk.hang()
        await trio.sleep(120)
        alive, ages = health.alive()
        assert not alive
        assert dict(ages)["dispatcher sms"] > 110
        disk.mend()

    scene(world, play, disk)


def test_the_status_tells_where_messages_are_and_nothing_of_what_they_say(world: VirtualWorld) -> None:
    """One message of each kind: being sent, waiting, in doubt; no text, no value, as JSON."""
    world.add('concurrency = 1\non_in_doubt = "hold"\n')
    world.service.enqueue(*(canary(id_) for id_ in range(1, 5)), '"malformed"')
    channel = world.channels["sms"]
    channel.seconds = 100.0
    channel.verdict = lambda dispatch: (
        InDoubt("cut off") if dispatch.entry.id == 1 else TryAgain("busy", after=9000.0)
    )

    async def play(health: WorkerHealth, parts: Parts) -> None:
        await trio.sleep(250)
        health.refresh(await parts.journal.counts(), await parts.journal.open_work())
        status: Any = as_json(health.overview())
        assert status["messages"] == {"ready": 1, "waiting": 1, "sending": 1, "in_doubt": 1}
        assert status["lanes"] == {
            "sms": {"queued": 1, "under_way": 1, "open": False, "refused_settings": []}
        }
        assert (status["in_flight"], status["places_free"]) == (2, 998)
        assert status["events"] == {"waiting": 0, "refused": 0, "failing": 0}
        assert status["malformed"] == 1
        assert status["uptime_seconds"] == pytest.approx(250, abs=1)
        assert "canary" not in json.dumps(status)
        sentence = "Taking messages: 2 in flight, 1 waiting, 1 in doubt, 0 events to report"
        assert health.sentence() == sentence

    scene(world, play)


def test_the_levels_are_the_last_sums_and_the_size_of_the_journals_files(world: VirtualWorld) -> None:
    """The log beside the database counts too, since it is what fills a disk first."""
    world.service.enqueue(canary(1))

    async def play(health: WorkerHealth, _parts: Parts) -> None:
        await trio.sleep(10)
        health.refresh(Counts({State.WAITING: 3}, 5, 0, 0, 0), Open())
        levels = health.levels()
        files = [world.folder / "journal.db", world.folder / "journal.db-wal"]
        assert levels.journal_size == sum(file.stat().st_size for file in files)
        assert (levels.messages, levels.outbox) == ({State.WAITING: 3}, 5)

    scene(world, play)


@pytest.mark.slow
def test_neither_a_provider_that_hangs_for_an_hour_nor_a_long_end_costs_the_watchdogs_beat(
    world: VirtualWorld, tmp_path: Path
) -> None:
    """systemd hears a beat every 15 seconds, from the start to the last attempt's outcome."""
    world.add('[run]\ndrain_timeout = "2h"\n')
    world.service.enqueue(canary(1))
    world.channels["sms"].seconds = 3600.0
    beats: list[float] = []

    async def run() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
            bound.bind(str(tmp_path / "notify"))
            listener = trio.socket.from_stdlib_socket(bound)
            notifier = Notifier.from_environment(
                {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"}
            )
            supervisor = Supervisor(
                world.config(), VirtualClock(), notifier=notifier, openers=world.openers(), blocking=inline
            )

            async def listen() -> None:
                while True:
                    if await listener.recv(1000) == b"WATCHDOG=1":
                        beats.append(trio.current_time())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen)
                async with trio.open_nursery() as worker:
                    worker.start_soon(supervisor.run)
                    await trio.sleep(1800)
                    supervisor.stop()
                nursery.cancel_scope.cancel()
            assert notifier.speaker is not None
            notifier.speaker.close()  # it is in a circle, where the collector may come to the socket first

    seconds = live(run)
    assert 3600 < seconds < 3700
    assert len(beats) == pytest.approx(240, abs=2)
    assert world.service.statuses(1) == ["dequeued", "sent"]


REPORTING = """
provider_id = "/id"
[channels.sms.receipt]
provider_id = "/id"
status = "/status"
delivered = ["delivered"]
"""


@pytest.mark.slow
def test_receipts_may_come_while_the_queue_is_down(world: VirtualWorld) -> None:
    """Readiness for receipts depends on the journal and the drain, not on the service."""
    world.path.write_text(world.path.read_text().replace('[receipts]\nlisten = ""', ""))
    world.add(REPORTING)
    world.service.trouble = lambda _request: httpx.Response(500)

    async def play(health: WorkerHealth, _parts: Parts) -> None:
        await trio.sleep(60)
        assert not health.ready()[0]
        assert health.receiving() == (True, "receipts are taken")
        health.draining = True
        assert health.receiving() == (False, "finishing work in progress; the worker ends soon")

    scene(world, play)


@pytest.mark.slow
def test_without_a_receipt_table_no_receipts_may_come(world: VirtualWorld) -> None:
    """Though messages are taken."""

    async def play(health: WorkerHealth, _parts: Parts) -> None:
        assert health.ready()[0]
        assert health.receiving()[0] is False

    scene(world, play)
