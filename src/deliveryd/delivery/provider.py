"""What the verdicts show of a provider: whether it works, and which settings it refuses."""

from __future__ import annotations

import math
from typing import NamedTuple

import anyio

from deliveryd.channels.base import InDoubt, Misconfigured, Refused, TryAgain
from deliveryd.delivery.backlog import Backlog
from deliveryd.delivery.dispatch_queue import DispatchQueue
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.pauses import Pauses
from deliveryd.delivery.refusals import Refusals
from deliveryd.model import Clock, Transition, channel_of
from deliveryd.runtime import waits
from deliveryd.runtime.blame import Blame
from deliveryd.runtime.breaker import Breaker, BreakerPolicy
from deliveryd.telemetry.log_events import Event, log

SAID_AGAIN = 60.0
"""Seconds until it is logged again that attempts lack files."""

COUNTED_FOR = 3600.0
"""Seconds until it is logged again how many messages were accepted without an id, or devices left out."""

PROBE_SPACING = 1.0
"""Seconds until another message is routed to a provider that is down, if the chosen one doesn't arrive."""


class LastFailure(NamedTuple):
    """The latest attempt, or connection, that failed: the verdict's word, the reason, the instant."""

    code: str
    reason: str
    at: int


class _Count:
    """How often something happened at a provider: logged at first, then again after `COUNTED_FOR`."""

    def __init__(self, event: Event, provider: str) -> None:
        self._event = event
        self._provider = provider
        self._count = 0
        self._logged_at = -math.inf

    def add(self, count: int) -> None:
        """Add to the count; log it if it is due."""
        self._count += count
        now = anyio.current_time()
        if now >= self._logged_at + COUNTED_FOR:
            channel = channel_of(self._provider)
            log(self._event, channel=channel, provider=self._provider, count=self._count)
            self._count, self._logged_at = 0, now


