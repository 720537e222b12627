"""Lanes: one for each channel, with its own queue, places, rate and retries, so that none slows another.

A lane commits the intent to send, then sends, then says what is to be done with the verdict. What waits in a
lane has no intent yet: only attempts that are really under way can ever be in doubt. While the provider keeps
failing, nothing leaves a lane but probes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple, get_args

import anyio
from anyio.abc import TaskGroup

from deliveryd.channels.base import (
    Accepted,
    Attempted,
    Channel,
    Dispatch,
    Expired,
    InDoubt,
    Misconfigured,
    Refused,
    TryAgain,
    Verdict,
)
from deliveryd.delivery.refusals import Refusals
from deliveryd.delivery.routing import Routed, expired, is_expired
from deliveryd.journal.rows import digest_of
from deliveryd.metrics import Metrics
from deliveryd.model import Clock, Content, Customer, Entry, Outcome, StatusEvent, Transition, message_key
from deliveryd.options.units import Rate
from deliveryd.runtime import waits
from deliveryd.runtime.breaker import Breaker, BreakerPolicy, grown
from deliveryd.runtime.waiting import HEARTBEAT_INTERVAL, AutoResetEvent, Heartbeats, ParkingLot
from deliveryd.states import State
from deliveryd.telemetry import Event, log

SECOND = 1_000_000
KEPT = 10
"""Messages that stay in a lane whose breaker is open; the others wait in the journal, and hold no places."""

CHANGED = (
    "not repeated: rendered anew it says something else; settle it, or let it begin anew (resend --new-key)"
)
"""Why a message in doubt is held whose content the worker had no time to keep."""

NO_VALUES: Mapping[str, str] = {}

VERDICTS = frozenset(get_args(Verdict))


class RetryPolicy(NamedTuple):
    """How often a channel is tried for one message, and the seconds between: `base`, doubled, up to `max`."""

    attempts: int
    base: float
    max: float

    def pause(self, tries: int, at_least: float | None = None) -> float:
        """Seconds to wait after so many tries, jittered; never less than the provider asked for."""
        return grown(self.base, self.max, tries, at_least)


class DispatchPolicy(NamedTuple):
    """What an operator says of a channel."""

    concurrency: int
    rate: Rate | None
    retry: RetryPolicy
    breaker: BreakerPolicy
    resend_in_doubt: bool


class Pace:
    """Spaces attempts out evenly, so that no second sees more than its rate and a twentieth."""

    def __init__(self, rate: Rate) -> None:
        self._interval = rate.per / rate.permits
        self._burst = max(1.0, 0.05 / self._interval)
        self._next = 0.0

    def allowed(self, wanted: int) -> int:
        """How many attempts may be made now, `wanted` at most."""
        now = anyio.current_time()
        self._next = max(self._next, now - self._burst * self._interval)
        return min(wanted, int((now - self._next) / self._interval + 1e-9))

    def spend(self, number: int) -> None:
        """So many of them are made."""
        self._next += number * self._interval

    def wait(self) -> float:
        """Seconds until another attempt may be made."""
        return max(self._next + self._interval - anyio.current_time(), 0.0)


class Dispatcher:
    """The attempts of one channel."""

    def __init__(  # noqa: PLR0917 - the first seven are parts, the others are choices
        self,
        name: str,
        channel: Channel,
        policy: DispatchPolicy,
        namespace: str,
        clock: Clock,
        metrics: Metrics,
        heartbeats: Heartbeats,
        *,
        share: int,
        spare: Callable[[], int],
        intermediate: frozenset[str],
        record: Callable[[Sequence[Transition]], Awaitable[Collection[int]]],
        settle: Callable[[Transition], None],
        works_again: Callable[[str], None],
    ) -> None:
        self.name = name
        self._loop = f"lane {name}"
        self.share = share
        self.owed = 0
        """How many messages that were taken long ago are due, and find no room: new ones leave them some."""
        self._channel = channel
        self._used = tuple(channel.customer_fields)
        self._policy = policy
        self._namespace = namespace
        self._clock = clock
        self._metrics = metrics
        self._heartbeats = heartbeats
        self._spare = spare
        self._intermediate = intermediate
        self._record = record
        self._settle = settle
        self._works_again = works_again
        self._pace = Pace(policy.rate) if policy.rate is not None else None
        self._breaker = Breaker(policy.breaker)
        self._refusals = Refusals(name, self._breaker, policy.breaker, self._settings_queued)
        self._repeats: deque[Routed] = deque()
        self._queue: deque[Routed] = deque()
        self._repeated_last = False
        self._look_for_expired = float("inf")  # the event loop's time
        self._begun: deque[tuple[Entry, Routed]] = deque()
        self._idle = ParkingLot()
        self._workers = 0
        self._under_way = 0
        self._wakeup = AutoResetEvent()
        self._stopping = False
        self._finished = AutoResetEvent()
        self._misconfigured: str | None = None  # what was said of it, until the provider answers
        self._has_answered = False  # before, messages of an earlier run may wait for its recovery

    @property
    def room(self) -> int:
        """How many more messages may come: up to the lane's share of the places, beyond it what is spare."""
        if self._breaker.is_open:
            return max(min(self.share, KEPT) - self._held, 0)
        return max(self.share - self._held, self._spare(), 0)

    @property
    def room_to_fetch(self) -> int:
        """How many may be fetched from the journal: they take places themselves, and must find room then."""
        return self.room if self._breaker.is_open else max(self.share - self._held, self._spare() - 1, 0)

    @property
    def _held(self) -> int:
        return len(self._queue) + len(self._repeats) + self._under_way

    @property
    def is_open(self) -> bool:
        """Whether the channel's breaker is open: its provider is left alone, but for probes."""
        return self._breaker.is_open

    @property
    def refuses_all(self) -> bool:
        """Whether its provider refuses whatever it gets, so that the settings ids take turns as probes."""
        return self._refusals.refuses_all

    @property
    def refused_settings(self) -> Collection[int]:
        """The settings ids of which the provider refuses everything: their messages wait, but for probes."""
        return self._refusals.waiting

    @property
    def under_way(self) -> int:
        """How many attempts have an intent and no outcome yet."""
        return self._under_way

    @property
    def queued(self) -> int:
        """How many messages wait for a place."""
        return len(self._queue) + len(self._repeats)

    def offer(self, routed: Routed) -> bool:
        """Put a message into the queue; False when there is no room for it."""
        is_repeat = routed.entry.was_tried
        owed = min(self.owed, self.share // 2) if self.owed else 0
        if is_repeat or routed.entry.channel == self.name:  # it waited for this lane's room
            owed = 0
        is_within_share = self._held + owed < self.share and not self._breaker.is_open
        if not is_within_share and self.room <= owed:
            return False
        if self._refusals.waiting and not self._may_try(routed.entry.settings_id):
            return False
        if self._refusals.refuses_all:
            self._repeats.appendleft(routed)
        else:
            (self._repeats if is_repeat else self._queue).append(routed)
        if routed.expires_at is not None:
            self._expect_expiry(routed.expires_at)
        self._wakeup.set()
        return True

    def put_off(self, routed: Routed) -> Transition:
        """The step of a message that finds no room: it waits for room, or for its settings to be probed."""
        settings_id, now = routed.entry.settings_id, self._clock.now()
        if settings_id not in self._refusals.waiting or self._breaker.is_open:
            return _wait_for_room(routed, now)
        due_at = bounded(now + int(self._refusals.patience(settings_id) * SECOND), routed.expires_at)
        return Transition(routed.bound, State.READY, State.WAITING, now, due_at)

    def _may_try(self, settings_id: int) -> bool:
        """Whether a message may come, by its settings id: one that waits sends probes only.

        While everything is refused, what leaves is a probe anyway, and the ids take turns.
        """
        refusals = self._refusals
        if refusals.refuses_all:
            first = next(iter(self._repeats or self._queue), None)
            return first is None or refusals.comes_before(settings_id, first.entry.settings_id)
        return self._breaker.is_open or settings_id not in refusals.waiting or refusals.may_probe(settings_id)

    def _settings_queued(self) -> set[int]:
        return {routed.entry.settings_id for queue in (self._repeats, self._queue) for routed in queue}

    def stop(self) -> None:
        """Begin no more attempts."""
        self._stopping = True
        self._wakeup.set()

    async def finish(self) -> None:
        """Wait until nothing is under way."""
        while self._under_way:
            await self._finished.wait()

    async def run(self) -> None:
        """Send until cancelled."""
        async with anyio.create_task_group() as workers:
            while True:
                self._refusals.tick(self._heartbeats.beat(self._loop))
                await self._wakeup.wait(self._longest_wait())
                if not self._stopping:
                    await self._end_expired()
                    await self._set_back()
                while not self._stopping and (batch := self._next_batch()):
                    self._refusals.tick(
                        self._heartbeats.beat(self._loop)
                    )  # on a slow disk a backlog always has a next batch
                    await self._begin(batch, workers)

    def _longest_wait(self) -> float:
        if self._stopping or not self.queued or self._under_way >= self._policy.concurrency:
            return HEARTBEAT_INTERVAL
        paced = self._pace.wait() if self._pace is not None else 0.0
        return min(max(paced, self._breaker.wait()), HEARTBEAT_INTERVAL)

    def _next_batch(self) -> list[Routed]:
        count = self._breaker.allowed(min(self.queued, self._policy.concurrency - self._under_way))
        if self._pace is not None and count:
            count = self._pace.allowed(count)
            self._pace.spend(count)
        if count and self._breaker.is_open:
            self._breaker.probe()
        if count and not self._repeats:
            self._repeated_last = False
            return [self._queue.popleft() for _ in range(count)]
        return [self._next() for _ in range(count)]

    def _next(self) -> Routed:
        """Repeats go first, with half of the attempts at most while new messages wait."""
        if self._repeats and not (self._queue and self._repeated_last):
            self._repeated_last = True
            return self._repeats.popleft()
        self._repeated_last = False
        return self._queue.popleft()

    def _expect_expiry(self, expires_at: int) -> None:
        seconds = max((expires_at + 1 - self._clock.now()) / SECOND, 0.0)
        self._look_for_expired = min(self._look_for_expired, anyio.current_time() + seconds)

    async def _end_expired(self) -> None:
        """End all that has expired, so that it takes neither a permit of the rate nor its turn."""
        if anyio.current_time() < self._look_for_expired:
            return
        self._look_for_expired = float("inf")
        now = self._clock.now()
        steps: list[Transition] = []
        coming: list[int] = []
        for queue in (self._repeats, self._queue):
            waiting = list(queue)
            queue.clear()
            for routed in waiting:
                if is_expired(routed.expires_at, now):
                    steps.append(self._lapse(routed, now))
                else:
                    queue.append(routed)
                    coming += [routed.expires_at] if routed.expires_at is not None else []
        if coming:
            self._expect_expiry(max(min(coming), now + SECOND))
        if steps:
            await self._record(steps)

    async def _set_back(self) -> None:
        """While the provider is left alone, let most messages wait in the journal."""
        if not self._breaker.is_open:
            return
        now = self._clock.now()
        steps = []
        for queue in (self._queue, self._repeats):
            while queue and self.queued > KEPT:
                routed = queue.pop()
                self._refusals.unanswered(routed.entry.settings_id)
                steps.append(_wait_for_room(routed, now))
        if steps:
            await self._record(steps)

    async def _begin(self, batch: Sequence[Routed], workers: TaskGroup) -> None:
        """Commit the intents of those that may still be sent, the ends of the others, and start sending."""
        self._under_way += len(batch)
        now = self._clock.now()
        begun: list[tuple[Entry, Routed]] = []
        steps: list[Transition] = []
        for routed in batch:
            entry, _, customer, rendered, expires_at = routed
            if expires_at is not None and is_expired(expires_at, now):
                steps.append(self._lapse(routed, now))
                continue
            digest = digest_of(*(entry.content or (rendered, self._values(customer))))
            if entry.doubt and _is_changed(entry, digest):
                steps.append(self._hold(entry, now))
                continue
            entry = entry.begun(self.name, digest, now)
            begun.append((entry, routed))
            steps.append(self._intent(entry, now))
        settled = await self._record(steps)
        if settled:  # a receipt says that it was sent already
            for entry, _ in begun:
                if entry.id in settled:
                    self._refusals.unanswered(entry.settings_id)
            begun = [each for each in begun if each[0].id not in settled]
        if not begun:
            self._breaker.withdraw()
        self._under_way -= len(batch) - len(begun)
        self._begun.extend(begun)
        more = min(len(begun) - self._idle.unpark(len(begun)), self._policy.concurrency - self._workers)
        for _ in range(more):
            self._workers += 1
            workers.start_soon(self._work)

    def _content(self, routed: Routed) -> Content:
        """What a message says on this channel."""
        return routed.entry.content or Content(routed.rendered, self._values(routed.customer))

    def _values(self, customer: Customer | None) -> Mapping[str, str]:
        """The customer's values that the channel sends."""
        if customer is None or not self._used:
            return NO_VALUES
        fields = customer.fields
        return {name: fields[name] for name in self._used if name in fields}

    def _lapse(self, routed: Routed, now: int) -> Transition:
        """The end of a message whose time ran out before it was its turn."""
        self._refusals.unanswered(routed.entry.settings_id)
        details = routed.entry.ending(expired(routed.expires_at or now))
        events = (StatusEvent(routed.entry.id, "error", now, details=details),)
        return Transition(routed.bound.ended(), State.READY, State.FAILED, now, events=events)

    def _hold(self, entry: Entry, now: int) -> Transition:
        self._refusals.unanswered(entry.settings_id)
        log(Event.MESSAGE_IN_DOUBT, channel=self.name, message_id=entry.id, reason=CHANGED)
        return Transition(entry, State.READY, State.IN_DOUBT, now, outcome=Outcome("in_doubt", None, CHANGED))

    def _intent(self, entry: Entry, now: int) -> Transition:
        events = self._progress(entry, "sending", now)
        return Transition(entry, State.READY, State.SENDING, now, None, None, events)

    def _progress(self, entry: Entry, status: str, now: int) -> tuple[StatusEvent, ...]:
        return (StatusEvent(entry.id, status, now),) if status in self._intermediate else ()

    async def _work(self) -> None:
        while True:
            while not self._begun:
                await self._idle.park()
            self._settle(await self._attempt(*self._begun.popleft()))
            self._under_way -= 1
            if self._queue or self._repeats:
                self._wakeup.set()
            if self._stopping:
                self._finished.set()

    async def _attempt(self, entry: Entry, routed: Routed) -> Transition:
        """One attempt, unless the time ran out since its intent."""
        if routed.expires_at is not None and is_expired(routed.expires_at, now := self._clock.now()):
            return self._expired(entry, routed, now)
        key = message_key(self._namespace, entry.id, entry.key)
        started = time.monotonic()
        try:
            verdict = await self._channel.send(
                Dispatch(key, entry, routed.customer, routed.rendered, routed.expires_at, self._clock)
            )
        except Exception as error:  # one broken adapter must not take the worker with it
            log(Event.MESSAGE_IN_DOUBT, channel=self.name, message_id=entry.id, error=error)
            verdict = InDoubt(f"the adapter failed with {type(error).__name__}")
        if type(verdict) not in VERDICTS:  # of a package's adapter, whose types nobody checked
            verdict = InDoubt(f"the adapter answered with a {type(verdict).__name__}, which is no verdict")
        self._metrics.attempted(self.name, verdict, time.monotonic() - started)
        if isinstance(verdict, Accepted):
            return self._sent(entry, verdict)
        if isinstance(verdict, Expired):
            return self._expired(entry, routed, self._clock.now())
        if isinstance(verdict, InDoubt) or (isinstance(verdict, TryAgain) and verdict.may_have_arrived):
            entry = entry._replace(content=self._content(routed))
        step = self.decide(entry, verdict)
        return step if step.due_at is None else step._replace(due_at=bounded(step.due_at, routed.expires_at))

    def _expired(self, entry: Entry, routed: Routed, now: int) -> Transition:
        """The end of a message whose time ran out before the provider could have it."""
        self._breaker.withdraw()
        self._refusals.unanswered(entry.settings_id)
        return self._fail(entry, Outcome("expired"), expired(routed.expires_at or now), now)

    def decide(self, entry: Entry, verdict: Attempted) -> Transition:
        """The step that follows from a verdict."""
        if isinstance(verdict, Accepted):
            return self._sent(entry, verdict)
        now = self._clock.now()
        if isinstance(verdict, Refused) and self._counts(entry, verdict):
            if self._refused(entry.settings_id, verdict):
                return self._postponed(entry, verdict, now)
        elif isinstance(verdict, Refused) or (isinstance(verdict, TryAgain) and verdict.only_this):
            self._refusals.unanswered(entry.settings_id)
            self._answered()
        else:
            self._refusals.unanswered(entry.settings_id)
            was_open = self._breaker.is_open
            self._failed(verdict)
            # One in doubt uses up its try in any case: it may have arrived, and isn't repeated for ever.
            if isinstance(verdict, Misconfigured) or (was_open and isinstance(verdict, TryAgain)):
                return self._postponed(entry, verdict, now)
        entry = entry.tried()
        if isinstance(verdict, TryAgain):
            return self._after_failure(entry, verdict, now)
        if isinstance(verdict, Refused):
            if not entry.may_have_arrived:
                return self._give_up(entry, Outcome("refused", None, verdict.reason), verdict.reason, now)
            # It is about the repeat, which a provider may refuse because it has the message.
            return self.after_doubt(entry, verdict.reason, now)
        return self.after_doubt(entry, verdict.reason, now, verdict.after)

    def _counts(self, entry: Entry, verdict: Refused) -> bool:
        """Whether a refusal says something of the settings, and not of this message alone.

        One that may have arrived can be refused for that, unless all others with its settings are as well.
        """
        alone = entry.may_have_arrived and not self._refusals.affects(entry.settings_id)
        return verdict.by is not None and not alone

    def _sent(self, entry: Entry, verdict: Accepted) -> Transition:
        now = self._clock.now()
        self._refusals.accepted(entry.settings_id)
        self._answered()
        events = (*self._progress(entry, "accepted", now), StatusEvent(entry.id, "sent", now))
        outcome = Outcome("accepted", verdict.provider_id)
        return Transition(entry.tried(), State.SENDING, State.SENT, now, None, outcome, events)

    def _after_failure(self, entry: Entry, verdict: TryAgain, now: int) -> Transition:
        outcome = Outcome("try_again", None, verdict.reason)
        if entry.tries >= self._policy.retry.attempts:
            return self._give_up(entry, outcome, f"{verdict.reason} (tried {entry.tries} times)", now)
        pause = self._policy.retry.pause(entry.tries, verdict.after)
        log(
            Event.ATTEMPT_RETRY,
            channel=self.name, message_id=entry.id, reason=verdict.reason, tries=entry.tries, delay=pause,
        )  # fmt: skip
        return self._wait(entry, now, pause, outcome, verdict.after)

    def _wait(
        self, entry: Entry, now: int, pause: float, outcome: Outcome, asked: float | None
    ) -> Transition:
        """Wait for the next try; what the provider asked for is over when it works again after an outage."""
        waits_for = waits.recovery(self.name) if asked or self._breaker.is_open else None
        due_at = now + int(pause * SECOND)
        return Transition(entry, State.SENDING, State.WAITING, now, due_at, outcome, waits_for=waits_for)

    def after_doubt(self, entry: Entry, reason: str, now: int, after: float | None = None) -> Transition:
        """The step for a try whose outcome is unknown, by the channel's policy (design 4, promise 2)."""
        outcome = Outcome("in_doubt", None, reason)
        entry = entry._replace(doubt=True)
        log(Event.MESSAGE_IN_DOUBT, channel=self.name, message_id=entry.id, reason=reason)
        if not self._policy.resend_in_doubt:
            return Transition(entry, State.SENDING, State.IN_DOUBT, now, outcome=outcome)
        return self._repeat(entry, State.SENDING, reason, now, after)._replace(outcome=outcome)

    def after_hold(self, entry: Entry, reason: str, now: int) -> Transition | None:
        """The step for a message that is held in doubt, where the policy is another one by now."""
        if not self._policy.resend_in_doubt or reason.endswith(CHANGED):
            return None
        return self._repeat(entry, State.IN_DOUBT, reason, now, None)

    def _repeat(self, entry: Entry, before: State, reason: str, now: int, after: float | None) -> Transition:
        if entry.tries >= self._policy.retry.attempts:
            details = f"{self.name}: {reason} (tried {entry.tries} times)"
            return self._fail(entry, None, details, now, before)
        pause = self._policy.retry.pause(max(entry.tries, 1), after)
        return Transition(entry, before, State.WAITING, now, now + int(pause * SECOND))

    def _postponed(self, entry: Entry, verdict: TryAgain | Misconfigured | Refused, now: int) -> Transition:
        """Wait without using up a try: it isn't the message's fault."""
        if isinstance(verdict, TryAgain):
            outcome, after = Outcome("try_again", None, verdict.reason), verdict.after
        else:
            outcome, after = Outcome("misconfigured", None, verdict.reason), None
        breaker = self._policy.breaker
        pause = grown(breaker.pause, breaker.max_pause, entry.number, after)
        return self._wait(entry, now, pause, outcome, after)

    def _refused(self, settings_id: int, verdict: Refused) -> bool:
        """Count a refusal by the provider's status; tell whether the message waits, as others do.

        Those that were refused before it showed stay refused.
        """
        if self._refusals.refuses_all:
            self._failed(verdict)
            self._refusals.probed(settings_id)
            self._put_off_all(settings_id)
            return True
        self._answered()
        waited = settings_id in self._refusals.waiting
        if self._refusals.refused(settings_id, verdict):
            self._put_off_all(settings_id)
        return waited

    def _put_off_all(self, settings_id: int) -> None:
        """What queues with these settings waits in the journal instead."""
        for queue in (self._repeats, self._queue):
            waiting = list(queue)
            queue.clear()
            for routed in waiting:
                if routed.entry.settings_id == settings_id:
                    self._settle(self.put_off(routed))
                else:
                    queue.append(routed)

    def _failed(self, verdict: TryAgain | InDoubt | Misconfigured | Refused) -> None:
        """What the failure says of the provider."""
        if isinstance(verdict, Misconfigured) and verdict.reason != self._misconfigured:
            self._misconfigured = verdict.reason
            log(
                Event.CHANNEL_MISCONFIGURED,
                channel=self.name, reason=verdict.reason, host=verdict.by or "unknown",
            )  # fmt: skip
        was_open = self._breaker.is_open
        pause = self._breaker.failed(verdict.after if isinstance(verdict, TryAgain) else None)
        if pause is not None:
            event = Event.CHANNEL_PROBE_FAILED if was_open else Event.CHANNEL_UNAVAILABLE
            log(event, channel=self.name, reason=verdict.reason, delay=pause)

    def _answered(self) -> None:
        """The provider answered; the first answer after failures is told of.

        One that refuses everything has to accept something before it counts as working.
        """
        if not self._breaker.failures and self._has_answered:
            return
        if self._refusals.refuses_all:
            self._breaker.withdraw()
            return
        seconds = self._breaker.answered()
        if seconds or self._misconfigured is not None:
            log(Event.CHANNEL_RECOVERED, channel=self.name, seconds=seconds)
        if seconds or self._misconfigured is not None or not self._has_answered:
            self._works_again(self.name)
        self._misconfigured = None
        self._has_answered = True

    def _give_up(self, entry: Entry, outcome: Outcome, reason: str, now: int) -> Transition:
        """This channel is spent; the next one of the order may take the message, if there is one.

        None may while an earlier try is in doubt, whatever became of its repeats: it could be sent twice.
        """
        if entry.doubt:
            return self._fail(entry, outcome, f"{self.name}: {reason}", now)
        return Transition(entry.given_up(reason), State.SENDING, State.READY, now, outcome=outcome)

    def _fail(
        self, entry: Entry, outcome: Outcome | None, details: str, now: int, before: State = State.SENDING
    ) -> Transition:
        events = (StatusEvent(entry.id, "error", now, details=entry.ending(details)),)
        return Transition(entry.ended(), before, State.FAILED, now, outcome=outcome, events=events)


def bounded(due_at: int, expires_at: int | None) -> int:
    """When a message goes on that waits: when it expires, at the latest."""
    return due_at if expires_at is None else min(due_at, expires_at + 1)


def _wait_for_room(routed: Routed, now: int) -> Transition:
    """Wait in the journal for room in the lane, but no longer than until the message expires."""
    key = waits.repeat if routed.entry.was_tried else waits.room
    due_at = bounded(now + int(waits.LONGEST_ANSWER_WAIT * SECOND), routed.expires_at)
    return Transition(routed.bound, State.READY, State.WAITING, now, due_at, waits_for=key(routed.channel))


def _is_changed(entry: Entry, digest: bytes) -> bool:
    """Whether what would be said now differs from what is in doubt, known by its digest alone."""
    return entry.content is None and entry.digest != digest
