"""Dispatchers in virtual time, on a real journal: places, pace, pauses, doubt, and the time a message has."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, Expired, InDoubt, Refused, Stopped, TryAgain, Verdict
from deliveryd.delivery.backlog import Backlog
from deliveryd.delivery.choice import Choice, Sender
from deliveryd.delivery.dispatcher import Dispatcher
from deliveryd.delivery.doubt import DoubtPolicy
from deliveryd.delivery.in_flight import InFlightLimit
from deliveryd.delivery.outbox_signals import OutboxSignals
from deliveryd.delivery.outcomes import Outcomes
from deliveryd.delivery.policy import DispatchPolicy, RetryPolicy
from deliveryd.delivery.provider import Provider
from deliveryd.delivery.recorder import Recorder
from deliveryd.delivery.routing import Routed
from deliveryd.journal.sqlite import SqliteJournal, open_journal
from deliveryd.metrics import Metrics
from deliveryd.model import (
    Customer,
    Entry,
    QueuedMessage,
    Rendered,
    Spent,
    Transition,
    format_instant,
    message_key,
)
from deliveryd.runtime.breaker import BreakerPolicy
from deliveryd.runtime.threads import inline
from deliveryd.runtime.wakeup import Heartbeats
from deliveryd.states import State
from support.messages import message
from support.virtual import START, VirtualChannel, VirtualClock, VirtualService, VirtualWorld, live

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
        async with trio.open_nursery() as nursery:
            supervisor = world.supervisor()
            nursery.start_soon(supervisor.run)
            await trio.sleep(60)
            world.service.enqueue(*(message(id_) for id_ in range(100, 300)))
            await trio.sleep(60)
            supervisor.stop()

    live(run)
    late = [at for at in busy.began if at > 59]
    assert len(late) == 200
    assert sum(at == late[0] for at in late) <= 5
    assert late[-1] - late[0] >= 1.9


# A dispatcher by itself


class ShiftedClock(VirtualClock):
    """A time of day that a test may set forward."""

    shift = 0

    def now(self) -> int:
        return super().now() + self.shift


class WatchedRecorder(Recorder):
    """A recorder that keeps the steps it records; each commit takes a while by the time of day."""

    def __init__(self, journal: SqliteJournal, clock: ShiftedClock, metrics: Metrics) -> None:
        super().__init__(
            journal, InFlightLimit(0), OutboxSignals(1), Backlog(), clock, metrics,
            max_waiting=1000, longest_pause=3600.0,
        )  # fmt: skip
        self.clock = clock
        self.recorded: list[Transition] = []
        self.seconds_of_a_commit = 0

    async def record(self, steps: Sequence[Transition]) -> Collection[int]:
        settled = await super().record(steps)
        self.recorded += steps
        self.clock.shift += self.seconds_of_a_commit * SECOND
        return settled


class Bench:
    """One dispatcher on a real journal; its outcomes are kept instead of being recorded."""

    def __init__(self, journal: SqliteJournal, policy: DispatchPolicy) -> None:
        self.journal = journal
        self.clock = ShiftedClock()
        self.channel = VirtualChannel()
        metrics = Metrics(["sms"], "0")
        self.recorder = WatchedRecorder(journal, self.clock, metrics)
        outcomes = Outcomes(self.recorder, Heartbeats())
        self.settled = outcomes._pending
        provider = Provider("sms", policy.breaker, self.recorder.backlog, self.recorder.pauses, self.clock)
        choice = Choice({"sms": Sender(self.channel, provider)})
        self.dispatcher = Dispatcher(
            provider, choice, self.channel, self.recorder, outcomes, self.clock, metrics, Heartbeats(),
            policy=policy, doubt=DoubtPolicy("sms", policy), namespace=journal.namespace,
            share=100, intermediate=frozenset(),
        )  # fmt: skip

    @property
    def recorded(self) -> list[Transition]:
        return self.recorder.recorded

    async def offer(self, *ids: int, expires_at: int | None = None, customer: Customer | None = None) -> None:
        """Bring messages as far as the dispatcher gets them: taken, and their `dequeued` accepted."""
        now = self.clock.now()
        await self.journal.take([QueuedMessage(id_, 1, 1, {}) for id_ in ids], [], now)
        await self.journal.accept(await self.journal.outbox(0, 100), now)
        messages = [routed(id_, expires_at)._replace(customer=customer) for id_ in ids]
        assert all(self.dispatcher.offer(message) for message in messages)


def routed(id_: int, expires_at: int | None = None) -> Routed:
    return Routed(Entry(id_, 1, 1, {}, provider="sms"), "sms", None, Rendered("sms", "en", {}), expires_at)


def on_the_bench(folder: Path, scene: Callable[[Bench], Awaitable[None]], concurrency: int = 10) -> None:
    """Play a scene with a dispatcher that runs."""

    async def play() -> None:
        policy = DispatchPolicy(
            concurrency, None, RetryPolicy(3, 1.0, 10.0), BreakerPolicy(3, 1.0, 60.0), resend_in_doubt=True
        )
        async with (
            open_journal(folder / "journal.db", blocking=inline) as journal,
            trio.open_nursery() as nursery,
        ):
            bench = Bench(journal, policy)
            nursery.start_soon(bench.dispatcher.run)
            await scene(bench)
            nursery.cancel_scope.cancel()

    live(play)


def test_what_expires_between_intent_and_send_is_not_sent(tmp_path: Path) -> None:
    """A slow commit may take the last second away: the intent is ended, with the error that says why."""

    async def scene(bench: Bench) -> None:
        expires_at = START + 60 * SECOND
        bench.recorder.seconds_of_a_commit = 61
        await bench.offer(1, expires_at=expires_at)
        await trio.sleep(1)
        assert [change.after for change in bench.recorded] == [State.SENDING]
        assert not bench.channel.attempts
        (end,) = bench.settled
        assert (end.before, end.after) == (State.SENDING, State.FAILED)
        assert end.events[0].details == f"expired at {format_instant(expires_at)}"
        await bench.journal.change(bench.settled)

    on_the_bench(tmp_path, scene)


def test_what_expires_while_its_provider_is_being_reached_ends_as_expired(tmp_path: Path) -> None:
    """The adapter looked at the time last, and the provider surely doesn't have the message."""

    async def scene(bench: Bench) -> None:
        expires_at = START + 60 * SECOND
        bench.channel.verdict = lambda _dispatch: Expired()
        await bench.offer(1, expires_at=expires_at)
        await trio.sleep(1)
        ((_, dispatch),) = bench.channel.attempts
        assert (dispatch.expires_at, dispatch.clock) == (expires_at, bench.clock)
        (end,) = bench.settled
        assert (end.before, end.after) == (State.SENDING, State.FAILED)
        assert end.events[0].details == f"expired at {format_instant(expires_at)}"
        await bench.journal.change(bench.settled)

    on_the_bench(tmp_path, scene)


