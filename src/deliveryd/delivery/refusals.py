"""What a provider refuses, and whose fault that is: a message's, its settings' or the provider's.

One rule decides: a provider that accepts others is set up well, and the fault lies in what it refuses.

A template that a provider doesn't take costs 20 messages and not a campaign: after that many refusals in a
row the id waits at this provider, and single probes find out when it is accepted. When several ids wait, or
all that are used, or as many messages of ids in turn were refused, and nothing else is accepted, the provider
counts as misconfigured. A message that it rejects for its set-up is at fault if others were accepted since it
was rejected before.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from operator import itemgetter

import anyio

from deliveryd.channels.base import Refused
from deliveryd.delivery.dispatch_queue import DispatchQueue
from deliveryd.model import channel_of
from deliveryd.runtime.breaker import Breaker, BreakerPolicy
from deliveryd.telemetry.log_events import Event, log

MOST_IN_A_ROW = 20
"""Refusals of one settings id without an acceptance after which it waits."""

JUST_NOW = 10.0
"""Seconds for which an acceptance shows that the provider takes messages."""

FADING = 0.9
"""Factor by which the usual gap between acceptances shrinks with each one that comes sooner.

Twice as long an acceptance shows that not all settings are refused.
"""

WIDESPREAD = 3
"""Settings ids that wait at a time, from which on the provider's configuration is at fault."""

ACTIVE = 600.0
"""Seconds for which a settings id counts as used after an answer of the provider."""

MOST_KEPT = 1000
"""Settings ids whose refusals are counted; beyond that the one that was refused longest ago is forgotten."""

MOST_ACCEPTED = 20
"""Settings ids whose latest acceptance is known; beyond that only the `WIDESPREAD` latest ones stay known."""

MOST_REJECTED = 10_000
"""Messages whose latest rejection is known; beyond that the oldest one is forgotten."""

SPACING = 0.01
"""Seconds between two messages of ids that wait, when they come back from the journal to be looked at."""

LONGEST_SPREAD = 600.0
"""Seconds over which all messages of an id are spread at most: many that wait cost little meanwhile."""


class _Counted:
    """One settings id that was refused since it was last accepted."""

    __slots__ = ("breaker", "last_spread", "refused_at")

    def __init__(self, policy: BreakerPolicy) -> None:
        self.breaker = Breaker(policy)
        self.refused_at = 0.0
        self.last_spread = 0.0


