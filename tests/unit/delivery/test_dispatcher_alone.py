"""A dispatcher by itself: its share, its intents, and what expires or stops meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from deliveryd.channels.base import Accepted, Dispatch, Expired, Stopped, Verdict
from deliveryd.delivery.choice import Choice, Idle, Sender
from deliveryd.delivery.dispatch_queue import NEW, DispatchQueue
from deliveryd.delivery.dispatcher import Dispatcher
from deliveryd.delivery.memory import LineMemory
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.policy import DispatchPolicy, DoubtPolicy, RetryPolicy
from deliveryd.delivery.provider import Provider
from deliveryd.delivery.recorder import Recorder
from deliveryd.delivery.terms import DispatchTerms
from deliveryd.errors import JournalFull
from deliveryd.journal.pauses import Pause, PauseKind
from deliveryd.journal.sqlite.journal import SqliteJournal, open_journal_file
from deliveryd.metrics import Metrics
from deliveryd.model import (
    AT_ONCE,
    Content,
    Customer,
    Entry,
    QueuedMessage,
    Rendered,
    Settings,
    Spent,
    Transition,
    format_instant,
    message_key,
)
from deliveryd.rendering.content import compile_settings
from deliveryd.runtime import waits
from deliveryd.runtime.breaker import BreakerPolicy
from deliveryd.runtime.threads import inline
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL, Heartbeats
from deliveryd.states import State
from support.line import common_on, memory_on
from support.routes import delivery
from support.virtual import START, SteppingClock, VirtualChannel, live

SECOND = 1_000_000


# A dispatcher by itself


class WatchedRecorder(Recorder):
    """A recorder that keeps the steps it records; each commit takes a while by the time of day."""

    def __init__(
        self, journal: SqliteJournal, memory: LineMemory, clock: SteppingClock, metrics: Metrics
    ) -> None:
        super().__init__(journal, memory, metrics)
        self.clock = clock
        self.recorded: list[Transition] = []
        self.seconds_of_a_commit = 0

    async def record(self, steps: Sequence[Transition]) -> Collection[int]:
        settled = await super().record(steps)
        self.recorded += steps
        self.clock.ahead += self.seconds_of_a_commit * SECOND
        return settled


class CountedBeats(Heartbeats):
    """Refuses a loop that turns without end, which no virtual time would pass."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0

    def beat(self, loop: str) -> float:
        self.turns += 1
        assert self.turns < 10_000, "the loop turns without end"
        return super().beat(loop)


NO_OTHERS: Mapping[str, Sender] = {}


class Bench:
    """One dispatcher on a real journal; its outcomes are kept instead of being recorded."""

    def __init__(
        self, journal: SqliteJournal, policy: DispatchPolicy, others: Mapping[str, Sender] = NO_OTHERS
    ) -> None:
        self.journal = journal
        self.clock = SteppingClock()
        self.channel = VirtualChannel()
        metrics = Metrics(["sms"], "0")
        self.memory = memory_on(journal, self.clock, metrics, places=0, batch_size=1)
        self.recorder = WatchedRecorder(journal, self.memory, self.clock, metrics)
        common = common_on(journal, self.memory, self.recorder, metrics, CountedBeats())
        self.settled = common.outcomes._pending
        self.provider = Provider("sms", policy.breaker, self.memory.backlog, self.memory.pauses, self.clock)
        choice = Choice({"sms": Sender(self.channel, self.provider), **others})
        terms = DispatchTerms(
            self.provider, choice, self.channel, policy, DoubtPolicy("sms", policy), 100, frozenset()
        )
        self.dispatcher = Dispatcher(terms, common)

    @property
    def recorded(self) -> list[Transition]:
        return self.recorder.recorded

    async def offer(self, *ids: int, expires_at: int | None = None, customer: Customer | None = None) -> None:
        """Bring messages as far as the dispatcher gets them: taken, and their `dequeued` accepted."""
        now = self.clock.now()
        await self.journal.take([QueuedMessage(id_, 1, 1, {}) for id_ in ids], [], now)
        await self.journal.accept(await self.journal.outbox(0, 100), now)
        entries = [Entry(id_, 1, 1, {}, provider="sms") for id_ in ids]
        messages = [delivery(entry, "sms", customer, expires_at) for entry in entries]
        assert not any(self.dispatcher.offer(message) for message in messages)


