"""The messages of one provider that wait for their attempt: repeats, and new ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import anyio

from deliveryd.delivery.message import Delivery, is_expired
from deliveryd.model import SECOND, Clock
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL

KEPT = 10
"""Messages that stay queued while the provider's breaker is open, half of them repeats and half new ones.

The others wait in the journal. Whichever fail for their own sake, the next probe may be another one.
"""


class DispatchQueue:
    """Two queues. Repeats go first, with half of the attempts at most while new messages wait."""

    def __init__(self, clock: Clock) -> None:
        self.repeats: deque[Delivery] = deque()
        self.new: deque[Delivery] = deque()
        self._clock = clock
        self._repeated_last = False
        self._probed_newest = False
        self._check_expiry_at = float("inf")  # the event loop's time

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self.new) + len(self.repeats)

    @property
    def first(self) -> Delivery | None:
        """The message whose turn is next, a repeat if there is one."""
        return next(iter(self.repeats or self.new), None)

    def settings_ids(self) -> set[int]:
        """The settings ids of all that wait."""
        return {message.entry.settings_id for queue in (self.repeats, self.new) for message in queue}

    def add(self, message: Delivery, queue: deque[Delivery]) -> None:
        """Put a message last in one of the two queues."""
        queue.append(message)
        if message.expires_at is not None:
            self._expect_expiry(message.expires_at)

    def add_first(self, message: Delivery) -> None:
        """Put a message before all others."""
        self.repeats.appendleft(message)
        if message.expires_at is not None:
            self._expect_expiry(message.expires_at)

    def take(self, count: int) -> list[Delivery]:
        """Take this many messages in their order."""
        if count and not self.repeats:
            self._repeated_last = False
            return [self.new.popleft() for _ in range(count)]
        return [self._next() for _ in range(count)]

    def _next(self) -> Delivery:
        if self.repeats and not (self.new and self._repeated_last):
            self._repeated_last = True
            return self.repeats.popleft()
        self._repeated_last = False
        return self.new.popleft()

    def take_probe(self) -> Sequence[Delivery]:
        """Take the next probe: alternately the newest message and the first one.

        Messages that are rejected for their own sake often come together, at one end of the queue.
        """
        self._probed_newest = not self._probed_newest and len(self.new) > 1
        return [self.new.pop()] if self._probed_newest else self.take(1)

    def take_settings(self, settings_id: int) -> Sequence[Delivery]:
        """Take all messages of a settings id."""
        return self.take_if(lambda message: message.entry.settings_id == settings_id)

    def take_surplus(self, kept: int) -> Sequence[Delivery]:
        """Take all but so many messages of each queue: half of these are the first ones, half the newest."""
        surplus: list[Delivery] = []
        for queue in (self.new, self.repeats):
            while len(queue) > kept:
                surplus.append(self.take_middle(queue, kept))
        return surplus

    @staticmethod
    def take_middle(queue: deque[Delivery], kept: int) -> Delivery:
        """Take the message of one of the two queues that leaves when so many are kept."""
        place = kept - kept // 2
        leaving = queue[place]
        del queue[place]
        return leaving

    def take_expired(self) -> Sequence[Delivery]:
        """Take all messages whose time ran out, so that they use neither a permit of the rate nor a turn."""
        if anyio.current_time() < self._check_expiry_at:
            return ()
        self._check_expiry_at = float("inf")
        now = self._clock.now()
        expired = self.take_if(lambda message: is_expired(message.expires_at, now))
        left = (message.expires_at for queue in (self.repeats, self.new) for message in queue)
        if coming := [expires_at for expires_at in left if expires_at is not None]:
            self._expect_expiry(max(min(coming), now + SECOND))
        return expired

    def _expect_expiry(self, expires_at: int) -> None:
        seconds = max((expires_at + 1 - self._clock.now()) / SECOND, 0.0)
        seconds = min(seconds, HEARTBEAT_INTERVAL)  # the clock may be put forward
        self._check_expiry_at = min(self._check_expiry_at, anyio.current_time() + seconds)

    def take_if(self, condition: Callable[[Delivery], bool]) -> Sequence[Delivery]:
        """Take all messages for which a condition holds."""
        taken = []
        for queue in (self.repeats, self.new):
            waiting = list(queue)
            queue.clear()
            for message in waiting:
                if condition(message):
                    taken.append(message)
                else:
                    queue.append(message)
        return taken