class Refusals:
    """Which settings ids wait at a provider, since it refuses all of their messages.

    When it refuses everything, `breaker` is opened, which is the provider's; `policy` has for how long.
    `queue` holds what is yet to be sent.
    """

    def __init__(self, provider: str, breaker: Breaker, policy: BreakerPolicy, queue: DispatchQueue) -> None:
        self._provider = provider
        self._channel = channel_of(provider)
        self._breaker = breaker
        self._queue = queue
        self._policy = policy._replace(failures=MOST_IN_A_ROW)
        self._counted: OrderedDict[int, _Counted] = OrderedDict()  # by their latest refusal
        self._accepted: dict[int, float] = {}  # a few ids by their latest acceptance: see `_are_widespread`
        self._acceptances = 0
        self._in_a_row = 0  # refusals of any id since the latest acceptance
        self._latest = anyio.current_time()
        self._usual_gap = 0.0
        self._rejected: OrderedDict[int, int] = OrderedDict()  # by message: acceptances before its rejection
        self._forgotten = math.inf  # acceptances before the latest rejection that was forgotten, if any was
        self._now = anyio.current_time()
        self._turns: dict[int, int] = {}  # while it refuses everything: by id, the number of its latest probe
        self._probes = 0
        self.waiting: set[int] = set()
        """The ids that wait; their messages may be sent only as probes."""
        self.refuses_all = False
        """Whether the provider refuses whatever it gets, so that it counts as misconfigured."""

    def follow(self, policy: BreakerPolicy) -> None:
        """Pause by another policy from now on; what is counted stays."""
        self._policy = policy._replace(failures=MOST_IN_A_ROW)
        for counted in self._counted.values():
            counted.breaker.follow(self._policy)

    def tick(self, now: float) -> None:
        """Note the event loop's time: acceptances are as of then."""
        self._now = now

    def accepted(self, settings_id: int) -> None:
        """The provider accepted a message of this id: it is set up well, and takes these settings."""
        self._acceptances += 1
        self._in_a_row = 0
        accepted, now = self._accepted, self._now
        accepted[settings_id] = now
        if len(accepted) > MOST_ACCEPTED:
            self._accepted = dict(sorted(accepted.items(), key=itemgetter(1))[-WIDESPREAD:])
        if now > self._latest:
            self._usual_gap = max(min(now - self._latest, ACTIVE), self._usual_gap * FADING)
            self._latest = now
        if self._counted:
            self._begin_anew(settings_id)
        if self.refuses_all:
            self.refuses_all = False
            self._turns.clear()
            for other in self.waiting:
                self._counted[other].breaker.hasten()

    @property
    def is_accepting(self) -> bool:
        """Whether it accepts messages now, of any settings id that doesn't wait."""
        return self._has_accepted(JUST_NOW)

    def _has_accepted(self, within: float) -> bool:
        since = anyio.current_time() - within
        return any(at > since and id_ not in self.waiting for id_, at in self._accepted.items())

    def rejects_alone(self, message_id: int, *, has_uncounted: bool) -> bool:
        """The provider rejected a message for its set-up; return whether the message is at fault.

        It is if others were accepted since it was rejected before. Once messages were forgotten, one that
        isn't known and `has_uncounted` tries counts as rejected before, not after the latest forgotten one.
        """
        before = self._rejected.pop(message_id, self._forgotten if has_uncounted else self._acceptances)
        self._rejected[message_id] = self._acceptances
        if len(self._rejected) > MOST_REJECTED:
            _, self._forgotten = self._rejected.popitem(last=False)
        return before < self._acceptances

    def _begin_anew(self, settings_id: int) -> None:
        counted = self._counted.pop(settings_id, None)
        if counted is None or settings_id not in self.waiting:
            return
        self.waiting.remove(settings_id)
        seconds = counted.breaker.answered()
        log(
            Event.CHANNEL_ACCEPTS_SETTINGS,
            channel=self._channel, provider=self._provider, settings_id=settings_id, seconds=seconds,
        )  # fmt: skip

    def refused(self, settings_id: int, verdict: Refused) -> bool:
        """The provider refused a message of this id; return whether the id begins to wait."""
        counted = self._counted.pop(settings_id, None) or _Counted(self._policy)
        self._counted[settings_id] = counted
        counted.refused_at = anyio.current_time()
        pause = counted.breaker.failed()
        self._in_a_row += 1
        if len(self._counted) > MOST_KEPT:
            oldest, _ = self._counted.popitem(last=False)
            self.waiting.discard(oldest)
        is_one_of_many = self._is_widely_refused and self._are_widespread()
        if (pause is None and not is_one_of_many) or settings_id in self.waiting:
            return False
        self.waiting.add(settings_id)
        self._log_waiting(settings_id, verdict, pause or 0.0)
        return True

    def _log_waiting(self, settings_id: int, verdict: Refused, pause: float) -> None:
        """Log that an id waits; or that the provider is misconfigured, when that shows it."""
        self.refuses_all = self._are_widespread()
        host = verdict.by or "unknown"
        if self.refuses_all:
            self._breaker.open()
            for id_ in self.waiting:
                self.probed(id_)
            log(
                Event.CHANNEL_MISCONFIGURED,
                channel=self._channel, provider=self._provider, reason=verdict.reason, host=host,
            )  # fmt: skip
        else:
            log(
                Event.CHANNEL_REFUSES_SETTINGS,
                channel=self._channel, provider=self._provider, settings_id=settings_id,
                reason=verdict.reason, host=host, delay=pause,
            )  # fmt: skip

    @property
    def _is_widely_refused(self) -> bool:
        """Whether as many messages in a row were refused, of several ids in turn, as if these waited."""
        return self._in_a_row >= WIDESPREAD * MOST_IN_A_ROW and len(self._counted) >= WIDESPREAD

    def _are_widespread(self) -> bool:
        """Whether enough ids wait that it is the provider's fault, or all that are in use.

        It isn't while others are accepted, as seldom as usual. With fewer than `WIDESPREAD` ids waiting, one
        of as many that were accepted last isn't among them, unless fewer were accepted at all: no more need
        to be known.
        """
        if self._has_accepted(max(JUST_NOW, min(2 * self._usual_gap, ACTIVE))):
            return False
        if len(self.waiting) >= WIDESPREAD or self._is_widely_refused:
            return True
        since = anyio.current_time() - ACTIVE
        used = {id_ for id_, at in self._accepted.items() if at > since}
        used |= {id_ for id_, counted in self._counted.items() if counted.refused_at > since}
        return used | self._queue.settings_ids() <= self.waiting

    def probed(self, settings_id: int) -> bool:
        """While everything is refused, a message of this id was: it is the turn of other ids.

        Returns whether the id had a turn before.
        """
        if len(self._turns) >= MOST_KEPT:
            self._turns.clear()
        had_turn = settings_id in self._turns
        self._probes += 1
        self._turns[settings_id] = self._probes
        return had_turn

    def comes_before(self, settings_id: int, other: int) -> bool:
        """Whether one id is to be probed before another: which wasn't for longer, or never."""
        return self._turns.get(settings_id, 0) < self._turns.get(other, 0)

    def may_take(self, settings_id: int) -> bool:
        """Whether messages of an id are accepted, or one of them may be the probe now."""
        return settings_id not in self.waiting or self._counted[settings_id].breaker.allowed(1) > 0

    def may_probe(self, settings_id: int) -> bool:
        """Whether a message of an id that waits may be sent now; if so, it is the probe."""
        breaker = self._counted[settings_id].breaker
        if not breaker.allowed(1):
            return False
        breaker.probe()
        return True

    def affects(self, settings_id: int) -> bool:
        """Whether the provider refuses whatever it gets with these settings."""
        return self.refuses_all or settings_id in self.waiting

    def unanswered(self, settings_id: int) -> None:
        """What became of a message of this id doesn't show whether the provider takes its settings.

        If it was the probe, another one may follow.
        """
        if settings_id in self.waiting:
            self._counted[settings_id].breaker.put_off()

    def seconds_to_wait(self, settings_id: int) -> float:
        """Seconds after which a message of an id that waits should come again; another one for each."""
        counted = self._counted[settings_id]
        first = anyio.current_time() + counted.breaker.pause
        counted.last_spread = min(
            max(counted.last_spread + SPACING * len(self.waiting), first), first + LONGEST_SPREAD
        )
        return counted.last_spread - anyio.current_time()