def on_the_bench(
    folder: Path,
    scene: Callable[[Bench], Awaitable[None]],
    concurrency: int = 10,
    others: Mapping[str, Sender] = NO_OTHERS,
) -> None:
    """Play a scene with a dispatcher that runs."""

    async def play() -> None:
        policy = DispatchPolicy(
            concurrency, None, RetryPolicy(3, 1.0, 10.0), BreakerPolicy(3, 1.0, 60.0), resend_in_doubt=True
        )
        async with (
            open_journal_file(folder / "journal.db", blocking=inline) as journal,
            trio.open_nursery() as nursery,
        ):
            bench = Bench(journal, policy, others)
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
        assert (dispatch.expires_at, dispatch.clock) == (expires_at, bench.memory.clock)
        (end,) = bench.settled
        assert (end.before, end.after) == (State.SENDING, State.FAILED)
        assert end.events[0].details == f"expired at {format_instant(expires_at)}"
        await bench.journal.change(bench.settled)

    on_the_bench(tmp_path, scene)


def test_what_expires_by_a_clock_that_is_put_forward_leaves_the_queue_soon() -> None:
    """Its provider may be down for hours, and the service waits for the word."""

    async def wait() -> None:
        clock = SteppingClock()
        queue = DispatchQueue(clock)
        expires_at = START + 3600 * SECOND
        message = Delivery(Entry(1, 1, 1, {}), compile_settings(Settings(1, expires_at, {})))
        queue.add(message, NEW)
        assert not queue.take_expired()
        clock.ahead = 2 * 3600 * SECOND
        await trio.sleep(HEARTBEAT_INTERVAL)
        assert queue.take_expired() == [message]

    live(wait)


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
        assert [(stop.channel, stop.source) for stop in step.stops] == [("sms", "answer")]
        await trio.sleep(5)
        assert [dispatch.entry.id for _, dispatch in bench.channel.attempts] == [1, 3]
        (anew,) = [change for change in bench.recorded if change.entry.id == 2]
        assert (anew.after, anew.due_at, anew.waits_for) == (State.WAITING, AT_ONCE, None)
        assert not bench.provider.is_down
        await bench.journal.change(bench.settled)
        assert len(await bench.journal.stopped()) == 2

    on_the_bench(tmp_path, scene, concurrency=1)


def test_what_was_only_put_off_is_routed_anew_when_its_recipient_stopped(tmp_path: Path) -> None:
    """Queued before that, it may have arrived, but nothing of it is in doubt."""

    async def scene(bench: Bench) -> None:
        now, kept = bench.clock.now(), Content(Rendered("sms", "en", {}), {})
        put_off = Entry(1, 1, 1, {}, provider="sms", stay_tries=1, content=kept)
        await bench.journal.take([QueuedMessage(1, 1, 1, {})], [], now)
        await bench.journal.accept(await bench.journal.outbox(0, 100), now)
        bench.memory.stopped.stop("sms", "+4420", 1, "blocked")
        bench.dispatcher.offer(delivery(put_off, "sms", Customer(1, {"phone": "+4420"})))
        await trio.sleep(1)
        assert not bench.channel.attempts
        (anew,) = bench.recorded
        assert (anew.after, anew.due_at, anew.waits_for) == (State.WAITING, AT_ONCE, None)

    on_the_bench(tmp_path, scene)


def test_what_is_late_when_its_turn_comes_gets_no_intent(tmp_path: Path) -> None:
    """It was queued for too long: no attempt is counted, and its neighbour is sent."""

    async def scene(bench: Bench) -> None:
        await bench.offer(1, expires_at=START + 60 * SECOND)
        await bench.offer(2, expires_at=START - 1)
        await trio.sleep(1)
        assert [dispatch.entry.id for _, dispatch in bench.channel.attempts] == [1]
        (late,) = [change for change in bench.recorded if change.entry.id == 2]
        assert (late.before, late.after, late.entry.stay_tries) == (State.READY, State.FAILED, 0)

    on_the_bench(tmp_path, scene)


def test_a_stopped_dispatcher_begins_nothing_more_and_finishes_what_is_under_way(tmp_path: Path) -> None:
    """`finish` waits for the two attempts that left; the others have no intent, and none gets one."""

    async def scene(bench: Bench) -> None:
        bench.channel.seconds = 30.0
        await bench.offer(1, 2, 3, 4, 5)
        await trio.sleep(1)
        assert (bench.dispatcher.admission.under_way, len(bench.provider.queue)) == (2, 3)
        bench.dispatcher.stop()
        await bench.offer(6)
        await bench.dispatcher.finish()
        assert 29 < trio.current_time() < 36
        await trio.sleep(100)
        assert sorted(change.entry.id for change in bench.settled) == [1, 2]
        assert (await bench.journal.counts()).states == {State.SENDING: 2, State.READY: 4}

    on_the_bench(tmp_path, scene, concurrency=2)


