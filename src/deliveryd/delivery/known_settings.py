"""What is known of the settings of an id, and what is open."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import anyio

from deliveryd.errors import ServiceUnavailable, SettingsUnusable
from deliveryd.rendering.content import CompiledSettings


@dataclass(frozen=True, slots=True)
class UsableSettings:
    """The settings of an id: current until `until` (None: for good), and an old copy from then on.

    Messages waited for them in the journal, and use them until `found_until` in any case: otherwise they
    could come back too late again and again.
    """

    until: float | None
    compiled: CompiledSettings
    size: int
    found_until: float = -math.inf

    @property
    def is_current(self) -> bool:
        return self.until is None or self.until > anyio.current_time()

    def answer(self) -> CompiledSettings:
        return self.compiled


@dataclass(frozen=True, slots=True)
class UnusableSettings:
    """Why an id has no usable settings."""

    until: float
    reason: str
    size: int = 0

    def answer(self) -> SettingsUnusable:
        return SettingsUnusable(self.reason)


@dataclass(frozen=True, slots=True)
class UnavailableSettings:
    """Why the settings of an id can't be had before `until`, and how many failures in a row that makes.

    `copy` are those that were had before.
    """

    until: float
    reason: str
    failures: int
    copy: UsableSettings | None = None

    @property
    def size(self) -> int:
        return 0 if self.copy is None else self.copy.size

    def answer(self) -> ServiceUnavailable:
        return ServiceUnavailable(self.reason, max(self.until - anyio.current_time(), 0.0))


KnownSettings = UsableSettings | UnusableSettings | UnavailableSettings


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
