"""What is known of the settings of each id, within a bound of memory."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import anyio

from deliveryd.errors import ServiceUnavailable, SettingsUnusable
from deliveryd.rendering.content import CompiledSettings

SETTINGS_MEMORY_BYTES = 32 << 20
MOST_KNOWN = 100_000


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


class SettingsMemory:
    """The latest result for each id, the one that was used last at the end; beyond the bound the first go."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, KnownSettings] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._known))

    def get(self, settings_id: int) -> KnownSettings | None:
        """What is known of an id, also if it isn't current any more."""
        return self._known.get(settings_id)

    def current(self, settings_id: int) -> KnownSettings | None:
        """The same if it is current; it counts as used."""
        known = self._known.get(settings_id)
        if known is None or (known.until is not None and known.until <= anyio.current_time()):
            return None
        self._known.move_to_end(settings_id)
        return known

    def use(self, settings_id: int) -> None:
        """Note that what is known of an id is used."""
        self._known.move_to_end(settings_id)

    def copy_of(self, settings_id: int) -> UsableSettings | None:
        """The settings that were had last, current or old."""
        known = self._known.get(settings_id)
        if isinstance(known, UnavailableSettings):
            return known.copy
        return known if isinstance(known, UsableSettings) else None

    def put(self, settings_id: int, known: KnownSettings) -> None:
        """Keep this of an id."""
        before = self._known.pop(settings_id, None)
        self._size += known.size - (before.size if before is not None else 0)
        self._known[settings_id] = known
        while (self._size > SETTINGS_MEMORY_BYTES and len(self._known) > 1) or len(self._known) > MOST_KNOWN:
            _, oldest = self._known.popitem(last=False)
            self._size -= oldest.size

    def drop(self, settings_id: int) -> None:
        """Know nothing of an id any more."""
        self._size -= self._known.pop(settings_id).size

    def forget(self, settings_id: int) -> bool:
        """Drop what is known of an id but that it failed; return whether there was anything."""
        known = self._known.get(settings_id)
        if isinstance(known, UnavailableSettings):
            self.put(settings_id, replace(known, copy=None))
            return known.copy is not None
        if known is not None:
            self.drop(settings_id)
        return known is not None