def test_who_stopped_gets_nothing_more_that_is_queued(tmp_path: Path) -> None:
    """The next message of the recipient is routed anew; a repeat of what may have arrived isn't."""

    async def scene(bench: Bench) -> None:
        bench.channel.seconds = 1.0
        bench.channel.verdict = lambda _dispatch: Stopped("provider answered 403", "blocked")
        ann, bob = Customer(1, {"phone": "+4420"}), Customer(2, {"phone": "+4421"})
        await bench.offer(1, 2, customer=ann)
        await bench.offer(3, customer=bob)
        await trio.sleep(1.5)
        (step,) = bench.settled
        assert (step.after, step.entry.spent) == (State.READY, (Spent("sms", "provider answered 403", True),))
        assert step.outcome == ("stopped", None, "provider answered 403", "blocked")
        assert step.stop is not None
        assert (step.stop.channel, step.stop.source) == ("sms", "answer")
        await trio.sleep(5)
        assert [dispatch.entry.id for _, dispatch in bench.channel.attempts] == [1, 3]
        (anew,) = [change for change in bench.recorded if change.entry.id == 2]
        assert (anew.after, anew.due_at, anew.waits_for) == (State.WAITING, anew.at, None)
        assert not bench.dispatcher.is_open
        await bench.journal.change(bench.settled)
        assert len(await bench.journal.stopped()) == 2

    on_the_bench(tmp_path, scene, concurrency=1)


def test_what_is_late_when_its_turn_comes_gets_no_intent(tmp_path: Path) -> None:
    """It was queued for too long: no attempt is counted, and its neighbour is sent."""

    async def scene(bench: Bench) -> None:
        await bench.offer(1, expires_at=START + 60 * SECOND)
        await bench.offer(2, expires_at=START - 1)
        await trio.sleep(1)
        assert [dispatch.entry.id for _, dispatch in bench.channel.attempts] == [1]
        (late,) = [change for change in bench.recorded if change.entry.id == 2]
        assert (late.before, late.after, late.entry.number) == (State.READY, State.FAILED, 0)

    on_the_bench(tmp_path, scene)


def test_a_stopped_dispatcher_begins_nothing_more_and_finishes_what_is_under_way(tmp_path: Path) -> None:
    """`finish` waits for the two attempts that left; the others have no intent, and none gets one."""

    async def scene(bench: Bench) -> None:
        bench.channel.seconds = 30.0
        await bench.offer(1, 2, 3, 4, 5)
        await trio.sleep(1)
        assert (bench.dispatcher.under_way, bench.dispatcher.queued) == (2, 3)
        bench.dispatcher.stop()
        await bench.offer(6)
        await bench.dispatcher.finish()
        assert 29 < trio.current_time() < 36
        await trio.sleep(100)
        assert sorted(change.entry.id for change in bench.settled) == [1, 2]
        assert (await bench.journal.counts()).states == {State.SENDING: 2, State.READY: 4}

    on_the_bench(tmp_path, scene, concurrency=2)


def test_a_dispatcher_takes_its_share_and_no_more(tmp_path: Path) -> None:
    """What finds no room is refused at once, for the line to park; an end makes room again."""

    async def scene(bench: Bench) -> None:
        bench.channel.seconds = 30.0
        await bench.offer(*range(1, 101))
        await trio.sleep(1)
        assert (bench.dispatcher.room, bench.dispatcher.offer(routed(101))) == (0, False)
        await trio.sleep(30)
        assert (bench.dispatcher.room, bench.dispatcher.queued) == (10, 80)

    on_the_bench(tmp_path, scene)


def test_the_intent_is_durable_before_the_provider_hears_of_the_message(tmp_path: Path) -> None:
    """When the adapter is called, a crash would find the attempt, under the id that the provider sees."""

    async def scene(bench: Bench) -> None:
        found: list[State] = []

        def look(dispatch: Dispatch) -> Verdict:
            found.extend(change.after for change in bench.recorded)
            return Accepted(dispatch.key)

        bench.channel.verdict = look
        await bench.offer(1)
        await trio.sleep(1)
        assert found == [State.SENDING]
        assert bench.channel.attempts[0][1].key == message_key(bench.journal.namespace, 1, "sms", 1)

    on_the_bench(tmp_path, scene)
