"""The line after a crash: what was under way is finished, and nothing is sent twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, InDoubt, Refused, TryAgain, Verdict
from support.messages import message
from support.virtual import VirtualWorld, live

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello {word}"}}}})


BOTH = json.dumps({"content": {"en": {"sms": {"text": "hello"}, "email": {"subject": "s", "body": "b"}}}})


EMAIL = """
[channels.email]
adapter = "http"
url = "http://provider/email"
json = { text = "{content.body}" }
"""


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """A world with settings 1 and an empty queue."""
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = SMS
    return world


def sent(world: VirtualWorld, channel: str = "sms") -> Counter[int]:
    """How often each message was sent."""
    return Counter(dispatch.entry.id for _, dispatch in world.channels[channel].attempts)


# After a crash


class Crash:
    """Ends a worker in the middle of whatever it does, once."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()

    def now(self) -> None:
        self.scope.cancel()

    async def run(self, world: VirtualWorld) -> None:
        with self.scope:
            await world.run_until_idle()
        assert self.scope.cancelled_caught


def at_request(path: str, needle: bytes = b"") -> Callable[[VirtualWorld, Crash], None]:
    """Crash when this request is about to reach the service, which never sees it."""

    def prepare(world: VirtualWorld, crash: Crash) -> None:
        def trouble(request: httpx.Request) -> httpx.Response | None:
            if request.url.path == path and needle in request.content and not crash.scope.cancel_called:
                crash.now()
                raise httpx.ConnectError("gone")
            return None

        world.service.trouble = trouble

    return prepare


def at_answer(path: str, needle: bytes = b"") -> Callable[[VirtualWorld, Crash], None]:
    """Crash when the service has done what this request asks, and its answer is on the way."""

    def prepare(world: VirtualWorld, crash: Crash) -> None:
        def trouble(request: httpx.Request) -> httpx.Response | None:
            if request.url.path == path and needle in request.content and not crash.scope.cancel_called:
                crash.now()
            return None

        world.service.trouble = trouble

    return prepare


def while_waiting(world: VirtualWorld, crash: Crash) -> None:
    """Crash between two tries of messages that their provider couldn't take."""
    channel = world.channels["sms"]

    async def send(dispatch: Dispatch) -> Verdict:
        if not crash.scope.cancel_called:
            crash.scope.deadline = min(crash.scope.deadline, trio.current_time() + 0.5)
            return TryAgain("busy")
        channel.attempts.append((trio.current_time(), dispatch))
        return Accepted(dispatch.key)

    channel.send = send  # type: ignore[method-assign]


NOT_SENT_YET = {
    "TAKEN: its dequeued never left": at_request("/events", b'"dequeued"'),
    "TAKEN: the service has its dequeued": at_answer("/events", b'"dequeued"'),
    "READY: its settings are asked for": at_request("/settings/1"),
    "WAITING: for the next try": while_waiting,
    "SENT: its event never left": at_request("/events", b'"sent"'),
    "SENT: the service has its event": at_answer("/events", b'"sent"'),
}


@pytest.mark.parametrize("prepare", NOT_SENT_YET.values(), ids=NOT_SENT_YET.keys())
def test_after_a_crash_the_next_run_finishes_each_message_and_sends_none_twice(
    world: VirtualWorld, prepare: Callable[[VirtualWorld, Crash], None]
) -> None:
    """Wherever the worker ended, nobody gets a message twice, and the service hears the end of each."""
    world.service.enqueue(*(message(id_) for id_ in range(1, 21)))
    crash = Crash()
    prepare(world, crash)
    live(lambda: crash.run(world))
    live(world.run_until_idle)
    assert sent(world) == dict.fromkeys(range(1, 21), 1)
    for id_ in range(1, 21):
        statuses = world.service.statuses(id_)
        assert list(dict.fromkeys(statuses)) == ["dequeued", "sent"]
        assert statuses == sorted(statuses)


