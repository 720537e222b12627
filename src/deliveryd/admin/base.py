"""What the administrative pages need to know of the running worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class HealthSource(Protocol):
    """The worker's signs of life. Every answer is at hand: none of them waits for anything."""

    def alive(self) -> tuple[bool, Sequence[tuple[str, float]]]:
        """Whether all loops turn, and per loop its name and the seconds since it last turned.

        A provider or a service that is down doesn't make it false (design 6).
        """

    def ready(self) -> tuple[bool, str]:
        """Whether work is being taken, and a sentence that says why or why not."""

    def status(self) -> Mapping[str, object]:
        """All there is to know at a glance, as JSON; without texts, names, addresses or secrets."""