def test_a_provider_that_is_given_up_gives_its_queue_away_whenever_it_is_down_again(tmp_path: Path) -> None:
    """Also if it worked in between for so short a time that nobody else noticed."""

    async def scene(bench: Bench) -> None:
        bench.dispatcher.terms.choice.give_up(["sms"])
        bench.channel.seconds = 30.0
        await bench.offer(1, 2, 3)
        await trio.sleep(1)
        assert len(bench.provider.queue) == 2
        bench.provider.breaker.open()
        await trio.sleep(10)
        assert [entry.id for entry in bench.memory.ready.take()] == [2, 3]

    on_the_bench(tmp_path, scene, concurrency=1)


def test_a_dispatcher_takes_its_share_and_no_more(tmp_path: Path) -> None:
    """What finds no room is refused at once, for the line to park; an end makes room again."""

    async def scene(bench: Bench) -> None:
        bench.channel.seconds = 30.0
        await bench.offer(*range(1, 101))
        await trio.sleep(1)
        late = delivery(Entry(101, 1, 1, {}, provider="sms"), "sms")
        assert (bench.dispatcher.admission.room, bench.dispatcher.offer(late) is None) == (0, False)
        await trio.sleep(30)
        assert (bench.dispatcher.admission.room, len(bench.provider.queue)) == (10, 80)

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


def test_a_message_that_is_paused_while_its_provider_is_down_turns_no_loop(tmp_path: Path) -> None:
    """It stays queued until the journal has it wait; no probe may begin meanwhile, and none is waited for."""

    async def scene(bench: Bench) -> None:
        bench.provider.breaker.open()
        await bench.offer(1)
        bench.memory.pauses.replace([Pause(PauseKind.CHANNEL, "sms", START)], frozenset({"sms"}))
        await trio.sleep(60)
        assert not bench.channel.attempts

    on_the_bench(tmp_path, scene)


def test_what_may_have_arrived_and_can_go_nowhere_else_waits_for_its_provider(tmp_path: Path) -> None:
    """Queued, it would be prepared anew at once, for nothing: the router found no other provider for it."""

    async def scene(bench: Bench) -> None:
        bench.provider.breaker.open()
        content = Content(Rendered("sms", "en", {}), {})
        tried = Entry(1, 1, 1, {}, stay_tries=1, content=content, via="sms")
        step = bench.dispatcher.offer(delivery(tried, "sms", Customer(1, {})))
        assert step is not None
        assert step.waits_for == waits.alone("sms")

    on_the_bench(tmp_path, scene, others={"sms/b": Sender(VirtualChannel(), Idle())})


def test_what_has_left_the_queue_is_recorded_before_a_removed_dispatcher_is_done(tmp_path: Path) -> None:
    """Cancelled before that, a message would be in no queue, and ready for ever."""

    async def scene(bench: Bench) -> None:
        record, until = bench.journal._try, trio.current_time() + 5

        async def lacking(work: Callable[[Any], Any], *then: Any) -> Any:
            if trio.current_time() < until:
                raise JournalFull
            return await record(work, *then)

        await bench.offer(1, expires_at=START - SECOND)
        bench.journal._try = lacking  # type: ignore[method-assign, assignment]
        await trio.sleep(1)
        assert not bench.dispatcher.leave()
        await bench.dispatcher.finish()
        assert [step.after for step in bench.recorded] == [State.FAILED]

    on_the_bench(tmp_path, scene)


def test_places_are_free_before_a_removed_dispatcher_is_done(tmp_path: Path) -> None:
    """Of messages that wait in the journal, since their provider was down."""

    async def scene(bench: Bench) -> None:
        record, held = bench.journal._try, bench.memory.in_flight

        async def slow(work: Callable[[Any], Any], *then: Any) -> Any:
            recorded = await record(work, *then)
            await trio.sleep(5)
            return recorded

        await bench.offer(*range(1, 31))
        held.hold(range(1, 31))
        bench.provider.suspect()
        bench.journal._try = slow  # type: ignore[method-assign, assignment]
        await trio.sleep(1)
        left = bench.dispatcher.leave()
        await bench.dispatcher.finish()
        assert held.held == len(left) < 30

    on_the_bench(tmp_path, scene)