@pytest.mark.parametrize("moment", ["before the provider has it", "after the provider has it"])
@pytest.mark.parametrize("policy", ["resend", "hold"])
def test_attempts_that_a_crash_cut_off_are_settled_by_the_policy(
    world: VirtualWorld, policy: str, moment: str
) -> None:
    """Those under way are repeated under their own id, or held; what only queued is sent as ever."""
    world.add(f'concurrency = 5\non_in_doubt = "{policy}"\n')
    world.service.enqueue(*(message(id_) for id_ in range(1, 21)))
    crash, channel = Crash(), world.channels["sms"]
    cut_off: list[Dispatch] = []
    work = channel.send

    async def send(dispatch: Dispatch) -> Verdict:
        if moment.startswith("after"):
            await work(dispatch)
        cut_off.append(dispatch)
        if len(cut_off) == 5:
            crash.now()
        await trio.sleep_forever()
        raise AssertionError

    channel.send = send  # type: ignore[method-assign]
    live(lambda: crash.run(world))
    channel.attempts.clear()
    channel.send = work  # type: ignore[method-assign]
    live(world.run_until_idle)
    interrupted = {dispatch.entry.id: dispatch.key for dispatch in cut_off}
    now = {dispatch.entry.id: dispatch.key for _, dispatch in channel.attempts}
    assert len(interrupted) == 5
    assert len(channel.attempts) == len(now)
    if policy == "resend":
        assert now.keys() == set(range(1, 21))
        assert interrupted.items() <= now.items()
        assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in now)
    else:
        assert now.keys() == set(range(1, 21)) - interrupted.keys()
        assert all(world.service.statuses(id_) == ["dequeued"] for id_ in interrupted)


def test_a_crash_between_two_channels_keeps_the_first_one_spent(world: VirtualWorld) -> None:
    """What refused for good isn't asked again by the next run; the other channel delivers."""
    world.add(EMAIL)
    world.service.settings[1] = BOTH
    world.service.enqueue(message(1))
    crash = Crash()
    world.channels["sms"].verdict = lambda _dispatch: Refused("no such number")
    mail = world.channels["email"]
    work = mail.send

    async def send(dispatch: Dispatch) -> Verdict:
        crash.now()
        return TryAgain("never told")

    mail.send = send  # type: ignore[method-assign]
    live(lambda: crash.run(world))
    mail.send = work  # type: ignore[method-assign]
    live(world.run_until_idle)
    assert sent(world) == sent(world, "email") == {1: 1}
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_a_message_in_doubt_whose_channel_is_gone_is_held(world: VirtualWorld) -> None:
    """Without its channel nobody can repeat the attempt, and another channel must not."""
    world.service.settings[1] = BOTH
    world.service.enqueue(message(1))
    crash = Crash()
    world.channels["sms"].verdict = lambda _dispatch: InDoubt("cut off")

    async def run() -> None:
        crash.scope.deadline = 1.0
        await crash.run(world)

    live(run)
    text = world.path.read_text(encoding="utf-8")
    world.path.write_text(text[: text.index("[channels.sms]")] + EMAIL, encoding="utf-8")
    held: list[int] = []

    async def again() -> None:
        supervisor = world.supervisor()
        await supervisor.run(until_idle=True)
        held.append(supervisor.held_in_doubt)

    live(again)
    assert held == [1]
    assert not world.channels["email"].attempts
    assert world.service.statuses(1) == ["dequeued"]


@pytest.mark.slow
def test_crashes_again_and_again_lose_nothing_and_send_nothing_twice_without_need(
    world: VirtualWorld,
) -> None:
    """Twenty ends at any moment; each message has one attempt id, however often it was repeated."""
    world.service.enqueue(*(message(id_) for id_ in range(1, 101)))
    world.add("concurrency = 3\n[queue]\nbatch_size = 10\nmax_in_flight = 20\n")

    async def run(seconds: float) -> None:
        with trio.move_on_after(seconds):
            await world.run_until_idle()

    for number in range(20):
        live(lambda: run(0.03 + 0.017 * number))  # noqa: B023 - it is run at once
    live(world.run_until_idle)
    keys = [(dispatch.entry.id, dispatch.key) for _, dispatch in world.channels["sms"].attempts]
    assert sent(world).keys() == set(range(1, 101))
    assert len(set(keys)) == 100
    for id_ in range(1, 101):
        statuses = world.service.statuses(id_)
        assert list(dict.fromkeys(statuses)) == ["dequeued", "sent"]
