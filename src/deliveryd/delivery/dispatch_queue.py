"""The messages of one provider that wait for their attempt. Settings ids take turns, by priority."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, zip_longest

import anyio

from deliveryd.delivery.fetch_turns import SHARE
from deliveryd.delivery.message import Delivery, is_expired
from deliveryd.model import SECOND, Clock
from deliveryd.rules.priorities import NO_RULES, PRIORITY_NAMES, Priorities
from deliveryd.runtime.wakeup import HEARTBEAT_INTERVAL

KEPT = 10
"""Messages that stay queued while the provider's breaker is open, half of them repeats and half new ones.

The others wait in the journal. Whichever fail for their own sake, the next probe may be another one.
"""

NEW, REPEATS = 0, 1
"""The kinds of messages: those that were tried before are repeats."""

_GSM_WHOLE, _GSM_EACH = 160, 153
_UCS_WHOLE, _UCS_EACH = 70, 67
"""Characters of an SMS of one part, and of each of several."""

_LONGEST_COUNTED = 1600
"""Characters of an SMS beyond which it counts as no longer."""


def cost(message: Delivery) -> int:
    """How many turns a message uses up: one, or one for each part of an SMS.

    Parts are estimated: to count them for each message would cost as much as a tenth of all the other work.
    """
    rendered = message.rendered
    if rendered.block != "sms":
        return 1
    text = rendered.fields.get("text", "")
    length = len(text)
    if length <= _UCS_WHOLE:
        return 1
    if length > _LONGEST_COUNTED:
        text, length = text[:_LONGEST_COUNTED], _LONGEST_COUNTED
    # Not by an exception, which costs more than all of this: many texts have a sign such as "€".
    if len(text.encode("latin-1", "ignore")) < length:
        return -(-length // _UCS_EACH)
    return 1 if length <= _GSM_WHOLE else -(-length // _GSM_EACH)


class _Line:
    """What is queued of one settings id.

    `debt` is how many turns it passes, for the parts of its latest message.
    """

    __slots__ = ("debt", "kinds", "probed_newest", "rank", "repeated_last", "settings_id")

    def __init__(self) -> None:
        self.settings_id = 0
        self.kinds: tuple[deque[Delivery], deque[Delivery]] = (deque(), deque())  # new messages, repeats
        self.rank = 0
        self.debt = 0
        self.repeated_last = False
        self.probed_newest = False

    def take(self) -> tuple[Delivery, int]:
        """Take the next message; also return its kind. Repeats go first, with half of the turns at most."""
        new, repeats = self.kinds
        if not repeats or (new and self.repeated_last):
            self.repeated_last = False
            return new.popleft(), NEW
        self.repeated_last = True
        return repeats.popleft(), REPEATS

    def take_probe(self) -> tuple[Delivery, int]:
        """The same, alternately the newest message and the next one."""
        new = self.kinds[NEW]
        self.probed_newest = not self.probed_newest and len(new) > 1
        return (new.pop(), NEW) if self.probed_newest else self.take()


class DispatchQueue:
    """A line for each settings id. The lines of one priority take turns, one message or SMS part each.

    Of a priority above others that wait, at most 9 messages are taken in a row.
    """

    def __init__(self, clock: Clock, priorities: Priorities = NO_RULES) -> None:
        self.count = 0
        """How many messages wait."""
        self.repeats = 0
        """How many of them were tried before."""

        self._clock = clock
        self._priorities = priorities
        self._lines: dict[int, _Line] = {}  # by settings id
        self._rings: tuple[deque[_Line], ...] = tuple(deque() for _ in PRIORITY_NAMES)  # the next first
        self._in_a_row = [0] * len(PRIORITY_NAMES)
        self._ended: _Line | None = _Line()  # one that is empty, for the next settings id
        self._check_expiry_at = float("inf")  # the event loop's time

    def __len__(self) -> int:
        """How many messages wait."""
        return self.count

    def count_of(self, kind: int) -> int:
        """How many messages of a kind wait."""
        return self.repeats if kind == REPEATS else self.count - self.repeats

    def __iter__(self) -> Iterator[Delivery]:
        """All messages, repeats first; see `_in_turn`."""
        return chain(self._in_turn(REPEATS), self._in_turn(NEW))

    @property
    def first(self) -> Delivery | None:
        """The message whose turn is next, a repeat if there is one."""
        return next(iter(self), None)

    def settings_ids(self) -> set[int]:
        """The settings ids of all that wait."""
        return set(self._lines)

    def follow(self, priorities: Priorities) -> None:
        """Go by other priorities from now on."""
        if priorities == self._priorities:
            return
        self._priorities = priorities
        lines = list(chain.from_iterable(self._rings))
        for ring in self._rings:
            ring.clear()
        for line in lines:
            line.rank = priorities.rank(line.settings_id)
            self._rings[line.rank].append(line)

    def add(self, message: Delivery, kind: int) -> None:
        """Put a message last among those of its settings id and kind."""
        settings_id = message.entry.settings_id
        line = self._lines.get(settings_id) or self._begin(settings_id)
        line.kinds[kind].append(message)
        self.count += 1
        if kind == REPEATS:
            self.repeats += 1
        if message.expires_at is not None:
            self._expect_expiry(message.expires_at)

    def add_first(self, message: Delivery) -> None:
        """Put a message before all others."""
        settings_id = message.entry.settings_id
        line = self._lines.get(settings_id) or self._begin(settings_id)
        self._rings[line.rank].remove(line)
        line.rank = line.debt = self._in_a_row[0] = 0
        self._rings[0].appendleft(line)
        line.repeated_last = False
        line.kinds[REPEATS].appendleft(message)
        self.count += 1
        self.repeats += 1
        if message.expires_at is not None:
            self._expect_expiry(message.expires_at)

    def _begin(self, settings_id: int) -> _Line:
        line, self._ended = self._ended, None
        if line is None:
            line = _Line()
        self._lines[settings_id] = line
        line.settings_id = settings_id
        line.rank = rank = self._priorities.rank(settings_id)
        self._rings[rank].append(line)
        return line

    def _end(self, line: _Line) -> None:
        """Remove a line that is empty."""
        self._rings[line.rank].remove(line)
        del self._lines[line.settings_id]
        line.debt = 0
        line.repeated_last = False
        self._ended = line

    def take(self, count: int) -> list[Delivery]:
        """Take this many messages in their order."""
        high, normal, low = self._rings
        if not (high or low):
            return self._take_turns(normal, count)
        return list(chain.from_iterable(self._take_turns(self._ring(), 1) for _ in range(count)))

    def _take_turns(
        self, ring: deque[_Line], count: int, take: Callable[[_Line], tuple[Delivery, int]] = _Line.take
    ) -> list[Delivery]:
        """Take this many messages of the lines of a priority, one after the other."""
        taken = []
        repeats = 0
        for _ in range(count):
            line = ring[0]
            while line.debt and len(ring) > 1:
                line.debt -= 1
                ring.rotate(-1)
                line = ring[0]
            message, kind = take(line)
            taken.append(message)
            repeats += kind
            if not any(line.kinds):
                self._end(line)
            elif len(ring) > 1:
                line.debt = cost(message) - 1
                ring.rotate(-1)
        self.count -= count
        self.repeats -= repeats
        return taken

    def _ring(self) -> deque[_Line]:
        """The lines whose turn it is: those of a priority leave one message of ten to those below."""
        waiting = [rank for rank, ring in enumerate(self._rings) if ring]
        *above, last = waiting
        for rank in above:
            self._in_a_row[rank] += 1
            if self._in_a_row[rank] < SHARE:
                return self._rings[rank]
            self._in_a_row[rank] = 0
        return self._rings[last]

    def _in_turn(self, kind: int) -> Iterator[Delivery]:
        """The messages of a kind: the first of each settings id, the second of each, and so on."""
        lines = [line.kinds[kind] for ring in self._rings for line in ring]
        rounds = zip_longest(*filter(None, lines))
        return (message for each in rounds for message in each if message is not None)

    def take_probe(self) -> Sequence[Delivery]:
        """Take the next probe: of the settings id whose turn it is, alternately the newest and the first.

        Messages that are rejected for their own sake often come together, at one end of the queue.
        """
        return self._take_turns(self._ring(), 1, _Line.take_probe)

    def take_settings(self, settings_id: int) -> Sequence[Delivery]:
        """Take all messages of a settings id."""
        return self.take_if(lambda message: message.entry.settings_id == settings_id)

    def take_surplus(self, kept: int) -> Sequence[Delivery]:
        """Take all but so many messages of each kind: half of these are the first ones, half the newest."""
        surplus: list[Delivery] = []
        for kind in (NEW, REPEATS):
            if (more := self.count_of(kind) - kept) > 0:
                place = kept - kept // 2
                surplus += islice(self._in_turn(kind), place, place + more)
        leaving = set(map(id, surplus))
        return self.take_if(lambda message: id(message) in leaving) if surplus else ()

    def take_middle(self, kind: int, kept: int) -> Delivery:
        """Take the message of a kind that leaves when so many are kept."""
        leaving = next(islice(self._in_turn(kind), kept - kept // 2, None))
        self.take_if(lambda message: message is leaving)
        return leaving

    def take_expired(self) -> Sequence[Delivery]:
        """Take all messages whose time ran out, so that they use neither a permit of the rate nor a turn."""
        if anyio.current_time() < self._check_expiry_at:
            return ()
        self._check_expiry_at = float("inf")
        now = self._clock.now()
        expired = self.take_if(lambda message: is_expired(message.expires_at, now))
        if coming := [message.expires_at for message in self if message.expires_at is not None]:
            self._expect_expiry(max(min(coming), now + SECOND))
        return expired

    def _expect_expiry(self, expires_at: int) -> None:
        seconds = max((expires_at + 1 - self._clock.now()) / SECOND, 0.0)
        seconds = min(seconds, HEARTBEAT_INTERVAL)  # the clock may be put forward
        self._check_expiry_at = min(self._check_expiry_at, anyio.current_time() + seconds)

    def take_if(self, condition: Callable[[Delivery], bool]) -> Sequence[Delivery]:
        """Take all messages for which a condition holds, repeats first."""
        taken: list[Delivery] = []
        for kind in (REPEATS, NEW):
            for line in self._lines.values():
                waiting = list(line.kinds[kind])
                line.kinds[kind].clear()
                for message in waiting:
                    (taken if condition(message) else line.kinds[kind]).append(message)
        self.repeats = sum(len(line.kinds[REPEATS]) for line in self._lines.values())
        self.count = sum(len(line.kinds[NEW]) for line in self._lines.values()) + self.repeats
        for line in list(self._lines.values()):
            if not any(line.kinds):
                self._end(line)
        return taken
