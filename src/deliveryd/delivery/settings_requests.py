"""Which settings are requested, and in which order: more ids may wait than may be requested at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio

from deliveryd.delivery.settings_memory import KnownSettings
from deliveryd.runtime.waits import PROMPT


@dataclass(slots=True)
class OpenRequest:
    """An id that is asked for, or will be; `done` is set with the next result, which is `known` then.

    `waited_for` is when a message last began to wait for it in the journal; None: none does. `repeat_at` is
    when it is asked for once more; None: a request is under way, or waits for its slot.
    """

    since: float
    done: anyio.Event = field(default_factory=anyio.Event)
    known: KnownSettings | None = None
    waited_for: float | None = None
    repeat_at: float | None = None

    def wait(self) -> None:
        """A message begins to wait for it in the journal."""
        self.waited_for = anyio.current_time()

    def repeat(self, at: float | None) -> None:
        """Ask for it once more then; None: now."""
        self.repeat_at = at

    def settle(self, known: KnownSettings, *, goes_on: bool) -> None:
        """This is the result; if it goes on, the next one is waited for anew."""
        self.known = known
        self.done.set()
        if goes_on:
            self.done = anyio.Event()

    async def result(self) -> KnownSettings:
        """What the next request finds, or the one under way."""
        known = None
        while known is None:
            await self.done.wait()
            known = self.known
        return known


GIVES_WAY = 1.0
"""Seconds that a request may take before it is cut off for a new id that finds no slot."""


class RequestSlot(NamedTuple):
    """A request that may begin; its scope is cancelled when it has to give way."""

    id: int
    scope: anyio.CancelScope


class _RunningRequest(NamedTuple):
    began: float
    is_repeat: bool
    scope: anyio.CancelScope


class RequestSlots:
    """Hands out slots for requests: `most` at a time, half of them at most to repeats and slow requests.

    So ids that fail or hang leave half of the slots to new ones. When more than that hang, the longest
    request gives way to a new id. Of the new ones the latest goes first: those before it may hang.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._new: list[int] = []
        self._repeats: deque[int] = deque()
        self._under_way: dict[int, _RunningRequest] = {}  # the longest first

    def add(self, id_: int) -> None:
        """This id is wanted for the first time."""
        self._new.append(id_)

    def add_repeat(self, id_: int) -> None:
        """This id is to be requested once more, after a failure."""
        self._repeats.append(id_)

    def begin(self) -> list[RequestSlot]:
        """The requests that may begin now."""
        now = anyio.current_time()
        slots = []
        while self._new and (len(self._under_way) < self._most or self._cut_off(now)):
            slots.append(self._begin(self._new.pop(), now, is_repeat=False))
        if self._repeats:
            most = min(self._most // 2 - self._slow(now), self._most - len(self._under_way))
            ids = [self._repeats.popleft() for _ in range(min(most, len(self._repeats)))]
            slots += [self._begin(id_, now, is_repeat=True) for id_ in ids]
        return slots

    def end(self, slot: RequestSlot) -> None:
        """This request has ended, however it did."""
        request = self._under_way.get(slot.id)
        if request is not None and request.scope is slot.scope:
            del self._under_way[slot.id]

    def wait(self) -> float | None:
        """Seconds until a request may give way to one that waits; None when none has to."""
        if not self._new or not self._under_way:
            return None
        longest = next(iter(self._under_way.values()))
        return max(longest.began + GIVES_WAY - anyio.current_time(), 0.0)

    def _begin(self, id_: int, now: float, *, is_repeat: bool) -> RequestSlot:
        scope = anyio.CancelScope()
        self._under_way[id_] = _RunningRequest(now, is_repeat, scope)
        return RequestSlot(id_, scope)

    def _slow(self, now: float) -> int:
        return sum(request.is_repeat or now - request.began > PROMPT for request in self._under_way.values())

    def _cut_off(self, now: float) -> bool:
        """Cut the longest request off, if it may be; return whether there is a slot now."""
        id_, request = next(iter(self._under_way.items()))
        if now < request.began + GIVES_WAY:  # as `wait` computes it, to the last bit
            return False
        request.scope.cancel()
        del self._under_way[id_]
        return True
