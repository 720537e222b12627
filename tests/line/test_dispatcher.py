"""Dispatchers in virtual time, on a real journal: places, pace, pauses, doubt, and the time a message has."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, InDoubt, Refused, TryAgain, Verdict
from deliveryd.delivery.policy import RetryPolicy
from deliveryd.model import (
    format_instant,
)
from support.messages import message
from support.virtual import START, VirtualService, VirtualWorld, live

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})


BOTH = json.dumps({"content": {"en": {"sms": {"text": "hello"}, "email": {"subject": "s", "body": "b"}}}})


EMAIL = """
[channels.email]
adapter = "http"
url = "http://provider/email"
json = { text = "{content.body}" }
"""


SECOND = 1_000_000


def details(service: VirtualService, message_id: int) -> str:
    """The details of the one error that a message ended with."""
    (error,) = [event for event in service.events if event["messageId"] == message_id and "details" in event]
    return str(error["details"])


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """The whole line, with one message for the channel sms."""
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = SMS
    world.service.enqueue(message(1))
    return world


# The pauses between tries


def test_pauses_double_from_base_to_max_and_are_jittered_downwards() -> None:
    """Many workers that failed together don't come back together, and never later than configured."""
    retry = RetryPolicy(attempts=9, base=2.0, max=60.0)
    for tries, most in enumerate((2, 4, 8, 16, 32, 60, 60, 60), 1):
        pauses = [retry.pause(tries) for _ in range(200)]
        assert most / 2 <= min(pauses) < max(pauses) <= most
        assert max(pauses) - min(pauses) > most / 5


@pytest.mark.parametrize(("asked", "least"), [(0.5, 1.0), (300.0, 300.0), (None, 1.0)])
def test_a_pause_is_never_shorter_than_the_provider_asked_for(asked: float | None, least: float) -> None:
    """What the provider asks for counts beyond `max` too, and shortens nothing."""
    retry = RetryPolicy(attempts=9, base=2.0, max=60.0)
    assert all(least <= retry.pause(1, asked) <= max(least, 2.0) for _ in range(100))


def test_thousands_of_tries_overflow_nothing() -> None:
    """`retry.attempts` goes up to 1000, and the pause stays at its maximum."""
    assert 300 <= RetryPolicy(attempts=1000, base=2.0, max=600.0).pause(999) <= 600


@pytest.mark.slow
def test_the_waits_between_tries_grow_as_configured(world: VirtualWorld) -> None:
    """From outside: each gap lies within what its number of tries allows."""
    world.add('retry = { attempts = 7, base = "10s", max = "100s" }\n')
    channel = world.channels["sms"]
    channel.verdict = lambda _dispatch: TryAgain("busy")
    live(world.run_until_idle)
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(channel.attempts)]
    assert len(gaps) == 6
    for gap, most in zip(gaps, (10, 20, 40, 80, 100, 100), strict=True):
        assert most / 2 <= gap <= most + 1


@pytest.mark.slow
def test_a_provider_that_asks_for_a_quarter_of_an_hour_gets_it(world: VirtualWorld) -> None:
    """`after` is honoured though `max` is far shorter."""
    channel = world.channels["sms"]
    answers: list[Verdict] = [TryAgain("busy", after=900.0), Accepted("p1")]
    channel.verdict = lambda _dispatch: answers.pop(0)
    live(world.run_until_idle)
    (first, _), (second, _) = channel.attempts
    assert 900 <= second - first <= 910
    assert world.service.statuses(1) == ["dequeued", "sent"]


# The next channel


def test_tries_begin_anew_on_the_next_channel(world: VirtualWorld) -> None:
    """Each channel gets all of its attempts, and one error tells of both in the end."""
    world.add(f"retry = {{ attempts = 3 }}\n{EMAIL}retry = {{ attempts = 4 }}\n")
    world.service.settings[1] = BOTH
    for name in ("sms", "email"):
        world.channels[name].verdict = lambda _dispatch: TryAgain("busy")
    live(world.run_until_idle)
    assert len(world.channels["sms"].attempts) == 3
    assert len(world.channels["email"].attempts) == 4
    assert world.service.statuses(1) == ["dequeued", "error"]
    assert details(world.service, 1) == "sms: busy (tried 3 times); email: busy (tried 4 times)"