class Provider:
    """One provider: its breaker, the settings ids that wait on it, and what is queued for it."""

    def __init__(
        self, name: str, policy: BreakerPolicy, backlog: Backlog, pauses: Pauses, clock: Clock
    ) -> None:
        self.name = name
        self._pauses = pauses
        self._channel = channel_of(name)
        self.queue = queue = DispatchQueue(clock)
        self._backlog = backlog
        self._clock = clock
        self.breaker = Breaker(policy)
        self.refusals = Refusals(name, self.breaker, policy, queue)
        self.blame = Blame()
        self._misconfigured: str | None = None  # the last reason, until the provider answers
        self._has_answered = False  # before, messages of an earlier run may wait for its recovery
        self._is_reached = False
        self._has_failed = False
        self._asked_before = False
        self._chosen_at = -PROBE_SPACING
        self._lacked_files_at = -math.inf
        self._without_id = _Count(Event.CHANNEL_ID_MISSING, name)
        self._left_out = _Count(Event.CHANNEL_DEVICES_LEFT_OUT, name)
        self.last_failure: LastFailure | None = None

    def follow(self, policy: BreakerPolicy) -> None:
        """Follow another policy from now on; what is known of the provider stays."""
        self.breaker.follow(policy)
        self.refusals.follow(policy)

    @property
    def is_failing(self) -> bool:
        """Whether its breaker is open, or it is misconfigured and has none."""
        return self.breaker.is_open or self._misconfigured is not None

    def probe_soon(self) -> None:
        """Its address or its credentials were changed while it failed: probe it at once."""
        self.breaker.open()
        self.breaker.hasten()

    @property
    def is_down(self) -> bool:
        """Whether its breaker is open."""
        return self.breaker.is_open

    @property
    def is_paused(self) -> bool:
        """Whether an operator paused it, its channel aside."""
        return self._pauses.of_provider(self.name) is not None

    @property
    def is_reached(self) -> bool:
        """Whether its breaker is open, and a message may be its probe: a connection was made before."""
        return self._is_reached and self.breaker.is_open

    def takes(self, settings_id: int) -> bool:
        """Whether it takes a new message with these settings: while it is down, one as a probe."""
        if self.is_paused:
            return False
        if self.breaker.is_open:
            is_free = not self.queue and anyio.current_time() >= self._chosen_at + PROBE_SPACING
            return self._is_reached and is_free and self.breaker.allowed(1) > 0
        return self.refusals.may_take(settings_id)

    def refuses(self, settings_id: int) -> bool:
        """Whether it refuses everything with these settings, so that it takes probes of them only."""
        return self.refusals.affects(settings_id)

    @property
    def has_failed(self) -> bool:
        """Whether its breaker is open, and an attempt or a connection failed since the start."""
        return self._has_failed and self.breaker.is_open

    def choose(self) -> None:
        """A message is on its way to it: while it is down, no other one as a probe."""
        if self.breaker.is_open:
            self._chosen_at = anyio.current_time()

    def expect_waiting(self) -> None:
        """Another worker left messages that may wait for its recovery: its next answer lets them go on."""
        self._has_answered = False

    def suspect(self) -> None:
        """It was down when an earlier run ended: probe it before it is used."""
        self.breaker.open()

    def reached(self) -> None:
        """A connection could be made: the next message is a probe."""
        self._is_reached = True
        self.breaker.withdraw()

    def not_reached(self, reason: str) -> None:
        """No connection could be made, which no message was used for."""
        self._has_failed = True
        self.note_failure("no_connection", reason)
        if (pause := self.breaker.failed()) is not None:
            self._log_failed(Event.CHANNEL_PROBE_FAILED, reason, pause)

    def lacks_files(self, reason: str) -> None:
        """An attempt found no free file: log it, which concerns this worker and not the provider."""
        now = anyio.current_time()
        if now >= self._lacked_files_at + SAID_AGAIN:
            self._lacked_files_at = now
            log(Event.FILES_EXHAUSTED, channel=self._channel, provider=self.name, reason=reason)

    def lacks_id(self) -> None:
        """It accepted a message without the id that its configuration names; log how many."""
        self._without_id.add(1)

    def left_out(self, devices: int) -> None:
        """So many devices of a customer weren't tried, since the list is too long; log how many."""
        self._left_out.add(devices)

    def note_failure(self, code: str, reason: str) -> None:
        """Keep why an attempt failed, for those who look."""
        self.last_failure = LastFailure(code, reason, self._clock.now())

    def probe(self) -> None:
        """A message is sent as a probe."""
        self._is_reached = False
        self.breaker.probe()

    def _log_failed(self, event: Event, reason: str, pause: float) -> None:
        log(event, channel=self._channel, provider=self.name, reason=reason, delay=pause)

    def may_try(self, settings_id: int) -> bool:
        """Whether a message with these settings may be queued; one whose settings wait is a probe.

        While everything is refused, each attempt is a probe, and the settings ids take turns.
        """
        refusals = self.refusals
        if refusals.refuses_all:
            first = self.queue.first
            return first is None or refusals.comes_before(settings_id, first.entry.settings_id)
        return self.breaker.is_open or settings_id not in refusals.waiting or refusals.may_probe(settings_id)

    def defer(self, message: Delivery) -> Transition:
        """The step of a message that can't be queued: it waits for room, or for its settings' next probe."""
        settings_id, now = message.entry.settings_id, self._clock.now()
        if settings_id not in self.refusals.waiting or self.breaker.is_open:
            key = waits.repeat if message.entry.was_tried else waits.room
            return message.deferred(now, waits.LONGEST_ANSWER_WAIT, key(self.name))
        return message.deferred(now, self.refusals.seconds_to_wait(settings_id), None)

    def failed(self, verdict: TryAgain | InDoubt | Misconfigured | Refused) -> None:
        """Count a failure of the provider; it is misconfigured once its breaker is open.

        A pause that it asks for is the message's alone while others are accepted. It is the provider's when
        it asked the probe before, with another message, as well.
        """
        was_open = self.breaker.is_open
        self._has_failed = True
        asked = verdict.after if isinstance(verdict, TryAgain) else None
        is_for_all = self._asked_before and not self.refusals.is_accepting
        self._asked_before = was_open and asked is not None
        pause = self.breaker.failed(asked if is_for_all else None)
        if isinstance(verdict, Misconfigured) and (self.breaker.is_open or not self.breaker.opens):
            self._note_misconfigured(verdict)
        if pause is not None:
            event = Event.CHANNEL_PROBE_FAILED if was_open else Event.CHANNEL_UNAVAILABLE
            self._log_failed(event, verdict.reason, pause)
            self._backlog.changed.set()

    def _note_misconfigured(self, verdict: Misconfigured) -> None:
        if verdict.reason == self._misconfigured:
            return
        self._misconfigured = verdict.reason
        log(
            Event.CHANNEL_MISCONFIGURED,
            channel=self._channel, provider=self.name, reason=verdict.reason, host=verdict.by or "unknown",
        )  # fmt: skip

    def answered(self) -> None:
        """The provider answered: after failures, messages that wait for it go on.

        One that refuses everything has to accept something before it counts as working.
        """
        if not self.breaker.failures and self._has_answered:
            return
        if self.refusals.refuses_all:
            self.breaker.withdraw()
            return
        seconds = self.breaker.answered()
        self._is_reached = False
        if seconds or self._misconfigured is not None:
            log(Event.CHANNEL_RECOVERED, channel=self._channel, provider=self.name, seconds=seconds)
        if seconds or self._misconfigured is not None or not self._has_answered:
            self._backlog.answered(waits.recovery(self.name))
            self._backlog.answered(waits.alone(self.name))
        self._misconfigured = None
        self._has_answered = True
