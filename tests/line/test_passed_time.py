"""Age is time that passed: a clock that is days ahead for a moment has nothing forgotten."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trio

from deliveryd.delivery import passed_time
from deliveryd.delivery.passed_time import PassedTime, is_older
from deliveryd.journal.sql.own_values import SignedToken
from deliveryd.model import SECOND, Receipt, WallClock
from support.messages import message
from support.virtual import START, SteppingClock, VirtualSupervisor, VirtualWorld, live

DAY = 86_400
WEEK = 7 * DAY
AHEAD = 8 * DAY * SECOND
SMS = json.dumps({"content": {"en": {"sms": {"text": "hello {word}"}}}})
RECEIPTS = """
provider_id = "/id"
[channels.sms.receipt]
provider_id = "/id"
status = "/status"
delivered = ["delivered"]
failed = ["failed"]
"""


def in_time(play: Callable[[], Awaitable[None]]) -> None:
    live(play, hours=24 * 30)


def test_without_steps_age_is_what_the_clock_says() -> None:
    """From the first moment on: a journal from before has the age that its instants say."""

    async def play() -> None:
        clock = SteppingClock()
        passed = PassedTime(clock)
        for _ in range(3):
            assert passed.before(WEEK) == clock.now() - WEEK * SECOND
            await trio.sleep(DAY)

    in_time(play)


def test_a_clock_that_is_ahead_makes_nothing_old_until_so_much_time_passed() -> None:
    """Neither while it is ahead nor afterwards; what is recorded meanwhile is young, too."""

    async def play() -> None:
        clock = SteppingClock()
        passed = PassedTime(clock)
        await trio.sleep(DAY)
        clock.ahead = AHEAD
        for _ in range(75):
            await trio.sleep(1)
            assert passed.before(WEEK) == clock.now() - AHEAD - WEEK * SECOND
        clock.ahead = 0
        await trio.sleep(DAY)
        assert passed.before(WEEK) == clock.now() - WEEK * SECOND

    in_time(play)


@pytest.mark.parametrize("ahead", [AHEAD, -AHEAD])
def test_a_clock_that_was_put_right_is_believed_when_the_age_has_passed(ahead: int) -> None:
    """Until then the lower of both counts, so that nothing is forgotten before its time."""

    async def play() -> None:
        clock = SteppingClock()
        passed = PassedTime(clock)
        await trio.sleep(DAY)
        passed.before(0)
        begun = clock.now()
        clock.ahead = ahead
        passed.before(0)
        await trio.sleep(DAY)
        assert passed.before(WEEK) == min(begun, begun + ahead) - (WEEK - DAY if ahead > 0 else 0) * SECOND
        assert passed.before(DAY / 2) == clock.now() - DAY // 2 * SECOND
        await trio.sleep(WEEK)
        assert passed.before(WEEK) == clock.now() - WEEK * SECOND

    in_time(play)


def test_what_was_recorded_before_a_step_back_was_noticed_is_young() -> None:
    """In the same run, after a restart of the worker, and after one of the machine."""

    async def play() -> None:
        clock = SteppingClock(ahead=AHEAD)
        passed = PassedTime(clock)
        kept = passed.record()
        assert kept is not None
        await trio.sleep(600)
        clock.ahead = 0
        recorded = clock.now()
        await trio.sleep(1200)
        assert passed.before(WEEK) <= recorded
        assert PassedTime(clock, kept).before(WEEK) <= recorded
        with patch.object(passed_time, "_boot_id", lambda: "another"):
            assert PassedTime(clock, kept).before(WEEK) <= recorded
        await trio.sleep(WEEK + 600)
        assert passed.before(WEEK) > recorded

    in_time(play)


def test_what_passed_is_kept_over_a_restart() -> None:
    """In one life of the machine all of it, after another start of it what was recorded by then."""

    async def play() -> None:
        clock = SteppingClock()
        passed = PassedTime(clock)
        kept = passed.record()
        assert kept is not None
        assert passed.record() is None
        await trio.sleep(10 * DAY)
        assert PassedTime(clock, kept).before(WEEK) == clock.now() - WEEK * SECOND
        clock.ahead = AHEAD
        assert PassedTime(clock, kept).before(WEEK) == clock.now() - AHEAD - WEEK * SECOND
        clock.ahead = 0
        with patch.object(passed_time, "_boot_id", lambda: "another"):
            assert PassedTime(clock, kept).before(WEEK) == START - WEEK * SECOND
        await trio.sleep(3600)
        assert passed.record() is not None

    in_time(play)


def test_a_clock_that_is_ahead_at_a_start_makes_nothing_old_without_a_record() -> None:
    """What an earlier run recorded is as old as when it last wrote, until so much time has passed."""

    async def play() -> None:
        clock = SteppingClock(ahead=AHEAD)
        passed = PassedTime(clock, last_at=START - 60 * SECOND)
        assert passed.before(WEEK) == START - (WEEK + 60) * SECOND
        await trio.sleep(WEEK + 1)
        assert passed.before(WEEK) == clock.now() - WEEK * SECOND

    in_time(play)


def test_a_step_back_that_was_followed_is_not_noticed_again_after_a_start_of_the_machine() -> None:
    """What was last written shows a step only if it was written after what is kept of the clock."""

    async def play() -> None:
        clock = SteppingClock()
        passed = PassedTime(clock, last_at=START + 1800 * SECOND)
        assert passed.stepped() == -1800 * SECOND

        def noticed(kept: str | None, last_at: int) -> float:
            assert kept is not None
            with patch.object(passed_time, "_boot_id", lambda: "another"):
                return PassedTime(clock, kept, last_at).stepped() / SECOND

        assert noticed(passed.record(), START + 1800 * SECOND) == 0
        await trio.sleep(3600)
        last_at = clock.now() + SECOND // 2  # clocks are kept right by parts of a second
        clock.ahead -= 3600 * SECOND
        assert passed.stepped() == -3600 * SECOND
        kept = passed.record()
        await trio.sleep(600)
        assert noticed(kept, last_at) == 0
        clock.ahead -= 1800 * SECOND
        assert noticed(kept, last_at) == pytest.approx(600 - 1800)
        assert passed.stepped() == -1800 * SECOND
        await trio.sleep(3 * 3600)
        kept = passed.record()
        await trio.sleep(1500)
        last_at = clock.now()
        clock.ahead -= 1800 * SECOND
        assert noticed(kept, 0) == pytest.approx(1500 - 1800)
        assert noticed(kept, last_at) == pytest.approx(-1800)

    in_time(play)


def test_a_clock_that_was_put_forward_and_back_between_two_runs_was_never_set() -> None:
    """Whatever was written meanwhile: due times were recorded by the clock as it was before."""

    async def play() -> None:
        clock = SteppingClock()
        kept = PassedTime(clock).record()
        assert kept is not None
        await trio.sleep(60)
        clock.ahead = AHEAD
        last_at = clock.now()
        assert PassedTime(clock, kept, last_at).stepped() == AHEAD
        await trio.sleep(20)
        clock.ahead = 0
        passed = PassedTime(clock, kept, last_at)
        assert passed.stepped() == 0

    in_time(play)


@pytest.mark.parametrize("boot", ["the same", "another"])
def test_a_command_asks_no_sooner_by_a_clock_that_was_put_forward(boot: str) -> None:
    """Where it can measure that; by the clock of another start of the machine else."""
    wall = WallClock()
    kept = json.dumps({
        "boot": passed_time._boot_id() if boot == "the same" else "another",
        "monotonic": wall.elapsed() - 3600 * SECOND,
        "passed": 0,
        "readings": [[0, wall.now() - 10 * 3600 * SECOND]],
        "highest": 0,
    })  # fmt: skip
    doubtful_since = wall.now() - (9 * 3600 + 1800) * SECOND  # half an hour ago, by the clock as it was
    assert is_older(kept, doubtful_since, 3600.0) is (boot == "another")
    assert is_older("", wall.now() - 61 * SECOND, 60.0)
    assert not is_older("", wall.now() - 59 * SECOND, 60.0)


def test_the_lower_reading_of_the_oldest_steps_is_remembered() -> None:
    """However many steps follow: the clock was ahead at first, and nothing is old by that."""

    async def play() -> None:
        clock = SteppingClock()
        passed = PassedTime(clock)
        for number in range(passed_time.MOST_STEPS + 10):
            await trio.sleep(60)
            clock.ahead = AHEAD if number == 0 else number % 2 * 2 * SECOND
            assert passed.before(WEEK) <= clock.now() - clock.ahead - WEEK * SECOND

    in_time(play)


# in the line


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = SMS
    world.write(
        world.path.read_text(encoding="utf-8").replace('listen = ""\n[channels', 'listen = "x:1"\n[channels')
    )
    world.add(RECEIPTS)
    return world


def play_in(
    world: VirtualWorld, clock: SteppingClock, scene: Callable[[VirtualSupervisor], Awaitable[None]]
) -> None:
    """Play a scene with a running worker, then stop it."""

    async def run() -> None:
        worker = world.supervisor()
        worker._clock = clock
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            await worker.opened.wait()
            await scene(worker)
            worker.stop()

    in_time(run)


def delivered(id_: int, key: str, clock: SteppingClock) -> Receipt:
    return Receipt("sms", key, True, "delivered", clock.now(), clock.now())


@pytest.mark.parametrize("restart", [False, True], ids=["while it runs", "at a start"])
def test_deliveries_are_told_though_the_clock_was_eight_days_ahead(
    world: VirtualWorld, restart: bool
) -> None:
    """For 75 seconds: nothing of the ten messages is forgotten meanwhile, nor of what else has an age."""
    clock = SteppingClock()
    token, other = (
        SignedToken(b"t", b"body", START + DAY * SECOND),
        SignedToken(b"t", b"other", START + DAY * SECOND),
    )

    async def send(worker: VirtualSupervisor) -> None:
        world.service.enqueue(*(message(id_) for id_ in range(1, 11)))
        await trio.sleep(60)
        recorder = worker.parts.recorder
        await recorder.receive([Receipt("sms", "nobody's", True, "delivered", clock.now(), clock.now())])
        assert await recorder.use_token(token)

    async def wait(_worker: VirtualSupervisor) -> None:
        await trio.sleep(75)

    async def report(worker: VirtualSupervisor) -> None:
        recorder = worker.parts.recorder
        keys = {dispatch.entry.id: dispatch.key for _, dispatch in world.channels["sms"].attempts}
        await recorder.receive([delivered(id_, key, clock) for id_, key in keys.items()])
        assert not await recorder.use_token(other)
        await trio.sleep(60)

    def ahead(
        scene: Callable[[VirtualSupervisor], Awaitable[None]],
    ) -> Callable[[VirtualSupervisor], Awaitable[None]]:
        async def play(worker: VirtualSupervisor) -> None:
            clock.ahead = AHEAD
            await scene(worker)
            clock.ahead = 0

        return play

    if restart:
        play_in(world, clock, send)
        clock.ahead = AHEAD
        play_in(world, clock, ahead(wait))
        play_in(world, clock, report)
    else:

        async def all_of_it(worker: VirtualSupervisor) -> None:
            for scene in (send, ahead(wait), report):
                await scene(worker)

        play_in(world, clock, all_of_it)
    told = [world.service.statuses(id_) for id_ in range(1, 11)]
    assert told == [["dequeued", "sent", "delivered"]] * 10
    unmatched: Any = world.journal_rows("SELECT count(*) FROM receipt WHERE message_id IS NULL")
    assert unmatched == [(1,)]


@pytest.mark.slow
def test_messages_are_deleted_when_their_retention_has_passed(world: VirtualWorld) -> None:
    """Also after a step, once that much time went by; what is known of the clock is kept for the next run."""
    clock = SteppingClock()
    text = world.path.read_text(encoding="utf-8")
    world.write(text.replace("[journal]\n", '[journal]\nretention = "1h"\n'))

    async def scene(worker: VirtualSupervisor) -> None:
        world.service.enqueue(message(1))
        await trio.sleep(60)
        clock.ahead = AHEAD
        await trio.sleep(3600 - 120)
        assert world.journal_rows("SELECT count(*) FROM message") == [(1,)]
        await trio.sleep(240)
        assert world.journal_rows("SELECT count(*) FROM message") == [(0,)]

    play_in(world, clock, scene)
    [(kept,)] = world.journal_rows("SELECT value FROM meta WHERE key = 'clock'")
    assert len(json.loads(str(kept))["readings"]) == 2


def test_the_night_that_a_machine_was_off_counts_for_a_command_once_its_worker_runs_again() -> None:
    """It isn't measured: before the worker and after its start the command goes by the clock."""
    clock = SteppingClock()
    night = 12 * 3600 * SECOND

    async def play() -> None:
        with patch.object(passed_time, "_boot_id", lambda: "yesterday's"):
            kept = PassedTime(clock).record() or ""
        doubtful_since = clock.now()
        clock.ahead += night
        with patch.object(passed_time, "_boot_id", lambda: "today's"):
            worker = PassedTime(clock, kept, doubtful_since)
            assert not worker.is_measured(600.0)
            assert worker.stepped() == 0
            await trio.sleep(120)
            recorded = worker.record() or ""
            for asked in (kept, recorded):
                with patch.object(passed_time, "WallClock", lambda: clock):
                    assert is_older(asked, doubtful_since, 600.0)
                    assert not is_older(asked, clock.now() - 60 * SECOND, 600.0)
            await trio.sleep(600)
            assert worker.is_measured(600.0)

    in_time(play)


def test_a_step_that_was_noticed_and_not_followed_is_left_to_the_next_run() -> None:
    """What only asks for ages may notice it first, and the worker end before its due times are moved."""

    async def play() -> None:
        clock = SteppingClock()
        passed = PassedTime(clock)
        kept = passed.record()
        assert kept is not None
        clock.ahead -= 3600 * SECOND
        passed.before(0)
        assert passed.record() is None
        assert PassedTime(clock, kept, clock.now()).stepped() == -3600 * SECOND
        assert passed.stepped() == -3600 * SECOND
        after = passed.record()
        assert after is not None
        assert PassedTime(clock, after, clock.now()).stepped() == 0

    in_time(play)