def test_a_refusal_hands_over_at_once_and_only_one_channel_delivers(world: VirtualWorld) -> None:
    """The second channel begins within the second, and `sent` is reported once."""
    world.add(EMAIL)
    world.service.settings[1] = BOTH
    world.channels["sms"].verdict = lambda _dispatch: Refused("no such number")
    live(world.run_until_idle)
    ((refused, _),), ((accepted, _),) = world.channels["sms"].attempts, world.channels["email"].attempts
    assert accepted - refused < 1
    assert world.service.statuses(1) == ["dequeued", "sent"]


# What is in doubt


def test_an_attempt_in_doubt_keeps_its_id_until_a_repeat_is_accepted(world: VirtualWorld) -> None:
    """That a repeat surely failed says nothing of the first try, so the key stays the same."""
    channel = world.channels["sms"]
    answers: list[Verdict] = [InDoubt("cut off"), TryAgain("busy"), InDoubt("cut off"), Accepted("p1")]
    channel.verdict = lambda _dispatch: answers.pop(0)
    live(world.run_until_idle)
    assert len(channel.attempts) == 4
    assert len({dispatch.key for _, dispatch in channel.attempts}) == 1
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_an_attempt_in_doubt_never_moves_to_another_channel(world: VirtualWorld) -> None:
    """The customer may have it already: it ends where it was made, in one error that says so."""
    world.add(f"retry = {{ attempts = 3 }}\n{EMAIL}")
    world.service.settings[1] = BOTH
    channel = world.channels["sms"]
    channel.verdict = lambda _dispatch: InDoubt("cut off")
    live(world.run_until_idle)
    assert len(channel.attempts) == 3
    assert len({dispatch.key for _, dispatch in channel.attempts}) == 1
    assert not world.channels["email"].attempts
    assert world.service.statuses(1) == ["dequeued", "error"]
    assert details(world.service, 1) == "sms: cut off (tried 3 times); sms: outcome unknown"


def test_with_hold_a_message_in_doubt_stays_and_a_restart_leaves_it_alone(world: VirtualWorld) -> None:
    """It is neither sent again nor reported as anything; the worker says how many there are."""
    world.add('on_in_doubt = "hold"\n')
    world.channels["sms"].verdict = lambda _dispatch: InDoubt("cut off")
    held = []

    async def run() -> None:
        for _ in range(2):
            supervisor = world.supervisor()
            await supervisor.run(until_idle=True)
            held.append(supervisor.held_in_doubt)

    live(run)
    assert held == [1, 1]
    assert len(world.channels["sms"].attempts) == 1
    assert world.service.statuses(1) == ["dequeued"]


def test_what_was_held_is_sent_once_the_policy_says_resend(world: VirtualWorld) -> None:
    """An operator who changes the policy gets the held attempt repeated, under its own key."""
    text = world.path.read_text()
    world.add('on_in_doubt = "hold"\n')
    channel = world.channels["sms"]
    channel.verdict = lambda _dispatch: InDoubt("cut off")
    live(world.run_until_idle)
    world.path.write_text(text)
    channel.verdict = lambda _dispatch: Accepted("p1")
    live(world.run_until_idle)
    (_, held), (_, repeated) = channel.attempts
    assert held.key == repeated.key
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_an_adapter_that_answers_nonsense_leaves_the_message_in_doubt(world: VirtualWorld) -> None:
    """What isn't a verdict says nothing about what became of the attempt; the worker lives."""
    channel = world.channels["sms"]
    answers = iter([None])
    channel.verdict = lambda dispatch: next(answers, Accepted(dispatch.key))  # type: ignore[assignment, return-value]
    live(world.run_until_idle)
    assert world.service.statuses(1) == ["dequeued", "sent"]
    assert len({dispatch.key for _, dispatch in channel.attempts if dispatch.entry.id == 1}) == 1


