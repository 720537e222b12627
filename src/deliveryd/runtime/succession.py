"""Something that is replaced while it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class _InUse(Generic[T]):
    """A value with the number of its uses; `unused` is set when there are none, once it was replaced."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.uses = 0
        self.unused: anyio.Event | None = None


class Succession(Generic[T]):
    """A value and its successors: each use ends with the value that it began with."""

    def __init__(self, first: T) -> None:
        self._held = _InUse(first)

    @property
    def current(self) -> T:
        """The value for a use that begins and ends now."""
        return self._held.value

    @contextmanager
    def use(self) -> Iterator[T]:
        """Use the current value; it counts as used until the end."""
        held = self._held
        held.uses += 1
        try:
            yield held.value
        finally:
            held.uses -= 1
            if held.unused is not None and not held.uses:
                held.unused.set()

    def replace(self, successor: T) -> anyio.Event:
        """Let new uses have the successor; the event is set when no use of the old value is left."""
        before, self._held = self._held, _InUse(successor)
        before.unused = anyio.Event()
        if not before.uses:
            before.unused.set()
        return before.unused
