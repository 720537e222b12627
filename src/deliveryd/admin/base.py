"""The interface between the administrative pages and the running worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from deliveryd.delivery.tail import Tail, TailFilter
from deliveryd.telemetry.overview import Overview, Points


class HealthSource(Protocol):
    """The worker's health. No method blocks."""

    def alive(self) -> tuple[bool, Sequence[tuple[str, float]]]:
        """Return whether all loops are turning, and each loop's name and seconds since its last turn.

        An outage of a provider or of the service doesn't make it false (design 6).
        """

    def ready(self) -> tuple[bool, str]:
        """Return whether messages are being taken, and the reason as a sentence."""

    def receiving(self) -> tuple[bool, str]:
        """Return whether providers may report here, and the reason as a sentence."""

    def tail(self, wanted: TailFilter) -> Tail:
        """Return a reader of what happens to messages, which begins with its `with` block."""

    def overview(self) -> Overview:
        """Return the state of the worker, without texts, names, addresses or secrets."""

    def hour(self) -> Points:
        """Return what was done in the last hour."""


class Operator(Protocol):
    """What the status page may order. Each raises DeliverydError, or ValueError for what can't be done.

    `reason` is the operator's own, for the record.
    """

    async def pause(
        self, kind: str, key: str, seconds: float | None, reason: str | None
    ) -> Mapping[str, object]:
        """Pause something for this many seconds; None: until it is resumed."""

    async def resume(self, kind: str, key: str, reason: str | None) -> Mapping[str, object]:
        """Resume what is paused."""

    async def failed(self) -> Mapping[str, object]:
        """Return the `reasons` for which messages failed, each with its `count`.

        `complete`: all were counted in time, and all reasons are there.
        """

    async def retry(self, failure: str, reason: str | None) -> Mapping[str, object]:
        """Let messages begin again that failed for this reason."""

    async def reload(self) -> Mapping[str, object]:
        """Read the configuration again, and apply it."""