def test_an_adapter_that_raises_leaves_one_message_in_doubt_and_the_others_go_on(world: VirtualWorld) -> None:
    """A fault in an adapter is that message's trouble: the worker lives, and tries it again."""
    world.service.enqueue(*(message(id_) for id_ in range(2, 41)))
    channel = world.channels["sms"]
    failures = iter(range(3))

    def verdict(dispatch: Dispatch) -> Verdict:
        if dispatch.entry.id == 7 and next(failures, None) is not None:
            raise ZeroDivisionError
        return Accepted(dispatch.key)

    channel.verdict = verdict
    live(world.run_until_idle)
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 41))
    keys = {dispatch.key for _, dispatch in channel.attempts if dispatch.entry.id == 7}
    assert len(channel.attempts) == 43
    assert len(keys) == 1


# What the service hears meanwhile


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ('["sending", "accepted"]', ["dequeued", "sending", "accepted", "sent"]),
        ('["accepted"]', ["dequeued", "accepted", "sent"]),
        ('["sending"]', ["dequeued", "sending", "sent"]),
    ],
)
def test_intermediate_statuses_are_reported_in_order_where_configured(
    world: VirtualWorld, configured: str, expected: list[str]
) -> None:
    """Their timestamps tell when the attempt began and when the provider took it."""
    world.add(f"[events]\nintermediate = {configured}\n")
    world.channels["sms"].seconds = 7.0
    live(world.run_until_idle)
    assert world.service.statuses(1) == expected
    times = {event["status"]: event["timestamp"] for event in world.service.events}
    assert list(times.values()) == sorted(times.values())
    if "sending" in times:
        assert times["sending"] < format_instant(START + 7 * SECOND) < times["sent"]


# Places and pace


class Busy:
    """Counts how many attempts are under way."""

    def __init__(self, world: VirtualWorld, seconds: float) -> None:
        self.now = 0
        self.most = 0
        self.began: list[float] = []
        self._seconds = seconds
        world.channels["sms"].send = self.send  # type: ignore[method-assign]

    async def send(self, dispatch: Dispatch) -> Verdict:
        self.began.append(trio.current_time())
        self.now += 1
        self.most = max(self.most, self.now)
        await trio.sleep(self._seconds)
        self.now -= 1
        return Accepted(dispatch.key)


def test_no_more_attempts_are_under_way_than_concurrency_allows_and_all_places_are_used(
    world: VirtualWorld,
) -> None:
    """Three at a time, and always three, for as long as there is work."""
    world.add("concurrency = 3\n")
    world.service.enqueue(*(message(id_) for id_ in range(2, 31)))
    busy = Busy(world, seconds=10.0)
    seconds = live(world.run_until_idle)
    assert busy.most == 3
    assert 100 <= seconds < 105
    assert len(busy.began) == 30


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "permits", "per"), [("100/s", 100, 1.0), ("30/m", 30, 60.0)])
def test_no_stretch_of_time_sees_more_attempts_than_its_rate_and_a_little(
    world: VirtualWorld, rate: str, permits: int, per: float
) -> None:
    """Of any window as long as the rate's own, a twentieth more is the most, and the rate is used."""
    world.add(f'rate = "{rate}"\n')
    count = permits * 3
    world.service.enqueue(*(message(id_) for id_ in range(2, count + 1)))
    busy = Busy(world, seconds=0.5)
    live(world.run_until_idle)
    assert len(busy.began) == count
    within = [sum(start <= other < start + per for other in busy.began) for start in busy.began]
    assert max(within) <= permits * 1.05 + 1
    assert busy.began[-1] - busy.began[0] < 3.1 * per


@pytest.mark.slow
def test_after_a_rest_a_rate_allows_a_small_burst_and_no_more(world: VirtualWorld) -> None:
    """A dispatcher that had nothing to do for a minute has not saved up a minute's attempts."""
    world.add('rate = "100/s"\n')
    busy = Busy(world, seconds=0.01)

    async def run() -> None:
        async with world.at_work():
            await trio.sleep(60)
            world.service.enqueue(*(message(id_) for id_ in range(100, 300)))
            await trio.sleep(60)

    live(run)
    late = [at for at in busy.began if at > 59]
    assert len(late) == 200
    assert sum(at == late[0] for at in late) <= 5
    assert late[-1] - late[0] >= 1.9
